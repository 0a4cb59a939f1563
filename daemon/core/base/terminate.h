// terminate.h: how our programs end if an exception is not caught.
#pragma once

namespace cgdebug {

// From now on such an end is a message on stderr and exit code 2 instead of a core dump; most
// likely no memory is left. Nothing is tidied up, as after SIGKILL. `on_end` gets the message
// first; it may be null, and may throw. Thread: any. Lifetime: `program` stays valid.
void EndInsteadOfAborting(const char* program, void (*on_end)(const char* message)) noexcept;

}  // namespace cgdebug
