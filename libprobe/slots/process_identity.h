// process_identity.h: who this process is, from its environment and /proc.
#pragma once

#include "libprobe/ring/segment/segment_writer.h"

namespace cgdebug {

// Rank, world size, restart count and run id come from the launcher's variables (torchrun, then
// SLURM, then Open MPI); CGDEBUG_RUN_ID has priority. Without a run id, ranks of one launch
// recognise each other by the address they meet at and by their parent.
ring::Identity CurrentIdentity();

}  // namespace cgdebug
