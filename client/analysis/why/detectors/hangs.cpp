// Processes that stand in the middle of a replay, or behind the other ranks of their run.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "client/analysis/ops/trails.h"
#include "client/analysis/pieces.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/base/duration.h"

namespace cgdebug::analysis::why {
namespace {

// A process and where it stands.
struct Standing {
  std::size_t slot = 0;  // one of its slots
  int rank = -1;
  analysis::Place place;
  // The row of an earlier call that came after the one where it stands.
  std::optional<Passed> came_next = {};
  std::optional<PieceNote> waits = {};  // of its eager ops
};

std::string NameOf(const Standing& one) {
  return one.rank < 0 ? "the job" : fmt::format("rank {}", one.rank);
}

std::string WordOf(const Standing& one) {
  return one.place.graph_id == 0
             ? fmt::format("call {}", one.place.replay)
             : fmt::format("replay {} of {}", one.place.replay,
                           one.place.graph.empty() ? fmt::format("capture {}", one.place.graph_id)
                                                   : "graph " + one.place.graph);
}

bool IsInside(const Standing& one) { return one.place.kind == analysis::Place::Kind::kInside; }

std::string StandsText(const Standing& one) {
  if (!IsInside(one)) return fmt::format("{} has ended {}", NameOf(one), WordOf(one));
  std::string text = fmt::format("{} stands in {}, ", NameOf(one), WordOf(one));
  if (one.waits) return text + ToText(*one.waits);
  if (one.place.after) text += "after " + one.place.after->name;
  if (one.place.after && !one.place.after->site.empty() && !one.place.before) {
    text += fmt::format(" ({})", one.place.after->site);
  }
  if (one.place.before) {
    text += fmt::format("{}before {}", one.place.after ? " and " : "", one.place.before->name);
  }
  return text;
}

// Where a job that does not move stands: a call that did not come to its last probe, or to a row
// that earlier calls had, is not over. Nor is one from whose newest op it has not gone on.
void StopInside(const Trail& trail, Standing* one) {
  analysis::Place& place = one->place;
  if (place.kind == analysis::Place::Kind::kEager && place.before && place.count < place.total) {
    place.kind = analysis::Place::Kind::kInside;
  }
  if (place.kind != analysis::Place::Kind::kEagerRuns || !place.after) return;
  for (const Passed& passed : trail.passed) {
    const bool is_behind = passed.graph_id == 0 && passed.number > place.after->number &&
                           passed.replay > 0 && passed.replay < place.replay;
    const auto& next = one->came_next;
    const bool is_nearer = !next || passed.replay > next->replay ||
                           (passed.replay == next->replay && passed.number < next->number);
    if (is_behind && is_nearer) {
      one->came_next = passed;
    }
  }
  if (one->came_next || one->waits) place.kind = analysis::Place::Kind::kInside;
}

// The process that is not where the others are: it is replays or calls behind, or in the middle of
// one although the job moves no more. One that went on when this was read is always somewhere.
const Standing* FindHanging(const std::vector<Standing>& run, bool went_on, bool is_still) {
  const Standing* hanging = nullptr;
  for (const Standing& one : run) {
    const auto is_ahead = [&](const Standing& other) {
      return other.place.graph == one.place.graph &&
             // Without a label the number of the capture tells graphs apart, and calls from them.
             (!one.place.graph.empty() || other.place.graph_id == one.place.graph_id) &&
             other.place.replay > one.place.replay + static_cast<std::uint64_t>(went_on);
    };
    const bool is_behind = std::ranges::any_of(run, is_ahead);
    if (!is_behind && !(is_still && IsInside(one))) continue;
    if (hanging == nullptr || one.place.replay < hanging->place.replay) hanging = &one;
  }
  return hanging;
}

// Processes that ought to be at the same place: the ranks of a run that were started together, else
// a process alone.
using RunKey = std::pair<std::string, std::string>;
RunKey RunKeyOf(const source::Slot& slot) {
  const bool is_ranked = slot.rank >= 0 && !slot.run.empty();
  return is_ranked ? RunKey(slot.run, std::to_string(slot.restart))
                   : RunKey(slot.session, slot.uuid);
}

std::map<RunKey, std::vector<Standing>> StandingsOf(const source::Source& source,
                                                    const Trails& trails, double stalled) {
  const std::vector<source::Slot>& slots = source.slots();
  PieceNotes<source::Process> notes;
  for (const source::Slot& slot : slots) notes.Add(source::ProcessOf(slot), slot);
  std::map<RunKey, std::vector<Standing>> runs;
  for (const auto& entry : trails) {
    const auto& process = entry.first;
    const auto& trail = entry.second;
    const auto slot = std::ranges::find_if(
        slots, [&](const source::Slot& one) { return source::ProcessOf(one) == process; });
    Standing one{static_cast<std::size_t>(slot - slots.begin()), slot->rank, FindPlace(trail)};
    if (one.place.kind == analysis::Place::Kind::kNowhere) continue;
    for (const Passed& passed : trail.passed) {
      // The probes and rows of a call have one number.
      if (one.place.graph_id != 0 || passed.graph_id != 0) continue;
      one.place.replay = std::max(one.place.replay, passed.replay);
    }
    one.waits = notes.EagerOf(process);
    if (stalled > 0 || one.waits) StopInside(trail, &one);
    runs[RunKeyOf(*slot)].push_back(std::move(one));
  }
  return runs;
}

Finding HangOf(const Standing& hanging, const std::vector<Standing>& run, double stalled) {
  Finding finding{.level = Level::kConsistent,
                  .kind = "hang",
                  .place = {.slot = hanging.slot, .command = "where"},
                  .sentence = StandsText(hanging),
                  .refute = run.size() > 1 ? "a rank that has less to do than others"
                            : stalled > 0  ? "a job that computes what no probe sees, or waits on "
                                             "purpose"
                                           : "a job that was ended in this replay on purpose"};
  bool has_other = false;
  for (const Standing& one : run) {
    if (&one == &hanging) continue;
    if (!std::exchange(has_other, true)) {
      finding.sentence += fmt::format(", and {}", StandsText(one));
    } else {
      finding.facts.push_back({{.slot = one.slot}, StandsText(one)});
    }
  }
  if (stalled > 0) finding.sentence += ", for " + FormatDuration(stalled);
  if (const auto& next = hanging.came_next) {
    finding.facts.push_back(
        {{.slot = hanging.slot},
         fmt::format("in {}, call {} went on with #{} {}{}", NameOf(hanging), next->replay,
                     next->number, next->name,
                     next->site.empty() ? "" : fmt::format(" ({})", next->site))});
  }
  return finding;
}

}  // namespace

Found FindHangs(const Evidence& evidence) {
  source::Source& source = *evidence.source;
  Found answer;
  if (MayLackNewest(evidence)) return answer;  // the last snapshot is not where it stands
  const Result<Trails> trails = ReadTrails(source, [](const source::Slot&) { return true; });
  if (!trails.ok()) {
    answer.not_looked = "where each process stands: " + trails.error().message;
    return answer;
  }
  const double stalled = source.Describe().stalled_seconds;
  const bool is_over = HaveJobsEnded(source);
  // A recording may be stopped while its job runs.
  const bool went_on =
      (evidence.check->goes_on && stalled == 0) || (!source.Recordings().empty() && !is_over);
  const auto may_be_inside = [&](const Standing& one) {
    return IsInside(one) || (!is_over && one.place.kind == analysis::Place::Kind::kEagerRuns);
  };
  std::size_t count = 0;
  for (const auto& [name, run] : StandingsOf(source, *trails, stalled)) {
    const Standing* hanging = FindHanging(run, went_on, is_over || stalled > 0);
    if (hanging != nullptr) {
      answer.findings.push_back(HangOf(*hanging, run, stalled));
    } else if (std::ranges::none_of(run, may_be_inside) && (run.size() > 1 || is_over)) {
      count += run.size();
    }
  }
  SetClean(count, "process has ended its last replay or call",
           "processes have ended the same replay or call", &answer);
  return answer;
}

}  // namespace cgdebug::analysis::why
