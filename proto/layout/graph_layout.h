// graph_layout.h: the census of a process: what CUDA graphs it captured, and what became of them.
//
// One table in a block of an extent, made at the first capture: GraphTable | GraphEntry ...
// Entries of graphs that are gone are used again, so that a job which captures again and again does
// not grow. Written by the producer's host code only.
#pragma once

#include <cstdint>

#include "proto/layout/ring_layout.h"

namespace cgdebug::layout {

inline constexpr std::uint32_t kMaxGraphs = 4096;
inline constexpr std::uint32_t kMaxGraphStackBytes = 191;
inline constexpr std::uint64_t kUnknownCount = ~std::uint64_t{0};

enum class GraphState : std::uint8_t {
  kEmpty = 0,
  kCapturing = 1,
  kLive = 2,
  kGone = 3,    // the graph was deleted, reset or captured anew
  kFailed = 4,  // its capture ended with an error: there is no graph
};
constexpr std::string_view NameOf(GraphState state) {
  constexpr std::string_view kNames[] = {"unused", "capturing", "live", "gone", "failed"};
  return NameAt(kNames, static_cast<std::size_t>(state));
}

struct alignas(kCacheLineBytes) GraphTable {
  // Replays of graphs that have no entry: the table was full, or they were captured before cgdebug
  // was loaded. First, so that a graph without an entry counts in word 0.
  std::uint64_t unlisted_replays;
  std::uint64_t captures;  // begun since the process started, listed or not
  std::uint64_t unlisted;  // of those, the ones that found the table full of live graphs
  std::uint64_t failed;    // captures that ended with an error
  std::uint64_t empty;     // captures that ended with no node
  std::uint64_t gone;
  std::uint64_t entries;  // that were ever used; store-release after the entry
  std::uint64_t reserved[1];
};
static_assert(sizeof(GraphTable) == 64);

struct alignas(kCacheLineBytes) GraphEntry {
  // GraphWord. Odd versions: the entry is being written (W1), and nothing in it may be read.
  std::uint64_t word;
  // Launches that torch.cuda.CUDAGraph.replay() made, counted before each. kUnknownCount: the graph
  // was captured in another way, and nobody counts. Relaxed, and not covered by `word`.
  std::uint64_t replays;
  std::uint64_t order;        // the n-th capture of the process, from 1
  std::uint64_t graph_id;     // as SlotRegistration::graph_id
  std::uint64_t nodes;        // when the capture ended; kUnknownCount: not asked
  std::uint64_t probes;       // calls of probes in it
  std::uint64_t probe_bytes;  // of their tensors, in one replay
  // Captures with this label and stack so far, with this one, and how many of them were gone when
  // it began. 0: neither label nor stack is known.
  std::uint64_t alike;
  std::uint64_t alike_gone;
  std::int64_t begun_ns;  // CLOCK_REALTIME
  std::int64_t ended_ns;  // 0: it is being captured, or its end was not seen
  std::uint64_t pool[2];  // torch's number of its memory pool; 0, 0: unknown
  std::uint64_t reserved[3];
  char label[kMaxGraphLabelBytes + 1];  // the user's name for it; empty: none
  char stack[kMaxGraphStackBytes + 1];  // the lines that captured it, the innermost first
};
static_assert(sizeof(GraphEntry) == 384);

inline constexpr std::uint64_t kGraphTableBytes =
    sizeof(GraphTable) + std::uint64_t{kMaxGraphs} * sizeof(GraphEntry);

constexpr std::uint64_t GraphWord(std::uint64_t version, GraphState state) {
  return version << 8 | static_cast<std::uint64_t>(state);
}
constexpr GraphState GraphStateOf(std::uint64_t word) {
  return static_cast<GraphState>(word & 0xff);
}
constexpr std::uint64_t GraphVersion(std::uint64_t word) { return word >> 8; }

// Where the table lies: ProducerLine::graphs. 0: there is none.
constexpr std::uint64_t GraphTablePlace(std::uint32_t extent, std::uint64_t offset) {
  return std::uint64_t{extent} << 32 | offset / kPageBytes;
}
constexpr std::uint32_t GraphTableExtent(std::uint64_t place) {
  return static_cast<std::uint32_t>(place >> 32);
}
constexpr std::uint64_t GraphTableOffset(std::uint64_t place) {
  return (place & 0xffffffff) * kPageBytes;
}

}  // namespace cgdebug::layout
