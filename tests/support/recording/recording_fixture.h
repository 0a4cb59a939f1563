// recording_fixture.h: writes small recordings with the real writer.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/tensor_view.h"
#include "daemon/core/recording/recording_writer.h"

namespace cgdebug::testing_support {

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return *std::move(result);
}
inline void Must(const Result<void>& result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
}

// One session, of a job of 4 ranks if it has a rank; float32 tensors.
class RecordingFixture {
 public:
  explicit RecordingFixture(const std::string& directory, int rank = -1,
                            const std::string& job = "train.py-7", const std::string& uuid = "")
      : writer_(Must(recording::RecordingWriter::Open(directory, {}))) {
    recording::Session session;
    session.uuid = uuid.empty() ? std::string(30, job.front()) + std::to_string(10 + rank) : uuid;
    session.label = rank < 0 ? job : job + "/r" + std::to_string(rank);
    session.rank = rank;
    session.world_size = rank < 0 ? 1 : 4;
    session.pid = 7;
    session_ = Must(writer_->AddSession(session));
  }

  std::uint32_t AddSlot(const std::string& probe, const std::vector<std::uint64_t>& shape,
                        const std::string& shard = "", const std::string& part = "",
                        const std::string& op = "") {
    recording::Slot slot;
    slot.session = session_;
    slot.probe = probe;
    slot.device = "cpu";
    slot.shard = shard;
    slot.part = part;
    slot.op = op;
    slot.dtype = layout::Dtype::kFloat32;
    slot.shape = shape;
    slot.payload_bytes = *numerics::PayloadBytes(slot.dtype, shape);
    slot.graph_id = 1;
    slot.order = slots_.size() + 1;
    slot.index = static_cast<std::uint32_t>(slots_.size());
    slots_.push_back(slot);
    return Must(writer_->AddSlot(slot));
  }

  void Add(std::uint32_t slot, std::uint64_t replay, const std::vector<float>& values,
           bool stats_only = false, bool has_hash = true) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    recording::Snapshot snapshot;
    snapshot.slot = slot;
    snapshot.ordinal = snapshot.replay = replay;
    snapshot.step = static_cast<std::int64_t>(replay) + 1000;
    snapshot.timestamp_ns = 1;
    snapshot.stats_only = stats_only;
    snapshot.stats = numerics::ComputeStats(
        Must(numerics::MakeTensorView(layout::Dtype::kFloat32, slots_[slot].shape, bytes)));
    snapshot.stats.has_hash = has_hash;
    snapshot.payload_bytes = stats_only ? 0 : bytes.size();
    Must(writer_->Append(snapshot, stats_only ? std::span<const std::byte>() : bytes));
  }

  void Lose(std::uint32_t slot, std::uint64_t replay) {
    recording::Loss loss;
    loss.slot = slot;
    loss.count = 1;
    loss.first_ordinal = loss.last_ordinal = replay;
    loss.after_replay = replay - 1;
    loss.before_replay = replay + 1;
    Must(writer_->AddLoss(loss));
  }

  void Close(recording::StopReason reason = recording::StopReason::kJobEnded) {
    Must(writer_->Close(reason));
    writer_.reset();
  }

 private:
  std::unique_ptr<recording::RecordingWriter> writer_;
  std::uint32_t session_ = 0;
  std::vector<recording::Slot> slots_;
};

// Two probes, `replays` replays; the values of the second grow with `factor`.
inline void WriteRecording(const std::string& directory, int replays, float factor = 1,
                           int rank = -1, const std::string& job = "train.py-7") {
  RecordingFixture recording(directory, rank, job);
  const std::uint32_t x = recording.AddSlot("x", {2, 2}), y = recording.AddSlot("y", {2});
  for (int replay = 1; replay <= replays; ++replay) {
    const auto n = static_cast<float>(replay);
    recording.Add(x, replay, {n, n + 1, n + 2, n + 3});
    recording.Add(y, replay, {n, n * factor});
  }
  recording.Close();
}

}  // namespace cgdebug::testing_support
