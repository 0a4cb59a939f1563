#include "libprobe/capture/graph/host_callback.h"

#include "libprobe/capture/graph/probe_slot.h"
#include "libprobe/capture/graph/step_word.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"

namespace cgdebug::capture {
void CUDART_CB OnReplay(void* user_data) {
  auto& slot = *static_cast<ProbeSlot*>(user_data);
  if (!slot.life.armed()) return;
  if (!slot.writer->Begin(slot.TakeSerial())) return;
  ring::CopyShared(slot.writer->payload(), slot.buffers.pinned, slot.writer->payload_bytes());
  slot.writer->Commit(layout::RealtimeNs(), StepOnGpu(slot.writer->step()));
}

void CUDART_CB OnEager(void* user_data) {
  auto& slot = *static_cast<ProbeSlot*>(user_data);
  OnReplay(user_data);
  slot.life.Unpin();
}

void CUDART_CB OnGraphGone(void* user_data) {
  static_cast<ProbeSlot*>(user_data)->life.GraphIsGone();
}

}  // namespace cgdebug::capture
