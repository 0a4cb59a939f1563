#include "client/source/merged_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace cgdebug::source {
namespace {

class MergedSource : public Source {
 public:
  // `wants`: the slots to show, empty for all.
  MergedSource(std::string path, std::vector<std::unique_ptr<Source>> parts,
               std::vector<std::string> unread, const std::function<bool(const Slot&)>& wants)
      : path_(std::move(path)),
        parts_(std::move(parts)),
        unread_(std::move(unread)),
        wants_(wants) {
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      for (std::size_t slot = 0; slot < parts_[part]->slots().size(); ++slot) {
        if (wants && !wants(parts_[part]->slots()[slot])) continue;
        slot_at_[{part, slot}] = slots_.size();
        slots_.push_back(parts_[part]->slots()[slot]);
        places_.push_back({part, slot});
      }
    }
  }

  Description Describe() const override {
    if (parts_.size() == 1 && unread_.empty()) {
      Description only = parts_.front()->Describe();
      std::erase_if(only.not_seen, [&](const NotSeen& one) { return !Wants(one.of); });
      std::erase_if(only.not_finite_let_go, [&](const auto& one) {
        return std::ranges::find(slots_, one.first, &Slot::uuid) == slots_.end();
      });
      return only;
    }
    Description merged{.path = path_, .kind = "recordings", .unread = unread_};
    for (const std::unique_ptr<Source>& part : parts_) {
      const Description one = part->Describe();
      merged.sessions.insert(merged.sessions.end(), one.sessions.begin(), one.sessions.end());
      merged.bytes += one.bytes;
      merged.is_growing = merged.is_growing || one.is_growing;
      merged.is_cut_off = merged.is_cut_off || one.is_cut_off;
      merged.running.insert(one.running.begin(), one.running.end());
      merged.damage.insert(merged.damage.end(), one.damage.begin(), one.damage.end());
      merged.unread.insert(merged.unread.end(), one.unread.begin(), one.unread.end());
      for (const NotSeen& not_seen : one.not_seen) {
        if (Wants(not_seen.of)) merged.not_seen.push_back(not_seen);
      }
      merged.ending += fmt::format("{}{}: {}", merged.ending.empty() ? "" : "; ",
                                   one.path.substr(one.path.find_last_of('/') + 1), one.ending);
    }
    return merged;
  }
  const std::vector<Slot>& slots() const override { return slots_; }
  Result<std::vector<Key>> Keys(std::size_t slot) override {
    return parts_[places_[slot].part]->Keys(places_[slot].slot);
  }
  Result<std::optional<Key>> Find(std::size_t slot, std::uint64_t replay,
                                  std::optional<std::uint32_t> iteration) override {
    return parts_[places_[slot].part]->Find(places_[slot].slot, replay, iteration);
  }
  Result<std::optional<Key>> FindBefore(std::size_t slot, std::uint64_t replay) override {
    return parts_[places_[slot].part]->FindBefore(places_[slot].slot, replay);
  }
  Result<std::uint64_t> NewestReplay(std::size_t slot) override {
    return parts_[places_[slot].part]->NewestReplay(places_[slot].slot);
  }
  Result<Snapshot> Get(std::size_t slot, const Key& key) override {
    Result<Snapshot> snapshot = parts_[places_[slot].part]->Get(places_[slot].slot, key);
    if (snapshot.ok()) snapshot->slot = slot;
    return snapshot;
  }
  Result<Values> Load(const Snapshot& snapshot) override {
    return parts_[places_[snapshot.slot].part]->Load(InPart(snapshot));
  }
  Result<Values> LoadWritable(const Snapshot& snapshot) override {
    return parts_[places_[snapshot.slot].part]->LoadWritable(InPart(snapshot));
  }
  Result<void> Verify(std::size_t slot, const Key& key) const override {
    return parts_[places_[slot].part]->Verify(places_[slot].slot, key);
  }
  std::vector<Gap> Gaps() override { return OfParts(&Source::Gaps); }
  std::vector<std::size_t> MayLack(const std::vector<std::size_t>& slots,
                                   std::uint64_t replay) override {
    std::map<std::size_t, std::vector<std::size_t>> in_parts;
    for (const std::size_t slot : slots) in_parts[places_[slot].part].push_back(places_[slot].slot);
    std::vector<std::size_t> lacking;
    for (const auto& [part, of_part] : in_parts) {
      for (const std::size_t slot : parts_[part]->MayLack(of_part, replay)) {
        lacking.push_back(slot_at_.at({part, slot}));
      }
    }
    return lacking;
  }
  Result<recording::Account> AccountOf(std::size_t slot) override {
    return parts_[places_[slot].part]->AccountOf(places_[slot].slot);
  }
  std::vector<Finding> Findings() override { return OfParts(&Source::Findings); }
  std::optional<std::vector<ProcessGraphs>> Graphs() override {
    return parts_.size() == 1 ? parts_.front()->Graphs() : std::nullopt;
  }
  std::vector<const recording::RecordingReader*> Recordings() const override {
    std::vector<const recording::RecordingReader*> readers;
    for (const std::unique_ptr<Source>& part : parts_) {
      for (const recording::RecordingReader* reader : part->Recordings()) readers.push_back(reader);
    }
    return readers;
  }

 private:
  struct Place {
    std::size_t part;
    std::size_t slot;
  };

  Snapshot InPart(Snapshot snapshot) const {
    snapshot.slot = places_[snapshot.slot].slot;
    return snapshot;
  }
  // Calls `read` on every part. Keeps what is about the slots that are shown.
  template <typename Item>
  std::vector<Item> OfParts(std::vector<Item> (Source::*read)()) {
    std::vector<Item> items;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      for (Item& item : ((*parts_[part]).*read)()) {
        const auto slot = slot_at_.find({part, item.slot});
        if (slot == slot_at_.end()) continue;
        item.slot = slot->second;
        items.push_back(std::move(item));
      }
    }
    return items;
  }

  bool Wants(const Slot& slot) const { return !wants_ || wants_(slot); }

  std::string path_;
  std::vector<std::unique_ptr<Source>> parts_;
  std::vector<std::string> unread_;
  const std::function<bool(const Slot&)> wants_;
  std::vector<Slot> slots_;
  std::vector<Place> places_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> slot_at_;  // by part, then its slot
};

}  // namespace

std::unique_ptr<Source> Merge(std::string path, std::vector<std::unique_ptr<Source>> parts,
                              std::vector<std::string> unread) {
  return std::make_unique<MergedSource>(std::move(path), std::move(parts), std::move(unread),
                                        nullptr);
}

std::unique_ptr<Source> Only(std::unique_ptr<Source> source,
                             const std::function<bool(const Slot&)>& wants) {
  std::string path = source->Describe().path;
  std::vector<std::unique_ptr<Source>> parts;
  parts.push_back(std::move(source));
  return std::make_unique<MergedSource>(std::move(path), std::move(parts),
                                        std::vector<std::string>{}, wants);
}

std::unique_ptr<Source> OnlyOf(std::unique_ptr<Source> source, std::set<std::string> uuids) {
  return Only(std::move(source),
              [uuids = std::move(uuids)](const Slot& slot) { return uuids.contains(slot.uuid); });
}

}  // namespace cgdebug::source
