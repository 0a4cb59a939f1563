// terminate.h: how our programs end if no memory is left or an exception is not caught.
#pragma once

namespace cgdebug {

// From now on these ends print a message on stderr and exit with 2 instead of dumping core. Nothing
// is tidied up, as after SIGKILL. Then `on_end` gets the message; it may be null, and may throw.
//
// An allocation that fails ends the program at once, without unwinding. Generated protobuf messages
// are not exception-safe: after an exception their destructors free memory that was never
// allocated. And a daemon that unwinds would close recordings as if they were complete.
//
// Thread: any. Lifetime: `program` stays valid.
void EndInsteadOfAborting(const char* program, void (*on_end)(const char* message)) noexcept;

// While one exists, an allocation that fails on its thread throws std::bad_alloc instead. For large
// allocations whose failure the caller handles.
//
// Requires: no protobuf message is changed in its scope.
class MayRunOutOfMemory {
 public:
  MayRunOutOfMemory() noexcept;
  ~MayRunOutOfMemory();
  MayRunOutOfMemory(const MayRunOutOfMemory&) = delete;
  MayRunOutOfMemory& operator=(const MayRunOutOfMemory&) = delete;
};

}  // namespace cgdebug
