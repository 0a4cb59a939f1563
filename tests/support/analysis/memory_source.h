// memory_source.h: a source whose tensors a test provides.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::testing_support {

class MemorySource : public source::Source {
 public:
  MemorySource() = default;
  MemorySource(MemorySource&& other) noexcept
      : description(std::move(other.description)),
        gaps(std::move(other.gaps)),
        findings(std::move(other.findings)),
        graphs(std::move(other.graphs)),
        accounts(std::move(other.accounts)),
        damaged(std::move(other.damaged)),
        gone(std::move(other.gone)),
        serials(std::move(other.serials)),
        is_same_as_before(std::move(other.is_same_as_before)),
        has_hashes(other.has_hashes),
        has_xor_hash(other.has_xor_hash),
        has_ordered_hash(other.has_ordered_hash),
        has_stats(other.has_stats),
        timestamp_ns(other.timestamp_ns),
        slots_(std::move(other.slots_)),
        entries_(std::move(other.entries_)) {}

  source::Description description{.path = "memory", .kind = "memory"};
  std::vector<source::Gap> gaps;
  std::vector<source::Finding> findings;
  std::optional<std::vector<source::ProcessGraphs>> graphs;
  std::map<std::size_t, recording::Account> accounts;    // by slot; other slots count what is there
  std::set<std::size_t> damaged;                         // slots whose values cannot be read
  std::set<std::pair<std::size_t, std::uint64_t>> gone;  // snapshots that have a key but are gone
  std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> serials;  // by slot and replay
  std::set<std::pair<std::size_t, std::uint64_t>> is_same_as_before;       // by slot and replay
  bool has_hashes = false;
  bool has_xor_hash = true;      // among the statistics
  bool has_ordered_hash = true;  // likewise
  bool has_stats = true;
  std::int64_t timestamp_ns = 0;  // of every snapshot

  // float32 tensors, in graph order.
  std::size_t AddSlot(const std::string& probe, const std::vector<std::uint64_t>& shape,
                      layout::Dtype dtype = layout::Dtype::kFloat32) {
    source::Slot slot;
    slot.probe = probe;
    slot.dtype = dtype;
    slot.dtype_name = layout::DtypeName(dtype);
    slot.shape = shape;
    slot.payload_bytes = *numerics::PayloadBytes(dtype, shape);
    slot.order = slots_.size() + 1;
    slot.graph_id = 1;
    slots_.push_back(slot);
    return slots_.size() - 1;
  }
  void Add(std::size_t slot, std::uint64_t replay, const std::vector<float>& values,
           std::int64_t step = -1) {
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    AddBytes(slot, replay, bytes, step);
  }
  void AddBytes(std::size_t slot, std::uint64_t replay, const std::vector<std::byte>& bytes,
                std::int64_t step = -1) {
    entries_[{slot, replay}] = {bytes, step, true};
  }
  void Change(std::size_t slot, std::uint64_t replay, const std::vector<float>& values) {
    Add(slot, replay, values, entries_.at({slot, replay}).step);
  }
  void DropValues(std::size_t slot, std::uint64_t replay) {
    entries_.at({slot, replay}).has_values = false;
  }
  void Remove(std::size_t slot, std::uint64_t replay) { entries_.erase({slot, replay}); }
  std::vector<source::Slot>& Slots() { return slots_; }

  source::Description Describe() const override { return description; }
  const std::vector<source::Slot>& slots() const override { return slots_; }
  Result<std::vector<source::Key>> Keys(std::size_t slot) override {
    std::vector<source::Key> keys;
    for (const auto& [place, entry] : entries_) {
      if (place.first == slot) keys.push_back({place.second, place.second});
    }
    return keys;
  }
  Result<source::Snapshot> Get(std::size_t slot, const source::Key& key) override {
    if (gone.contains({slot, key.replay})) return Error{"it is gone"};
    const Entry& entry = entries_.at({slot, key.replay});
    source::Snapshot snapshot{
        .slot = slot, .key = key, .step = entry.step, .timestamp_ns = timestamp_ns};
    const auto serial = serials.find({slot, key.replay});
    if (serial != serials.end()) snapshot.serial = serial->second;
    snapshot.has_values = entry.has_values;
    snapshot.payload_bytes = entry.bytes.size();
    if (has_stats) {
      snapshot.stats = numerics::ComputeStats(
          *numerics::MakeTensorView(slots_[slot].dtype, slots_[slot].shape, entry.bytes));
      snapshot.stats->has_hash = has_xor_hash;
      snapshot.stats->has_ordered_hash = has_ordered_hash;
    }
    if (is_same_as_before.contains({slot, key.replay})) snapshot.same_as = key.id - 1;
    if (has_hashes) {
      snapshot.hash = std::hash<std::string_view>()(
          {reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()});
    }
    return snapshot;
  }
  Result<source::Values> Load(const source::Snapshot& snapshot) override {
    if (damaged.contains(snapshot.slot)) return Error{"the values are damaged"};
    return source::Values{entries_.at({snapshot.slot, snapshot.key.replay}).bytes, nullptr};
  }
  Result<void> Verify(std::size_t slot, const source::Key& /*key*/) const override {
    if (damaged.contains(slot)) return Error{"the values are damaged"};
    return {};
  }
  std::vector<source::Gap> Gaps() override { return gaps; }
  std::vector<source::Finding> Findings() override { return findings; }
  std::optional<std::vector<source::ProcessGraphs>> Graphs() override { return graphs; }
  Result<recording::Account> AccountOf(std::size_t slot) override {
    const auto told = accounts.find(slot);
    if (told == accounts.end()) return Source::AccountOf(slot);
    return told->second;
  }

 private:
  struct Entry {
    std::vector<std::byte> bytes;
    std::int64_t step = -1;
    bool has_values = true;
  };
  std::vector<source::Slot> slots_;
  std::map<std::pair<std::size_t, std::uint64_t>, Entry> entries_;
};

// "x" and "y", whose last element is `offset` more.
inline MemorySource TwoLayers(int replays, float offset = 0) {
  MemorySource source;
  const std::size_t x = source.AddSlot("x", {2, 2}), y = source.AddSlot("y", {2, 2});
  for (int replay = 1; replay <= replays; ++replay) {
    const auto n = static_cast<float>(replay);
    source.Add(x, replay, {n, n, n, n});
    source.Add(y, replay, {n, n, n, n + offset});
  }
  return source;
}

}  // namespace cgdebug::testing_support
