// Writes the recordings of a run of many ranks, for tools/bench/ranks.py.
//
//   ranks_bench DIR RANKS PROBES REPLAYS
//
// One recording a rank, statistics only. Four of five probes are replicas on all ranks. Three
// faults are planted: from half of the replays on, a replica of rank RANKS/3 has one other element;
// a tensor of rank RANKS/2 has a NaN two replays later; rank 2*RANKS/3 lacks a snapshot of a
// replica.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/tensor_view.h"
#include "daemon/core/recording/recording_writer.h"

namespace {

namespace numerics = cgdebug::numerics;
namespace recording = cgdebug::recording;

constexpr std::size_t kElements = 64;
constexpr std::int64_t kSecond = 1'000'000'000;

template <typename T>
T Must(cgdebug::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "ranks_bench: %s\n", result.error().message.c_str());
    std::exit(2);
  }
  return *std::move(result);
}
void Must(const cgdebug::Result<void>& result) {
  if (!result.ok()) {
    std::fprintf(stderr, "ranks_bench: %s\n", result.error().message.c_str());
    std::exit(2);
  }
}

struct Run {
  std::string folder;
  int ranks;
  int probes;
  int replays;
};

numerics::Stats StatsOf(const Run& run, int rank, int probe, int replay) {
  const bool is_replica = probe % 5 != 4;
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    values[i] = std::sin(static_cast<float>(probe * 1000 + replay * 31 + (is_replica ? 0 : rank)) +
                         static_cast<float>(i));
  }
  if (rank == run.ranks / 3 && probe == run.probes / 5 * 2 && replay >= run.replays / 2) {
    values[7] = std::nextafter(values[7], 2.0f);
  }
  if (rank == run.ranks / 2 && probe == 4 && replay == run.replays / 2 + 2) values[3] = NAN;
  const auto bytes = std::as_bytes(std::span(values));
  return numerics::ComputeStats(Must(numerics::MakeTensorView(
      cgdebug::layout::Dtype::kFloat32, std::vector<std::uint64_t>{kElements}, bytes)));
}

void Write(const Run& run, int rank) {
  char name[32];
  std::snprintf(name, sizeof(name), "/rank-%05d.cgrec", rank);
  recording::WriterOptions options;
  options.durability = recording::Durability::kNone;
  options.gather = true;
  auto writer = Must(recording::RecordingWriter::Open(run.folder + name, options));
  recording::Session session;
  session.uuid = std::string(24, '0') + std::to_string(10'000'000 + rank);
  session.run_id = "bench";
  session.label = "bench/r" + std::to_string(rank);
  session.hostname = "node" + std::to_string(rank / 8);
  session.rank = rank;
  session.world_size = run.ranks;
  session.pid = 1;
  const std::uint32_t id = Must(writer->AddSession(session));
  for (int probe = 0; probe < run.probes; ++probe) {
    recording::Slot slot;
    slot.session = id;
    slot.probe = (probe % 5 != 4 ? "param/layers." : "fwd/layers.") + std::to_string(probe);
    slot.device = "cuda:0";
    slot.dtype = cgdebug::layout::Dtype::kFloat32;
    slot.shape = {kElements};
    slot.payload_bytes = kElements * sizeof(float);
    slot.graph_id = 1;
    slot.order = static_cast<std::uint64_t>(probe) + 1;
    slot.index = static_cast<std::uint32_t>(probe);
    if (probe % 5 != 4) {
      slot.shard = "R of [64] at (" + std::to_string(rank) +
                   ") of replicas=" + std::to_string(run.ranks) + ", from [0], replicas 0.." +
                   std::to_string(run.ranks - 1);
    }
    Must(writer->AddSlot(slot));
  }
  for (int replay = 1; replay <= run.replays; ++replay) {
    for (int probe = 0; probe < run.probes; ++probe) {
      if (rank == 2 * run.ranks / 3 && probe == 0 && replay == 3) continue;
      recording::Snapshot snapshot;
      snapshot.slot = static_cast<std::uint32_t>(probe);
      snapshot.ordinal = snapshot.replay = static_cast<std::uint64_t>(replay);
      snapshot.step = replay;
      snapshot.timestamp_ns = replay * kSecond;
      snapshot.stats_only = true;
      snapshot.stats = StatsOf(run, rank, probe, replay);
      Must(writer->Append(snapshot, {}));
    }
  }
  Must(writer->Close(recording::StopReason::kJobEnded));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "ranks_bench DIR RANKS PROBES REPLAYS\n");
    return 2;
  }
  const Run run{argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])};
  for (int rank = 0; rank < run.ranks; ++rank) Write(run, rank);
}
