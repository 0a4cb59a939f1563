#include "libprobe/capture/graph/host_callback.h"

#include "libprobe/capture/graph/eager_looks.h"
#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/capture/graph/step_word.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"

namespace cgdebug::capture {
namespace {

// `call`, `step`: as in EagerLook.
void Send(ProbeSlot& slot, std::uint64_t call, std::int64_t step) {
  if (!slot.life.armed()) return;
  ring::SlotRingWriter& writer = *slot.writer;
  const std::uint64_t serial = slot.TakeSerial();
  if (!(call == 0 ? writer.Begin(serial) : writer.BeginInCall(serial, call))) return;
  ring::CopyShared(writer.payload(), slot.buffers.pinned, writer.payload_bytes());
  writer.Commit(layout::RealtimeNs(), call == 0 ? StepOnGpu(writer.step()) : step);
}

}  // namespace

void CUDART_CB OnReplay(void* slot) { Send(*static_cast<ProbeSlot*>(slot), 0, 0); }

void CUDART_CB OnEager(void* user_data) {
  auto* const look = static_cast<EagerLook*>(user_data);
  ProbeSlot& slot = *look->slot;
  Send(slot, look->call, look->step);
  slot.looks.GiveBack(look);
  slot.life.Unpin();
}

void CUDART_CB OnGraphGone(void* user_data) {
  static_cast<ProbeSlot*>(user_data)->life.GraphIsGone();
}

}  // namespace cgdebug::capture
