// known_recording.h: small recordings with values that a test can foretell.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/recording_writer.h"

namespace cgdebug::testing_support {

inline recording::Session SessionOf(const std::string& uuid = std::string(32, 'a')) {
  recording::Session session;
  session.uuid = uuid;
  session.label = "train-1";
  session.command = "python train.py";
  session.hostname = "node1";
  session.pid = 4711;
  session.rank = 0;
  session.created_ns = 1'700'000'000'000'000'000;
  return session;
}

inline recording::Slot FloatSlot(std::uint32_t session, const std::string& probe,
                                 std::uint64_t elements, std::uint32_t index) {
  recording::Slot slot;
  slot.session = session;
  slot.probe = probe;
  slot.site = "train.py:12";
  slot.device = "cuda:0";
  slot.dtype = layout::Dtype::kFloat32;
  slot.shape = {elements};
  slot.payload_bytes = elements * sizeof(float);
  slot.graph_id = 3;
  slot.order = index + 1;
  slot.index = index;
  slot.generation = 1;
  return slot;
}

// What probe `slot` holds at a replay, everywhere in these tests.
inline std::vector<float> ValuesAt(std::uint32_t slot, std::uint64_t replay,
                                   std::uint64_t elements) {
  std::vector<float> values(elements);
  for (std::uint64_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>(slot * 1000 + replay) + static_cast<float>(i) / 1024;
  }
  return values;
}

inline recording::Snapshot SnapshotAt(std::uint32_t slot, std::uint64_t replay,
                                      const std::vector<float>& values) {
  recording::Snapshot snapshot;
  snapshot.slot = slot;
  snapshot.ordinal = replay;
  snapshot.replay = replay;
  snapshot.step = static_cast<std::int64_t>(replay / 2);
  snapshot.timestamp_ns = 1'700'000'000'000'000'000 + static_cast<std::int64_t>(replay);
  const std::vector<std::uint64_t> shape = {values.size()};
  const auto view =
      numerics::MakeTensorView(layout::Dtype::kFloat32, shape, std::as_bytes(std::span(values)));
  if (view.ok()) snapshot.stats = numerics::ComputeStats(*view);
  return snapshot;
}

inline void AppendAt(recording::RecordingWriter* writer, std::uint32_t slot, std::uint64_t replay,
                     std::uint64_t elements) {
  const auto values = ValuesAt(slot, replay, elements);
  const auto appended =
      writer->Append(SnapshotAt(slot, replay, values), std::as_bytes(std::span(values)));
  ASSERT_TRUE(appended.ok()) << appended.error().message;
}

// The values of a snapshot, or a message that says why there are none.
inline Result<std::vector<float>> ValuesOf(const recording::RecordingReader& reader,
                                           const recording::SnapshotRef& ref) {
  const auto payload = reader.ReadPayload(ref);
  if (!payload.ok()) return payload.error();
  std::vector<float> values(payload->bytes.size() / sizeof(float));
  std::memcpy(values.data(), payload->bytes.data(), payload->bytes.size());
  return values;
}

// The slot holds replays first..last of a ProducerProcess, whose replay n is n, n + 1, n + 2, ...
inline void ExpectReplays(const recording::RecordingReader& reader, std::uint32_t slot,
                          std::uint64_t first, std::uint64_t last) {
  std::uint64_t replay = first;
  for (const auto& ref : reader.Snapshots(slot)) {
    ASSERT_EQ(ref.replay, replay);
    const auto values = ValuesOf(reader, ref);
    ASSERT_TRUE(values.ok()) << values.error().message;
    ASSERT_EQ(values->front(), static_cast<float>(replay));
    ASSERT_EQ(values->back(), static_cast<float>(replay + values->size() - 1));
    ++replay;
  }
  EXPECT_EQ(replay, last + 1);
}

}  // namespace cgdebug::testing_support
