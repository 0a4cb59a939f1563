#include "daemon/ingest/slot/slot_findings.h"

#include <string>
#include <utility>

namespace cgdebug::ingest {

void SlotFindings::StartRow(const pipeline::SlotPtr& row, std::size_t number) {
  const ring::FirstNonfinites firsts =
      HoldsOpLog() ? view_->firsts(slot_->registration, number) : ring_->firsts();
  rows_.push_back({.firsts = firsts});
  destination_->registry->SetFirsts(row, firsts);
  Add(row, pipeline::Finding::Kind::kNan, firsts.nan);
  Add(row, pipeline::Finding::Kind::kInf, firsts.inf);
}

void SlotFindings::Add(const pipeline::SlotPtr& slot, pipeline::Finding::Kind kind,
                       const ring::FirstNonfinite& first) {
  if (first.replay == 0) return;
  waiting_.push_back({.slot = slot,
                      .kind = kind,
                      .replay = first.replay,
                      .serial = first.serial,
                      .step = first.step,
                      .count = first.count});
}

bool SlotFindings::IsMask(std::size_t number, const pipeline::Snapshot& snapshot) {
  Row& row = rows_[number];
  const numerics::Stats& stats = snapshot.stats;
  if (snapshot.slot->op.empty()) return false;
  if (!row.neg_inf) row.neg_inf = stats.neg_inf;
  row.changes_neg_inf |= stats.neg_inf != *row.neg_inf;
  if (stats.nonfinite() == 0) return false;
  if (!row.text) row.text = ops::ParseOpText(snapshot.slot->op);
  if (!row.text) return false;
  const bool is_spoilt = row.text->op == "input" && row.changes_neg_inf;
  const bool is_mask =
      masks_->IsMask(snapshot, {row.text->number, row.text->op, &row.text->inputs,
                                ops::IsOnlyNegInf(stats) && !is_spoilt, ops::NegInfShare(stats)});
  if (is_mask && !std::exchange(row.is_shown_as_mask, true)) {
    destination_->registry->SetMask(snapshot.slot);
  }
  return is_mask;
}

// Replays come in order, so the first one noted stays the first.
void SlotFindings::Look(const pipeline::SlotPtr& row, std::size_t number,
                        const pipeline::Snapshot& snapshot) {
  ring::FirstNonfinites& firsts = rows_[number].firsts;
  const numerics::Stats& stats = snapshot.stats;
  const std::uint64_t inf = snapshot.is_mask ? 0 : stats.pos_inf + stats.neg_inf;
  const bool is_new =
      (stats.nan != 0 && firsts.nan.replay == 0) || (inf != 0 && firsts.inf.replay == 0);
  if (is_new && ring_->valid()) {
    const auto note = [&](std::uint64_t count, pipeline::Finding::Kind kind,
                          ring::FirstNonfinite* first) {
      if (count == 0 || first->replay != 0) return;
      *first = {snapshot.replay, snapshot.step, count, snapshot.serial};
      Add(row, kind, *first);
      if (stats.has_nonfinite) waiting_.back().element = stats.first_nonfinite;
      waiting_.back().has_values = snapshot.has_values;
    };
    note(stats.nan, pipeline::Finding::Kind::kNan, &firsts.nan);
    note(inf, pipeline::Finding::Kind::kInf, &firsts.inf);
    if (HoldsOpLog()) {
      view_->SetFirsts(slot_->registration, number, firsts);
    } else {
      ring_->SetFirsts(firsts);
    }
    destination_->registry->SetFirsts(row, firsts);
  }
  for (pipeline::Finding& finding : waiting_) {
    if (finding.replay != snapshot.replay) continue;
    finding.serial = snapshot.serial;
    finding.step = snapshot.step;
    finding.timestamp_ns = snapshot.timestamp_ns;
  }
}

void SlotFindings::AddMismatch(const pipeline::SlotPtr& slot, const layout::Verdict& verdict) {
  if (std::exchange(has_mismatch_, true)) return;
  waiting_.push_back({.slot = slot,
                      .kind = pipeline::Finding::Kind::kMismatch,
                      .replay = verdict.first_failed_replay,
                      .text = verdict.text});
}

void SlotFindings::Report() {
  for (const pipeline::Finding& finding : std::exchange(waiting_, {})) {
    ReportToJob(finding);
    destination_->sink->Found(finding);
  }
}

void SlotFindings::ReportToJob(const pipeline::Finding& finding) {
  const auto kind = static_cast<layout::FindingKind>(finding.kind);
  const ring::SegmentView::Found found = {finding.serial, finding.slot->registration.order};
  if (!ring_->valid() || !view_->IsFirst(kind, found)) return;
  const pipeline::SlotPlace place = destination_->registry->PlaceOf(*finding.slot);
  const std::string text = pipeline::SentenceOf(finding, place.graph, place.qualifier);
  view_->SetFinding(kind, found, text);
  destination_->registry->SetFinding(finding.slot->session, kind, text);
}

}  // namespace cgdebug::ingest
