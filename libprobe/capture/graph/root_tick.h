// root_tick.h: the kernel that counts the replays of a root graph for the probes in its conditional
// bodies.
#pragma once

#include <cuda_runtime_api.h>

#include "libprobe/capture/graph/root_graph.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {

// The root graph's tick on `device`, which runs in front of everything else in it; added at first.
// `set_up` is a stream of ours on that device. `args`: what its kernel takes, but for `tick`;
// `shared_serial` is null if the leaves of the root graph have no such word yet.
// Requires: relaxed capture mode; `device` is the current one.
// Fails: throws ProbeError kUnsupported if the driver cannot add it.
const RootGraph::Tick& EnsureTick(RootGraph* root, int device, cudaStream_t set_up,
                                  const TickArgs& args);

// From its next replay on, the tick tells a slot in a body how often the root graph replayed.
// Requires: as above, and EnsureTick(). The head lives as long as the graph.
void TellReplays(RootGraph* root, int device, cudaStream_t set_up, layout::SlotHead* head);

}  // namespace cgdebug::capture
