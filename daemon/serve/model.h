// model.h: what clients are shown.
#pragma once

#include "daemon/core/answers/probe.h"
#include "daemon/core/answers/session.h"
#include "daemon/model/control_queue.h"
#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/model/snapshot_store.h"
#include "daemon/record/recorder.h"
#include "daemon/record/ring_reads.h"

namespace cgdebug::serve {

// Outlives the server.
struct Model {
  pipeline::Registry* registry;
  pipeline::EventLog* events;
  pipeline::SnapshotStore* store;
  pipeline::ControlQueue* controls;
  pipeline::RingReads* reads;
  pipeline::Recorder* recorder;
};

// With what memory keeps of them and of their findings.
answers::Session SessionNow(const pipeline::SessionRecord& record, const Model& model);
answers::Probe ProbeNow(const pipeline::SlotRecord& record, const Model& model,
                        bool with_last_stats = true);

}  // namespace cgdebug::serve
