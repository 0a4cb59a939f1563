// terminate.h: how a program of ours ends when an exception has nowhere to go.
#pragma once

namespace cgdebug {

// From now on such an end is a message on stderr and exit code 2, not a core dump: no memory is
// left, most likely. Nothing is tidied up, as after SIGKILL. `on_end` is told the message first; it
// may be null, and may throw. Thread: any. Lifetime: `program` stays valid.
void EndInsteadOfAborting(const char* program, void (*on_end)(const char* message)) noexcept;

}  // namespace cgdebug
