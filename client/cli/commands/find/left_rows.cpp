#include "client/cli/commands/find/left_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/ops/op_log.h"
#include "client/cli/exit_codes.h"
#include "client/live/live_source.h"
#include "client/source/source.h"

namespace cgdebug::cli {
namespace {

using analysis::OpRow;

// The replay that was run again.
struct Asked {
  std::string job;
  std::uint64_t capture = 0;
  std::int64_t replay = 0;
};

// Something that it left, and what the second run made of it as the job told it: [op, elements,
// hash, ordered hash].
struct Pair {
  Json place;        // how an answer names it
  std::string text;  // likewise, in words
  numerics::Stats left;
  Json again;
};

// The names that one of them has alone.
template <typename Left, typename NameOf>
std::set<std::string> NamedOnce(const std::vector<Left>& all, const NameOf& name_of) {
  std::map<std::string, std::size_t> times;
  for (const Left& one : all) ++times[name_of(one)];
  std::set<std::string> once;
  for (const auto& [name, count] : times) {
    if (count == 1) once.insert(name);
  }
  return once;
}

struct Log {
  std::size_t rows = 0;
  std::vector<Pair> pairs;
};

Log PairsOfLog(Context& context, const Asked& asked, const Json& again) {
  if (again.empty()) return {};
  const std::string graph = asked.capture > 0 ? std::to_string(asked.capture) : "";
  Result<live::LiveLog> log =
      live::OpenLiveLog(context.client(), asked.job, graph, [](int) { return true; });
  if (!log.ok()) return {};
  std::vector<std::string> others;
  const Result<analysis::OpLog> left = analysis::ReadOpLog(
      *log->source, {.graph = log->is_whole ? graph : "", .replay = asked.replay}, &others);
  if (!left.ok()) return {};
  const std::set<std::string> once =
      NamedOnce(left->rows, [](const OpRow& row) { return row.name; });
  Log found{.rows = left->rows.size(), .pairs = {}};
  for (const OpRow& row : left->rows) {
    const auto told = again.find(row.name);
    if (told == again.end() || !row.stats || told->at(0) != row.op || !once.contains(row.name)) {
      continue;
    }
    found.pairs.push_back({.place = {{"row", {{"number", row.number}, {"name", row.name}}}},
                           .text = fmt::format("row #{} {}", row.number, row.name),
                           .left = *row.stats,
                           .again = *told});
  }
  return found;
}

// What probes saw, such as those of watched modules.
std::vector<Pair> PairsOfProbes(Context& context, const Asked& asked, const Json& again) {
  if (again.empty() || asked.replay <= 0) return {};
  const Result<std::unique_ptr<source::Source>> source =
      live::OpenLive(context.client(), asked.job);
  if (!source.ok()) return {};
  const std::vector<source::Slot>& slots = (*source)->slots();
  std::vector<std::size_t> of_graph;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const source::Slot& slot = slots[i];
    const bool is_of_graph = slot.graph_id == asked.capture && slot.op.empty();
    if (is_of_graph && slot.part.empty()) of_graph.push_back(i);
  }
  std::ranges::stable_sort(of_graph, {}, [&](std::size_t i) { return slots[i].order; });
  const auto name_of = [&](std::size_t i) { return slots[i].probe; };
  const std::set<std::string> once = NamedOnce(of_graph, name_of);
  std::vector<Pair> pairs;
  for (const std::size_t i : of_graph) {
    const auto told = again.find(slots[i].probe);
    if (told == again.end() || !once.contains(slots[i].probe)) continue;
    const auto key = (*source)->Find(i, static_cast<std::uint64_t>(asked.replay));
    if (!key.ok() || !*key) continue;
    const Result<source::Snapshot> snapshot = (*source)->Get(i, **key);
    if (!snapshot.ok() || !snapshot->stats) continue;
    pairs.push_back({.place = {{"probe", slots[i].probe}},
                     .text = "what probe " + slots[i].probe + " saw",
                     .left = *snapshot->stats,
                     .again = *told});
  }
  return pairs;
}

bool CanBeCompared(const Pair& pair) {
  return pair.left.has_hash && pair.again.at(1) == pair.left.count;
}

bool IsSame(const Pair& pair) {
  return pair.again.at(2) == fmt::format("{:016x}", pair.left.hash) &&
         (!pair.left.has_ordered_hash ||
          pair.again.at(3) == fmt::format("{:08x}", pair.left.ordered_hash));
}

// How many are the same; nothing if one is not: the answer is then another one.
std::optional<std::size_t> Compare(const std::vector<Pair>& pairs, const Asked& asked,
                                   std::string_view where, JobAnswer* answer) {
  std::size_t same = 0;
  for (const Pair& pair : pairs) {
    if (!CanBeCompared(pair)) continue;
    if (IsSame(pair)) {
      ++same;
      continue;
    }
    answer->code = kExitInconclusive;
    answer->text = fmt::format(
        "not reproduced: replay {}, run again, makes other bits than it left in {}, first in {}. "
        "The {} before it that can be compared have the same bits",
        asked.replay, where, pair.text, same);
    if (const std::string script = answer->json.value("script", ""); !script.empty()) {
      answer->text += fmt::format(". What was written has what the second run made: {}", script);
    }
    answer->json = {{"verdict", "inconclusive"},
                    {"reason", "not_reproduced"},
                    {"graph", answer->json.value("graph", "")},
                    {"replay", asked.replay},
                    {"error", answer->text}};
    answer->json.update(pair.place);
    return std::nullopt;
  }
  return same;
}

// Takes what is called so out of the answer.
Json Take(JobAnswer* answer, const char* name) {
  Json taken = answer->json.value(name, Json::object());
  answer->json.erase(name);
  return taken;
}

}  // namespace

void CompareLeftRows(Context& context, std::int64_t pid, JobAnswer* answer) {
  const Json rows = Take(answer, "hashes");
  const Json probes = Take(answer, "hashes_of_probes");
  const Asked asked{.job = std::to_string(pid),
                    .capture = answer->json.value("capture", std::uint64_t{0}),
                    .replay = answer->json.value("replay", std::int64_t{0})};
  const Log log = PairsOfLog(context, asked, rows);
  const auto same_rows = Compare(log.pairs, asked, "its op log", answer);
  if (!same_rows) return;
  const std::vector<Pair> seen = PairsOfProbes(context, asked, probes);
  const auto same_seen = Compare(seen, asked, "its probes", answer);
  if (!same_seen) return;
  if (*same_rows > 0) {
    answer->text += fmt::format(
        "\n{} of the {} rows that the replay left in its op log were compared, and have the same "
        "bits",
        *same_rows, log.rows);
    answer->json["rows_compared"] = *same_rows;
  }
  if (*same_seen > 0) {
    answer->text += fmt::format("\nwhat {} saw in the replay was compared, and has the same bits",
                                *same_seen == 1 ? "a probe" : fmt::format("{} probes", *same_seen));
    answer->json["probes_compared"] = *same_seen;
  }
}

}  // namespace cgdebug::cli
