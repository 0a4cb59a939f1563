// step_word.h: the user's step number in stream order.
//
// The job's CPU runs ahead of the GPU: the number it sets now belongs to later replays, so a
// snapshot with the CPU's number would carry a wrong one. Therefore the stream itself writes the
// number, between the replays it separates.
#pragma once

#include <cstdint>

namespace cgdebug::capture {

// Enqueues the write on `stream` (a cudaStream_t), on the current device. Does nothing while the
// stream is capturing, because the graph would set the number again at every replay.
// Fails: never. Where a stream cannot write, snapshots take the number of the job's CPU.
void SetStepInStreamOrder(std::int64_t step, void* stream) noexcept;

// Where the stream writes it, as the GPU addresses it: kNoStep until the first number.
// Fails: throws ProbeError.
std::int64_t* StepWord();

// The step that the GPU has reached; `otherwise` if none was ever set in stream order.
// Thread: any, the driver's included.
std::int64_t StepOnGpu(std::int64_t otherwise) noexcept;

}  // namespace cgdebug::capture
