#include "libprobe/slots/tensor_part.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "libprobe/slots/registration.h"

namespace cgdebug {
namespace {

constexpr std::uint64_t kMostNumber = INT64_MAX;

std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = !text.empty() && end == text.data() + text.size();
  if (!is_whole || error != std::errc() || number > kMostNumber) return std::nullopt;
  return number;
}

std::string TextOf(const TensorPart& part) {
  switch (part.kind) {
    case TensorPart::Kind::kRows:
      return "rows:" + std::to_string(part.begin) + ":" + std::to_string(part.end);
    case TensorPart::Kind::kFirst:
      return "first:" + std::to_string(part.end);
    case TensorPart::Kind::kStride:
      break;
  }
  return "stride:" + std::to_string(part.end);
}

std::optional<TensorPart> Parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view kind = text.substr(0, colon);
  const std::string_view rest = text.substr(colon + 1);
  if (kind == "rows") {
    const std::size_t between = rest.find(':');
    if (between == std::string_view::npos) return std::nullopt;
    const auto begin = ParseNumber(rest.substr(0, between));
    const auto end = ParseNumber(rest.substr(between + 1));
    if (!begin || !end || *begin >= *end) return std::nullopt;
    return TensorPart{TensorPart::Kind::kRows, *begin, *end};
  }
  const auto number = ParseNumber(rest);
  if (!number || *number == 0) return std::nullopt;
  if (kind == "first") return TensorPart{TensorPart::Kind::kFirst, 0, *number};
  if (kind == "stride") return TensorPart{TensorPart::Kind::kStride, 0, *number};
  return std::nullopt;
}

std::uint64_t Product(const std::vector<std::int64_t>& shape, std::size_t from) {
  std::uint64_t product = 1;
  for (std::size_t i = from; i < shape.size(); ++i) product *= static_cast<std::uint64_t>(shape[i]);
  return product;
}

ProbeError Refused(const std::string& probe, const std::string& text) {
  return ProbeError(ErrorKind::kBadArgument, "probe '" + probe + "': " + text);
}

}  // namespace

TensorPart ParsePart(const std::string& who, std::string_view text) {
  if (const std::optional<TensorPart> part = Parse(text)) return *part;
  throw ProbeError(ErrorKind::kBadArgument,
                   who + ": '" + std::string(text.substr(0, 80)) +
                       "' is not a part of a tensor. Type rows:A:B for rows A to B-1 of "
                       "dimension 0, first:N for the first N elements, or stride:K for every "
                       "K-th element: whole numbers, A below B, N and K at least 1, as in "
                       "part=\"rows:0:8\"");
}

TensorRef TakePart(const std::string& probe, const TensorPart& part, const TensorRef& tensor) {
  const std::uint64_t bytes = CheckTensor(probe, tensor);
  const std::uint64_t size = layout::DtypeBytes(tensor.dtype);
  const std::uint64_t count = bytes / size;
  const std::string text = TextOf(part);
  TensorRef taken = tensor;
  taken.full_shape = tensor.shape;
  taken.part = text + " of [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    taken.part += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
  }
  taken.part += "]";
  switch (part.kind) {
    case TensorPart::Kind::kRows: {
      if (tensor.shape.empty()) {
        throw Refused(probe, "part=\"" + text +
                                 "\" takes rows of dimension 0, and the tensor has no dimensions. "
                                 "Take part=\"first:1\"");
      }
      const auto rows = static_cast<std::uint64_t>(tensor.shape[0]);
      if (part.begin >= rows && rows != 0) {
        throw Refused(probe, "part=\"" + text + "\" has none of the " + std::to_string(rows) +
                                 " rows of the tensor " + ShapeText(tensor.shape) +
                                 ". Take rows from 0 to " + std::to_string(rows) +
                                 ", or part=\"first:N\"");
      }
      const std::uint64_t begin = std::min(part.begin, rows);
      taken.shape[0] = static_cast<std::int64_t>(std::min(part.end, rows) - begin);
      // Not a pointer's arithmetic: a binding may have packed only the range of RangeOf().
      taken.data = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(tensor.data) +
                                                 begin * Product(tensor.shape, 1) * size);
      return taken;
    }
    case TensorPart::Kind::kFirst:
      taken.shape = {static_cast<std::int64_t>(std::min(part.end, count))};
      return taken;
    case TensorPart::Kind::kStride:
      break;
  }
  const std::uint64_t taken_count = count == 0 ? 0 : (count - 1) / part.end + 1;
  taken.shape = {static_cast<std::int64_t>(taken_count)};
  taken.element_stride = taken_count > 1 ? part.end : 1;
  return taken;
}

std::vector<std::byte> BytesOfPart(const std::string& probe, const TensorPart& part,
                                   const ExpectedTensor& whole) {
  TensorRef tensor;
  tensor.data = whole.bytes.data();
  tensor.dtype = whole.dtype;
  tensor.shape = whole.shape;
  const TensorRef taken = TakePart(probe, part, tensor);
  const std::uint64_t size = layout::DtypeBytes(whole.dtype);
  std::vector<std::byte> bytes(CheckTensor(probe, taken));
  const auto* from = static_cast<const std::byte*>(taken.data);
  if (taken.element_stride == 1) {
    if (!bytes.empty()) std::memcpy(bytes.data(), from, bytes.size());
    return bytes;
  }
  for (std::uint64_t at = 0; at < bytes.size(); at += size) {
    std::memcpy(bytes.data() + at, from + at * taken.element_stride, size);
  }
  return bytes;
}

std::optional<NeededRange> RangeOf(const TensorPart& part, const std::vector<std::int64_t>& shape) {
  if (shape.empty() || std::find(shape.begin(), shape.end(), 0) != shape.end()) return std::nullopt;
  if (part.kind == TensorPart::Kind::kStride) return std::nullopt;
  if (part.kind == TensorPart::Kind::kRows) {
    const auto rows = static_cast<std::uint64_t>(shape[0]);
    if (part.begin >= rows) return std::nullopt;
    const std::uint64_t length = std::min(part.end, rows) - part.begin;
    return NeededRange{0, static_cast<std::int64_t>(part.begin), static_cast<std::int64_t>(length),
                       part.begin * Product(shape, 1)};
  }
  std::size_t dimension = 0;  // the first that has more than one index
  while (dimension + 1 < shape.size() && shape[dimension] == 1) ++dimension;
  const std::uint64_t inner = Product(shape, dimension + 1);
  const std::uint64_t length = (part.end - 1) / inner + 1;
  const auto most = static_cast<std::uint64_t>(shape[dimension]);
  return NeededRange{dimension, 0, static_cast<std::int64_t>(std::min(length, most)), 0};
}

}  // namespace cgdebug
