// A producer for tools/bench/ingest.py: writes snapshots on the host lane as a process of its own
// and measures, by the credits, when the daemon's sinks have seen them.
//
//   ingest_bench SOCKET SLOTS BYTES CAPACITY SECONDS REPLAYS_PER_SECOND
//
// REPLAYS_PER_SECOND 0: as fast as a writer can that waits for room; otherwise paced, without
// waiting.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "libprobe/ring/credit.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/slot_ring_writer.h"
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

Slot MakeSlot(ring::SegmentWriter& segment, std::uint64_t order, std::uint64_t bytes,
              std::uint32_t capacity, layout::Policy policy) {
  layout::SlotRegistration r = {};
  r.probe_id = r.order = order;
  r.dtype = static_cast<std::uint16_t>(layout::Dtype::kFloat32);
  r.dims = 1;
  r.shape[0] = bytes / sizeof(float);
  r.payload_bytes = bytes;
  r.capacity = capacity;
  r.policy = static_cast<std::uint8_t>(policy);
  r.record_every = 1;
  r.actions = layout::kActionRecord;
  r.wait_deadline_ms = 10'000;
  const auto geometry = layout::ComputeGeometry(r.payload_bytes, r.capacity);
  r.payload_stride_bytes = geometry.payload_stride_bytes;
  r.headers_offset = geometry.headers_offset;
  r.payload_offset = geometry.payload_offset;
  std::snprintf(r.name, sizeof(r.name), "bench.%03llu", static_cast<unsigned long long>(order));
  const ring::Block block = segment.Allocate(geometry.block_bytes, geometry.payload_offset);
  std::memcpy(block.data, &r, sizeof(r));
  segment.Publish(block);
  return {block, ring::SlotRingWriter(block.data, segment.producer(), segment.gate()), order};
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

int Run(char** argv) {
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
  const auto policy = rate == 0 ? layout::Policy::kWait : layout::Policy::kOverwrite;

  ring::SegmentWriter segment(identity);
  std::vector<Slot> slots;
  for (std::uint64_t i = 0; i < slot_count; ++i) {
    slots.push_back(MakeSlot(segment, i + 1, bytes, capacity, policy));
  }
  std::vector<float> values(bytes / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000) - 500;
  const auto replay = [&](LatencyWatch* watch, std::uint64_t ordinal) {
    for (Slot& slot : slots) {
      if (!slot.writer.Begin()) continue;
      std::memcpy(slot.writer.payload(), values.data(), bytes);
      if (watch != nullptr && &slot == &slots.back()) watch->Committed(ordinal);
      slot.writer.Commit(layout::RealtimeNs());
    }
  };
  replay(nullptr, 1);
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  while (slots.back().consumed() == 0) {
    if (Clock::now() > give_up) {
      std::fprintf(stderr, "ingest_bench: no daemon on %s read anything\n", argv[1]);
      return 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  LatencyWatch watch(slots.back());
  const auto start = Clock::now();
  const auto end =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::uint64_t replays = 1;
  while (Clock::now() < end) {
    replay(&watch, ++replays);
    if (rate > 0) {
      std::this_thread::sleep_until(
          start + std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(static_cast<double>(replays) / rate)));
    }
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
      static_cast<double>(consumed * bytes) / took / 1e9, static_cast<unsigned long long>(lost),
      Percentile(latencies_us, 0.5), Percentile(latencies_us, 0.99), Percentile(latencies_us, 1));
  segment.Close(/*unlink=*/true);
  return 0;
}

}  // namespace
}  // namespace cgdebug

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "ingest_bench SOCKET SLOTS BYTES CAPACITY SECONDS REPLAYS_PER_SECOND\n");
    return 2;
  }
  return cgdebug::Run(argv);
}
