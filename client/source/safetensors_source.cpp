#include "client/source/safetensors_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "client/source/absent_files.h"
#include "client/source/safetensors.h"

namespace cgdebug::source {
namespace {

// The last number in a file's name, 0 for none.
std::uint64_t NumberIn(const std::string& path) {
  const std::string name = std::filesystem::path(path).stem().string();
  const std::size_t last = name.find_last_of("0123456789");
  if (last == std::string::npos) return 0;
  const std::size_t before = name.find_last_not_of("0123456789", last);
  const std::size_t first = before == std::string::npos ? 0 : before + 1;
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(name.data() + first, name.data() + last + 1, number);
  return parsed.ec == std::errc() ? number : 0;
}

bool ShareNames(const std::vector<SafetensorsFile>& files) {
  std::set<std::pair<int, std::string>> names;
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsTensor& tensor : file.tensors) {
      if (!names.emplace(file.rank, tensor.name).second) return true;
    }
  }
  return false;
}

// Gives each file that does not say its own a replay.
void NumberFiles(std::vector<SafetensorsFile>* files) {
  const bool are_parts = !ShareNames(*files);
  std::set<std::uint64_t> numbers;
  for (const SafetensorsFile& file : *files) numbers.insert(NumberIn(file.path));
  const bool names_tell = numbers.size() == files->size() && *numbers.begin() > 0;
  std::uint64_t place = 0;
  for (SafetensorsFile& file : *files) {
    ++place;
    if (file.replay > 0) continue;
    file.replay = are_parts ? 1 : names_tell ? NumberIn(file.path) : place;
  }
}

class SafetensorsSource : public Source {
 public:
  SafetensorsSource(std::string path, std::vector<SafetensorsFile> files)
      : path_(std::move(path)), files_(std::move(files)) {}

  // Fails: two tensors of one name for one replay.
  Result<void> Index() {
    using SlotId = std::tuple<int, std::string, std::uint64_t, std::string, std::uint64_t,
                              std::uint32_t, std::string, std::vector<std::uint64_t>>;
    std::map<SlotId, std::size_t> slot_of;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const SafetensorsFile& file = files_[i];
      for (std::size_t j = 0; j < file.tensors.size(); ++j) {
        const SafetensorsTensor& tensor = file.tensors[j];
        // Tells probes of one name apart; in a file that nobody exported it is a place in that
        // file.
        const std::uint64_t order = tensor.session.empty() ? 0 : tensor.order;
        const SlotId id{file.rank,         tensor.session,  order,
                        tensor.probe,      tensor.graph_id, tensor.invocation,
                        tensor.dtype_name, tensor.shape};
        const auto [found, is_new] = slot_of.try_emplace(id, slots_.size());
        if (is_new) AddSlot(file, tensor);
        std::vector<Key>& keys = keys_[found->second];
        if (!keys.empty() && keys.back().replay == file.replay) {
          return Error{fmt::format("{} and another file both hold '{}' of replay {}", file.path,
                                   tensor.name, file.replay)};
        }
        keys.push_back({file.replay, places_.size()});
        places_.push_back({i, j});
      }
    }
    QualifySlots();
    return {};
  }

  Description Describe() const override {
    Description description{.path = path_, .kind = "safetensors"};
    std::set<std::string> missing;
    for (const SafetensorsFile& file : files_) {
      description.bytes += static_cast<std::uint64_t>(file.status.st_size);
      missing.insert(file.missing.begin(), file.missing.end());
    }
    for (const std::string& sentence : missing) {
      description.unread.push_back("the recording that was exported is not complete: " + sentence);
    }
    // Who names one file wants no other.
    if (std::filesystem::is_directory(path_)) {
      for (std::string& sentence : AbsentFiles(path_, files_)) {
        description.unread.push_back(std::move(sentence));
      }
    }
    return description;
  }
  const std::vector<Slot>& slots() const override { return slots_; }
  Result<std::vector<Key>> Keys(std::size_t slot) override { return keys_[slot]; }
  Result<Snapshot> Get(std::size_t slot, const Key& key) override {
    CountSnapshotRead();
    const auto [file, tensor] = places_[key.id];
    return Snapshot{.slot = slot,
                    .key = key,
                    .serial = files_[file].tensors[tensor].serial,
                    .step = files_[file].step,
                    .has_values = true,
                    .payload_bytes = files_[file].tensors[tensor].bytes};
  }
  Result<Values> Load(const Snapshot& snapshot) override {
    const auto [file, tensor] = places_[snapshot.key.id];
    return ReadTensor(files_[file], files_[file].tensors[tensor]);
  }
  Result<Values> LoadWritable(const Snapshot& snapshot) override { return Load(snapshot); }
  std::vector<Gap> Gaps() override { return {}; }

 private:
  struct Place {
    std::size_t file;
    std::size_t tensor;
  };

  void AddSlot(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
    Slot slot;
    slot.probe = tensor.probe;
    slot.session = tensor.session.empty() ? std::filesystem::path(file.path).filename().string()
                                          : tensor.session;
    slot.dtype = tensor.dtype;
    slot.dtype_name = tensor.dtype == layout::Dtype::kInvalid
                          ? tensor.dtype_name
                          : std::string(layout::DtypeName(tensor.dtype));
    if (tensor.bytes != tensor.bytes_in_file) slot.site = tensor.dtype_name + " in the file";
    slot.shape = tensor.shape;
    slot.payload_bytes = tensor.bytes;
    slot.rank = file.rank;
    slot.graph_id = tensor.graph_id;
    slot.graph = tensor.graph;
    slot.graph_is_given = tensor.graph_is_given;
    slot.invocation = tensor.invocation;
    slot.order = tensor.order;
    slot.part = tensor.part;
    slots_.push_back(std::move(slot));
    keys_.emplace_back();
  }

  void QualifySlots() {
    std::map<std::pair<int, std::string>, std::vector<std::size_t>> jobs;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      jobs[{slots_[i].rank, slots_[i].session}].push_back(i);
    }
    for (const auto& [job, members] : jobs) {
      std::vector<GraphSlot> slots;
      GraphLabels labels;
      for (const std::size_t member : members) {
        const Slot& slot = slots_[member];
        slots.push_back({.graph_id = slot.graph_id,
                         .order = slot.order,
                         .probe = slot.probe,
                         .invocation = slot.invocation,
                         .shape = slot.shape});
        if (!slot.graph.empty()) labels[slot.graph_id] = slot.graph;
      }
      const std::vector<std::string> qualifiers = SlotQualifiers(slots, labels);
      for (std::size_t i = 0; i < members.size(); ++i) slots_[members[i]].qualifier = qualifiers[i];
    }
  }

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::vector<Slot> slots_;
  std::vector<std::vector<Key>> keys_;  // of each slot
  std::vector<Place> places_;           // by Key::id
};

}  // namespace

Result<std::unique_ptr<Source>> OpenSafetensorsFiles(const std::string& path,
                                                     const std::vector<std::string>& files) {
  std::vector<SafetensorsFile> opened;
  for (const std::string& file : files) {
    Result<SafetensorsFile> one = OpenSafetensors(file);
    if (!one.ok()) return one.error();
    opened.push_back(*std::move(one));
  }
  NumberFiles(&opened);
  std::stable_sort(opened.begin(), opened.end(),
                   [](const SafetensorsFile& a, const SafetensorsFile& b) {
                     return std::tie(a.rank, a.replay) < std::tie(b.rank, b.replay);
                   });
  auto source = std::make_unique<SafetensorsSource>(path, std::move(opened));
  const Result<void> indexed = source->Index();
  if (!indexed.ok()) return indexed.error();
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace cgdebug::source
