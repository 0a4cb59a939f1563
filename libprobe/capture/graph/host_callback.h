// host_callback.h: what runs on the driver's thread at each replay.
//
// It may not call CUDA (the driver forbids it), take a lock (the thread that holds it may wait for
// the driver), allocate (the same), touch Python (the GIL) or log. It copies and commits.
#pragma once

#include <cuda_runtime_api.h>

namespace cgdebug::capture {

// A replay of a captured probe. `slot` is a ProbeSlot.
void CUDART_CB OnReplay(void* slot);

// An eager call. `look` is an EagerLook of ProbeSlot::looks, and goes back there. Requires: the
// slot was pinned for it; the call takes the pin away.
void CUDART_CB OnEager(void* look);

// The graph and every exec made from it are gone. Runs on a driver thread, so it only sets a flag.
void CUDART_CB OnGraphGone(void* slot);

}  // namespace cgdebug::capture
