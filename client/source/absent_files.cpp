#include "client/source/absent_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <span>
#include <utility>

#include "daemon/core/base/regular_file.h"

namespace cgdebug::source {
namespace {

namespace fs = std::filesystem;

std::string MoreLikeIt(std::size_t count) {
  return count > 1 ? fmt::format(", and {} more {} not", count - 1, count == 2 ? "is" : "are") : "";
}

void AddReplays(const std::vector<SafetensorsFile>& files, std::vector<std::string>* sentences) {
  std::set<std::pair<int, std::uint64_t>> here;
  std::map<int, std::set<std::uint64_t>> absent;  // by rank
  for (const SafetensorsFile& file : files) here.emplace(file.rank, file.replay);
  for (const SafetensorsFile& file : files) {
    for (const std::uint64_t replay : {file.replay_before, file.replay_after}) {
      if (replay != 0 && !here.contains({file.rank, replay})) absent[file.rank].insert(replay);
    }
  }
  for (const auto& [rank, replays] : absent) {
    sentences->push_back(fmt::format("the file of replay {}{} is not here{}", *replays.begin(),
                                     rank < 0 ? "" : fmt::format(" of rank {}", rank),
                                     replays.size() > 1 ? ", and others are not" : ""));
  }
}

void AddRanks(const std::vector<SafetensorsFile>& files, std::vector<std::string>* sentences) {
  std::set<int> here, wanted;
  for (const SafetensorsFile& file : files) {
    here.insert(file.rank);
    wanted.insert(file.ranks.begin(), file.ranks.end());
  }
  std::vector<int> absent;
  std::ranges::set_difference(wanted, here, std::back_inserter(absent));
  if (absent.empty()) return;
  sentences->push_back(fmt::format("the files of rank {} are not here{}", absent.front(),
                                   MoreLikeIt(absent.size())));
}

// "model-00001-of-00004.safetensors"; some count from 0.
std::set<std::string> ShardsByTheirNames(const std::vector<SafetensorsFile>& files) {
  constexpr std::uint64_t kMost = 100'000;  // a name is not trusted
  static const std::regex kShard(R"((.*)-(\d{2,6})-of-(\d{2,6})(\.safetensors))");
  std::set<std::string> names;
  for (const SafetensorsFile& file : files) names.insert(fs::path(file.path).filename().string());
  std::set<std::string> wanted;
  for (const std::string& name : names) {
    std::smatch match;
    if (!std::regex_match(name, match, kShard)) continue;
    const std::string before = match.str(1), total = match.str(3);
    const auto name_of = [&](std::uint64_t number) {
      return fmt::format("{}-{:0{}}-of-{}.safetensors", before, number, match.length(2), total);
    };
    const std::uint64_t count = std::min<std::uint64_t>(std::stoull(total), kMost);
    const std::uint64_t first = names.contains(name_of(0)) ? 0 : 1;
    if (wanted.contains(name_of(first)) && wanted.contains(name)) continue;  // told by another one
    for (std::uint64_t i = first; i < first + count; ++i) wanted.insert(name_of(i));
  }
  return wanted;
}

std::set<std::string> ShardsOfIndexes(const std::string& folder,
                                      std::vector<std::string>* sentences) {
  constexpr std::uint64_t kMaxBytes = 256 << 20;
  std::set<std::string> wanted;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().string().ends_with(".safetensors.index.json")) continue;
    const auto fd = OpenRegularFile(entry.path().string(), O_RDONLY);
    struct stat status = {};
    std::string text;
    if (fd.ok() && ::fstat(fd->get(), &status) == 0) {
      text.resize(std::min(kMaxBytes, static_cast<std::uint64_t>(status.st_size)));
      text.resize(ReadAt(fd->get(), 0, std::as_writable_bytes(std::span(text))));
    }
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
      sentences->push_back(fmt::format("{} is no index: which files belong together is not known",
                                       entry.path().filename().string()));
      continue;
    }
    for (const auto& [tensor, file] : json["weight_map"].items()) {
      if (file.is_string()) wanted.insert(file.get<std::string>());
    }
  }
  return wanted;
}

void AddShards(const std::string& folder, const std::vector<SafetensorsFile>& files,
               std::vector<std::string>* sentences) {
  std::set<std::string> wanted = ShardsByTheirNames(files);
  wanted.merge(ShardsOfIndexes(folder, sentences));
  for (const SafetensorsFile& file : files) wanted.erase(fs::path(file.path).filename().string());
  if (wanted.empty()) return;
  sentences->push_back(fmt::format("{} is not here{}", *wanted.begin(), MoreLikeIt(wanted.size())));
}

}  // namespace

std::vector<std::string> AbsentFiles(const std::string& folder,
                                     const std::vector<SafetensorsFile>& files) {
  std::vector<std::string> sentences;
  AddReplays(files, &sentences);
  AddRanks(files, &sentences);
  AddShards(folder, files, &sentences);
  return sentences;
}

}  // namespace cgdebug::source
