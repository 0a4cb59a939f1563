// replica_sink.h: compares the tensors that must be equal over the ranks of this machine, replay by
// replay, by statistics and hashes alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "daemon/core/replicas/judge.h"
#include "daemon/core/replicas/position.h"
#include "daemon/model/control_queue.h"
#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/pipeline/sink.h"

namespace cgdebug::sinks {

// Says at once when a rank does not have what the others have: an event, a finding of its slot, and
// counts of its session. The judge is that of `cgdebug-cli ranks`.
//
// A snapshot waits until each rank of this machine has one of the same position, or has none: it is
// further, or has ended. It waits for kPatience at most, and no more than kMostWaiting do. A rank
// that did not come in time is not waited for again until it comes; what was compared without it is
// counted as incomplete, and is never called the same. So is a replica whose ranks were cut off.
//
// Ranks of other machines are not compared here: `cgdebug-cli ranks` reads the recordings of all.
class ReplicaSink final : public pipeline::Sink {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPatience = std::chrono::seconds(3);
  static constexpr std::size_t kMostWaiting = 32'768;                    // snapshots, of each run
  static constexpr std::size_t kMostHeldBytes = std::size_t{256} << 20;  // of their values

  // `findings`: who is told what is found, besides the job. All four outlive the sink.
  ReplicaSink(pipeline::Registry* registry, pipeline::EventLog* events,
              pipeline::ControlQueue* controls, pipeline::Sink* findings,
              std::function<Clock::time_point()> now = Clock::now);
  ~ReplicaSink() override;

  void OpenSession(const pipeline::SessionPtr& session) override;
  void OpenSlot(const pipeline::SlotPtr& slot, pipeline::SlotFeedback& feedback) override;
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) override;
  void CloseSlot(const pipeline::SlotPtr& slot, std::uint64_t last_replay,
                 pipeline::SlotFeedback& feedback) override;
  void EndSession(const pipeline::SessionPtr& session, bool died) override;
  void ForgetSession(const pipeline::SessionPtr& session) override;
  void Flush() override;
  void Tick() override;

 private:
  class Run;
  struct Member {  // a slot that is a replica
    std::shared_ptr<Run> run;
    // Else its ranks were cut off (replicas::Replication::kUnknown), or it has no statistics.
    bool is_known = true;
    std::size_t replica = 0;
    std::size_t process = 0;
    replicas::PositionCounter positions = {};
    std::optional<replicas::Position> newest = {};
  };

  std::shared_ptr<Run> RunOf(const pipeline::SessionPtr& session) const;

  pipeline::Registry* registry_;
  pipeline::EventLog* events_;
  pipeline::ControlQueue* controls_;
  pipeline::Sink* findings_;
  std::function<Clock::time_point()> now_;
  std::map<replicas::Attempt, std::shared_ptr<Run>> runs_;
  std::map<pipeline::SlotPtr, Member> members_;
};

}  // namespace cgdebug::sinks
