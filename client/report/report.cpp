#include "client/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "client/analysis/check/check.h"
#include "client/analysis/check/check_report.h"
#include "client/analysis/diff/diff.h"
#include "client/analysis/diff/diff_report.h"
#include "client/analysis/gaps.h"
#include "client/analysis/ops/audit.h"
#include "client/analysis/ops/op_details.h"
#include "client/analysis/ranks/ranks_report.h"
#include "client/analysis/source_rows.h"
#include "client/report/columns.h"
#include "client/report/page.h"
#include "client/report/picture.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::report {
namespace {

using analysis::SourceRow;
using numerics::Stats;
using source::Key;
using source::Slot;
using source::Snapshot;
using source::Source;

// No screen has more columns.
constexpr std::uint64_t kMostColumnsOfAStrip = 1000;
constexpr std::size_t kLeastStripBytes = 700'000;
constexpr std::size_t kStripBytesOfALine = 900, kMostStripBytes = 1'100'000;
constexpr std::size_t kMostPageBytes = 3 << 20;
// A browser needs seconds for more, and nobody reads them.
constexpr std::size_t kMostLines = 1000;
constexpr std::size_t kLinesBeforeTheFirst = 200, kLinesBehindTheFirst = 50;
constexpr std::size_t kPictureBytes = 250'000;
constexpr std::size_t kHistogramBytes = 200'000;
constexpr std::size_t kBytesOfAHistogram = 90;
constexpr std::size_t kMostGapsListed = 20;

// One slot of one source. In a report of one source, all slots of a place that counts calls, which
// has one for each shape: `row` has the keys of all of them.
struct Probe {
  SourceRow row;
  std::vector<std::size_t> slot_of_key = {};  // of each key of `row`; empty: row.slot
  analysis::Totals totals = {};
  Strip strip{0};
  Json histograms = Json::array();
  std::optional<std::pair<Snapshot, Stats>> last = {};
  std::optional<std::pair<Snapshot, Stats>> first_bad = {};
  Json gaps = Json::array();
  std::size_t gap_count = 0;
  Json findings = Json::array();
  std::string worst = {};  // kind of the worst finding
  Json picture = nullptr;
  bool is_shown = false;
};

struct Side {
  Source* source = nullptr;
  std::string name;
  std::vector<Probe> probes = {};
  std::map<std::size_t, std::size_t> place_of_slot = {};

  const Slot& SlotOf(const Probe& probe) const { return source->slots()[probe.row.slot]; }
  const Slot& SlotOf(const Snapshot& snapshot) const { return source->slots()[snapshot.slot]; }
  Probe* Find(std::size_t slot) {
    const auto found = place_of_slot.find(slot);
    return found == place_of_slot.end() ? nullptr : &probes[found->second];
  }
};

// What the page begins with.
struct Verdict {
  std::string kind;   // found, clear, inconclusive, different, same, empty
  std::string title;  // a sentence
  std::string text;   // all of it
  std::vector<std::string> missing = {};
  std::uint64_t missing_count = 0;
  std::optional<std::size_t> slot = {};  // of the first source
  std::uint64_t replay = 0;              // with `slot`
};

// --- the verdict ---------------------------------------------------------------------------------

std::string Sentence(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

Result<Verdict> CheckedVerdict(Side* side, const analysis::Scope& scope) {
  Source& source = *side->source;
  const Result<analysis::Check> check = analysis::RunCheck(source, {.scope = scope});
  if (!check.ok()) return check.error();
  // Where something cannot be read, nobody knows whether it has probes.
  const bool is_empty = check->slots == 0 && check->missing_count == 0;
  const analysis::Answer answer = analysis::CheckAnswer(source, *check);
  Verdict verdict{.kind = check->found()      ? "found"
                          : check->complete() ? "clear"
                          : is_empty          ? "empty"
                                              : "inconclusive",
                  .title = "",
                  .text = answer.Text(),
                  .missing = check->missing,
                  .missing_count = check->missing_count};
  const std::string path = source.Describe().path;
  verdict.title = !is_empty                ? Sentence(answer.title())
                  : source.slots().empty() ? path + " has no probe."
                                           : path + " has no probe that was asked for.";
  for (const analysis::Finding& finding : check->findings) {
    Probe* const probe = side->Find(finding.slot);
    if (probe == nullptr) continue;
    // Other slots of the place say the same of their calls: the first of them is told.
    const auto is_told = [&](const Json& other) { return other["kind"] == NameOf(finding.kind); };
    const auto told = std::ranges::find_if(probe->findings, is_told);
    const bool is_new = told == probe->findings.end();
    if (is_new || finding.first_replay < (*told)["replay"].get<std::uint64_t>()) {
      Json& place = is_new ? probe->findings.emplace_back() : *told;
      place = {{"kind", NameOf(finding.kind)},
               {"bad", finding.is_bad()},
               {"replay", finding.first_replay},
               {"text", analysis::FindingText(source, finding)}};
    }
    if (!finding.is_bad() || verdict.slot) continue;
    verdict.slot = finding.slot;
    verdict.replay = finding.first_replay;
  }
  if (check->first) {
    verdict.slot = check->first->slot;
    verdict.replay = check->first->snapshot.key.replay;
  }
  return verdict;
}

using Judgements = std::vector<analysis::Judged>;

Result<Verdict> ComparedVerdict(Source& a, Source& b, const analysis::Scope& scope,
                                analysis::Diff* diff, Judgements* judgements) {
  analysis::DiffOptions options;
  options.align.scope = scope;
  options.on_judged = [&](const analysis::Judged& one) { judgements->push_back(one); };
  Result<analysis::Diff> compared = analysis::Compare(a, b, options);
  if (!compared.ok()) return compared.error();
  *diff = *std::move(compared);
  const analysis::Answer answer = analysis::DiffAnswer(a, b, *diff);
  Verdict verdict{.kind = std::string(NameOf(diff->verdict())),
                  .title = Sentence(answer.title()),
                  .text = answer.Text(),
                  .missing = diff->missing,
                  .missing_count = diff->missing_count};
  if (verdict.kind == "incomplete") verdict.kind = "inconclusive";
  if (verdict.kind == "same_in_part") verdict.kind = "same";  // the text says so
  if (diff->first) {
    verdict.slot = diff->probes[diff->first->pair].a;
    verdict.replay = diff->first->a.key.replay;
  }
  return verdict;
}

// What differs between the ranks of a side. Replicas that differ are a finding of their own.
Result<void> AddRanks(const Side& side, const analysis::Scope& scope, Verdict* verdict) {
  const Result<std::optional<analysis::RanksReport>> report =
      analysis::CompareRanks(*side.source, scope);
  if (!report.ok()) return report.error();
  if (!*report) return {};
  const analysis::Answer answer = analysis::RanksAnswer(**report, {.scope = scope});
  verdict->text += "\n\nbetween the ranks of " + side.name + ":\n" + answer.Text();
  const bool is_quiet = verdict->kind == "clear" || verdict->kind == "inconclusive";
  if (!is_quiet || verdict->slot) return {};
  if ((*report)->found()) {
    verdict->kind = "found";
    verdict->title = Sentence(answer.title());
  } else if (!(*report)->complete() && verdict->kind == "clear") {
    verdict->kind = "inconclusive";
    verdict->title = "Nothing found, but the ranks could not all be compared.";
  }
  return {};
}

// What the jobs of the sides told of the memory of their graphs.
std::string MemoryText(const std::vector<Side>& sides) {
  std::string text;
  for (const Side& side : sides) {
    const analysis::Audit audit = analysis::ReadAudit(*side.source);
    for (const analysis::GraphAudit* graph : analysis::GraphsOfPools(audit)) {
      text += fmt::format("{}{}, after {} replays:\n", sides.size() > 1 ? side.name + ": " : "",
                          analysis::GraphText(*graph), graph->replays);
      for (const analysis::PoolMemory& pool : graph->memory) {
        for (const std::string& line : analysis::PoolLines(pool)) text += "  " + line + "\n";
      }
    }
  }
  return text;
}

// --- what is read --------------------------------------------------------------------------------

std::vector<Probe> ProbesOf(std::vector<SourceRow> rows) {
  std::vector<Probe> probes;
  probes.reserve(rows.size());
  for (SourceRow& row : rows) probes.push_back({.row = std::move(row)});
  return probes;
}

// A place in eager code has a slot for each shape, and calls have numbers that all of them share.
// Makes one probe of its slots, and puts them in the order of the program.
std::vector<Probe> MergedByPlace(const Source& source, std::vector<SourceRow> rows) {
  using Place = std::tuple<std::string, std::string, int, std::string, std::uint32_t>;
  std::map<Place, std::size_t> place_of;
  std::vector<std::vector<SourceRow>> groups;
  std::vector<std::uint64_t> order;
  for (SourceRow& row : rows) {
    const Slot& slot = source.slots()[row.slot];
    const std::uint64_t number = source::PlaceInCall(slot);
    const Place place{slot.session, slot.uuid, slot.rank, slot.probe, slot.invocation};
    const auto known = slot.counts_calls() ? place_of.find(place) : place_of.end();
    if (known != place_of.end()) {
      groups[known->second].push_back(std::move(row));
      order[known->second] = std::min(order[known->second], number);
      continue;
    }
    if (slot.counts_calls()) place_of[place] = groups.size();
    groups.emplace_back();
    groups.back().push_back(std::move(row));
    order.push_back(number);
  }
  std::vector<std::size_t> sorted(groups.size());
  std::iota(sorted.begin(), sorted.end(), std::size_t{0});
  const bool are_calls = std::ranges::all_of(groups, [&](const std::vector<SourceRow>& group) {
    return source.slots()[group.front().slot].counts_calls();
  });
  const auto job_and_number = [&](std::size_t i) {
    const Slot& slot = source.slots()[groups[i].front().slot];
    return std::tuple(slot.rank, slot.session, order[i]);
  };
  if (are_calls) std::ranges::stable_sort(sorted, {}, job_and_number);
  std::vector<Probe> merged;
  merged.reserve(groups.size());
  for (const std::size_t i : sorted) {
    const std::vector<SourceRow>& group = groups[i];
    Probe& first = merged.emplace_back(Probe{.row = group.front()});
    if (group.size() > 1) {
      std::vector<std::pair<Key, std::size_t>> keys;
      std::uint64_t lost = 0;
      for (const SourceRow& row : group) {
        for (const Key& key : row.keys) keys.emplace_back(key, row.slot);
        lost += row.lost;
      }
      std::ranges::stable_sort(keys, {}, [](const std::pair<Key, std::size_t>& one) {
        return std::pair(one.first.replay, one.first.iteration);
      });
      first.row.keys.clear();
      first.row.lost = lost;
      for (const auto& [key, slot] : keys) {
        first.row.keys.push_back(key);
        first.slot_of_key.push_back(slot);
      }
    }
  }
  return merged;
}

// The replays that may be missing in a gap. Where it has no end, `count` of them.
std::pair<std::uint64_t, std::uint64_t> ReplaysOf(const source::Gap& gap, const Slot& slot) {
  // The numbers come from a file, and may be any.
  const std::uint64_t first = std::min(gap.after_replay, UINT64_MAX - 1) + 1;
  if (gap.before_replay > 0) {
    // In a conditional body, iterations of one replay may be missing.
    return {std::min(first, gap.before_replay), std::max(first, gap.before_replay - 1)};
  }
  std::uint64_t last = 0;
  const std::uint64_t count = std::max<std::uint64_t>(1, gap.count);
  if (__builtin_mul_overflow(count, std::uint64_t{slot.every}, &last) ||
      __builtin_add_overflow(last, gap.after_replay, &last)) {
    last = UINT64_MAX;
  }
  return {first, std::max(first, last)};
}

// From the first replay that any source has, or misses, to the last one. With so many columns that
// their states alone would fill the page, some would be merged anyway.
Axis AxisOf(std::span<Side> sides, const analysis::Scope& scope, std::size_t most_bytes) {
  std::uint64_t first = UINT64_MAX, last = 0;
  std::size_t strips = 1;
  const auto take = [&](std::uint64_t from, std::uint64_t to) {
    first = std::min(first, from);
    last = std::max(last, to);
  };
  for (const Side& side : sides) {
    strips += std::min(side.probes.size(), kMostLines);
    for (const Probe& probe : side.probes) {
      const std::vector<Key>& keys = probe.row.keys;
      if (!keys.empty()) take(keys.front().replay, keys.back().replay);
    }
    for (const source::Gap& gap : side.source->Gaps()) {
      const Slot& slot = side.source->slots()[gap.slot];
      if (!scope.Wants(slot) || !scope.Wants(gap)) continue;
      const auto [from, to] = ReplaysOf(gap, slot);
      take(std::max(from, scope.first_replay), std::min(to, scope.last_replay));
    }
  }
  const std::uint64_t fitting = std::max(most_bytes, kLeastStripBytes) / strips * 3 / 4;
  return {first, last, std::clamp<std::uint64_t>(fitting, 1, kMostColumnsOfAStrip)};
}

Json HistogramJson(const Slot& slot, const Key& key, const Stats& stats) {
  return {{"replay", ReplayText(slot, key)},
          {"min", JsonNumber(stats.min)},
          {"max", JsonNumber(stats.max)},
          {"counts", stats.histogram}};
}

// One that counts nothing says only why there is none: that no value was finite, or that only
// statistics were recorded. A probe needs each of them once.
bool IsWorthAdding(const Json& histogram, const Json& others) {
  const auto counts_any = [](const Json& one) {
    return std::ranges::any_of(one["counts"], [](const Json& count) { return count != 0; });
  };
  return counts_any(histogram) || std::ranges::none_of(others, [&](const Json& other) {
           return counts_any(other) || other["min"].is_number() || !histogram["min"].is_number();
         });
}

// Reads the snapshots of a probe, one after another.
class ProbeReader {
 public:
  // All outlive it.
  ProbeReader(Source* source, const Axis* axis, std::size_t most_histograms, Probe* probe)
      : source_(source), axis_(axis), probe_(probe) {
    probe->strip = Strip(axis->columns());
    const std::size_t count = probe->row.keys.size();
    for (std::size_t i = 0; i < most_histograms && count > 0; ++i) {
      with_histogram_.insert(i * (count - 1) / std::max<std::size_t>(1, most_histograms - 1));
    }
  }

  bool is_done() const { return next_ == probe_->row.keys.size(); }
  // Requires: !is_done().
  void ReadNext() {
    const std::vector<Key>& keys = probe_->row.keys;
    const std::size_t i = next_++;
    const std::size_t place =
        probe_->slot_of_key.empty() ? probe_->row.slot : probe_->slot_of_key[i];
    const Slot& slot = source_->slots()[place];
    const Result<Snapshot> snapshot = source_->Get(place, keys[i]);
    const Result<Stats> stats =
        snapshot.ok() ? source::StatsOf(*source_, *snapshot) : Result<Stats>(snapshot.error());
    const std::size_t column = axis_->ColumnOf(keys[i].replay);
    if (!stats.ok()) {
      ++probe_->totals.unread;
      probe_->strip.AddUnread(column);
      return;
    }
    probe_->totals.Add(slot, *snapshot, *stats);
    probe_->strip.Add(column, *stats);
    const bool is_first_bad = stats->nonfinite() > 0 && !probe_->first_bad;
    if (is_first_bad) probe_->first_bad = {*snapshot, *stats};
    if (with_histogram_.contains(i) || is_first_bad) {
      Json histogram = HistogramJson(slot, keys[i], *stats);
      if (IsWorthAdding(histogram, probe_->histograms)) {
        probe_->histograms.push_back(std::move(histogram));
      }
    }
    probe_->last = {*snapshot, *stats};
  }

 private:
  Source* source_;
  const Axis* axis_;
  Probe* probe_;
  std::set<std::size_t> with_histogram_;
  std::size_t next_ = 0;
};

void AddGaps(Side* side, const analysis::Scope& scope, const Axis& axis) {
  for (const source::Gap& gap : side->source->Gaps()) {
    Probe* const probe = side->Find(gap.slot);
    if (probe == nullptr || !probe->is_shown || !scope.Wants(gap) || axis.columns() == 0) continue;
    const auto [first, last] = ReplaysOf(gap, side->source->slots()[gap.slot]);
    probe->strip.AddGap(axis.ColumnOf(first), axis.ColumnOf(last));
    if (++probe->gap_count > kMostGapsListed) continue;
    probe->gaps.push_back({{"count", gap.count},
                           {"after", gap.after_replay},
                           {"before", gap.before_replay},
                           {"cause", gap.cause}});
  }
}

// --- the values of one snapshot ------------------------------------------------------------------

// A picture, or a sentence that says why there is none.
Json PictureOf(Source& source, const Slot& slot, const Snapshot& snapshot, std::size_t slices) {
  if (!snapshot.has_values) return "No values were recorded, only statistics.";
  if (slot.dtype == layout::Dtype::kInvalid) return "This version does not know the dtype.";
  const Result<source::Values> values = source.Load(snapshot);
  if (!values.ok()) return "The values cannot be read: " + values.error().message;
  const Result<numerics::TensorView> view =
      numerics::MakeTensorView(slot.dtype, slot.shape, values->bytes);
  if (!view.ok()) return "The values cannot be read: " + view.error().message;
  std::optional<std::uint64_t> marked;
  if (snapshot.stats && snapshot.stats->has_nonfinite) marked = snapshot.stats->first_nonfinite;
  Json picture = PictureJson(*view, slices, marked);
  if (picture.is_null()) return "A scalar, or a tensor without elements, has no image.";
  picture["replay"] = ReplayText(slot, snapshot.key);
  return picture;
}

// Where a probe is at its most interesting: the first replay that differs, else the first with NaN
// or Inf, else the last.
Json PictureOf(Source& source, const Slot& slot, const Probe& probe,
               std::optional<std::uint64_t> replay, std::size_t slices) {
  if (replay) {
    const Result<std::optional<Key>> key = source.Find(probe.row.slot, *replay);
    if (key.ok() && *key) {
      const Result<Snapshot> snapshot = source.Get(probe.row.slot, **key);
      if (snapshot.ok()) return PictureOf(source, slot, *snapshot, slices);
    }
  }
  const auto& shown = probe.first_bad ? probe.first_bad : probe.last;
  if (!shown) return "No snapshot could be read.";
  return PictureOf(source, source.slots()[shown->first.slot], shown->first, slices);
}

// --- as JSON -------------------------------------------------------------------------------------

Json SnapshotJson(const Side& side, const std::optional<std::pair<Snapshot, Stats>>& given) {
  if (!given) return nullptr;
  const auto& [snapshot, stats] = *given;
  const Slot& slot = side.SlotOf(snapshot);
  Json json = analysis::StatsJson(stats);
  json.erase("histogram");
  json["replay"] = ReplayText(slot, snapshot.key);
  json["step"] = snapshot.step;
  json["has_values"] = snapshot.has_values;
  if (stats.has_nonfinite) {
    json["first_nonfinite"]["place"] = numerics::FormatIndex(stats.first_nonfinite, slot.shape);
  }
  return json;
}

bool AreOne(const Snapshot& one, const Snapshot& other) {
  return one.slot == other.slot && one.key.id == other.key.id;
}

// "f32[4,*,64]": * where the shapes of its slots differ.
std::string TypeOf(const Side& side, const Probe& probe) {
  Slot slot = side.SlotOf(probe);
  const std::string own = TypeText(slot);
  std::vector<bool> varies(slot.shape.size());
  bool is_other = false;
  for (const std::size_t index : probe.slot_of_key) {
    const Slot& other = side.source->slots()[index];
    is_other = is_other || other.dtype != slot.dtype || other.shape.size() != slot.shape.size();
    for (std::size_t i = 0; i < varies.size() && !is_other; ++i) {
      if (other.shape[i] != slot.shape[i]) varies[i] = true;
    }
  }
  if (is_other) return own + ", and others";
  if (std::ranges::find(varies, true) == varies.end()) return own;
  std::string text = own.substr(0, own.find('[') + 1);
  for (std::size_t i = 0; i < varies.size(); ++i) {
    text += (i == 0 ? "" : ",") + (varies[i] ? "*" : std::to_string(slot.shape[i]));
  }
  return text + "]";
}

Json ProbeJson(const Side& side, const Probe& probe) {
  const Slot& slot = side.SlotOf(probe);
  Json json = analysis::TotalsJson(slot, probe.row, probe.totals);
  json["name"] = SlotName(slot);
  json["selector"] = probe.slot_of_key.empty() ? SlotText(slot) : SlotName(slot);
  json["type"] = TypeOf(side, probe);
  json["facts"] = analysis::OpFacts(slot);
  json.erase("details");  // the facts are they
  json["findings"] = probe.findings;
  json["gaps"] = probe.gaps;
  json["gap_count"] = probe.gap_count;
  json["last"] = SnapshotJson(side, probe.last);
  const bool is_once = probe.first_bad && AreOne(probe.first_bad->first, probe.last->first);
  json["first_bad"] = is_once ? Json("last") : SnapshotJson(side, probe.first_bad);
  json["histograms"] = probe.histograms;
  json["picture"] = probe.picture;
  return json;
}

Json SourceJson(const Side& side, const analysis::Scope& scope) {
  const source::Description about = side.source->Describe();
  return {{"name", side.name},
          {"path", about.path},
          {"kind", about.kind},
          {"sessions", about.sessions},
          {"ending", about.ending},
          {"ranks", about.ranks},
          {"bytes", about.bytes},
          {"is_growing", about.is_growing},
          {"is_cut_off", about.is_cut_off},
          {"account", analysis::AccountJson(analysis::SummarizeGaps(*side.source, scope).account)}};
}

Json PairJson(const analysis::ProbeDiff& pair) {
  return {{"compared", pair.compared},
          {"equal", pair.equal.total()},
          {"different", pair.different},
          {"not_compared", pair.not_compared},
          {"first_different", pair.different > 0 ? Json(pair.first_different) : Json()},
          {"has_values", pair.has_values},
          {"max_abs", JsonNumber(pair.max_abs)},
          {"max_rel", JsonNumber(pair.max_rel)},
          {"with_nonfinite", pair.with_nonfinite}};
}

// A line of the page: a probe of both sources, or of one.
struct Line {
  const Probe* a = nullptr;
  const Probe* b = nullptr;
  const analysis::ProbeDiff* pair = nullptr;
  DifferenceStrip difference{0};

  bool HasFinding() const {
    return (a != nullptr && !a->findings.empty()) || (b != nullptr && !b->findings.empty()) ||
           (pair != nullptr && pair->different > 0);
  }
};

std::vector<Line> LinesOf(std::span<Side> sides, const analysis::Diff& diff,
                          const Judgements& judgements, const Axis& axis) {
  std::map<std::size_t, std::size_t> pair_of_a;
  std::set<std::size_t> paired_b;
  for (std::size_t i = 0; i < diff.probes.size(); ++i) {
    pair_of_a[diff.probes[i].a] = i;
    paired_b.insert(diff.probes[i].b);
  }
  std::vector<Line> lines;
  std::map<std::size_t, std::size_t> line_of_pair;
  for (const Probe& probe : sides[0].probes) {
    Line line{.a = &probe};
    if (const auto found = pair_of_a.find(probe.row.slot); found != pair_of_a.end()) {
      line.pair = &diff.probes[found->second];
      line.b = sides[1].Find(line.pair->b);
      line.difference = DifferenceStrip(axis.columns());
      line_of_pair[found->second] = lines.size();
    }
    lines.push_back(std::move(line));
  }
  if (sides.size() > 1) {
    for (const Probe& probe : sides[1].probes) {
      if (!paired_b.contains(probe.row.slot)) lines.push_back({.b = &probe});
    }
  }
  using Kind = analysis::Judged::Kind;
  // What was called equal may have been taken back later.
  std::set<std::pair<std::size_t, std::uint64_t>> not_compared;
  for (const analysis::Judged& one : judgements) {
    if (one.kind == Kind::kNotCompared) not_compared.insert({one.pair, one.position});
  }
  for (const analysis::Judged& one : judgements) {
    const auto found = line_of_pair.find(one.pair);
    if (found == line_of_pair.end()) continue;
    if (one.kind == Kind::kEqual && not_compared.contains({one.pair, one.position})) continue;
    std::uint8_t state = one.kind == Kind::kEqual       ? DifferenceStrip::kEqual
                         : one.kind == Kind::kDifferent ? DifferenceStrip::kDifferent
                                                        : DifferenceStrip::kNotCompared;
    if (one.by_nonfinite) state |= DifferenceStrip::kByNonfinite;
    lines[found->second].difference.Add(axis.ColumnOf(one.position), state, one.max_abs);
  }
  return lines;
}

// Of too many lines those that the page has, in their order: what led to the first finding, lines
// with findings or with a difference, and of the others the first.
std::vector<Line> ChosenOf(std::vector<Line> lines, const Probe* first_bad) {
  if (lines.size() <= kMostLines) return lines;
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < lines.size() && first_bad != nullptr; ++i) {
    if (lines[i].a == first_bad) first = i;
  }
  const auto urgency = [&](std::size_t i) {
    if (first && i + kLinesBeforeTheFirst >= *first && i <= *first + kLinesBehindTheFirst) return 0;
    return lines[i].HasFinding() ? 1 : 2;
  };
  std::vector<std::size_t> chosen(lines.size());
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  std::ranges::stable_sort(chosen, {}, urgency);
  chosen.resize(kMostLines);
  std::ranges::sort(chosen);
  std::vector<Line> kept;
  for (const std::size_t i : chosen) kept.push_back(std::move(lines[i]));
  return kept;
}

// The strips of every line, `factor` columns as one.
Json StripsJson(const std::vector<Line>& lines, std::size_t factor) {
  Json strips = Json::array();
  for (const Line& line : lines) {
    const auto strip_of = [&](const Probe* probe) {
      return probe == nullptr ? Json() : probe->strip.Merged(factor).ToJson();
    };
    Json json = {{"a", strip_of(line.a)}, {"b", strip_of(line.b)}};
    if (line.pair != nullptr) json["difference"] = line.difference.Merged(factor).ToJson();
    strips.push_back(std::move(json));
  }
  return strips;
}

// Puts as many columns into `data` as fit, and says how many replays each stands for.
void AddStrips(const std::vector<Line>& lines, const Axis& axis, std::size_t most_bytes,
               Json* data) {
  Json strips = StripsJson(lines, 1);
  std::size_t factor = 1;
  const auto merge = [&](std::size_t columns_as_one) {
    factor = std::min(columns_as_one, axis.columns());
    strips = StripsJson(lines, factor);
    return Dump(strips, false).size();
  };
  const std::size_t whole = Dump(strips, false).size();
  if (whole > most_bytes && axis.columns() > 1) {
    // A strip takes room for its columns, and some that does not shrink with them.
    const std::size_t least = merge(axis.columns());
    if (least < most_bytes) {
      std::size_t wanted = (whole - least) / (most_bytes - least) + 1;
      while (merge(wanted) > most_bytes && factor < axis.columns()) wanted += wanted / 8 + 1;
    }
  }
  const Axis merged = axis.Merged(factor);
  (*data)["axis"] = {{"first", axis.first()},
                     {"last", axis.last()},
                     {"columns", merged.columns()},
                     {"replays_per_column", merged.replays_per_column()}};
  if (axis.columns() == 0) (*data)["axis"]["first"] = (*data)["axis"]["last"] = 0;
  (*data)["strips"] = std::move(strips);
}

// Pictures of as many probes as there is room for, those with findings first.
void AddPictures(std::span<Side> sides, const analysis::Diff& diff) {
  std::vector<std::pair<Side*, Probe*>> wanted;
  std::map<std::pair<Side*, std::size_t>, std::uint64_t> differs_at;
  for (const analysis::ProbeDiff& pair : diff.probes) {
    if (pair.different == 0) continue;
    differs_at[{&sides[0], pair.a}] = pair.first_different;
    differs_at[{&sides[1], pair.b}] = pair.first_different;
  }
  for (const bool is_urgent : {true, false}) {
    for (Side& side : sides) {
      for (Probe& probe : side.probes) {
        if (!probe.is_shown) continue;
        const bool is_this_urgent = probe.first_bad || !probe.findings.empty() ||
                                    differs_at.contains({&side, probe.row.slot});
        if (is_this_urgent == is_urgent) wanted.emplace_back(&side, &probe);
      }
    }
  }
  constexpr std::size_t kBytesOfASlice = kMostRows * kMostColumns * 4 / 3;
  const std::size_t room = kPictureBytes / kBytesOfASlice;
  const std::size_t slices = std::clamp<std::size_t>(room / (wanted.size() + 1), 1, 4);
  std::size_t used = 0;
  for (const auto& [side, probe] : wanted) {
    if (used > kPictureBytes) {
      probe->picture = nullptr;  // to keep the page small
      continue;
    }
    const auto found = differs_at.find({side, probe->row.slot});
    probe->picture =
        PictureOf(*side->source, side->SlotOf(*probe), *probe,
                  found == differs_at.end() ? std::nullopt : std::optional(found->second), slices);
    if (probe->picture.is_object()) used += Dump(probe->picture, false).size();
  }
}

// JSON that ends no <script> element, whatever a probe is called.
std::string ScriptSafe(const Json& json) {
  const std::string text = Dump(json, /*indented=*/false);
  std::string safe;
  safe.reserve(text.size());
  std::size_t from = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char* const instead = text[i] == '<'   ? "\\u003c"
                                : text[i] == '>' ? "\\u003e"
                                : text[i] == '&' ? "\\u0026"
                                                 : nullptr;
    if (instead == nullptr) continue;
    safe.append(text, from, i - from).append(instead);
    from = i + 1;
  }
  return safe.append(text, from);
}

// --- the page ------------------------------------------------------------------------------------

// Without their probes' values. In a report of one source, `b` is nullptr.
Result<std::vector<Side>> SidesOf(Source& a, Source* b, const ReportOptions& options) {
  std::vector<Side> sides;
  sides.push_back({.source = &a, .name = options.name_a});
  if (b != nullptr) sides.push_back({.source = b, .name = options.name_b});
  for (Side& side : sides) {
    if (side.name.empty()) side.name = side.source->Describe().path;
    Result<std::vector<SourceRow>> rows = analysis::RowsOf(*side.source, options.scope);
    if (!rows.ok()) return rows.error();
    side.probes = b == nullptr ? MergedByPlace(a, *std::move(rows)) : ProbesOf(*std::move(rows));
    for (std::size_t i = 0; i < side.probes.size(); ++i) {
      side.place_of_slot[side.probes[i].row.slot] = i;
      for (const std::size_t slot : side.probes[i].slot_of_key) side.place_of_slot[slot] = i;
    }
  }
  return sides;
}

// Reads what the probes of these lines have: the first snapshot of each, then the second of each,
// for so they lie in a recording.
void ReadShown(std::span<Side> sides, const std::vector<Line>& lines, const analysis::Scope& scope,
               const Axis& axis) {
  std::set<const Probe*> shown;
  for (const Line& line : lines) {
    if (line.a != nullptr) shown.insert(line.a);
    if (line.b != nullptr) shown.insert(line.b);
  }
  const std::size_t histograms =
      std::clamp<std::size_t>(kHistogramBytes / kBytesOfAHistogram / (shown.size() + 1), 2, 24);
  for (Side& side : sides) {
    std::vector<ProbeReader> left;
    for (Probe& probe : side.probes) {
      probe.is_shown = shown.contains(&probe);
      if (probe.is_shown) left.emplace_back(side.source, &axis, histograms, &probe);
    }
    for (;;) {
      std::erase_if(left, [](const ProbeReader& reader) { return reader.is_done(); });
      if (left.empty()) break;
      for (ProbeReader& reader : left) reader.ReadNext();
    }
    AddGaps(&side, scope, axis);
  }
}

// `place`: of the line with the verdict's slot.
Json VerdictJson(const Verdict& verdict, const Json& place) {
  return {{"kind", verdict.kind},
          {"title", verdict.title},
          {"text", verdict.text},
          {"missing", verdict.missing},
          {"missing_count", verdict.missing_count},
          {"place", place},
          {"replay", verdict.replay}};
}

// Of `every` line only `lines` are in the page.
Json LeftOutJson(const std::vector<Line>& every, const std::vector<Line>& lines) {
  const auto with_findings = [](const std::vector<Line>& of) {
    return std::ranges::count_if(of, &Line::HasFinding);
  };
  return {{"lines", every.size() - lines.size()},
          {"with_findings", with_findings(every) - with_findings(lines)}};
}

// How many bytes the strips of a page may take that has all else. `most_bytes`: of the page.
std::size_t StripBytes(const Json& data, std::size_t lines, std::size_t most_bytes) {
  const std::size_t without_strips = PageBytes() + ScriptSafe(data).size();
  const auto beside = [&](std::size_t bytes) {
    return bytes > without_strips ? bytes - without_strips : 0;
  };
  const std::size_t room = beside(most_bytes);
  const std::size_t least =
      std::min(kMostStripBytes, kLeastStripBytes + lines * kStripBytesOfALine);
  const std::size_t most = std::max(room, beside(kMostPageBytes));
  return std::clamp(least, room, most);
}

}  // namespace

Result<Report> MakeReport(Source& a, Source* b, const ReportOptions& options) {
  if (!HasPage()) {
    return Error{
        "this build has no reports: d3 was not found when it was made. Type: apt-get install "
        "node-d3, "
        "then configure and build again"};
  }
  const analysis::Scope& scope = options.scope;
  Result<std::vector<Side>> sides_of = SidesOf(a, b, options);
  if (!sides_of.ok()) return sides_of.error();
  std::vector<Side>& sides = *sides_of;
  analysis::Diff diff;
  Judgements judgements;
  Result<Verdict> verdict = b == nullptr ? CheckedVerdict(&sides[0], scope)
                                         : ComparedVerdict(a, *b, scope, &diff, &judgements);
  if (!verdict.ok()) return verdict.error();
  for (const Side& side : sides) {
    if (Result<void> added = AddRanks(side, scope, &*verdict); !added.ok()) return added.error();
  }

  const Axis axis = AxisOf(sides, scope, options.most_bytes);
  const std::vector<Line> every = LinesOf(sides, diff, judgements, axis);
  const Probe* const first_bad = verdict->slot ? sides[0].Find(*verdict->slot) : nullptr;
  const std::vector<Line> lines = ChosenOf(every, first_bad);
  ReadShown(sides, lines, scope, axis);
  AddPictures(sides, diff);

  Json data = {{"version", CGDEBUG_VERSION}, {"sources", Json::array()}};
  for (const Side& side : sides) data["sources"].push_back(SourceJson(side, scope));
  Json probes = Json::array();
  Json verdict_place = nullptr;
  for (const Line& line : lines) {
    if (line.a != nullptr && line.a == first_bad) verdict_place = probes.size();
    probes.push_back({{"a", line.a == nullptr ? Json() : ProbeJson(sides[0], *line.a)},
                      {"b", line.b == nullptr ? Json() : ProbeJson(sides.back(), *line.b)},
                      {"difference", line.pair == nullptr ? Json() : PairJson(*line.pair)}});
  }
  data["verdict"] = VerdictJson(*verdict, verdict_place);
  data["probes"] = std::move(probes);
  data["left_out"] = LeftOutJson(every, lines);
  AddStrips(lines, axis, StripBytes(data, lines.size(), options.most_bytes), &data);
  return Report{
      .html = MakePage({.title = sides[0].name + (b == nullptr ? "" : " and " + sides[1].name),
                        .verdict = verdict->title,
                        .text = verdict->text,
                        .memory = MemoryText(sides),
                        .data = ScriptSafe(data)}),
      .verdict = verdict->title};
}

}  // namespace cgdebug::report
