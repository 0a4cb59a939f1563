// node_pointers.h: which memory a node of a graph is given, whatever its op's arguments say.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cgdebug::apart {

struct MemoryPointer {
  std::uint64_t address = 0;
  std::uint64_t begin = 0;  // of the allocation it lies in, as CUDA knows it
  std::uint64_t end = 0;    // behind its last byte
  bool is_host = false;
};

// The words of a kernel's arguments that point into memory that CUDA has allocated, those in the
// middle of a struct included, and the two ends of a copy or the one of a memset; each once. What
// the kernel finds in memory, such as a table of pointers, is not looked at.
// `node`: cudaGraphNode_t. Nothing: CUDA does not tell the arguments. Fails: throws ProbeError.
std::optional<std::vector<MemoryPointer>> PointersOf(void* node);

}  // namespace cgdebug::apart
