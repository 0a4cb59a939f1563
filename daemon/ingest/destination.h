// destination.h: what ingest works with.
#pragma once

#include "daemon/model/control_queue.h"
#include "daemon/model/registry.h"
#include "daemon/pipeline/payload_pool.h"
#include "daemon/pipeline/sink.h"
#include "daemon/record/ring_reads.h"

namespace cgdebug::ingest {

struct Destination {
  pipeline::Registry* registry;      // the counters and states that it reads out of shared memory
  pipeline::ControlQueue* controls;  // what clients want of slots
  pipeline::RingReads* reads;        // what they want of rings
  pipeline::PayloadPool* payloads;
  pipeline::Sink* sink;  // gets everything else
};

}  // namespace cgdebug::ingest
