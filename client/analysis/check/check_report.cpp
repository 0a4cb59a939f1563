#include "client/analysis/check/check_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "client/analysis/ops/between_calls.h"
#include "daemon/core/base/display_width.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::analysis {
namespace {

using numerics::Stats;
using source::Slot;
using source::Source;

constexpr std::size_t kMostSlotsInLines = 3;  // of one probe: each has a line of its own
constexpr std::size_t kMostNonfiniteLines = 3, kUsualRows = 10, kRowsBeside = 2;

std::string NonfiniteText(const Stats& stats) {
  std::string text;
  const auto add = [&](std::uint64_t count, const char* word) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, word);
  };
  add(stats.nan, "NaN");
  add(stats.pos_inf, "+Inf");
  add(stats.neg_inf, "-Inf");
  return text;
}

// With its replay if that is an earlier one, or has several of its snapshots.
std::string FrameName(Source& source, const Frame& frame, const FirstBad& first) {
  const Slot& slot = source.slots()[frame.slot];
  std::string name = SlotText(slot);
  const bool is_in_body = slot.in_body && !slot.counts_calls();
  if (is_in_body || frame.key.replay != first.snapshot.key.replay || frame.key.iteration > 0) {
    name += " @" + ReplayText(slot, frame.key);
  }
  return name;
}

// A tensor without a finite element has no least one: that is not a NaN in it.
std::string Extreme(double value) { return std::isnan(value) ? "-" : fmt::format("{:.2g}", value); }

std::string FrameLine(const std::string& name, const Frame& frame, std::size_t width) {
  const Stats& stats = frame.stats;
  std::string line = fmt::format("  {}  {:>9}  {:>9}  {:>9}", PadToColumns(name, width),
                                 Extreme(stats.min), Extreme(stats.max), Extreme(stats.abs_max));
  if (stats.nonfinite() > 0) {
    line += fmt::format("   {} of {}", NonfiniteText(stats), stats.count);
  }
  return line;
}

// Requires: there are earlier ones.
std::string EarlierLine(Source& source, const FirstBad& first) {
  std::string line = "  same probe before, abs max: ";
  for (const FirstBad::Earlier& earlier : first.earlier) {
    line += fmt::format("{}{}: {:.2g}", &earlier == first.earlier.data() ? " " : "  ",
                        ReplayText(source.slots()[first.slot], earlier.key), earlier.abs_max);
  }
  if (first.growth > 1.05)
    line += fmt::format("   growing {:.2g}x per {}", first.growth,
                        ReplayWord(source.slots()[first.slot]));
  const layout::DtypeInfo* info = layout::FindDtype(source.slots()[first.slot].dtype);
  if (info != nullptr && info->is_floating) {
    line += fmt::format("; {} max is {:.3g}", info->short_name, info->max_finite);
  }
  return line;
}

std::string FirstLine(const FirstBad& first, const Slot& slot) {
  std::string text = "first non-finite: ";
  if (slot.rank >= 0) text += fmt::format("rank {}, ", slot.rank);
  text += WhenText(slot, first.snapshot.key.replay, first.next_call);
  if (slot.in_body && (!slot.counts_calls() || first.snapshot.key.iteration > 0))
    text += fmt::format(", iteration {}", first.snapshot.key.iteration);
  if (first.snapshot.step >= 0) text += fmt::format(" (step {})", first.snapshot.step);
  text += OfThread(slot) + ", " + SlotText(slot);
  // In eager code each shape of a probe would count as one.
  if (slot.counts_calls()) return text;
  return text + fmt::format(" (probe {} of {} in graph order)", first.place, first.place_count);
}

void AddFirst(Source& source, const FirstBad& first, Answer* answer) {
  const Slot& slot = source.slots()[first.slot];
  answer->Add(Severity::kBad, FirstLine(first, slot));
  answer->SetTitle(answer->statements().back().text);
  std::size_t width = 0;
  for (const Frame& frame : first.frames) {
    width = std::max(width, DisplayWidth(FrameName(source, frame, first)));
  }
  const std::string title =
      first.frames.size() == 1 ? "last probe" : fmt::format("last {} probes", first.frames.size());
  width = std::max(width, title.size());
  answer->Add(Severity::kPlain,
              fmt::format("  {:<{}}  {:>9}  {:>9}  {:>9}", title, width, "min", "max", "abs max"));
  for (const Frame& frame : first.frames) {
    const bool is_last = &frame == &first.frames.back();
    answer->Add(
        is_last ? Severity::kBad : Severity::kPlain,
        FrameLine(FrameName(source, frame, first), frame, width) + (is_last ? "   <-- here" : ""));
  }
  if (!first.earlier.empty()) answer->Add(Severity::kPlain, EarlierLine(source, first));
  if (first.jump) {
    const Jump& jump = *first.jump;
    answer->Add(Severity::kPlain,
                fmt::format("  first jump before: {} {:.2g} -> {:.2g} @{}",
                            SlotText(source.slots()[jump.slot]), jump.from, jump.to, jump.replay));
  }
  if (first.stats.has_nonfinite) {
    answer->Add(
        Severity::kPlain,
        fmt::format("  first element: {} at {}{}{}",
                    numerics::FormatRepr(first.stats.first_nonfinite_value),
                    numerics::FormatIndex(first.stats.first_nonfinite, slot.shape),
                    source::OfPart(slot), slot.site.empty() ? "" : "   probed at " + slot.site));
  }
}

// "3 NaN", as the daemon counted them.
std::string ToldText(const source::Finding& told) {
  const char* what = told.kind == layout::FindingKind::kNan ? "NaN" : "Inf";
  return told.count == 0 ? what : fmt::format("{} {}", told.count, what);
}

std::string FirstToldText(Source& source, const source::Finding& told) {
  const Slot& slot = source.slots()[told.slot];
  std::string text = "first non-finite: ";
  if (slot.rank >= 0) text += fmt::format("rank {}, ", slot.rank);
  text += fmt::format("{} {}", ReplayWord(slot), told.replay);
  if (told.step >= 0) text += fmt::format(" (step {})", told.step);
  return text + fmt::format(", {}: {}, seen by the daemon; the tensor itself is not in here",
                            SlotText(slot), ToldText(told));
}

std::string Replays(Source& source, const Finding& finding) {
  const Slot& slot = source.slots()[finding.slot];
  const char* word = ReplayWord(slot);
  if (finding.told && finding.told->replay < finding.first_replay) {
    return fmt::format("{} {} (seen by the daemon, not in here), and {} of {}s {}..{}", word,
                       finding.told->replay, finding.count, word, finding.first_replay,
                       finding.last_replay);
  }
  if (finding.told) {
    return fmt::format("{} {} (seen by the daemon, not in here)", word, finding.first_replay);
  }
  if (finding.count <= 1) {
    return WhenText(slot, finding.first_replay,
                    NextCallOf(source, finding.slot, finding.first_replay));
  }
  return fmt::format("{} of {}s {}..{}", finding.count, word, finding.first_replay,
                     finding.last_replay);
}

std::string HeadOf(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string FirstOfKindText(const Source& source, std::string_view what, const FirstOfKind& first) {
  const Slot& slot = source.slots()[first.slot];
  return fmt::format("first {}: {} {}{}", what, SlotText(slot),
                     WhenMark(slot, first.replay, first.next_call),
                     slot.rank < 0 ? "" : fmt::format(" on rank {}", slot.rank)) +
         OfThread(slot);
}

std::string FindingText(Source& source, const Finding& finding) {
  const Slot& slot = source.slots()[finding.slot];
  std::string name = SlotText(slot);
  if (!slot.part.empty()) name += " (part " + slot.part + ")";
  if (slot.rank >= 0) name += fmt::format(" (rank {})", slot.rank);
  const std::string when = Replays(source, finding);
  switch (finding.kind) {
    case FindingKind::kNonfinite:
      return fmt::format("non-finite: {}, {}", name, when);
    case FindingKind::kMismatch:
      if (finding.told && finding.told->replay == finding.first_replay && finding.count <= 1) {
        return fmt::format("failed comparison: {}, first in {} {}: {}", name, ReplayWord(slot),
                           finding.first_replay, HeadOf(finding.told->text));
      }
      return fmt::format("failed comparison: {}, {}", name, when);
    case FindingKind::kNearOverflow:
      return fmt::format("near overflow: {}, up to {:.0f}% of {} max, {}", name,
                         std::floor(100 * finding.worst), layout::DtypeName(slot.dtype), when);
    case FindingKind::kStale:
      return fmt::format("stale: {} did not change in {} while an earlier probe did", name, when);
    case FindingKind::kNeverWritten:
      return fmt::format("never written: {}, though its graph was replayed {} times", name,
                         finding.last_replay);
    case FindingKind::kConstant:
      return fmt::format("note: {} never changed while an earlier probe did: a weight or a mask?",
                         name);
    case FindingKind::kLargest:
      return fmt::format(
          "note: {} holds the largest {} there is, in {}: a mask?", name,
          layout::DtypeName(finding.worst < 1 ? layout::Dtype::kBfloat16 : slot.dtype), when);
    case FindingKind::kMask:
      return fmt::format("note: {} holds -Inf, no NaN and no +Inf, in {}: a mask?", name, when);
    case FindingKind::kAbsorbed:
      return fmt::format(
          "note: {} is not finite in {}, and all that comes of it ends finite: left out?", name,
          when);
    case FindingKind::kPadding:
      return fmt::format("note: {} is not finite in {}, in padding rows alone", name, when);
    case FindingKind::kSkipped:
      return fmt::format("note: {} is not finite in {}: the GradScaler skipped that step", name,
                         when);
    case FindingKind::kRowsNotKnown:
      return fmt::format(
          "note: {} is not finite in {}, as padding is that it is made of: in which "
          "of its rows is not known",
          name, when);
    case FindingKind::kMayHaveOne:
      return fmt::format(
          "note: {} is not finite in {}, and rows of that {} that may excuse it are not here", name,
          when, ReplayWord(slot));
    case FindingKind::kScaled:
      return fmt::format("note: {} is up to {:.0f}% of {} max in {}: scaled by the GradScaler",
                         name, std::floor(100 * finding.worst), layout::DtypeName(slot.dtype),
                         when);
    case FindingKind::kZero:
      break;
  }
  return fmt::format("note: {} is all zeros in every {}", name, ReplayWord(slot));
}

namespace {

using FindingsOfProbe = std::vector<Finding>;

void Merge(const Finding& finding, Finding* into) {
  into->first_replay = std::min(into->first_replay, finding.first_replay);
  into->last_replay = std::max(into->last_replay, finding.last_replay);
  into->count += finding.count;
  into->worst = std::max(into->worst, finding.worst);
}

// Findings of one kind from *begin on, those of one probe together, in the order of their first. An
// eager call in which an earlier row came more or less often has slots of its own: what differs in
// nothing but its calls is one finding.
std::vector<FindingsOfProbe> ByProbe(const Source& source, const Check& check, std::size_t* begin) {
  std::vector<FindingsOfProbe> probes;
  std::map<std::tuple<std::string, int, std::string>, std::size_t> places;
  std::map<std::pair<std::size_t, std::string>, std::size_t> of_calls;  // in its probe
  const FindingKind kind = check.findings[*begin].kind;
  for (; *begin < check.findings.size() && check.findings[*begin].kind == kind; ++*begin) {
    const Finding& finding = check.findings[*begin];
    const Slot& slot = source.slots()[finding.slot];
    const auto [place, is_new] =
        places.try_emplace({slot.session, slot.rank, SlotName(slot)}, probes.size());
    if (is_new) probes.emplace_back();
    FindingsOfProbe& probe = probes[place->second];
    if (slot.counts_calls() && !finding.told) {
      const auto [same, is_first] =
          of_calls.try_emplace({place->second, SlotText(slot)}, probe.size());
      if (!is_first) {
        Merge(finding, &probe[same->second]);
        continue;
      }
    }
    probe.push_back(finding);
  }
  return probes;
}

// The first NaN or Inf is said in red, so those of other probes are plain.
Severity SeverityOf(const Finding& finding) {
  return finding.is_bad() && finding.kind != FindingKind::kNonfinite ? Severity::kWarning
                                                                     : Severity::kPlain;
}

// "non-finite: 271 probes in calls 13..20, the first: a, b, c".
std::string NonfiniteProbesText(const Source& source, const std::vector<FindingsOfProbe>& probes) {
  std::uint64_t first = UINT64_MAX, last = 0;
  std::size_t lines = 0;
  std::vector<std::string> names;
  for (const FindingsOfProbe& probe : probes) {
    lines += probe.size() > kMostSlotsInLines ? 1 : probe.size();
    for (const Finding& finding : probe) {
      first = std::min(first, finding.told ? finding.told->replay : finding.first_replay);
      last = std::max(last, finding.last_replay);
    }
    const Slot& slot = source.slots()[probe.front().slot];
    if (names.size() >= kMostNonfiniteLines) continue;
    names.push_back(SlotName(slot) +
                    (slot.rank >= 0 ? fmt::format(" (rank {})", slot.rank) : std::string()));
  }
  const char* word = ReplayWord(source.slots()[probes.front().front().slot]);
  return fmt::format("non-finite: {} probes in {}, the first: {} (each: --max-rows {})",
                     probes.size(),
                     first >= last ? fmt::format("{} {}", word, first)
                                   : fmt::format("{}s {}..{}", word, first, last),
                     fmt::join(names, ", "), lines);
}

void AddFindings(Source& source, const Check& check, std::optional<std::size_t> rows_wanted,
                 Answer* answer) {
  for (std::size_t i = 0; i < check.findings.size();) {
    const FindingKind kind = check.findings[i].kind;
    // Beside a NaN, notes are seldom what somebody looks for.
    const bool is_beside = check.first && !check.findings[i].is_bad();
    const std::size_t max_rows = rows_wanted.value_or(is_beside ? kRowsBeside : kUsualRows);
    const std::vector<FindingsOfProbe> probes = ByProbe(source, check, &i);
    // They are most often behind the first, which has its own lines.
    if (kind == FindingKind::kNonfinite && !rows_wanted && probes.size() > kMostNonfiniteLines) {
      answer->SetTitle(FindingText(source, probes.front().front()));
      answer->Add(Severity::kPlain, NonfiniteProbesText(source, probes));
      continue;
    }
    std::size_t rows = 0, hidden = 0;
    for (const FindingsOfProbe& probe : probes) {
      // A probe of 51 graphs would hide all others.
      const bool is_one_line = probe.size() > kMostSlotsInLines;
      std::set<std::string> said;
      for (const Finding& finding : probe) {
        if (is_one_line && !said.empty()) continue;
        const std::string text = FindingText(source, finding);
        if (!said.insert(text).second) continue;
        if (finding.is_bad()) answer->SetTitle(text);
        if (rows++ >= max_rows) {
          ++hidden;
          continue;
        }
        answer->Add(SeverityOf(finding), text);
        if (is_one_line) {
          answer->Append(fmt::format("  and {} more of its graphs or shapes (--graph, --shape)",
                                     probe.size() - 1));
        }
      }
    }
    if (hidden > 0) {
      answer->Add(Severity::kPlain, fmt::format("  and {} more like these", hidden));
    }
  }
}

// The replays that "nothing found" covers, if not all.
std::string Where(const Check& check) {
  if (check.replays.empty()) return "";
  if (check.missing_count > 0) {
    const bool is_one = check.replays.size() == 1;
    return fmt::format(": only {}{} {} {} looked at", check.replay_word, is_one ? "" : "s",
                       RangesText(check.replays), is_one ? "was" : "were");
  }
  if (check.replays.front() == 1) return "";
  return fmt::format(", of {}s {}..{}", check.replay_word, check.replays.front(),
                     check.replays.back());
}

// Requires: nothing was found, in what was looked at.
std::string NothingFound(const Check& check) {
  std::string snapshots =
      fmt::format("{} snapshot{}", check.snapshots, check.snapshots == 1 ? "" : "s");
  if (check.in_part > 0 && check.in_part == check.slots) {
    snapshots = "the part, in " + snapshots;
  } else if (check.in_part > 0) {
    snapshots += fmt::format(", of {} of {} probes in the part alone", check.in_part, check.slots);
  }
  const char* how = check.values_read ? "" : " (by their statistics; values not read)";
  if (check.missing_count == 0 && check.unseen_kernels.count > 0) {
    return fmt::format(
        "inconclusive: nothing found in {}{}{}, but no row shows what {} kernel{} wrote", snapshots,
        Where(check), how, check.unseen_kernels.count, check.unseen_kernels.count == 1 ? "" : "s");
  }
  if (check.missing_count == 0 && check.rows_not_known() > 0) {
    return fmt::format(
        "inconclusive: nothing found in {}{}{}, but padding may have reached real rows of {} "
        "probe{}",
        snapshots, Where(check), how, check.rows_not_known(),
        check.rows_not_known() == 1 ? "" : "s");
  }
  if (check.may_be_excused() > 0) {
    return fmt::format(
        "inconclusive: NaN or Inf in {} row{}, and what may excuse it is not here, in {}{}{}",
        check.may_be_excused(), check.may_be_excused() == 1 ? "" : "s", snapshots, Where(check),
        how);
  }
  if (check.let_go > 0) {
    return fmt::format(
        "inconclusive: {} time{} NaN or Inf in rows that the daemon let go, and what may excuse it "
        "with them, beside {}{}{}",
        check.let_go, check.let_go == 1 ? "" : "s", snapshots, Where(check), how);
  }
  if (!check.complete()) {
    return fmt::format("inconclusive: nothing found in {}, but some are missing{}{}", snapshots,
                       Where(check), how);
  }
  if (!check.goes_on) return fmt::format("nothing found in {}{}{}", snapshots, Where(check), how);
  return fmt::format("nothing found up to {} {}, in {}{}{}", check.replay_word, check.last_replay,
                     snapshots, Where(check), how);
}

// What the whole amounts to, if nothing was found.
void AddVerdict(const Check& check, Answer* answer) {
  if (check.snapshots > 0 && check.found()) return;
  const bool is_empty = check.snapshots == 0;
  const Severity severity =
      !check.complete() && !(is_empty && check.missing.empty()) ? Severity::kBad : Severity::kPlain;
  answer->Add(severity, !is_empty               ? NothingFound(check)
                        : check.missing.empty() ? "nothing to check: no snapshot is in it"
                                                : "inconclusive: nothing was checked");
  answer->SetTitle(answer->statements().back().text);
}

void AddCompleteness(const Check& check, std::size_t max_rows, Answer* answer) {
  const std::size_t before = answer->statements().size();
  AddVerdict(check, answer);
  // Nothing was expected if the probe is called eagerly with several shapes: no replay has all.
  if (check.presence.expected > 0) {
    const bool lacks_some = check.presence.present < check.presence.expected;
    const char* word = lacks_some ? "incomplete: " : check.missing_count == 0 ? "complete: " : "";
    answer->Add(lacks_some ? Severity::kBad : Severity::kPlain,
                fmt::format("{}{} of {} probes in {} {}", word, check.presence.present,
                            check.presence.expected, check.replay_word, check.presence.replay));
  } else if (check.complete() && !check.found()) {
    answer->Add(Severity::kPlain, "complete: none is missing");
  }
  const std::size_t shown = std::min(check.missing.size(), max_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    answer->Add(Severity::kWarning, "missing: " + check.missing[i]);
  }
  if (shown < check.missing.size()) {
    answer->Add(Severity::kPlain,
                fmt::format("  and {} more like these", check.missing.size() - shown));
  }
  if (check.seen_finite > 0) {
    answer->Add(Severity::kPlain, fmt::format("the daemon read {} of the missing before it let "
                                              "them go, and saw no NaN in them, and no "
                                              "Inf but in masks",
                                              check.seen_finite));
  }
  if (check.unseen_kernels.count > 0) {
    answer->Add(Severity::kPlain,
                fmt::format("not looked at: {} kernel{} that no row shows, the first: {}",
                            check.unseen_kernels.count, check.unseen_kernels.count == 1 ? "" : "s",
                            check.unseen_kernels.first));
  }
  // Something was found, nothing is missing, and no replay has a set of probes to count.
  if (answer->statements().size() == before) {
    answer->Add(Severity::kPlain,
                fmt::format("complete: {} snapshots were looked at", check.snapshots));
  }
  if (check.goes_on) answer->Add(Severity::kPlain, "more will come: the job goes on");
}

// Null: it was made in its call, or nobody knows.
Json NextCallJson(std::uint64_t next_call) {
  return next_call == 0 ? Json(nullptr) : Json(next_call);
}

Json FirstJson(Source& source, const Check& check) {
  if (!check.first) return nullptr;
  const FirstBad& first = *check.first;
  const Slot& slot = source.slots()[first.slot];
  const auto stats_json = [](const Stats& stats) -> Json {
    return {{"count", stats.count},
            {"nan", stats.nan},
            {"pos_inf", stats.pos_inf},
            {"neg_inf", stats.neg_inf},
            {"min", JsonNumber(stats.min)},
            {"max", JsonNumber(stats.max)},
            {"abs_max", JsonNumber(stats.abs_max)}};
  };
  Json frames = Json::array(), earlier = Json::array();
  for (const Frame& frame : first.frames) {
    frames.push_back({{"probe", SlotName(source.slots()[frame.slot])},
                      {"graph", source.slots()[frame.slot].graph},
                      {"shape", source.slots()[frame.slot].shape},
                      {"replay", frame.key.replay},
                      {"iteration", frame.key.iteration},
                      {"stats", stats_json(frame.stats)}});
  }
  for (const FirstBad::Earlier& one : first.earlier) {
    earlier.push_back({{"replay", one.key.replay},
                       {"iteration", one.key.iteration},
                       {"abs_max", JsonNumber(one.abs_max)}});
  }
  Json jump = nullptr;
  if (first.jump) {
    jump = {{"probe", SlotText(source.slots()[first.jump->slot])},
            {"replay", first.jump->replay},
            {"from", JsonNumber(first.jump->from)},
            {"to", JsonNumber(first.jump->to)}};
  }
  return {{"probe", slot.probe},
          {"invocation", slot.invocation},
          {"rank", slot.rank},
          {"graph", slot.graph},
          {"graph_id", slot.graph_id},
          {"shape", slot.shape},
          {"part", slot.part},
          {"replay", first.snapshot.key.replay},
          {"next_call", NextCallJson(first.next_call)},
          {"iteration", first.snapshot.key.iteration},
          {"serial", first.snapshot.serial},
          {"step", first.snapshot.step},
          {"thread", slot.thread},
          {"place", first.place},
          {"of", first.place_count},
          {"stats", stats_json(first.stats)},
          {"first_element", first.stats.first_nonfinite},
          {"frames", std::move(frames)},
          {"earlier", std::move(earlier)},
          {"growth", JsonNumber(first.growth)},
          {"jump", std::move(jump)}};
}

Json ToldJson(Source& source, const source::Finding& told) {
  const Slot& slot = source.slots()[told.slot];
  return {{"probe", slot.probe}, {"invocation", slot.invocation},
          {"rank", slot.rank},   {"replay", told.replay},
          {"step", told.step},   {"count", told.count}};
}

}  // namespace

Json AccountJson(const recording::Account& account) {
  return {{"before", account.before},
          {"produced", account.produced},
          {"not_wanted", account.not_wanted},
          {"kept", account.kept},
          {"lost", account.lost},
          {"unread", account.unread},
          {"without_values", account.without_values}};
}

Answer CheckAnswer(Source& source, const Check& check, std::optional<std::size_t> max_rows) {
  Answer answer;
  if (check.first_told) {
    answer.Add(Severity::kBad, FirstToldText(source, *check.first_told));
    answer.SetTitle(answer.title());
  }
  if (check.first) {
    if (check.first_told) answer.Add(Severity::kPlain, "the first that is in here:");
    AddFirst(source, *check.first, &answer);
  }
  AddFindings(source, check, max_rows, &answer);
  if (check.found()) {
    const std::string ranks = ByRankText(check.ranks, "found on", "no finding seen on");
    if (!ranks.empty()) answer.Add(Severity::kPlain, ranks.substr(0, ranks.size() - 1));
  }
  AddCompleteness(check, max_rows.value_or(kUsualRows), &answer);
  return answer;
}

Json CheckJson(Source& source, const Check& check) {
  Json unexcused = Json::array();
  for (const auto& [what, firsts] :
       {std::pair("NaN", &check.first_nan), std::pair("Inf", &check.first_inf)}) {
    for (const auto& [uuid, first] : *firsts) {
      unexcused.push_back({{"what", what},
                           {"session", uuid},
                           {"probe", source.slots()[first.slot].probe},
                           {"graph_order", source.slots()[first.slot].order},
                           {"replay", first.replay},
                           {"serial", first.serial},
                           {"next_call", NextCallJson(first.next_call)},
                           {"step", first.step},
                           {"count", first.count},
                           {"text", FirstOfKindText(source, what, first)}});
    }
  }
  Json findings = Json::array();
  for (const Finding& finding : check.findings) {
    const Slot& slot = source.slots()[finding.slot];
    findings.push_back({{"kind", NameOf(finding.kind)},
                        {"bad", finding.is_bad()},
                        {"probe", slot.probe},
                        {"invocation", slot.invocation},
                        {"rank", slot.rank},
                        {"graph", slot.graph},
                        {"graph_id", slot.graph_id},
                        {"shape", slot.shape},
                        {"part", slot.part},
                        {"first_replay", finding.first_replay},
                        {"last_replay", finding.last_replay},
                        {"count", finding.count},
                        {"told", finding.told ? ToldJson(source, *finding.told) : Json()},
                        {"share_of_max", JsonNumber(finding.worst)}});
  }
  return {{"source", source.Describe().path},
          {"verdict", NameOf(check.outcome())},
          {"found", check.found()},
          {"complete", check.complete()},
          {"unseen_kernels", check.unseen_kernels.count},
          {"rows_not_known", check.rows_not_known()},
          {"let_go", check.let_go},
          {"open", check.open()},
          {"unexcused", std::move(unexcused)},
          {"snapshots", check.snapshots},
          {"values_read", check.values_read},
          {"probes", check.slots},
          {"in_part", check.in_part},
          {"first_nonfinite", FirstJson(source, check)},
          {"first_told", check.first_told ? ToldJson(source, *check.first_told) : Json()},
          {"findings", std::move(findings)},
          {"replay", check.presence.replay},
          {"present", check.presence.present},
          {"expected", check.presence.expected},
          {"goes_on", check.goes_on},
          {"account", AccountJson(check.account)},
          {"missing_count", check.missing_count},
          {"missing", check.missing}};
}

}  // namespace cgdebug::analysis
