#include "client/analysis/ops/op_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "client/analysis/gaps.h"
#include "client/analysis/wording.h"

namespace cgdebug::analysis {
namespace {

using OpLogName = std::pair<std::string, std::size_t>;  // name and number of an op log
using OpReplays = std::vector<OpReplay>;
using OpReplayPairs = std::vector<std::pair<OpReplay, OpReplay>>;

std::map<OpLogName, std::map<std::uint64_t, OpReplay>> ByLog(const OpReplays& replays) {
  std::map<OpLogName, std::map<std::uint64_t, OpReplay>> logs;
  for (const OpReplay& one : replays) logs[{one.name, one.nth}][one.replay] = one;
  return logs;
}

constexpr std::size_t kMaxMissingLines = 8;

std::string NameOfLog(const OpLogName& log) {
  return log.second == 0 ? log.first : fmt::format("{}#{}", log.first, log.second + 1);
}

// "calls 3..5", "replay 7 of bs=8". Requires: `numbers` are of `replays`, at least one.
std::string ReplaysText(const OpLogName& log, const std::map<std::uint64_t, OpReplay>& replays,
                        const std::vector<std::uint64_t>& numbers) {
  const bool are_calls = !replays.begin()->second.rows.empty();
  return fmt::format("{}{} {}{}", are_calls ? "call" : "replay", numbers.size() == 1 ? "" : "s",
                     RangesText(numbers), are_calls ? "" : " of " + NameOfLog(log));
}

// Sentences about the logs and replays of one side that the other lacks.
void TellOnly(const std::map<OpLogName, std::map<std::uint64_t, OpReplay>>& here,
              const std::map<OpLogName, std::map<std::uint64_t, OpReplay>>& there, const char* side,
              std::vector<std::string>* missing) {
  for (const auto& [log, replays] : here) {
    const auto other = there.find(log);
    if (other == there.end()) {
      missing->push_back(fmt::format("the op log of {} is only in {}", NameOfLog(log), side));
      continue;
    }
    std::vector<std::uint64_t> only;
    for (const auto& [number, replay] : replays) {
      if (!other->second.contains(number)) only.push_back(number);
    }
    if (only.empty()) continue;
    missing->push_back(fmt::format("{} {} only in {}", ReplaysText(log, replays, only),
                                   only.size() == 1 ? "is" : "are", side));
  }
}

bool AreCalls(const OpReplays& replays) {
  return std::ranges::all_of(replays, [](const OpReplay& one) { return !one.rows.empty(); });
}

// Two runs in one process share no number of a call: their n-th calls are pairs then. Gives those
// of B the numbers of A; what is left over keeps its own.
void NumberLike(const OpReplays& a, OpReplays* b) {
  if (!AreCalls(a) || !AreCalls(*b)) return;
  std::set<std::uint64_t> of_a, of_b;
  for (const OpReplay& one : a) of_a.insert(one.replay);
  for (const OpReplay& one : *b) of_b.insert(one.replay);
  const auto is_common = [&](std::uint64_t number) { return of_a.contains(number); };
  if (std::ranges::any_of(of_b, is_common)) return;
  std::map<std::uint64_t, std::uint64_t> like;
  for (auto x = of_a.begin(), y = of_b.begin(); x != of_a.end() && y != of_b.end(); ++x, ++y) {
    like[*y] = *x;
  }
  for (OpReplay& one : *b) {
    one.own_replay = one.replay;
    if (const auto number = like.find(one.replay); number != like.end()) {
      one.replay = number->second;
    }
  }
}

// A sentence about the replays of a log before its newest.
void TellOlder(const OpLogName& log, const std::map<std::uint64_t, OpReplay>& replays,
               const char* side, std::vector<std::string>* missing) {
  std::vector<std::uint64_t> older;
  for (const auto& [number, replay] : replays) older.push_back(number);
  older.pop_back();
  if (older.empty()) return;
  missing->push_back(
      fmt::format("{} of {}: A and B have other replays, and only the newest of "
                  "each were compared",
                  ReplaysText(log, replays, older), side));
}

// The pairs of two logs of different names, each the only one.
OpReplayPairs PairOnly(const std::map<std::uint64_t, OpReplay>& a,
                       const std::map<std::uint64_t, OpReplay>& b) {
  OpReplayPairs pairs;
  for (const auto& [number, replay] : a) {
    const auto other = b.find(number);
    if (other != b.end()) pairs.push_back({replay, other->second});
  }
  if (pairs.size() == a.size() && pairs.size() == b.size()) return pairs;
  return {{a.rbegin()->second, b.rbegin()->second}};
}

OpReplayPairs PairUp(const OpReplays& a, const OpReplays& b, OpRunsDiff* runs) {
  const auto of_a = ByLog(a), of_b = ByLog(b);
  if (of_a.size() == 1 && of_b.size() == 1 && of_a.begin()->first != of_b.begin()->first) {
    OpReplayPairs pairs = PairOnly(of_a.begin()->second, of_b.begin()->second);
    runs->is_newest_alone =
        pairs.size() < std::max(of_a.begin()->second.size(), of_b.begin()->second.size());
    if (runs->is_newest_alone) {
      TellOlder(of_a.begin()->first, of_a.begin()->second, "A", &runs->missing);
      TellOlder(of_b.begin()->first, of_b.begin()->second, "B", &runs->missing);
    }
    return pairs;
  }
  OpReplayPairs pairs;
  for (const OpReplay& one : a) {
    const auto log = of_b.find({one.name, one.nth});
    if (log == of_b.end()) continue;
    const auto other = log->second.find(one.replay);
    if (other != log->second.end()) pairs.push_back({one, other->second});
  }
  TellOnly(of_a, of_b, "A", &runs->missing);
  TellOnly(of_b, of_a, "B", &runs->missing);
  return pairs;
}

// What a source lacks of the logs that `graph` means, in sentences.
Result<std::vector<std::string>> GapsOfLogs(source::Source& source, const std::string& graph) {
  const Result<std::vector<std::size_t>> rows = SlotsOfOpLogs(source, graph);
  if (!rows.ok()) return rows.error();
  const std::set<std::size_t> wanted(rows->begin(), rows->end());
  const auto is_row = [&](const source::Slot& slot) {
    return wanted.contains(static_cast<std::size_t>(&slot - source.slots().data()));
  };
  const auto is_job = [&](const source::Slot&) { return graph.empty(); };
  GapSummary gaps = SummarizeGaps(source, {.wants_slot = is_row});
  if (!gaps.goes_on.empty()) gaps.sentences.push_back(std::move(gaps.goes_on));
  for (std::string& gap : OpGapsOf(source, is_row, is_job)) {
    gaps.sentences.push_back(std::move(gap));
  }
  return std::move(gaps.sentences);
}

// Adds what the sides lack to what was not compared, unless the replays that are shown say it.
Result<void> AddGapsOfSides(source::Source& a, const std::string& graph_a, source::Source& b,
                            const std::string& graph_b, OpRunsDiff* runs) {
  for (const auto& [source, graph, side] :
       {std::tuple(&a, &graph_a, "A"), std::tuple(&b, &graph_b, "B")}) {
    const Result<std::vector<std::string>> gaps = GapsOfLogs(*source, *graph);
    if (!gaps.ok()) return gaps.error();
    for (const std::string& gap : *gaps) {
      std::string sentence = fmt::format("{}: {}", side, gap);
      if (std::ranges::find(runs->diff.missing, sentence) != runs->diff.missing.end()) continue;
      runs->missing.push_back(std::move(sentence));
    }
  }
  return {};
}

// Where an input that differs was written: an op of an earlier replay that only one of the two ran,
// or nothing that was logged.
std::string WriterText(const OpRunsDiff& runs) {
  if (runs.verdict() != OpDiff::Verdict::kDifferent || !runs.diff.first_different) return "";
  const OpPair& pair = runs.diff.pairs[*runs.diff.first_different];
  const OpRow& row = runs.a.rows[pair.a];
  if (row.op != "input") return "";
  if (row.shape != runs.b.rows[pair.b].shape) {
    return fmt::format(
        "{} is an input, and has another shape in B. If that is meant, as where one run keeps a "
        "cache, they part at the first op that one of them alone has",
        row.name);
  }
  if (!runs.earlier.empty() || !runs.missing.empty()) {
    return fmt::format("{} is an input: what wrote it may be among what was not compared",
                       row.name);
  }
  if (runs.compared == 1)
    return fmt::format("{} is an input, and differs from the start", row.name);
  return fmt::format(
      "{} is an input, and no row of the replays before it differs: what wrote it is in no log",
      row.name);
}

// Where the replay that differs stands among those that were compared.
std::string RunsText(const OpRunsDiff& runs) {
  const std::size_t before = runs.compared - 1;
  return fmt::format(
      "in {} (A) against {} (B), {}{}", runs.a.RunText(), runs.b.RunText(),
      before == 0             ? "the first that was compared"
      : !runs.earlier.empty() ? fmt::format("what was compared of the {} before it agrees", before)
      : before == 1           ? "the one before it does not differ"
                              : fmt::format("the {} before it do not differ", before),
      runs.compared < runs.pairs
          ? fmt::format("; nothing after it was compared: {} more", runs.pairs - runs.compared)
          : "");
}

}  // namespace

Result<OpRunsDiff> DiffOpRuns(source::Source& a, const std::string& graph_a, source::Source& b,
                              const std::string& graph_b) {
  Result<OpReplays> of_a = ListOpReplays(a, graph_a);
  if (!of_a.ok()) return of_a.error();
  Result<OpReplays> of_b = ListOpReplays(b, graph_b);
  if (!of_b.ok()) return of_b.error();
  NumberLike(*of_a, &*of_b);
  for (auto [source, replays] : {std::pair(&a, &*of_a), std::pair(&b, &*of_b)}) {
    if (!replays->empty()) continue;
    return Error{
        fmt::format("{} keeps no replay of its op log: its graph has not been replayed, or "
                    "they are gone",
                    source->Describe().path)};
  }
  OpRunsDiff runs;
  const OpReplayPairs pairs = PairUp(*of_a, *of_b, &runs);
  runs.pairs = pairs.size();
  bool is_inconclusive = false;
  for (const auto& [place_a, place_b] : pairs) {
    Result<OpLog> log_a = ReadOpReplay(a, place_a, graph_a.empty());
    if (!log_a.ok()) return log_a.error();
    Result<OpLog> log_b = ReadOpReplay(b, place_b, graph_b.empty());
    if (!log_b.ok()) return log_b.error();
    OpDiff diff = DiffOpLogs(*log_a, *log_b);
    ++runs.compared;
    runs.rows += diff.pairs.size() - diff.unknown;
    const bool is_different = diff.verdict() == OpDiff::Verdict::kDifferent;
    if (is_different && is_inconclusive) {
      for (const std::string& sentence : runs.diff.missing) {
        runs.earlier.push_back(fmt::format("{}: {}", runs.a.RunText(), sentence));
      }
    }
    if (is_different || !is_inconclusive) {
      is_inconclusive = diff.verdict() == OpDiff::Verdict::kInconclusive;
      runs.a = *std::move(log_a);
      runs.b = *std::move(log_b);
      runs.diff = std::move(diff);
    }
    if (is_different) break;
  }
  if (pairs.empty()) runs.diff.missing.push_back("the two have no replay in common");
  if (Result<void> added = AddGapsOfSides(a, graph_a, b, graph_b, &runs); !added.ok()) {
    return added.error();
  }
  return runs;
}

Answer OpRunsAnswer(const OpRunsDiff& runs) {
  const OpDiff& diff = runs.diff;
  Answer answer;
  const auto add = [&](const std::string& text) { answer.Add(Severity::kPlain, text); };
  const bool is_of_one = runs.pairs <= 1 || runs.verdict() == OpDiff::Verdict::kDifferent;
  answer.Add(SeverityOf(runs.verdict()),
             is_of_one ? fmt::format("{}: {} compared, {} differ", NameOf(runs.verdict()),
                                     Count(diff.pairs.size() - diff.unknown, "row"), diff.different)
                       : fmt::format("{}: {} rows compared in {} replays, 0 differ",
                                     NameOf(runs.verdict()), runs.rows, runs.compared));
  if (is_of_one) {
    if (runs.pairs > 1) add(RunsText(runs));
    AddDifferences(runs.a, runs.b, diff, &answer);
  } else if (diff.verdict() == OpDiff::Verdict::kInconclusive) {
    add(fmt::format("first in {}:", runs.a.RunText()));
    AddDifferences(runs.a, runs.b, diff, &answer);
  }
  if (runs.is_newest_alone) {
    add(fmt::format("compared: {} (A) with {} (B), the newest of each", runs.a.RunText(),
                    runs.b.RunText()));
  }
  if (const std::string writer = WriterText(runs); !writer.empty()) add(writer);
  for (const std::string& sentence : runs.earlier) add("not compared before: " + sentence);
  for (std::size_t i = 0; i < std::min(runs.missing.size(), kMaxMissingLines); ++i) {
    add("not compared: " + runs.missing[i]);
  }
  if (runs.missing.size() > kMaxMissingLines) {
    add(fmt::format("not compared: {} more", runs.missing.size() - kMaxMissingLines));
  }
  return answer;
}

Json OpRunsJson(const OpRunsDiff& runs) {
  Json json = OpDiffJson(runs.a, runs.b, runs.diff);
  json["verdict"] = NameOf(runs.verdict());
  json["replays_compared"] = runs.compared;
  json["replays_in_common"] = runs.pairs;
  json["rows_compared"] = runs.rows;
  json["newest_alone"] = runs.is_newest_alone;
  json["not_compared_before"] = runs.earlier;
  for (const std::string& sentence : runs.missing) json["missing"].push_back(sentence);
  return json;
}

}  // namespace cgdebug::analysis
