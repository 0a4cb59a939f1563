#include "client/source/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "client/source/recording_source.h"
#include "client/source/safetensors_source.h"
#include "daemon/core/numerics/tensor_view.h"
#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/files/remote_files.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::source {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> FilesIn(const std::string& folder, std::string_view extension) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == extension) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

constexpr std::string_view kIndexEnding = ".safetensors.index.json";

bool HasEndingOfSource(const std::string& text) {
  return text.ends_with(".cgrec") || text.ends_with(".safetensors") || text.ends_with(kIndexEnding);
}

// "train-3f2a91/r3": what a session of a distributed job is called.
bool IsLabelOfRank(const std::string& text) {
  const std::size_t mark = text.rfind("/r");
  return mark != std::string::npos && mark + 2 < text.size() &&
         text.find_first_not_of("0123456789", mark + 2) == std::string::npos;
}

}  // namespace

bool HaveJobsEnded(const Source& source) {
  const std::vector<const recording::RecordingReader*> readers = source.Recordings();
  return !readers.empty() && std::ranges::all_of(readers, [](const auto* one) {
    return one->closed() && one->stop_reason() == recording::StopReason::kJobEnded;
  });
}

namespace {

// Whether gap rows of its process tell all of it, and `lacks` none of them.
bool IsToldOfOthers(const Source& source, const NotSeen& process, const layout::NotSeen& what,
                    const std::function<bool(std::size_t)>& lacks) {
  if (!lacks || what.count != 1 || what.name != layout::kToldByGapRows) return false;
  bool is_told = false;
  for (std::size_t slot = 0; slot < source.slots().size(); ++slot) {
    const Slot& row = source.slots()[slot];
    if (row.uuid != process.of.uuid || row.op.gap() == nullptr) continue;
    is_told = true;
    if (lacks(slot)) return false;
  }
  return is_told;
}

}  // namespace

std::vector<std::string> SaidOnce(const std::vector<std::pair<std::string, std::string>>& told) {
  std::vector<std::string> texts;
  for (auto one = told.begin(); one != told.end(); ++one) {
    const std::string &who = one->first, &sentence = one->second;
    const auto says_it = [&](const auto& other) { return other.second == sentence; };
    if (std::find_if(told.begin(), one, says_it) != one) continue;
    const auto more = std::count_if(one + 1, told.end(), says_it);
    const std::string all = more == 0     ? who
                            : who.empty() ? fmt::format("in {} processes", more + 1)
                                          : fmt::format("{} and {} more", who, more);
    texts.push_back(all.empty() ? sentence : fmt::format("{}: {}", all, sentence));
  }
  return texts;
}

std::vector<std::string> NotSeenTexts(const Source& source,
                                      const std::function<bool(const Slot&)>& wants_process,
                                      const std::function<bool(const Slot&)>& looks_at,
                                      const std::function<bool(std::size_t)>& lacks,
                                      bool is_whole) {
  const Description about = source.Describe();
  std::vector<std::pair<std::string, std::string>> told;
  for (const NotSeen& one : about.not_seen) {
    if (!wants_process(one.of)) continue;
    if (is_whole && one.what.kind == layout::NotSeenKind::kNeverSent) continue;
    layout::NotSeen what = one.what;
    const bool was_beside =
        what.gone.count > 0 && std::ranges::any_of(source.slots(), [&](const Slot& slot) {
          return slot.uuid == one.of.uuid && slot.order <= what.gone.order && looks_at(slot);
        });
    if (!was_beside) what = what.Without(what.gone);
    if (what.count == 0 || IsToldOfOthers(source, one, what, lacks)) continue;
    told.emplace_back(about.sessions.size() > 1 ? one.of.session : "", ToText(what));
  }
  return SaidOnce(told);
}

std::vector<AbsentRanks> AbsentRanksOf(const Source& source) {
  constexpr std::uint64_t kMostRanks = 1 << 20;  // a job's own claims are not trusted
  struct Run {
    std::set<std::uint64_t> ranks;
    std::uint64_t world_size = 0;
  };
  std::map<std::string, Run> runs;
  for (const recording::RecordingReader* reader : source.Recordings()) {
    for (const recording::Session& session : reader->sessions()) {
      if (session.rank < 0 || session.world_size <= 0) continue;
      Run& run = runs[session.run_id];
      run.ranks.insert(static_cast<std::uint64_t>(session.rank));
      run.world_size = std::max(run.world_size, static_cast<std::uint64_t>(session.world_size));
    }
  }
  std::vector<AbsentRanks> all;
  for (const auto& [id, run] : runs) {
    AbsentRanks one{.run = runs.size() > 1 ? id : "",
                    .present = run.ranks,
                    .absent = {},
                    .world_size = run.world_size};
    for (std::uint64_t rank = 0; rank < std::min(run.world_size, kMostRanks); ++rank) {
      if (!run.ranks.contains(rank)) one.absent.insert(rank);
    }
    if (!one.absent.empty()) all.push_back(std::move(one));
  }
  return all;
}

std::vector<std::string> RecordingsIn(const std::string& folder) {
  std::vector<std::string> recordings;
  std::error_code ignored;
  if (recording::RecordingReader::IsRecording(folder)) return recordings;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string path = entry.path().string();
    const bool is_named_so = entry.path().extension() == ".cgrec" && entry.is_directory(ignored);
    if (is_named_so || recording::RecordingReader::IsRecording(path)) recordings.push_back(path);
  }
  std::sort(recordings.begin(), recordings.end());
  return recordings;
}

namespace {

// What a folder holds beside its recordings and nobody looks at, in sentences.
std::vector<std::string> LeftAsideIn(const std::string& folder) {
  std::vector<std::string> sentences;
  if (const auto files = FilesIn(folder, ".safetensors"); !files.empty()) {
    sentences.push_back(fmt::format(
        "{}: a folder of recordings is read without its .safetensors files", files.front()));
  }
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string path = entry.path().string();
    if (entry.is_directory(ignored) && !RecordingsIn(path).empty()) {
      sentences.push_back(fmt::format("{} has recordings of its own: give it as a source", path));
    }
  }
  return sentences;
}

}  // namespace

Result<std::optional<Key>> Source::Find(std::size_t slot, std::uint64_t replay,
                                        std::optional<std::uint32_t> iteration) {
  const Result<std::vector<Key>> keys = Keys(slot);
  if (!keys.ok()) return keys.error();
  const std::pair wanted(replay, iteration.value_or(UINT32_MAX));
  const auto behind = std::upper_bound(
      keys->begin(), keys->end(), wanted,
      [](const auto& pair, const Key& key) { return pair < std::pair(key.replay, key.iteration); });
  if (behind == keys->begin()) return std::optional<Key>();
  const Key& found = *(behind - 1);
  const bool is_meant = found.replay == replay && (!iteration || found.iteration == *iteration);
  return is_meant ? std::optional<Key>(found) : std::nullopt;
}

Result<std::optional<Key>> Source::FindBefore(std::size_t slot, std::uint64_t replay) {
  const Result<std::vector<Key>> keys = Keys(slot);
  if (!keys.ok()) return keys.error();
  const auto here = std::ranges::lower_bound(*keys, replay, {}, &Key::replay);
  return here == keys->begin() ? std::nullopt : std::optional(*std::prev(here));
}

Result<std::uint64_t> Source::NewestReplay(std::size_t slot) {
  const Result<std::vector<Key>> keys = Keys(slot);
  if (!keys.ok()) return keys.error();
  return keys->empty() ? std::uint64_t{0} : keys->back().replay;
}

std::vector<std::size_t> Source::MayLack(const std::vector<std::size_t>& slots,
                                         std::uint64_t replay) {
  const std::set<std::size_t> wanted(slots.begin(), slots.end());
  std::set<std::size_t> lacking;
  for (const Gap& gap : Gaps()) {
    const bool is_around =
        gap.after_replay < replay && (gap.before_replay == 0 || gap.before_replay > replay);
    if (is_around && wanted.contains(gap.slot)) lacking.insert(gap.slot);
  }
  return {lacking.begin(), lacking.end()};
}

namespace {
// Atomic: the thread that shows progress reads it.
std::atomic<std::uint64_t> snapshots_read{0}, snapshots_known{0};
}  // namespace

std::uint64_t SnapshotsRead() { return snapshots_read.load(std::memory_order_relaxed); }
std::uint64_t SnapshotsKnown() { return snapshots_known.load(std::memory_order_relaxed); }
void CountSnapshotsKnown(std::uint64_t count) {
  snapshots_known.fetch_add(count, std::memory_order_relaxed);
}
void CountSnapshotRead() { snapshots_read.fetch_add(1, std::memory_order_relaxed); }

// For a source without counters: it holds everything except its gaps.
Result<recording::Account> Source::AccountOf(std::size_t slot) {
  const Result<std::vector<Key>> keys = Keys(slot);
  if (!keys.ok()) return keys.error();
  recording::Account account;
  account.kept = keys->size();
  for (const Gap& gap : Gaps()) {
    if (gap.slot == slot) account.lost[gap.cause] += gap.count;
  }
  account.produced = account.kept + account.lost_count();
  return account;
}

Result<Values> Source::LoadWritable(const Snapshot& snapshot) {
  const Result<Values> values = Load(snapshot);
  if (!values.ok()) return values.error();
  const auto copy =
      std::make_shared<std::vector<std::byte>>(values->bytes.begin(), values->bytes.end());
  return Values{*copy, copy};
}

namespace {

Result<std::unique_ptr<Source>> OpenRemote(std::string url) {
  while (url.ends_with('/') && !url.ends_with("://")) url.pop_back();
  const Result<std::vector<std::string>> recordings = RemoteRecordingsIn(url);
  if (!recordings.ok()) return recordings.error();
  if (recordings->size() == 1 && recordings->front() == url) return OpenRecording(url);
  return OpenRecordings(url, *recordings);
}

}  // namespace

Result<std::vector<std::string>> RemoteRecordingsIn(const std::string& url) {
  const Result<recording::RemoteFiles*> files = recording::FindRemoteFiles(url);
  if (!files.ok()) return files.error();
  const auto entries = (*files)->List(url);
  if (!entries.ok()) return entries.error();
  if (!*entries) return Error{"there is no " + url};
  std::vector<std::string> recordings;
  for (const recording::RemoteEntry& entry : **entries) {
    if (!entry.is_folder && recording::IsSegmentName(entry.name)) return std::vector{url};
    if (!entry.is_folder) continue;
    const std::string path = (url.ends_with('/') ? url : url + "/") + entry.name;
    const auto segments = entry.name.ends_with(".cgrec")
                              ? Result<std::vector<std::string>>(std::vector{path})
                              : recording::ListSegments(path);
    if (!segments.ok()) return segments.error();
    if (!segments->empty()) recordings.push_back(path);
  }
  if (recordings.empty()) {
    return Error{
        fmt::format("{} holds no recording (*.cgrec), the only thing that is read from URLs", url)};
  }
  std::sort(recordings.begin(), recordings.end());
  return recordings;
}

Result<void> Source::Verify(std::size_t /*slot*/, const Key& /*key*/) const { return {}; }

Result<std::unique_ptr<Source>> Open(const std::string& path) {
  if (recording::IsUrl(path)) return OpenRemote(path);
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::exists(status)) {
    return Error{
        fmt::format("{} does not exist. A source is a recording NAME.cgrec, a folder of "
                    "them, a .safetensors file or a folder of those, or a live session: "
                    "cgdebug-cli ps",
                    path)};
  }
  if (path.ends_with(kIndexEnding)) {  // of a checkpoint in several files
    const fs::path folder = fs::path(path).parent_path();
    return Open(folder.empty() ? "." : folder.string());
  }
  if (!fs::is_directory(status)) return OpenSafetensorsFiles(path, {path});
  const fs::directory_iterator entries(path, failure);
  if (failure) return Error{fmt::format("cannot read {}: {}", path, failure.message())};
  if (recording::RecordingReader::IsRecording(path)) return OpenRecording(path);
  if (const auto recordings = RecordingsIn(path); !recordings.empty()) {
    return OpenRecordings(path, recordings, LeftAsideIn(path));
  }
  if (const auto files = FilesIn(path, ".safetensors"); !files.empty()) {
    return OpenSafetensorsFiles(path, files);
  }
  return Error{fmt::format("{} holds neither a recording (*.cgrec) nor a .safetensors file", path)};
}

bool IsWrittenAsPath(const std::string& text) {
  return HasEndingOfSource(text) || (text.find('/') != std::string::npos && !IsLabelOfRank(text));
}

bool LooksLikePath(const std::string& text) {
  std::error_code ignored;
  return IsWrittenAsPath(text) || fs::exists(text, ignored);
}

bool LooksLikeSource(const std::string& text) {
  if (HasEndingOfSource(text)) return true;
  std::error_code ignored;
  return fs::is_directory(text, ignored) &&
         (recording::RecordingReader::IsRecording(text) || !RecordingsIn(text).empty() ||
          !FilesIn(text, ".safetensors").empty());
}

std::uint64_t PlaceInCall(const Slot& slot) {
  if (!slot.counts_calls()) return slot.order;
  return slot.op.row() == nullptr ? slot.order : slot.op.row()->number;
}

Result<numerics::Stats> StatsOf(Source& source, const Snapshot& snapshot) {
  if (snapshot.stats) return *snapshot.stats;
  const Slot& slot = source.slots()[snapshot.slot];
  if (slot.dtype == layout::Dtype::kInvalid) {
    return Error{fmt::format("{}@{} is of dtype {}, which this version cannot read", SlotText(slot),
                             ReplayText(slot, snapshot.key), slot.dtype_name)};
  }
  const Result<Values> values = source.Load(snapshot);
  if (!values.ok()) return values.error();
  const auto view = numerics::MakeTensorView(slot.dtype, slot.shape, values->bytes);
  if (!view.ok()) {
    return Error{fmt::format("{}@{}: {}", SlotText(slot), ReplayText(slot, snapshot.key),
                             view.error().message)};
  }
  return numerics::ComputeStats(*view);
}

}  // namespace cgdebug::source
