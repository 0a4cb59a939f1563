// A producer for tools/bench/ingest.py: writes snapshots on the host lane as a process of its own
// and measures, by the credits, when the daemon's sinks have seen them.
//
//   ingest_bench SOCKET SLOTS BYTES CAPACITY SECONDS REPLAYS_PER_SECOND [AT_REST]
//
// REPLAYS_PER_SECOND 0: as fast as a writer can that waits for room; otherwise paced, without
// waiting. With AT_REST the slots are those of one captured graph in the direct lane, each of which
// sends statistics of a tensor of BYTES at its time in the replay; AT_REST slots of other graphs of
// the same modules, which never run, lie around them.
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "libprobe/ring/credit.h"
#include "libprobe/ring/payload_checksum.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/slot_ring_writer.h"
#include "proto/layout/device_stats.h"
#include "proto/layout/realtime.h"

namespace cgdebug {
namespace {

using Clock = std::chrono::steady_clock;

struct Slot {
  ring::Block block;
  ring::SlotRingWriter writer;

  std::uint64_t order;
  std::uint64_t consumed() const {
    return ring::CreditedOrdinal(
        *reinterpret_cast<const layout::SlotCredit*>(block.data + layout::kSlotCreditOffset),
        order);
  }
  std::uint64_t lost() const {
    return ring::LoadCredit(
               *reinterpret_cast<const layout::SlotCredit*>(block.data + layout::kSlotCreditOffset),
               *reinterpret_cast<const layout::SlotHistory*>(block.data +
                                                             layout::kSlotHistoryOffset),
               order)
        .lost;
  }
};

layout::SlotRegistration Registration(std::uint64_t order, std::uint64_t bytes,
                                      std::uint32_t capacity) {
  layout::SlotRegistration r = {};
  r.probe_id = r.order = order;
  r.dtype = static_cast<std::uint16_t>(layout::Dtype::kFloat32);
  r.dims = 1;
  r.shape[0] = bytes / sizeof(float);
  r.payload_bytes = bytes;
  r.capacity = capacity;
  r.record_every = 1;
  r.actions = layout::kActionRecord;
  r.wait_deadline_ms = 10'000;
  std::snprintf(r.name, sizeof(r.name), "bench.%03llu", static_cast<unsigned long long>(order));
  return r;
}

Slot MakeSlot(ring::SegmentWriter& segment, layout::SlotRegistration r) {
  const auto geometry = layout::ComputeGeometry(r.payload_bytes, r.capacity);
  r.payload_stride_bytes = geometry.payload_stride_bytes;
  r.headers_offset = geometry.headers_offset;
  r.payload_offset = geometry.payload_offset;
  const ring::Block block = segment.Allocate(geometry.block_bytes, geometry.payload_offset);
  std::memcpy(block.data, &r, sizeof(r));
  segment.Publish(block);
  return {block, ring::SlotRingWriter(block.data, segment.producer(), segment.gate()), r.order};
}

// As a watched model captures it: `number` is the module's, from 1, in graph `graph_id`.
Slot MakeCaptured(ring::SegmentWriter& segment, std::uint64_t order, std::uint64_t graph_id,
                  std::uint64_t number, std::uint64_t bytes, std::uint32_t capacity) {
  layout::SlotRegistration r = Registration(order, bytes, capacity);
  r.probe_id = number;
  r.graph_id = graph_id;
  r.lane = static_cast<std::uint8_t>(layout::Lane::kDirect);
  r.device_type = static_cast<std::uint8_t>(layout::DeviceType::kCuda);
  r.flags = layout::kSlotHoldsStats;
  r.payload_bytes = sizeof(layout::DeviceStats);
  r.actions = layout::kActionStats;
  r.record_every = 0;
  r.stats_every = 1;
  std::snprintf(r.name, sizeof(r.name), "model.layers.%llu.mlp.%llu",
                static_cast<unsigned long long>(number / 14),
                static_cast<unsigned long long>(number % 14));
  std::snprintf(r.graph_label, sizeof(r.graph_label), "decode %llu",
                static_cast<unsigned long long>(graph_id));
  return MakeSlot(segment, r);
}

// One replay of a slot of MakeCaptured(), written as its leaf writes it.
void RunLeaf(const Slot& slot, layout::ProducerLine* producer, std::uint64_t replay,
             std::uint64_t serial) {
  std::byte* const block = slot.block.data;
  const auto& r = *reinterpret_cast<const layout::SlotRegistration*>(block);
  auto& head = *reinterpret_cast<layout::SlotHead*>(block + layout::kSlotHeadOffset);
  const std::uint64_t index = (replay - 1) % r.capacity;
  auto& header = reinterpret_cast<layout::EntryHeader*>(block + r.headers_offset)[index];
  ring::StoreRelaxed(header.word, layout::EntryWord(replay, layout::EntryState::kFilling));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  layout::DeviceStats stats = {};
  stats.count = r.shape[0];
  stats.min = -1;
  stats.max = 1;
  stats.sum = static_cast<double>(replay);
  stats.sum_squares = stats.l1 = stats.l2_squared = static_cast<double>(r.shape[0]);
  stats.hash = replay * 0x9e3779b97f4a7c15;
  stats.flags = layout::kStatsHasHash;
  std::byte* const payload = block + r.payload_offset + index * r.payload_stride_bytes;
  ring::CopyShared(payload, &stats, sizeof(stats));
  const std::uint32_t flags = layout::kEntryHasChecksum | layout::kEntryIsStats;
  const std::int64_t now_ns = layout::RealtimeNs(), step = -1;
  ring::StoreRelaxed(header.replay, replay);
  ring::StoreRelaxed(header.timestamp_ns, now_ns);
  ring::StoreRelaxed(header.step, step);
  ring::StoreRelaxed(header.serial, serial);
  ring::StoreRelaxed(header.flags, flags);
  ring::StoreRelaxed(header.checksum,
                     ring::PayloadChecksum(payload, sizeof(stats)) +
                         layout::HeaderSum(replay, replay, now_ns, step, serial, flags, 0));
  ring::StoreRelease(header.word, layout::EntryWord(replay, layout::EntryState::kReady));
  ring::StoreRelaxed(head.replay, replay);
  ring::StoreRelaxed(head.last_timestamp_ns, now_ns);
  ring::StoreRelease(head.accepted, replay);
  ring::StoreRelaxed(producer->device_activity,
                     static_cast<std::uint64_t>(now_ns) << 12 ^ slot.order);
}

// Watches the credit of one slot; a committed snapshot is timed when the credit covers it.
class LatencyWatch {
 public:
  explicit LatencyWatch(const Slot& slot) : slot_(slot), thread_([this] { Watch(); }) {}
  ~LatencyWatch() { Stop(); }

  void Committed(std::uint64_t ordinal) {
    committed_ns_[ordinal % committed_ns_.size()].store(Now(), std::memory_order_release);
  }
  std::vector<double> Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return std::move(latencies_us_);
  }

 private:
  static std::int64_t Now() { return Clock::now().time_since_epoch().count(); }
  void Watch() {
    std::uint64_t seen = slot_.consumed();
    while (!stopping_) {
      const std::uint64_t consumed = slot_.consumed();
      const std::int64_t now = Now();
      for (; seen < consumed; ++seen) {
        const std::int64_t then =
            committed_ns_[(seen + 1) % committed_ns_.size()].load(std::memory_order_acquire);
        if (then != 0)
          latencies_us_.push_back(std::max(0.0, static_cast<double>(now - then) / 1e3));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  }

  const Slot& slot_;
  // Atomic: written where it is committed, read where the credit is watched.
  using Time = std::atomic<std::int64_t>;
  std::vector<Time> committed_ns_ = std::vector<Time>(1u << 16);
  std::vector<double> latencies_us_;
  std::atomic<bool> stopping_ = false;  // Atomic: ends the watch
  std::thread thread_;
};

double Percentile(std::vector<double>& values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::size_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

int Run(char** argv, std::uint64_t at_rest, bool captured) {
  ring::Identity identity;
  identity.version = "bench";
  identity.run_id = "ingest-bench";
  identity.command = "ingest_bench";
  identity.hostname = "here";
  identity.socket = argv[1];
  const std::uint64_t slot_count = std::strtoull(argv[2], nullptr, 10);
  const std::uint64_t bytes = std::strtoull(argv[3], nullptr, 10);
  const auto capacity = static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10));
  const double seconds = std::strtod(argv[5], nullptr), rate = std::strtod(argv[6], nullptr);
  const auto period = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(rate > 0 ? 1 / rate : 0));

  ring::SegmentWriter segment(identity);
  std::vector<Slot> slots;
  std::optional<Slot> last;  // of all, if it is at rest
  if (captured) {
    std::uint64_t order = 0;
    const std::uint64_t graphs = at_rest / slot_count;
    for (std::uint64_t graph = 0; graph <= graphs; ++graph) {
      for (std::uint64_t i = 1; i <= slot_count; ++i) {
        const Slot slot = MakeCaptured(segment, ++order, 1 + graph, i, bytes, capacity);
        if (graph == graphs / 2) {
          slots.push_back(slot);
        } else {
          last = slot;
        }
      }
    }
  } else {
    for (std::uint64_t i = 0; i < slot_count; ++i) {
      layout::SlotRegistration r = Registration(i + 1, bytes, capacity);
      r.policy =
          static_cast<std::uint8_t>(rate == 0 ? layout::Policy::kWait : layout::Policy::kOverwrite);
      slots.push_back(MakeSlot(segment, r));
    }
  }
  std::vector<float> values(bytes / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000) - 500;
  const auto replay = [&](LatencyWatch* watch, std::uint64_t ordinal) {
    const auto begin = Clock::now();
    const std::uint64_t serial = ring::NextSerial();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots[i];
      const bool is_watched = watch != nullptr && i + 1 == slots.size();
      if (captured) {
        if (i % 16 == 0) std::this_thread::sleep_until(begin + period * i / slots.size());
        if (is_watched) watch->Committed(ordinal);
        RunLeaf(slot, segment.producer(), ordinal, serial);
        continue;
      }
      if (!slot.writer.Begin()) continue;
      std::memcpy(slot.writer.payload(), values.data(), bytes);
      if (is_watched) watch->Committed(ordinal);
      slot.writer.Commit(layout::RealtimeNs());
    }
  };
  replay(nullptr, 1);
  if (last) RunLeaf(*last, segment.producer(), 1, ring::NextSerial());
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  while (slots.back().consumed() == 0 || (last && last->consumed() == 0)) {
    if (Clock::now() > give_up) {
      std::fprintf(stderr, "ingest_bench: no daemon on %s read anything\n", argv[1]);
      return 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::printf("{\"reads\": true}\n");
  std::fflush(stdout);
  LatencyWatch watch(slots.back());
  prctl(PR_SET_TIMERSLACK, 1'000, 0, 0, 0);  // of this thread alone
  const auto start = Clock::now();
  const auto end =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::uint64_t replays = 1;
  while (Clock::now() < end) {
    replay(&watch, ++replays);
    if (rate > 0) std::this_thread::sleep_until(start + period * replays);
  }
  for (const Slot& slot : slots) {
    while (slot.consumed() < replays) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  std::vector<double> latencies_us = watch.Stop();
  std::uint64_t lost = 0;
  for (const Slot& slot : slots) lost += slot.lost();
  const std::uint64_t consumed = (replays - 1) * slot_count - lost;
  std::printf(
      "{\"replays\": %llu, \"snapshots_per_s\": %.0f, \"gbs\": %.3f, \"lost\": %llu, "
      "\"p50_us\": %.0f, \"p99_us\": %.0f, \"max_us\": %.0f}\n",
      static_cast<unsigned long long>(replays), static_cast<double>(consumed) / took,
      static_cast<double>(consumed * (captured ? sizeof(layout::DeviceStats) : bytes)) / took / 1e9,
      static_cast<unsigned long long>(lost), Percentile(latencies_us, 0.5),
      Percentile(latencies_us, 0.99), Percentile(latencies_us, 1));
  segment.Close(/*unlink=*/true);
  return 0;
}

}  // namespace
}  // namespace cgdebug

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) {
    std::fprintf(stderr,
                 "ingest_bench SOCKET SLOTS BYTES CAPACITY SECONDS REPLAYS_PER_SECOND [AT_REST]\n");
    return 2;
  }
  return cgdebug::Run(argv, argc == 8 ? std::strtoull(argv[7], nullptr, 10) : 0, argc == 8);
}
