#include "daemon/sinks/model_sink.h"

#include <utility>

#include "daemon/core/base/realtime.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::sinks {

void ModelSink::OpenSession(const pipeline::SessionPtr& session) {
  next_->OpenSession(session);
  Add(session, pipeline::SessionChange{false});
}

void ModelSink::OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) {
  next_->OpenSlot(slot, feedback);
}

void ModelSink::Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) {
  const pipeline::SnapshotPtr& snapshot = delivery.snapshot;
  if (!delivery.seen_before && !layout::IsNoRow(snapshot->slot->op)) {
    if (pipeline::IsOpLogRow(*snapshot->slot)) {
      AddRow(snapshot);
    } else {
      Add(snapshot->slot->session, snapshot);
    }
  }
  next_->Consume(delivery, feedback);
  registry_->SetLast(snapshot);
}

void ModelSink::AddRow(const pipeline::SnapshotPtr& snapshot) {
  std::vector<pipeline::SnapshotPtr>& rows = rows_.snapshots;
  const bool is_next = !rows.empty() && rows.back()->ordinal == snapshot->ordinal &&
                       pipeline::AreOfOnePage(*rows.back()->slot, *snapshot->slot);
  if (!is_next) AddRows();
  rows.push_back(snapshot);
}

void ModelSink::AddRows() {
  if (!rows_.snapshots.empty()) {
    const pipeline::SessionPtr session = rows_.snapshots.front()->slot->session;
    events_->Add(session, std::exchange(rows_, {}));
  }
  if (loss_.slot != nullptr) {
    auto& last = last_lost_[loss_.slot];
    if (last == nullptr || *last != lost_rows_) {
      last = std::make_shared<const std::vector<pipeline::SlotPtr>>(lost_rows_);
    }
    lost_rows_.clear();
    loss_.rows = last;
    const pipeline::SessionPtr session = loss_.slot->session;
    events_->Add(session, std::exchange(loss_, {}));
  }
}

void ModelSink::Add(const pipeline::SessionPtr& session, decltype(pipeline::Event::what) what) {
  AddRows();
  events_->Add(session, std::move(what));
}

void ModelSink::Lose(const pipeline::Gap& gap) {
  next_->Lose(gap);
  if (gap.cause == layout::LossCause::kOnDevice) return;  // as the probe asked for
  if (layout::IsNoRow(gap.slot->op)) return;              // no tensor
  pipeline::Loss loss{gap.slot, gap.count, gap.before_replay, ToText(gap.cause)};
  if (!pipeline::IsOpLogRow(*gap.slot)) return Add(gap.slot->session, std::move(loss));
  const pipeline::Loss& before = loss_;
  const bool is_next = before.slot != nullptr && before.count == loss.count &&
                       before.before_replay == loss.before_replay && before.cause == loss.cause &&
                       pipeline::AreOfOnePage(*before.slot, *gap.slot) &&
                       lost_rows_.back() != gap.slot;
  if (!is_next) {
    AddRows();
    loss_ = std::move(loss);
  }
  lost_rows_.push_back(gap.slot);
}

void ModelSink::Found(const pipeline::Finding& finding) { next_->Found(finding); }

void ModelSink::Froze(const pipeline::RingFreeze& freeze) { next_->Froze(freeze); }

void ModelSink::CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                          pipeline::SlotFeedback& feedback) {
  AddRows();  // it may be long until something else comes
  next_->CloseSlot(slot, last_replay, feedback);
}

void ModelSink::NotSeen(const pipeline::SessionPtr& session, const layout::NotSeen& not_seen) {
  registry_->SetNotSeen(session, not_seen);
  next_->NotSeen(session, not_seen);
}

void ModelSink::EndSession(const pipeline::SessionPtr& session, bool died) {
  next_->EndSession(session, died);
  registry_->EndSession(session,
                        died ? pipeline::SessionState::kDied : pipeline::SessionState::kExited,
                        RealtimeNs());
  Add(session, pipeline::SessionChange{true});
}

void ModelSink::ForgetSession(const pipeline::SessionPtr& session) {
  AddRows();
  std::erase_if(last_lost_, [&](const auto& one) { return one.first->session == session; });
  next_->ForgetSession(session);
  events_->ForgetSession(session);
  registry_->ForgetSession(session);
}

void ModelSink::ForgetSlot(const pipeline::SlotPtr& slot) {
  last_lost_.erase(slot);
  next_->ForgetSlot(slot);
  registry_->ForgetSlot(slot);
}

void ModelSink::Flush() {
  next_->Flush();
  AddRows();
}

void ModelSink::Tick() { next_->Tick(); }

}  // namespace cgdebug::sinks
