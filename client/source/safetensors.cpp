#include "client/source/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "daemon/core/base/regular_file.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/numerics/tensor_view.h"

namespace cgdebug::source {
namespace {

using Json = nlohmann::json;  // not ordered_json, whose objects are slow when they are large

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's own library
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kNoSafetensors =
    "it does not look like a .safetensors file, the only kind of file that can be read; a "
    "recording is a directory, NAME.cgrec. Type for example: cgdebug-cli info NAME.cgrec";

struct TypeName {
  std::string_view theirs;
  std::string_view ours;
  std::uint64_t bytes;  // of one element, in the file
};
// Types of torch that cannot be probed. Where a type of ours holds each of their values, the values
// are read as that.
constexpr std::string_view kUint32 = "U32";
constexpr TypeName kOtherTypes[] = {{kUint32, "int64", 4}, {"U64", "uint64", 8}};

template <typename To, typename Convert>
std::vector<std::byte> Converted(std::size_t count, const Convert& convert) {
  std::vector<std::byte> values(count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    const To value = convert(i);
    std::memcpy(values.data() + i * sizeof(To), &value, sizeof(To));
  }
  return values;
}

// The values of a tensor as the dtype says that stands for its own.
std::vector<std::byte> AsOurs(const SafetensorsTensor& tensor, std::vector<std::byte> bytes) {
  if (tensor.dtype_name == kUint32) {
    return Converted<std::int64_t>(bytes.size() / 4, [&](std::size_t i) {
      std::uint32_t value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, sizeof(value));
      return static_cast<std::int64_t>(value);
    });
  }
  return bytes;
}

std::optional<TypeName> FindType(std::string_view name) {
  for (const layout::DtypeInfo& info : layout::kDtypes) {
    if (info.safetensors == name) return TypeName{name, info.name, info.bytes};
  }
  for (const TypeName& type : kOtherTypes) {
    if (type.theirs == name) return type;
  }
  return std::nullopt;
}

// A number that fits 64 bits and is not negative; nothing for anything else.
std::optional<std::uint64_t> Unsigned(const Json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  return json.get<std::uint64_t>();
}

template <typename T>
T Number(const Json& object, const char* name, T fallback) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return fallback;
  if (const std::optional<std::uint64_t> value = Unsigned(*found)) {
    return std::in_range<T>(*value) ? static_cast<T>(*value) : fallback;
  }
  const auto value = found->get<std::int64_t>();
  return std::in_range<T>(value) ? static_cast<T>(value) : fallback;
}

std::string Text(const Json& object, const char* name, const std::string& fallback) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return fallback;
  return found->get<std::string>();
}

// The header's text, with its length checked against the file's.
Result<std::string> ReadHeader(const UniqueFd& fd, std::uint64_t file_bytes) {
  std::uint64_t length_untrusted = 0;
  if (file_bytes < sizeof(length_untrusted) ||
      ReadAt(fd.get(), 0, std::as_writable_bytes(std::span(&length_untrusted, 1))) !=
          sizeof(length_untrusted)) {
    return Error{kNoSafetensors};
  }
  // The first eight bytes of any other file hardly ever make so small a number.
  if (length_untrusted > kMaxHeaderBytes) return Error{kNoSafetensors};
  std::string text(std::min(length_untrusted, file_bytes - sizeof(length_untrusted)), '\0');
  if (length_untrusted > text.size() ||
      ReadAt(fd.get(), sizeof(length_untrusted), std::as_writable_bytes(std::span(text))) !=
          text.size()) {
    return Error{fmt::format("it is cut off inside its header ({} of {} bytes)", file_bytes,
                             length_untrusted + sizeof(length_untrusted))};
  }
  return text;
}

// Looks at the keys of an object as they come. Json::parse() with a callback would look at all of
// an object's members again after each of them.
class KeyWatcher : public nlohmann::json_sax<Json> {
 public:
  std::vector<std::string> keys;  // of the outermost object, as the text has them
  std::string repeated;           // one that it has twice

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ <= kMostDepth; }
  bool end_object() override { return depth_-- > 0; }
  bool start_array(std::size_t) override { return ++depth_ <= kMostDepth; }
  bool end_array() override { return depth_-- > 0; }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    if (!known_.insert(name).second) repeated = name;
    keys.push_back(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  static constexpr int kMostDepth = 3;  // the header, a tensor, its shape
  int depth_ = 0;
  std::set<std::string> known_;
};

// `order`: its keys, as the file has them.
Result<Json> ParseHeader(std::string_view text, std::vector<std::string>* order) {
  KeyWatcher watcher;
  if (!Json::sax_parse(text.begin(), text.end(), &watcher)) {
    return Error{"its header is not a JSON object"};
  }
  Json header = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) {
    return Error{"its header is not a JSON object"};
  }
  if (!watcher.repeated.empty()) {
    return Error{"its header names '" + watcher.repeated + "' twice"};
  }
  *order = std::move(watcher.keys);
  return header;
}

// `data_bytes` follow the header, which ends at `data_offset`.
Result<SafetensorsTensor> ParseTensor(const std::string& name, const Json& entry,
                                      std::uint64_t data_offset, std::uint64_t data_bytes) {
  const auto bad = [&](std::string_view what) {
    return Error{fmt::format("tensor '{}': {}", name, what)};
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    return bad("its entry needs dtype, shape and two data_offsets");
  }
  SafetensorsTensor tensor;
  tensor.name = tensor.probe = name;
  tensor.dtype_name = entry["dtype"].get<std::string>();
  const std::optional<TypeName> type = FindType(tensor.dtype_name);
  const layout::DtypeInfo* ours = type ? layout::FindDtype(type->ours) : nullptr;
  if (ours != nullptr) tensor.dtype = ours->dtype;
  for (const Json& size : entry["shape"]) {
    const std::optional<std::uint64_t> value = Unsigned(size);
    if (!value) return bad("a size of its shape is not a number");
    tensor.shape.push_back(*value);
  }
  const std::optional<std::uint64_t> begin = Unsigned(entry["data_offsets"][0]);
  const std::optional<std::uint64_t> end = Unsigned(entry["data_offsets"][1]);
  if (!begin || !end || *begin > *end) return bad("its data_offsets are not a range");
  if (*end > data_bytes) {
    return bad(
        fmt::format("its values end at byte {}, the file has {}: it is cut off", *end, data_bytes));
  }
  tensor.offset = data_offset + *begin;
  tensor.bytes = tensor.bytes_in_file = *end - *begin;
  if (ours != nullptr && layout::ValuesPerElement(ours->dtype) == 2) {  // it counts values
    if (tensor.shape.empty() || tensor.shape.back() % 2 != 0) {
      return bad("the last size of its shape is odd, and its dtype has two values in a byte");
    }
    tensor.shape.back() /= 2;
  }
  const std::optional<std::uint64_t> count = numerics::ElementCount(tensor.shape);
  std::uint64_t expected_bytes = 0;
  if (!count || (type && __builtin_mul_overflow(*count, type->bytes, &expected_bytes))) {
    return bad("its shape does not fit 64 bits");
  }
  if (type && expected_bytes != tensor.bytes) {
    return bad(fmt::format("its shape and dtype take {} bytes, its data_offsets {}", expected_bytes,
                           tensor.bytes));
  }
  if (ours != nullptr && ours->bytes != type->bytes &&
      __builtin_mul_overflow(*count, ours->bytes, &tensor.bytes)) {
    return bad("its shape does not fit 64 bits");
  }
  return tensor;
}

bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// Takes what `export --to safetensors` wrote about itself; ignores anything odd.
void ApplyOwnMetadata(const Json& metadata, SafetensorsFile* file) {
  const auto text = metadata.find("cgdebug");
  if (text == metadata.end() || !text->is_string()) return;
  const Json own = Json::parse(text->get<std::string>(), nullptr, /*allow_exceptions=*/false);
  if (!own.is_object()) return;
  file->replay = Number<std::uint64_t>(own, "replay", 0);
  file->step = Number<std::int64_t>(own, "step", -1);
  file->rank = Number<int>(own, "rank", -1);
  file->replay_before = Number<std::uint64_t>(own, "before", 0);
  file->replay_after = Number<std::uint64_t>(own, "after", 0);
  if (const auto missing = own.find("missing"); missing != own.end() && missing->is_array()) {
    for (const Json& sentence : *missing) {
      if (sentence.is_string()) file->missing.push_back(sentence.get<std::string>());
    }
  }
  if (const auto ranks = own.find("ranks"); ranks != own.end() && ranks->is_array()) {
    for (const Json& rank : *ranks) {
      if (rank.is_number_integer()) file->ranks.push_back(rank.get<int>());
    }
  }
  const auto tensors = own.find("tensors");
  if (tensors == own.end() || !tensors->is_object()) return;
  for (SafetensorsTensor& tensor : file->tensors) {
    const auto about = tensors->find(tensor.name);
    if (about == tensors->end() || !about->is_object()) continue;
    tensor.order = Number<std::uint64_t>(*about, "order", tensor.order);
    tensor.graph_id = Number<std::uint64_t>(*about, "capture", 0);
    tensor.graph = Text(*about, "graph", "");
    tensor.graph_is_given = Number<int>(*about, "graph_is_given", 0) != 0;
    tensor.serial = Number<std::uint64_t>(*about, "serial", 0);
    tensor.invocation = Number<std::uint32_t>(*about, "invocation", 0);
    tensor.probe = Text(*about, "probe", tensor.probe);
    tensor.session = Text(*about, "session", "");
    tensor.part = Text(*about, "part", "");
  }
}

Result<SafetensorsFile> Parse(const std::string& path, const UniqueFd& fd,
                              const struct stat& status) {
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  const Result<std::string> text = ReadHeader(fd, file_bytes);
  if (!text.ok()) return text.error();
  std::vector<std::string> names;
  const Result<Json> header = ParseHeader(*text, &names);
  if (!header.ok()) return header.error();
  const std::uint64_t data_offset = sizeof(std::uint64_t) + text->size();
  const std::uint64_t data_bytes = file_bytes - data_offset;
  SafetensorsFile file{.path = path, .status = status};
  std::uint64_t used_bytes = 0;
  for (const std::string& name : names) {
    if (name == kMetadata) continue;
    Result<SafetensorsTensor> tensor = ParseTensor(name, header->at(name), data_offset, data_bytes);
    if (!tensor.ok()) return tensor.error();
    tensor->order = file.tensors.size() + 1;
    used_bytes = std::max(used_bytes, tensor->offset - data_offset + tensor->bytes_in_file);
    file.tensors.push_back(*std::move(tensor));
  }
  if (used_bytes != data_bytes) {
    return Error{
        fmt::format("{} bytes after the last tensor belong to none", data_bytes - used_bytes)};
  }
  if (const auto metadata = header->find(kMetadata); metadata != header->end()) {
    if (!metadata->is_object()) return Error{"its __metadata__ is not a JSON object"};
    ApplyOwnMetadata(*metadata, &file);
  }
  return file;
}

}  // namespace

Result<SafetensorsFile> OpenSafetensors(const std::string& path) {
  static_assert(std::endian::native == std::endian::little);
  const auto fd = OpenRegularFile(path, O_RDONLY);
  if (!fd.ok()) return fd.error();
  struct stat status = {};
  if (::fstat(fd->get(), &status) != 0) return ErrnoError("cannot read the size of " + path);
  Result<SafetensorsFile> file = Parse(path, *fd, status);
  if (!file.ok()) return Error{path + " cannot be read: " + file.error().message};
  return file;
}

Result<Values> ReadTensor(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  const auto fd = OpenRegularFile(file.path, O_RDONLY);
  if (!fd.ok()) return fd.error();
  auto bytes = std::make_shared<std::vector<std::byte>>(tensor.bytes_in_file);
  const bool whole = ReadAt(fd->get(), tensor.offset, *bytes) == bytes->size();
  struct stat now = {};
  if (!whole || ::fstat(fd->get(), &now) != 0 || !IsSame(file.status, now)) {
    return Error{file.path + " was changed while it was read. Type the same command again"};
  }
  *bytes = AsOurs(tensor, std::move(*bytes));
  return Values{*bytes, bytes};
}

}  // namespace cgdebug::source
