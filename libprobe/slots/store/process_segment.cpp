#include "libprobe/slots/store/process_segment.h"

#include <chrono>
#include <exception>

#include "daemon/core/words/settings.h"
#include "libprobe/ring/segment/reclaim.h"
#include "libprobe/ring/segment/shared_mark.h"
#include "libprobe/slots/daemon_setting.h"
#include "libprobe/slots/process_identity.h"
#include "libprobe/slots/registration.h"

namespace cgdebug {
namespace {

constexpr double kReclaimAfterSeconds = 3600;

// `cgdebug-cli run -o` sets CGDEBUG_LOSSLESS for its job; a recording that waits for any job leaves
// a mark.
bool LosslessWanted() {
  if (DaemonForbidden()) return false;
  const std::string setting = words::ReadSetting("CGDEBUG_LOSSLESS");
  if (!setting.empty()) return setting == "1";
  return ring::IsMarked(ring::MarkKind::kRecorder);
}

}  // namespace

ring::SegmentWriter& ProcessSegment::Get() {
  if (writer_ == nullptr) {
    ring::ReclaimDeadSegments(kReclaimAfterSeconds);
    writer_ = std::make_unique<ring::SegmentWriter>(CurrentIdentity());
    step_->ShowIn(writer_->producer());
    not_seen_->ShowIn(writer_->not_seen());
    lossless_ = LosslessWanted();
    // Snapshots written before the daemon has come may be overwritten, and all of them were asked
    // for.
    if (lossless_) writer_->gate()->AwaitReader(std::chrono::milliseconds(WaitDeadlineMs()));
  }
  return *writer_;
}

ring::GraphCensusWriter* ProcessSegment::Census() noexcept {
  if (census_ || census_failed_) return census();
  census_failed_ = true;
  try {
    const ring::Block block = Get().Allocate(layout::kGraphTableBytes, layout::kGraphTableBytes);
    census_.emplace(block.data);
    writer_->PublishGraphs(block);
    census_failed_ = false;
  } catch (const std::exception&) {  // no room, or no segment: the probes say so themselves
  }
  return census();
}

void ProcessSegment::CountProbe(std::uint64_t graph_id, const std::string& label,
                                std::uint64_t bytes) {
  ring::GraphCensusWriter* const census = Census();
  if (census == nullptr) return;
  if (!census->Knows(graph_id)) census->Begin(graph_id, label, "", /*counted=*/false);
  census->AddProbe(graph_id, bytes, label);
}

}  // namespace cgdebug
