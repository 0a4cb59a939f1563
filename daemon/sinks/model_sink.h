// model_sink.h: shows the pipeline's snapshots to clients.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/pipeline/sink.h"

namespace cgdebug::sinks {

// Stands around the other sinks, because what clients see has an order:
// - The event of a snapshot comes before the events that other sinks add about it, which are its
//   failed comparison and its lines.
// - A snapshot becomes the slot's last in the registry once memory has it, so that a client can ask
//   for what it is shown.
// - Clients learn of a loss, and of the end of a session, after every sink. The registry shows the
//   session as ended before the event wakes a client.
//
// The rows of one page of an op log at one replay are one event; so are their losses. Rows that say
// what a log does not show (layout::IsNoRow) hold no tensor and cause no event.
class ModelSink final : public pipeline::Sink {
 public:
  // All three outlive the sink.
  ModelSink(pipeline::Registry* registry, pipeline::EventLog* events, pipeline::Sink* next)
      : registry_(registry), events_(events), next_(next) {}

  void OpenSession(const pipeline::SessionPtr& session) override;
  void OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) override;
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) override;
  void Lose(const pipeline::Gap& gap) override;
  void Found(const pipeline::Finding& finding) override;
  void Froze(const pipeline::RingFreeze& freeze) override;
  void CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                 pipeline::SlotFeedback& feedback) override;
  void NotSeen(const pipeline::SessionPtr& session, const layout::NotSeen& not_seen) override;
  void EndSession(const pipeline::SessionPtr& session, bool died) override;
  void ForgetSession(const pipeline::SessionPtr& session) override;
  void ForgetSlot(const pipeline::SlotPtr& slot) override;
  void Flush() override;
  void Tick() override;

 private:
  void AddRow(const pipeline::SnapshotPtr& snapshot);
  // Adds the event of the rows so far, and then `what`.
  void AddRows();
  void Add(const pipeline::SessionPtr& session, decltype(pipeline::Event::what) what);

  pipeline::Rows rows_;
  pipeline::Loss loss_;                       // `slot` is null: there is none
  std::vector<pipeline::SlotPtr> lost_rows_;  // its rows so far
  // By the first row of a page: the rows of its last loss. A page that the daemon cannot keep up
  // with loses the same rows in each replay, and the event log keeps thousands of losses.
  std::map<pipeline::SlotPtr, std::shared_ptr<const std::vector<pipeline::SlotPtr>>> last_lost_;
  pipeline::Registry* registry_;
  pipeline::EventLog* events_;
  pipeline::Sink* next_;
};

}  // namespace cgdebug::sinks
