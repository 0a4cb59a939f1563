#include "tests/support/daemon/producer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>

#include "libprobe/ring/graph_census.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/slot_ring_writer.h"
#include "proto/layout/realtime.h"
#include "tests/support/ring/body_ring.h"
#include "tests/support/ring/op_log_fixture.h"

namespace cgdebug::test {
namespace {

constexpr std::size_t kUuidDigits = 32;

constexpr std::uint32_t kRowsOfLaunch = 2;

std::uint32_t PublishPage(ring::SegmentWriter& segment, const SlotSpec& spec, std::uint64_t order,
                          ring::Block* block) {
  std::vector<ring::OpLogRow> rows = MakeRows(spec.rows);
  for (std::uint32_t i = 0; i < spec.rows; ++i) {
    rows[i].name = spec.name + "/row" + std::to_string(i);
    rows[i].op =
        std::to_string(i + 1) + " aten.mm.default" + (i == 0 ? "" : " " + std::to_string(i));
    if (!spec.op.empty()) rows[i].op = spec.op;
    rows[i].launch = spec.graph_id == 0 ? 0 : i / kRowsOfLaunch + 1;
  }
  layout::SlotRegistration r = MakeOpLogSlot(segment, rows, spec.capacity);
  r.order = r.probe_id = order;
  r.graph_id = spec.graph_id;
  std::memcpy(r.graph_label, spec.graph.data(), spec.graph.size());
  const Slot slot = PublishSlot(segment, r);
  *block = slot.block;
  return slot.index;
}

std::uint32_t PublishSpec(ring::SegmentWriter& segment, const SlotSpec& spec, std::uint64_t order,
                          ring::Block* block) {
  if (spec.rows != 0) return PublishPage(segment, spec, order, block);
  layout::SlotRegistration r = {};
  r.probe_id = order;
  r.order = order;
  r.dtype = static_cast<std::uint16_t>(layout::Dtype::kFloat32);
  r.dims = 1;
  r.shape[0] = spec.elements;
  r.payload_bytes = spec.elements * sizeof(float);
  r.capacity = spec.capacity;
  r.policy = static_cast<std::uint8_t>(spec.policy);
  r.print_every = spec.print_every;
  r.record_every = spec.record_every;
  r.compare_every = spec.compare_every;
  r.actions = (spec.print_every != 0 ? layout::kActionPrint : 0) |
              (spec.record_every != 0 ? layout::kActionRecord : 0) |
              (spec.to_disk ? layout::kActionRecordToDisk : 0) |
              (spec.compare_every != 0 ? layout::kActionCompare : 0);
  r.flags = layout::kPrintSummary;
  r.print_max_items = spec.print_max_items;
  r.compare_rtol = 1e-5;
  r.compare_atol = 1e-8;
  r.wait_deadline_ms = spec.wait_deadline_ms;
  if (spec.in_body) PutIntoBody(&r);
  const auto geometry = layout::ComputeGeometry(r.payload_bytes, r.capacity);
  r.payload_stride_bytes = geometry.payload_stride_bytes;
  r.headers_offset = geometry.headers_offset;
  r.payload_offset = geometry.payload_offset;
  std::memcpy(r.name, spec.name.data(), spec.name.size());
  r.graph_id = spec.graph_id;
  std::memcpy(r.graph_label, spec.graph.data(), spec.graph.size());
  if (spec.compare_every != 0) {
    const ring::Block expected = segment.Allocate(r.payload_bytes);
    const std::vector<float> values(spec.elements, spec.expected);
    std::memcpy(expected.data, values.data(), r.payload_bytes);
    r.expected_extent = spec.expected_extent != 0 ? spec.expected_extent : expected.extent;
    r.expected_offset = expected.offset;
  }
  *block = segment.Allocate(geometry.block_bytes, geometry.payload_offset);
  std::memcpy(block->data, &r, sizeof(r));
  return segment.Publish(*block);
}

void WriteOne(ring::SlotRingWriter& writer, float first, float increment) {
  if (!writer.Begin()) return;
  std::vector<float> values(writer.payload_bytes() / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = first + increment * static_cast<float>(i);
  }
  std::memcpy(writer.payload(), values.data(), writer.payload_bytes());
  writer.Commit(layout::RealtimeNs());
}

void WritePage(ring::SlotRingWriter& writer, std::uint32_t rows, bool has_nan) {
  if (!writer.Begin()) return;
  for (std::uint32_t i = 0; i < rows; ++i) {
    const layout::DeviceStats stats = StatsOfRow(i + 1, has_nan && i == 1 ? 0 : -1);
    std::memcpy(writer.payload() + i * sizeof(stats), &stats, sizeof(stats));
  }
  writer.Commit(layout::RealtimeNs());
}

// What a launch of an op log stores on a GPU.
void ReachLaunch(const ring::Block& block, std::uint32_t launch) {
  auto& head = *reinterpret_cast<layout::SlotHead*>(block.data + layout::kSlotHeadOffset);
  ring::StoreRelaxed(head.reached, layout::ReachedWord(head.replay + 1, launch));
  ring::StoreRelaxed(head.reached_ns, layout::RealtimeNs());
}

// The graphs of the slots, and how often each was launched.
class Census {
 public:
  Census(ring::SegmentWriter& segment, const std::vector<SlotSpec>& specs) {
    for (const SlotSpec& spec : specs) {
      if (spec.graph_id == 0) continue;
      if (!writer_) {
        const ring::Block block =
            segment.Allocate(layout::kGraphTableBytes, layout::kGraphTableBytes);
        writer_.emplace(block.data);
        segment.PublishGraphs(block);
      }
      if (!writer_->Knows(spec.graph_id)) {
        orders_[spec.graph_id] = writer_->Begin(spec.graph_id, spec.graph, "", /*counted=*/true);
        writer_->End(orders_[spec.graph_id], 10, /*failed=*/false, spec.graph);
      }
      writer_->AddProbe(spec.graph_id, 1, spec.graph);
    }
  }
  void Launch(std::uint64_t graph_id) {
    auto* const words = reinterpret_cast<std::uint64_t*>(writer_->table());
    ring::Add(words[writer_->counter(orders_.at(graph_id))], std::uint64_t{1});
  }

 private:
  std::optional<ring::GraphCensusWriter> writer_;
  std::map<std::uint64_t, std::uint64_t> orders_;  // by graph id
};

void ReplayBody(BodyWriter& body, std::uint64_t elements, std::uint32_t iterations) {
  body.BeginReplay();
  for (std::uint32_t i = 0; i < iterations; ++i) {
    const float value = static_cast<float>(body.replay()) + static_cast<float>(i) / 100;
    const std::vector<float> values(elements, value);
    body.Run(std::as_bytes(std::span(values)));
  }
}

void ScribbleOver(ring::SegmentWriter& segment, const std::vector<ring::Block>& blocks,
                  std::uint32_t count) {
  static std::mt19937_64 random(1);
  struct Range {
    std::byte* data;
    std::size_t bytes;
  };
  // Producer line, the directory's first entries, and all of the blocks.
  std::vector<Range> ranges = {
      {reinterpret_cast<std::byte*>(segment.producer()), layout::kPageBytes / 16},
      {reinterpret_cast<std::byte*>(segment.producer()) + layout::kDirectoryOffset -
           layout::kProducerLineOffset,
       blocks.size() * sizeof(layout::DirectoryEntry)}};
  for (const ring::Block& block : blocks) ranges.push_back({block.data, block.bytes});
  for (const ring::Block& block : blocks) ranges.push_back({block.data, 4096});
  const auto rubbish = [&]() -> std::uint64_t {
    switch (random() % 4) {
      case 0:
        return random();
      case 1:
        return ~std::uint64_t{0} - random() % 4;
      case 2:
        return std::uint64_t{1} << (random() % 64);
      default:
        return random() % 1024;
    }
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    const Range& range = ranges[random() % ranges.size()];
    auto* words = reinterpret_cast<volatile std::uint64_t*>(range.data);
    words[random() % (range.bytes / 8)] = rubbish();
    segment.producer()->activity = random();
  }
}

}  // namespace

void ProducerProcess::Child(const std::vector<SlotSpec>& specs, const std::string& run_id,
                            std::int32_t rank, int channel) {
  ring::Identity identity;
  identity.version = "test";
  identity.run_id = run_id;
  identity.rank = rank;
  identity.command = "python train.py --test";
  identity.hostname = "here";
  identity.recordings = std::filesystem::current_path() / "runs";
  ring::SegmentWriter segment(identity);
  std::vector<ring::SlotRingWriter> writers;
  std::vector<BodyWriter> bodies;
  std::vector<ring::Block> blocks(specs.size());
  std::vector<std::uint32_t> indexes;
  std::vector<std::uint32_t> replays(specs.size(), 0);
  std::uint64_t orders = 0;
  Census census(segment, specs);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    indexes.push_back(PublishSpec(segment, specs[i], orders + 1, &blocks[i]));
    orders += std::max(specs[i].rows, 1u);
    writers.emplace_back(blocks[i].data, segment.producer(), segment.gate());
    bodies.emplace_back(blocks[i].data, segment.producer());
  }
  char name[128] = {};
  std::strncpy(name, segment.name().c_str(), sizeof(name) - 1);
  if (write(channel, name, sizeof(name)) != sizeof(name)) _exit(1);
  Command command;
  while (read(channel, &command, sizeof(command)) == sizeof(command)) {
    const auto start = std::chrono::steady_clock::now();
    if (command.op == Op::kExit) {
      segment.Close(/*unlink=*/false);
      _exit(0);
    }
    const std::uint32_t slot = command.slot;
    if (command.op == Op::kBegin) writers[slot].Begin();
    if (command.op == Op::kScribble) ScribbleOver(segment, blocks, command.count);
    if (command.op == Op::kReplace) {
      segment.Retire(indexes[slot]);
      segment.Release(indexes[slot], blocks[slot]);
      indexes[slot] = PublishSpec(segment, specs[slot], ++orders, &blocks[slot]);
      writers[slot] = ring::SlotRingWriter(blocks[slot].data, segment.producer(), segment.gate());
      replays[slot] = 0;
    }
    if (command.op == Op::kBody) ReplayBody(bodies[slot], specs[slot].elements, command.count);
    if (command.op == Op::kFakeLag) {
      bodies[slot].fake_lag_ns = std::int64_t{command.count} * 1'000'000'000;
    }
    if (command.op == Op::kLaunch) census.Launch(specs[slot].graph_id);
    if (command.op == Op::kReach) ReachLaunch(blocks[slot], command.count);
    const bool writes = command.op == Op::kWrite || command.op == Op::kValue;
    for (std::uint32_t i = 0; writes && specs[slot].rows != 0 && i < command.count; ++i) {
      WritePage(writers[slot], specs[slot].rows, command.op == Op::kValue);
    }
    if (specs[slot].rows != 0) command.count = 0;
    for (std::uint32_t i = 0; writes && i < command.count; ++i) {
      const float replay = static_cast<float>(++replays[command.slot]);
      const bool flat = command.op == Op::kValue;
      WriteOne(writers[command.slot], flat ? command.value : replay, flat ? 0 : 1);
    }
    const std::uint64_t took_ns = static_cast<std::uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    if (write(channel, &took_ns, sizeof(took_ns)) != sizeof(took_ns)) break;
  }
  _exit(1);
}

ProducerProcess::ProducerProcess(const std::vector<SlotSpec>& slots, int stderr_fd,
                                 const std::string& run_id, std::int32_t rank) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error("socketpair failed");
  }
  channel_.reset(ends[0]);
  pid_ = fork();
  if (pid_ == 0) {
    channel_.reset();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(stderr_fd >= 0 ? stderr_fd : open("/dev/null", O_WRONLY), STDERR_FILENO);
    if (stderr_fd >= 0) close(stderr_fd);
    try {
      Child(slots, run_id, rank, ends[1]);
    } catch (...) {
      _exit(1);
    }
  }
  close(ends[1]);
  char name[128] = {};
  if (read(channel_.get(), name, sizeof(name)) != sizeof(name)) {
    throw std::runtime_error("the producer did not start");
  }
  segment_ = name;
}

ProducerProcess::~ProducerProcess() {
  Kill();
  ring::UnlinkSegment(segment_);
}

std::uint64_t ProducerProcess::Tell(const Command& command) {
  std::uint64_t took_ns = 0;
  if (write(channel_.get(), &command, sizeof(command)) != sizeof(command) ||
      read(channel_.get(), &took_ns, sizeof(took_ns)) != sizeof(took_ns)) {
    throw std::runtime_error("the producer is gone");
  }
  return took_ns;
}

std::uint64_t ProducerProcess::Write(std::uint32_t slot, std::uint32_t count) {
  return Tell({Op::kWrite, slot, count, 0});
}

std::uint64_t ProducerProcess::Replay(std::uint32_t slot, std::uint32_t iterations) {
  return Tell({Op::kBody, slot, iterations, 0});
}

std::uint64_t ProducerProcess::WriteValue(std::uint32_t slot, float value) {
  return Tell({Op::kValue, slot, 1, value});
}

void ProducerProcess::Replace(std::uint32_t slot) { Tell({Op::kReplace, slot, 0, 0}); }

void ProducerProcess::Scribble(std::uint32_t count) { Tell({Op::kScribble, 0, count, 0}); }

void ProducerProcess::FakeLag(std::uint32_t slot, std::uint32_t seconds) {
  Tell({Op::kFakeLag, slot, seconds, 0});
}

void ProducerProcess::Launch(std::uint32_t slot) { Tell({Op::kLaunch, slot, 0, 0}); }

void ProducerProcess::Reach(std::uint32_t slot, std::uint32_t launch) {
  Tell({Op::kReach, slot, launch, 0});
}

void ProducerProcess::BeginOnly(std::uint32_t slot) { Tell({Op::kBegin, slot, 0, 0}); }

void ProducerProcess::Reap() {
  if (pid_ <= 0) return;
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

void ProducerProcess::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  Reap();
}

void ProducerProcess::ExitCleanly() {
  const Command command = {Op::kExit, 0, 0, 0};
  if (write(channel_.get(), &command, sizeof(command)) != sizeof(command)) {
    throw std::runtime_error("the producer is gone");
  }
  Reap();
}

std::string ProducerProcess::key() const {
  return segment_.substr(segment_.size() - kUuidDigits, 8);
}

}  // namespace cgdebug::test
