#include "client/analysis/ranks/ranks_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "client/analysis/wording.h"
#include "daemon/core/replicas/shard_text.h"

namespace cgdebug::analysis {
namespace {

constexpr std::size_t kMostValues = 4;  // shown of a difference
constexpr std::size_t kMostNotes = 12;

std::string RanksWords(const RanksReport& report, const std::vector<std::size_t>& rows) {
  return fmt::format("rank{} {}", rows.size() == 1 ? "" : "s", RanksOfRows(report, rows));
}

std::string PlaceText(const RankPlace& place) {
  return fmt::format("{} at {}", place.probe, PositionText(place.position));
}

std::string StatsText(const numerics::Stats& stats) {
  std::string text = fmt::format("l1 {:.9g}, mean {:.9g}, min {:.9g}, max {:.9g}", stats.l1,
                                 stats.mean, stats.min, stats.max);
  if (stats.has_ordered_hash) {
    text = fmt::format("hash {:08x}, ", stats.ordered_hash) + text;
  } else if (stats.has_hash) {
    text = fmt::format("hash in any order {:016x}, ", stats.hash) + text;
  }
  if (stats.nonfinite() > 0) text += fmt::format(", {} NaN or Inf", stats.nonfinite());
  return text;
}

// "step 20" and what the ranks have there.
void AddDifference(const RanksReport& report, const ReplicaDifference& difference,
                   std::string* text) {
  for (std::size_t i = 0; i < std::min(difference.values.size(), kMostValues); ++i) {
    *text += fmt::format("\n  {}: {}", RanksWords(report, difference.values[i].processes),
                         StatsText(difference.values[i].stats));
  }
  if (difference.values.size() > kMostValues) {
    *text +=
        fmt::format("\n  and {} more different values", difference.values.size() - kMostValues);
  }
}

std::string DifferenceText(const RanksReport& report, const ReplicaDifference& difference) {
  const std::string where = fmt::format("{} {} at {}", difference.probe, difference.type,
                                        PositionText(difference.position));
  std::string text;
  if (difference.has_majority) {
    const std::vector<std::size_t> others = difference.Minority();
    text = fmt::format("replicas differ: {}: {} {} not have what {} of {} ranks have", where,
                       RanksWords(report, others), others.size() == 1 ? "does" : "do",
                       difference.ranks - others.size(), difference.ranks);
  } else if (difference.is_scattered) {
    text = fmt::format(
        "replicas differ: {}: {} ranks have too many different values to be replicas of each other",
        where, difference.ranks);
  } else {
    text = fmt::format("replicas differ: {}: a tie of {} ranks: no majority says which is right",
                       where, difference.ranks);
  }
  AddDifference(report, difference, &text);
  if (difference.equal_before > 0) {
    text += fmt::format("\n  before that it was the same on all of them: {}",
                        Count(difference.equal_before, "time"));
  }
  if (difference.distance == replicas::Distance::kWithin) {
    text += "\n  the difference is small: a bit, rather than another computation";
  }
  if (difference.distance == replicas::Distance::kUnknown) {
    text += "\n  by how much is not known: the values were not compared";
  }
  return text;
}

// What a rank saw, the earliest first.
std::string SawText(const RankRow& row) {
  std::vector<std::pair<RankPlace, std::string>> saw;
  if (row.process.first_nonfinite) saw.push_back({*row.process.first_nonfinite, "NaN or Inf"});
  const bool was_close =
      row.first_unequal && (!row.first_different || *row.first_unequal < *row.first_different);
  if (was_close) saw.push_back({*row.first_unequal, "not equal bit for bit"});
  if (row.first_different) saw.push_back({*row.first_different, "differs from the other ranks"});
  if (row.first_missing) saw.push_back({*row.first_missing, "a snapshot is missing"});
  std::ranges::stable_sort(saw, [](const auto& x, const auto& y) { return x.first < y.first; });
  std::string text;
  for (const auto& [place, what] : saw) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; then ", PlaceText(place), what);
  }
  return text;
}

std::string CloseText(const RanksReport& report, const RanksOptions& options) {
  const ReplicaDifference& close = *report.first_close;
  return fmt::format(
      "replicas are not equal bit for bit, but each element is within {:g} of the largest "
      "magnitude, or within two last places of it: first {} at {}. An all-reduce that is not "
      "reproducible does that; --bitwise "
      "makes "
      "it a finding",
      options.tolerance, close.probe, PositionText(close.position));
}

std::string UnknownText(const RanksReport& report) {
  const ReplicaDifference& first = *report.first_unknown;
  return fmt::format(
      "inconclusive: replicas are not equal, and by how much is not known: {} of {} comparisons, "
      "first {} at {}. Their statistics do not tell: an all-reduce that is not "
      "reproducible does that, and so do elements in other places. Record values to compare "
      "(TensorRecord); --bitwise makes it a finding",
      report.unknown, report.compared, first.probe, PositionText(first.position));
}

Json PlaceJson(const std::optional<RankPlace>& place) {
  if (!place) return nullptr;
  Json json{{"probe", place->probe}};
  if (place->position.is_step) {
    json["step"] = place->position.number;
  } else {
    json["replay"] = place->position.number;
  }
  if (place->position.nth > 0) json["nth"] = place->position.nth;
  if (place->replay > 0) json["replay"] = place->replay;
  if (place->is_call) json["call"] = place->replay;
  return json;
}

Json DifferenceJson(const RanksReport& report, const std::optional<ReplicaDifference>& difference) {
  if (!difference) return nullptr;
  Json values = Json::array();
  for (const RankValues& value : difference->values) {
    std::vector<int> ranks;
    for (const std::size_t row : value.processes) ranks.push_back(report.rows[row].process.rank);
    Json one{{"ranks", ranks},
             {"l1", JsonNumber(value.stats.l1)},
             {"mean", JsonNumber(value.stats.mean)},
             {"min", JsonNumber(value.stats.min)},
             {"max", JsonNumber(value.stats.max)}};
    if (value.stats.has_hash) one["xor_hash"] = fmt::format("{:016x}", value.stats.hash);
    if (value.stats.has_ordered_hash) {
      one["ordered_hash"] = fmt::format("{:08x}", value.stats.ordered_hash);
    }
    values.push_back(std::move(one));
  }
  Json json = PlaceJson(RankPlace{.position = difference->position, .probe = difference->probe});
  json["tensor"] = difference->type;
  json["majority"] = difference->has_majority;
  json["minority"] = Json::array();
  for (const std::size_t row : difference->Minority()) {
    json["minority"].push_back(report.rows[row].process.rank);
  }
  json["ranks"] = difference->ranks;
  json["equal_before"] = difference->equal_before;
  json["close"] = difference->distance == replicas::Distance::kWithin;
  json["distance_known"] = difference->distance != replicas::Distance::kUnknown;
  json["values"] = std::move(values);
  return json;
}

}  // namespace

std::string RanksOfRows(const RanksReport& report, const std::vector<std::size_t>& rows) {
  std::set<std::uint64_t> ranks;
  for (const std::size_t row : rows) {
    if (report.rows[row].process.rank >= 0) {
      ranks.insert(static_cast<std::uint64_t>(report.rows[row].process.rank));
    }
  }
  return RangesText({ranks.begin(), ranks.end()});
}

Answer RanksAnswer(const RanksReport& report, const RanksOptions& options) {
  Answer answer;
  if (report.first_bad) {
    const RankRow& row = report.rows[*report.first_bad];
    answer.Add(
        Severity::kBad,
        fmt::format(
            "first bad: {}{}: {}",
            row.process.rank >= 0 ? fmt::format("rank {}", row.process.rank) : row.process.session,
            row.process.restart > 0 ? fmt::format(", restart {}", row.process.restart) : "",
            SawText(row)));
    if (const std::string ranks = RanksOfRows(report, report.bad_beside); !ranks.empty()) {
      answer.Append(fmt::format(". Bad at the same place: rank{} {}",
                                report.bad_beside.size() == 1 ? "" : "s", ranks));
    }
  }
  if (report.first) answer.Add(Severity::kBad, DifferenceText(report, *report.first));
  for (const std::string& told : report.told) {
    answer.Add(Severity::kBad, "replicas differ, as the daemon saw while it ran: " + told);
  }
  if (report.first_unknown) answer.Add(Severity::kBad, UnknownText(report));
  if (report.first_close) answer.Add(Severity::kWarning, CloseText(report, options));
  if (report.missing_count > 0) {
    answer.Add(Severity::kBad,
               fmt::format("{}: {} missing", report.found() ? "incomplete" : "inconclusive",
                           report.missing_count == 1
                               ? "1 snapshot or rank"
                               : fmt::format("{} snapshots or ranks", report.missing_count)));
    for (const std::string& sentence : report.missing) {
      answer.Add(Severity::kPlain, "  " + sentence);
    }
  }
  const std::string compared =
      fmt::format("{} on {}, {}", Count(report.replicas, "replica"),
                  Count(report.rows.size(), "rank"), Count(report.compared, "comparison"));
  if (report.compared == 0) {
    answer.Add(
        Severity::kBad,
        report.rows.size() < 2
            ? "nothing was compared: there is one rank"
            : "nothing was compared: no tensor here says that it is the same on several ranks. "
              "DTensors with Replicate() and the parameters of DistributedDataParallel say so; "
              "name "
              "others, for example: --replicated 'param/*'");
  } else if (!report.found() && !report.first_close && report.complete()) {
    answer.Add(Severity::kGood, fmt::format("same{}: {}: equal by hash and statistics",
                                            report.goes_on ? " so far" : "", compared));
  } else {
    answer.Add(Severity::kPlain,
               fmt::format("compared: {}, {} not equal", compared, report.unequal));
  }
  for (std::size_t i = 0; i < std::min(report.notes.size(), kMostNotes); ++i) {
    answer.Add(Severity::kPlain, "note: " + report.notes[i]);
  }
  return answer;
}

Result<std::optional<RanksReport>> CompareRanks(source::Source& source, const Scope& scope) {
  std::set<int> ranks;
  bool has_replicas = false;
  for (const source::Slot& slot : source.slots()) {
    if (slot.rank < 0 || !scope.Wants(slot)) continue;
    ranks.insert(slot.rank);
    has_replicas =
        has_replicas || replicas::ReplicasOf(slot.shard).kind != replicas::Replication::kNone;
  }
  if (ranks.size() < 2 || !has_replicas) return std::optional<RanksReport>();
  RankFold fold({.scope = scope, .open = [&](const std::string&) { return &source; }});
  if (const Result<void> added = fold.Add(source, source.Describe().path); !added.ok()) {
    return added.error();
  }
  return std::optional<RanksReport>(fold.Finish());
}

Json RanksJson(const RanksReport& report, const RanksOptions& options) {
  Json rows = Json::array();
  for (const RankRow& row : report.rows) {
    const RankProcess& process = row.process;
    rows.push_back({{"rank", process.rank},
                    {"run", process.run},
                    {"restart", process.restart},
                    {"session", process.session},
                    {"host", process.host},
                    {"replay", process.replay},
                    {"step", process.step},
                    {"snapshots", process.snapshots},
                    {"lost", row.lost},
                    {"first_nonfinite", PlaceJson(process.first_nonfinite)},
                    {"replicas", NameOf(row.verdict)},
                    {"compared", row.compared},
                    {"missing", row.missing},
                    {"behind", row.behind},
                    {"repeated", process.repeated.count},
                    {"first_missing", PlaceJson(row.first_missing)},
                    {"first_unequal", PlaceJson(row.first_unequal)},
                    {"first_different", PlaceJson(row.first_different)},
                    {"last", PlaceJson(process.last)},
                    {"clock_offset_s", row.clock_offset_s},
                    {"growing", process.is_growing}});
  }
  Json first_bad = nullptr;
  if (report.first_bad) {
    const RankRow& row = report.rows[*report.first_bad];
    first_bad = {{"rank", row.process.rank},
                 {"restart", row.process.restart},
                 {"session", row.process.session},
                 {"saw", SawText(row)},
                 {"beside", Json::array()}};
    for (const std::size_t at : report.bad_beside) {
      first_bad["beside"].push_back(report.rows[at].process.rank);
    }
  }
  return {{"verdict", report.found()       ? "found"
                      : !report.complete() ? "incomplete"
                      : report.first_close ? "close"
                                           : "same"},
          {"tolerance", options.tolerance},
          {"first_bad", std::move(first_bad)},
          {"first_difference", DifferenceJson(report, report.first)},
          {"first_close", DifferenceJson(report, report.first_close)},
          {"first_unknown", DifferenceJson(report, report.first_unknown)},
          {"unknown", report.unknown},
          {"paired_by", report.by_step ? "step" : "replay"},
          {"replicas", report.replicas},
          {"compared", report.compared},
          {"unequal", report.unequal},
          {"snapshots", report.snapshots},
          {"missing", report.missing},
          {"missing_count", report.missing_count},
          {"told", report.told},
          {"notes", report.notes},
          {"growing", report.goes_on},
          {"ranks", std::move(rows)}};
}

}  // namespace cgdebug::analysis
