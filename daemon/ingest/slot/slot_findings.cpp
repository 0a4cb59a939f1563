#include "daemon/ingest/slot/slot_findings.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cgdebug::ingest {
namespace {

constexpr std::size_t kMostLater = 4096;

}  // namespace

void SlotFindings::StartRow(const pipeline::SlotPtr& row, std::size_t number) {
  const ring::FirstNonfinites firsts =
      HoldsOpLog() ? view_->firsts(slot_->registration, number) : ring_->firsts();
  rows_.push_back({.firsts = firsts, .text = ops::ParseOpText(row->op)});
  if (rows_.back().text) masks_->AddRow(row->probe, rows_.back().text->number);
  destination_->registry->SetFirsts(row, firsts);
  Add(row, layout::FindingKind::kNan, firsts.nan);
  Add(row, layout::FindingKind::kInf, firsts.inf);
  if (rows_.back().text && (firsts.nan.replay != 0 || firsts.inf.replay != 0)) {
    destination_->sink->NotFinite(row, 0, 0);
  }
}

void SlotFindings::Add(const pipeline::SlotPtr& slot, layout::FindingKind kind,
                       const ring::FirstNonfinite& first) {
  if (first.replay == 0) return;
  waiting_.push_back({.slot = slot,
                      .kind = kind,
                      .replay = first.replay,
                      .serial = first.serial,
                      .step = first.step,
                      .count = first.count});
}

void SlotFindings::BeginPage(const pipeline::Snapshot& row) {
  std::uint32_t first = UINT32_MAX, last = 0;
  for (const Row& one : rows_) {
    if (!one.text) continue;
    first = std::min(first, one.text->number);
    last = std::max(last, one.text->number);
  }
  if (last != 0) masks_->BeginPage(row, first, last);
}

void SlotFindings::EndPage(const pipeline::Snapshot& row) { masks_->EndPage(row); }

LogMasks::Answer SlotFindings::IsMask(std::size_t number, const pipeline::SnapshotPtr& snapshot) {
  using Answer = LogMasks::Answer;
  Row& row = rows_[number];
  const numerics::Stats& stats = snapshot->stats;
  const bool is_row = !snapshot->slot->op.empty();
  if (is_row && !row.neg_inf) row.neg_inf = stats.neg_inf;
  row.changes_neg_inf |= is_row && stats.neg_inf != *row.neg_inf;
  if (stats.nonfinite() == 0 || (is_row && !row.text)) return Answer::kNo;
  const bool is_spoilt = is_row && row.text->op == "input" && row.changes_neg_inf;
  const bool may_be_one = ops::IsOnlyNegInf(stats) && !is_spoilt;
  if (!is_row && !may_be_one) return Answer::kNo;
  const auto later = may_be_one ? Later(number, snapshot) : std::weak_ptr<LogMasks::Later>();
  const Answer answer = is_row ? masks_->IsMask(*snapshot,
                                                {row.text->number, row.text->op, &row.text->inputs,
                                                 may_be_one, ops::NegInfShare(stats)},
                                                later)
                               : masks_->IsValueOfMask(*snapshot, later);
  if (may_be_one && answer != Answer::kNotYet) later_.erase(asked_later_);
  if (answer == Answer::kYes) ShowMask(number, snapshot->slot);
  return answer;
}

void SlotFindings::ShowMask(std::size_t number, const pipeline::SlotPtr& row) {
  if (!std::exchange(rows_[number].is_shown_as_mask, true)) destination_->registry->SetMask(row);
}

// What is told for too long no longer waits: what it waits for is lost.
std::weak_ptr<LogMasks::Later> SlotFindings::Later(std::size_t number,
                                                   const pipeline::SnapshotPtr& snapshot) {
  const std::uint64_t id = ++asked_later_;
  const auto tell = [this, number, snapshot, id](bool is_mask) {
    if (is_mask) {
      ShowMask(number, snapshot->slot);
    } else {
      Note(snapshot->slot, number, *snapshot, 0, snapshot->stats.neg_inf);
      Report();
    }
    later_.erase(id);
  };
  if (later_.size() >= kMostLater) later_.erase(later_.begin());
  return later_[id] = std::make_shared<LogMasks::Later>(tell);
}

void SlotFindings::Look(const pipeline::SlotPtr& row, std::size_t number,
                        const pipeline::Snapshot& snapshot, LogMasks::Answer is_mask) {
  const numerics::Stats& stats = snapshot.stats;
  Note(row, number, snapshot, stats.nan,
       is_mask == LogMasks::Answer::kNo ? stats.pos_inf + stats.neg_inf : 0);
  for (pipeline::Finding& finding : waiting_) {
    if (finding.replay != snapshot.replay) continue;
    finding.serial = snapshot.serial;
    finding.step = snapshot.step;
    finding.timestamp_ns = snapshot.timestamp_ns;
  }
}

// Replays come in order, so the first one noted stays the first; but for one that was told later.
void SlotFindings::Note(const pipeline::SlotPtr& row, std::size_t number,
                        const pipeline::Snapshot& snapshot, std::uint64_t nan, std::uint64_t inf) {
  if (rows_[number].text && (nan != 0 || inf != 0)) {
    destination_->sink->NotFinite(row, snapshot.replay, snapshot.iteration);
  }
  ring::FirstNonfinites& firsts = rows_[number].firsts;
  const numerics::Stats& stats = snapshot.stats;
  const bool is_new = (nan != 0 && firsts.nan.replay == 0) || (inf != 0 && firsts.inf.replay == 0);
  if (!is_new || !ring_->valid()) return;
  const auto note = [&](std::uint64_t count, layout::FindingKind kind,
                        ring::FirstNonfinite* first) {
    if (count == 0 || first->replay != 0) return;
    *first = {snapshot.replay, snapshot.step, count, snapshot.serial};
    Add(row, kind, *first);
    waiting_.back().timestamp_ns = snapshot.timestamp_ns;
    if (stats.has_nonfinite) waiting_.back().element = stats.first_nonfinite;
    waiting_.back().has_values = snapshot.has_values;
  };
  note(nan, layout::FindingKind::kNan, &firsts.nan);
  note(inf, layout::FindingKind::kInf, &firsts.inf);
  if (HoldsOpLog()) {
    view_->SetFirsts(slot_->registration, number, firsts);
  } else {
    ring_->SetFirsts(firsts);
  }
  destination_->registry->SetFirsts(row, firsts);
}

void SlotFindings::AddMismatch(const pipeline::SlotPtr& slot, const layout::Verdict& verdict) {
  if (std::exchange(has_mismatch_, true)) return;
  waiting_.push_back({.slot = slot,
                      .kind = layout::FindingKind::kMismatch,
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
  const layout::FindingKind kind = finding.kind;
  const bool is_of_row = !finding.slot->op.empty() && kind != layout::FindingKind::kMismatch;
  const ring::FindingTexts::Found found = {finding.serial, finding.slot->registration.order,
                                           is_of_row};
  if (!ring_->valid() || !view_->findings().IsFirst(kind, found)) return;
  const pipeline::SlotPlace place = destination_->registry->PlaceOf(*finding.slot);
  const std::string text = pipeline::SentenceOf(finding, place.graph, place.qualifier);
  view_->findings().Set(kind, found, text);
  destination_->registry->SetFinding(finding.slot->session, kind, text);
}

}  // namespace cgdebug::ingest
