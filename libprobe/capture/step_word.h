// step_word.h: the user's step number in stream order.
//
// The job's CPU runs ahead of the GPU: the number it sets now belongs to replays that come later. A
// snapshot that took whatever number the CPU has reached would carry a wrong one. So the number is
// written by the stream itself, between the replays it separates.
#pragma once

#include <cstdint>

namespace cgdebug::capture {

// Enqueues the write on `stream` (a cudaStream_t), on the current device. Does nothing while the
// stream is capturing: the graph would set the number again at every replay.
// Fails: throws Error.
void SetStepInStreamOrder(std::int64_t step, void* stream);

// Where the stream writes it, as the GPU sees it: kNoStep until the first number.
// Fails: throws Error.
std::int64_t* StepWord();

// What the GPU has reached; `otherwise` when no step was ever set in stream order.
// Thread: any, the driver's included.
std::int64_t StepOnGpu(std::int64_t otherwise) noexcept;

}  // namespace cgdebug::capture
