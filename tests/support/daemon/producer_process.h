// producer_process.h: a traced job as a process of its own: a forked child that writes into a real
// segment when it is told to.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/core/base/unique_fd.h"
#include "libprobe/ring/segment/segment_view.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::test {

// One slot of float32 tensors; replay n of it holds n, n + 1, n + 2, ... unless told otherwise.
struct SlotSpec {
  std::string name;
  std::uint64_t elements = 8;
  std::uint32_t capacity = 4;
  std::uint32_t print_every = 0;
  std::uint32_t record_every = 0;
  bool to_disk = false;
  std::uint32_t compare_every = 0;
  layout::Policy policy = layout::Policy::kOverwrite;
  std::uint32_t wait_deadline_ms = 300;
  std::uint32_t print_max_items = 0;
  float expected = 0;    // every element, when it compares
  bool in_body = false;  // of a conditional node: Replay() writes into it instead of Write()
  std::uint32_t expected_extent =
      0;                       // not 0: an extent that does not exist, instead of the expected
  std::uint64_t graph_id = 0;  // of a graph whose launches are counted: Launch(); 0: eager
  std::string graph;           // its label
  // Not 0: a page of an op log with so many rows, "<name>/row<i>", two a launch. Write() writes all
  // of them, Reach() the sign of one launch.
  std::uint32_t rows = 0;
  std::string op;  // of each of those rows; empty: an op that reads the row before
};

// A slot whose every replay is recorded.
inline SlotSpec Recording(const std::string& name, std::uint32_t capacity = 16) {
  SlotSpec spec;
  spec.name = name;
  spec.capacity = capacity;
  spec.record_every = 1;
  return spec;
}

// Requires: the test has one thread when it makes one.
// Lifetime: kills the child, and removes its files.
class ProducerProcess {
 public:
  // `stderr_fd`: becomes the child's stderr; -1 = /dev/null.
  explicit ProducerProcess(const std::vector<SlotSpec>& slots, int stderr_fd = -1,
                           const std::string& run_id = "test", std::int32_t rank = -1);
  ~ProducerProcess();
  ProducerProcess(const ProducerProcess&) = delete;
  ProducerProcess& operator=(const ProducerProcess&) = delete;

  // Each returns when the child is done, with the nanoseconds that it took there.
  std::uint64_t Write(std::uint32_t slot, std::uint32_t count = 1);
  // One replay of the graph, in which the body of the slot's conditional node runs `iterations`
  // times. Iteration i of replay n holds n + i / 100 in every element.
  std::uint64_t Replay(std::uint32_t slot, std::uint32_t iterations);
  // Replay() stamps its entries with a fake clock of a GPU, which is this far behind the host's.
  void FakeLag(std::uint32_t slot, std::uint32_t seconds);
  // One replay in which every element is `value`; of a page of an op log, one in which row 1 has a
  // NaN.
  std::uint64_t WriteValue(std::uint32_t slot, float value);
  // Gives the slot's block back and publishes the same slot anew, in the same place.
  void Replace(std::uint32_t slot);
  // Overwrites `count` random words of its shared memory with rubbish. Nothing else works then.
  void Scribble(std::uint32_t count);
  // Counts a launch of the slot's graph.
  void Launch(std::uint32_t slot);
  // The replay under way has begun this launch of the slot, a page of an op log.
  void Reach(std::uint32_t slot, std::uint32_t launch);
  // Claims an entry and does not commit it.
  void BeginOnly(std::uint32_t slot);
  void Kill();
  void ExitCleanly();

  pid_t pid() const { return pid_; }
  const std::string& segment() const { return segment_; }
  std::string key() const;  // as the daemon calls the session

 private:
  enum class Op : std::uint32_t {
    kWrite,
    kValue,
    kBegin,
    kReplace,
    kScribble,
    kBody,
    kFakeLag,
    kLaunch,
    kReach,
    kExit
  };
  struct Command {
    Op op;
    std::uint32_t slot;
    std::uint32_t count;
    float value;
  };
  static void Child(const std::vector<SlotSpec>& slots, const std::string& run_id,
                    std::int32_t rank, int channel);
  std::uint64_t Tell(const Command& command);
  void Reap();

  pid_t pid_ = 0;
  UniqueFd channel_;
  std::string segment_;
};

}  // namespace cgdebug::test
