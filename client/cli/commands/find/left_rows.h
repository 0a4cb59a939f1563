// left_rows.h: whether a replay that was run again made what it left in an op log and in probes.
#pragma once

#include <cstdint>

#include "client/cli/context.h"
#include "client/cli/remote/job_questions.h"

namespace cgdebug::cli {

// `answer`: of a job that was asked about a replay that is over, with "hashes". They are held
// against the rows of that replay in the job's op log, and against what its probes saw, by name. If
// one differs, the answer becomes that of a replay that was not reproduced; else it says how many
// are the same. Takes the hashes away. Where the job has neither it stays as it is.
// Requires: the context is connected.
void CompareLeftRows(Context& context, std::int64_t pid, JobAnswer* answer);

}  // namespace cgdebug::cli
