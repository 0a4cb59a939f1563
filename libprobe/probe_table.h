// probe_table.h: the one table of a process: its segment and its slots, and when they are freed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/capture/probe_slot.h"
#include "libprobe/ring/segment_writer.h"

namespace cgdebug {

// The state of a Probe. The table's mutex guards everything but options and name, which never
// change.
struct ProbeState {
  std::string name;
  ProbeOptions options;
  std::uint64_t id = 0;
  std::string site;  // Probe::site(); never changes after Register()
  bool closed = false;
  std::string last_error;
  std::string lane_note;
  const void* owner = nullptr;  // the table it belongs to; a forked child has its own
  std::vector<capture::ProbeSlot*> slots;
  std::unordered_map<std::uint64_t, std::uint32_t> invocations;  // capture id -> calls so far
  std::vector<std::shared_ptr<ring::Block>> expected;            // in shared memory, by index
  std::vector<std::unique_ptr<capture::ProbeSlot>> prepared;     // not published yet
  std::vector<SlotStatus> evicted;  // slots that compared and were given up, added up by verdict
};

// Thread:   any. One mutex, never taken on the replay path, by SetStep(), or while payloads are
//           copied.
// Lifetime: never destroyed: driver threads may call back after static objects are gone. A forked
//           child gets a new table and leaves its parent's segment alone.
class ProbeTable {
 public:
  static ProbeTable& Instance();

  void Register(const std::shared_ptr<ProbeState>& probe);
  std::shared_ptr<ProbeState> Find(std::string_view site);
  void Close(ProbeState& probe);

  void Observe(ProbeState& probe, const TensorRef& tensor, void* stream);
  void Prepare(ProbeState& probe, const TensorRef& tensor);

  std::vector<Record> Records(ProbeState& probe, int last);
  void ClearRecords(ProbeState& probe, std::uint32_t slot, std::uint64_t ordinal);
  void ClearAllRecords(ProbeState& probe);
  ProbeStatus Status(ProbeState& probe);
  bool WaitConsumed(ProbeState* probe, std::chrono::nanoseconds timeout);  // nullptr: every probe

  void SetStep(std::int64_t step);
  void SetSiteProvider(SiteProvider provider) { site_provider_.store(provider); }
  GraphLabel SetGraphLabel(GraphLabel label);
  std::optional<SessionInfo> Session();
  bool DaemonAlive();
  // Makes the segment and gives a daemon that was just started a few milliseconds to find it. What
  // is written earlier may be overwritten unread.
  void AwaitDaemon(std::chrono::nanoseconds timeout);
  std::string Finish(std::chrono::nanoseconds timeout);

 private:
  ProbeTable() = default;
  static void AtForkPrepare();
  static void AtForkParent();
  static void AtForkChild();
  void AdoptInThisProcess(ProbeState& probe);
  ring::SegmentWriter& Segment();
  ring::Block Allocate(const std::string& probe, std::uint64_t bytes, std::uint64_t header_bytes);
  void MakeRoom(std::uint64_t bytes);
  std::shared_ptr<ring::Block> ExpectedBlock(ProbeState& probe, std::size_t index);

  // Makes a slot with ring and buffers that readers do not see yet.
  std::unique_ptr<capture::ProbeSlot> MakeSlot(ProbeState& probe, const TensorRef& tensor,
                                               layout::Lane lane, layout::LaneReason reason);
  // The same for a capture: in the direct lane if it is wanted and works, and with buffers.
  std::unique_ptr<capture::ProbeSlot> MakeCaptureSlot(ProbeState& probe, const TensorRef& tensor);
  std::unique_ptr<capture::ProbeSlot> TakePrepared(ProbeState& probe, const TensorRef& tensor);
  // A graph that is being captured.
  struct Capture {
    std::shared_ptr<ring::SharedSerial> serial = std::make_shared<ring::SharedSerial>();
    std::string label;
  };
  Capture& FindCapture(std::uint64_t id);
  // Fills in what only the calling code knows, and the expected tensor.
  void Complete(ProbeState& probe, capture::ProbeSlot& slot, const TensorRef& tensor,
                std::uint64_t graph_id, std::uint32_t invocation, const std::string& site);
  capture::ProbeSlot* Publish(ProbeState& probe, std::unique_ptr<capture::ProbeSlot>& slot);
  // Where the probe is called. Releases `lock` meanwhile: finding out may take the interpreter's
  // lock, whose owner may wait for this one.
  std::string CallSite(ProbeState& probe, std::unique_lock<std::mutex>& lock);
  static capture::ProbeSlot* FindEagerSlot(ProbeState& probe, const TensorRef& tensor,
                                           void* stream);
  // nullptr if the probe was closed. Releases `lock` meanwhile to allocate memory.
  capture::ProbeSlot* EagerSlot(ProbeState& probe, const TensorRef& tensor, void* stream,
                                std::unique_lock<std::mutex>& lock);
  void CaptureOne(ProbeState& probe, const TensorRef& tensor, void* stream, std::uint64_t graph_id,
                  const std::string& site);
  void ObserveHost(ProbeState& probe, const TensorRef& tensor);
  void ObserveCuda(ProbeState& probe, const TensorRef& tensor, void* stream);

  void LetGo(capture::ProbeSlot& slot);
  // Gives up one slot of a probe that goes on, and counts what was unread in it.
  void Evict(ProbeState& probe, capture::ProbeSlot& slot);
  void EvictOldEager(ProbeState& probe);
  void EvictOldRetired(bool all);
  void KeepVerdict(const capture::ProbeSlot& slot);
  void Retire(capture::ProbeSlot& slot);
  void FreeSlot(capture::ProbeSlot& slot);
  // Made before the mutex is taken: when it has been given back, frees memory of slots that are
  // gone. That may wait for the device, so no eager call does it.
  class Trimmer {
   public:
    explicit Trimmer(const ProbeTable& table, bool wanted = true)
        : table_(table), wanted_(wanted) {}
    ~Trimmer();
    Trimmer(const Trimmer&) = delete;
    Trimmer& operator=(const Trimmer&) = delete;

   private:
    const ProbeTable& table_;
    bool wanted_;
  };
  void Sweep(bool force);
  bool AllDrained(const ProbeState* probe);

  static ProbeTable* instance_;
  const ProbeTable* parent_ = nullptr;  // of the process that forked this one; never touched
  std::mutex mutex_;
  std::uint64_t next_probe_id_ = 1;
  std::uint64_t next_order_ = 1;
  std::uint64_t eager_uses_ = 0;
  bool finished_ = false;
  bool asked_for_daemon_ = false;
  std::unordered_map<std::uint64_t, std::weak_ptr<ProbeState>> probes_;
  // Finds a std::string by a std::string_view.
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::weak_ptr<ProbeState>, Hash, std::equal_to<>> sites_;
  std::unordered_map<std::string, std::uint64_t> made_;  // name -> probes made so far
  std::unique_ptr<ring::SegmentWriter> segment_;
  bool lossless_ = false;  // a recording waited for this process, so its slots lose nothing
  std::vector<std::unique_ptr<capture::ProbeSlot>> slots_;
  std::unordered_map<std::uint64_t, Capture> captures_;
  GraphLabel graph_label_;
  std::uint64_t labelled_capture_ = 0;  // the capture that took graph_label_
  // Atomic: a training loop calls SetStep() in every step, and must not wait for a thread that
  // captures or asks for the status.
  std::atomic<std::int64_t> step_{-1};
  std::atomic<SiteProvider> site_provider_{nullptr};
  std::atomic<bool> has_gpu_memory_{false};               // not what a parent had before it forked
  std::atomic<layout::ProducerLine*> producer_{nullptr};  // in the segment, once there is one
};

// The environment variable CGDEBUG: "0" forbids starting or awaiting the daemon, "1" starts it with
// the first probe that needs it. Not for the replay path.
std::string DaemonSetting();
bool DaemonForbidden();
SlotStatus StatusOf(const capture::ProbeSlot& slot);
// Whether the slot has an action that only a daemon carries out, or a recording needs every
// snapshot.
bool NeedsDaemon(const capture::ProbeSlot& slot);

}  // namespace cgdebug
