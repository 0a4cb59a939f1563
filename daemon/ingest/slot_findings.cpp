#include <utility>

#include "daemon/ingest/slot_consumer.h"

// What the consumer of a slot finds: the first NaN, the first Inf, the first failed comparison.
namespace cgdebug::ingest {

void SlotConsumer::AddFinding(pipeline::Finding::Kind kind, const ring::FirstNonfinite& first) {
  if (first.replay == 0) return;
  findings_.push_back({.slot = slot_,
                       .kind = kind,
                       .replay = first.replay,
                       .serial = first.serial,
                       .step = first.step,
                       .count = first.count});
}

void SlotConsumer::TellFindings() {
  for (const pipeline::Finding& finding : std::exchange(findings_, {})) {
    destination_.sink->Found(finding);
  }
}

// Replays come in order, so the first one noted stays the first.
void SlotConsumer::NoteFirsts(const pipeline::Snapshot& snapshot) {
  const numerics::Stats& stats = snapshot.stats;
  const std::uint64_t inf = stats.pos_inf + stats.neg_inf;
  const bool is_new =
      (stats.nan != 0 && firsts_.nan.replay == 0) || (inf != 0 && firsts_.inf.replay == 0);
  if (!is_new || !ring_.valid()) return;
  const auto note = [&](std::uint64_t count, pipeline::Finding::Kind kind,
                        ring::FirstNonfinite* first) {
    if (count == 0 || first->replay != 0) return;
    *first = {snapshot.replay, snapshot.step, count, snapshot.serial};
    AddFinding(kind, *first);
  };
  note(stats.nan, pipeline::Finding::Kind::kNan, &firsts_.nan);
  note(inf, pipeline::Finding::Kind::kInf, &firsts_.inf);
  ring_.SetFirsts(firsts_);
  destination_.registry->SetFirsts(slot_, firsts_);
}

void SlotConsumer::SetVerdict(const ring::Verdict& verdict) {
  if (ring_.valid()) ring_.SetVerdict(verdict);
  destination_.registry->SetVerdict(slot_, verdict);
  if (verdict.state != layout::VerdictState::kFail || std::exchange(mismatch_told_, true)) return;
  findings_.push_back({.slot = slot_,
                       .kind = pipeline::Finding::Kind::kMismatch,
                       .replay = verdict.first_failed_replay,
                       .text = verdict.text});
}

}  // namespace cgdebug::ingest
