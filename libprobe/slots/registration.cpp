#include "libprobe/slots/registration.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "daemon/core/words/probe_name.h"
#include "daemon/core/words/settings.h"
#include "libprobe/ring/utf8.h"
#include "libprobe/slots/tensor_part.h"
#include "proto/layout/device_stats.h"

namespace cgdebug {
namespace {

constexpr std::uint32_t kDefaultCapacity = 8;  // print and compare only
constexpr std::uint32_t kDeviceHeaders = 64;   // at least, of a ring in device memory
constexpr std::uint64_t kDeviceEntryAlignment = 256;
constexpr std::uint64_t kSkipFromBytes = 64ull << 10;     // smaller ones are sent as fast as hashed
constexpr std::uint64_t kDefaultRingBytes = 64ull << 20;  // unless two entries need more
constexpr std::uint64_t kMaxRingBytes = std::uint64_t{1} << 59;  // no sum of these overflows
constexpr std::uint32_t kDefaultWaitMs = 2000;

ProbeError BadArgument(const std::string& probe, const std::string& text) {
  return ProbeError(ErrorKind::kBadArgument, "probe '" + probe + "': " + text);
}

std::uint32_t RingCapacity(const std::string& name, const ProbeOptions& options,
                           std::uint64_t payload_bytes) {
  if (options.record) {
    if (payload_bytes > kMaxRingBytes / options.record->capacity) {
      throw BadArgument(name, "TensorRecord(capacity=" + std::to_string(options.record->capacity) +
                                  ") of " + std::to_string(payload_bytes) +
                                  " bytes each is more than any memory. Use a smaller capacity");
    }
    return options.record->capacity;
  }
  const std::uint64_t fitting = kDefaultRingBytes / std::max<std::uint64_t>(payload_bytes, 1);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fitting, 2, kDefaultCapacity));
}

void CheckCompare(const std::string& name, const CompareAction& compare) {
  const bool has_tensors = compare.with == CompareAction::With::kTensors;
  if (compare.expected.empty() == has_tensors) {
    throw BadArgument(name, has_tensors
                                ? "TensorCompare needs an expected tensor"
                                : "TensorCompare compares with expected tensors or with something "
                                  "else, not with both");
  }
  for (const double tolerance : {compare.rtol, compare.atol}) {
    if (!std::isfinite(tolerance) || tolerance < 0) {
      throw BadArgument(name, "rtol and atol must be finite and not negative");
    }
  }
  if (compare.every == 0) throw BadArgument(name, "TensorCompare(every) must be at least 1");
  for (const ExpectedTensor& expected : compare.expected) {
    TensorRef tensor;
    tensor.dtype = expected.dtype;
    tensor.shape = expected.shape;
    const std::uint64_t bytes = CheckTensor(name, tensor);
    if (expected.bytes.size() != bytes) {
      throw BadArgument(name, "the expected tensor " + std::string(DtypeName(expected.dtype)) +
                                  ShapeText(expected.shape) + " has " + std::to_string(bytes) +
                                  " bytes, and " + std::to_string(expected.bytes.size()) +
                                  " were given");
    }
  }
}

}  // namespace

std::uint32_t WaitDeadlineMs() {
  return static_cast<std::uint32_t>(words::ReadNumber("CGDEBUG_WAIT_MS").value_or(kDefaultWaitMs));
}

std::uint64_t DeviceRingLimit() {
  return words::ReadNumber("CGDEBUG_DEVICE_MIB").value_or(0) << 20;
}

bool SameTensor(const layout::SlotRegistration& r, const TensorRef& tensor) {
  if (r.dtype != static_cast<std::uint16_t>(tensor.dtype) || r.dims != tensor.shape.size() ||
      r.device_type != static_cast<std::uint8_t>(tensor.device_type) ||
      r.device_index != tensor.device_index ||
      tensor.shard.compare(0, layout::kMaxShardBytes, r.shard) != 0 || tensor.part != r.part) {
    return false;
  }
  return std::equal(
      tensor.shape.begin(), tensor.shape.end(), r.shape,
      [](std::int64_t a, std::uint64_t b) { return static_cast<std::uint64_t>(a) == b; });
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

void CheckProbe(const std::string& name, const ProbeOptions& options) {
  const Result<void> named = words::CheckProbeName(name);
  if (!named.ok()) throw ProbeError(ErrorKind::kBadArgument, named.error().message);
  if (options.print && options.print->every == 0) {
    throw BadArgument(name, "TensorPrint(every) must be at least 1");
  }
  if (options.record) {
    if (options.record->every == 0)
      throw BadArgument(name, "TensorRecord(every) must be at least 1");
    if (options.record->capacity == 0 || options.record->capacity > layout::kMaxCapacity) {
      throw BadArgument(name, "TensorRecord(capacity) must lie between 1 and " +
                                  std::to_string(layout::kMaxCapacity));
    }
    if (options.record->on_device &&
        (options.record->to_disk || options.print || options.compare)) {
      throw BadArgument(name,
                        "TensorRecord(where=\"device\") keeps the values on the device, and "
                        "to=\"disk\", TensorPrint and TensorCompare need every value. Give "
                        "those to a second probe, or leave where=\"device\" out");
    }
    if (options.record->on_device && options.record->skip_unchanged) {
      throw BadArgument(name,
                        "TensorRecord(unchanged=\"skip\") is for values that are sent in each "
                        "replay, and with where=\"device\" none are: leave one of the two out");
    }
    if (options.record->trigger != layout::ControlTrigger::kNone && !options.record->on_device) {
      throw BadArgument(name,
                        "TensorRecord(on) freezes rings in device memory: add "
                        "where=\"device\"");
    }
  }
  if (!options.part.empty()) {
    (void)ParsePart("probe '" + name + "'", options.part);
    if (options.stats) {
      throw BadArgument(name, "TensorStats sums up the whole tensor, and part=\"" + options.part +
                                  "\" keeps the rest of it from being read. Give TensorStats to a "
                                  "second probe");
    }
  }
  if (options.compare) CheckCompare(name, *options.compare);
  if (options.compare && options.compare->with == CompareAction::With::kProbe &&
      (options.print || options.record || options.stats)) {
    throw BadArgument(name,
                      "TensorCompare(expected=PROBE) goes into a probe of its own: give the other "
                      "actions to a second probe");
  }
  if (options.stats && options.stats->every == 0) {
    throw BadArgument(name, "TensorStats(every) must be at least 1");
  }
}

bool StatsAlone(const ProbeOptions& options) {
  return options.stats && !options.print && !options.record && !options.compare;
}

void CheckGraphLabel(const std::string& label) {
  if (label.size() > layout::kMaxGraphLabelBytes) {
    throw ProbeError(ErrorKind::kBadArgument,
                     "a graph's label has at most " + std::to_string(layout::kMaxGraphLabelBytes) +
                         " bytes, this one " + std::to_string(label.size()) + ": '" + label + "'");
  }
  // '@' ends a label in PROBE@g:LABEL@REPLAY, and '#' numbers graphs that share a label.
  if (label.find_first_of(std::string_view("@#\0", 3)) != std::string::npos) {
    throw ProbeError(ErrorKind::kBadArgument,
                     "a graph's label must not contain '@', '#' or a zero byte: '" + label + "'");
  }
}

std::uint64_t CheckTensor(const std::string& probe, const TensorRef& tensor) {
  const layout::DtypeInfo* info = layout::FindDtype(tensor.dtype);
  if (info == nullptr) {
    throw ProbeError(
        ErrorKind::kUnsupported,
        "probe '" + probe + "': unsupported dtype (supported: " + layout::DtypeNames() + ")");
  }
  if (tensor.shape.size() > layout::kMaxDims) {
    throw BadArgument(probe,
                      "a tensor has at most " + std::to_string(layout::kMaxDims) + " dimensions");
  }
  std::uint64_t bytes = info->bytes;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      throw BadArgument(probe, "impossible shape " + ShapeText(tensor.shape));
    }
  }
  if (bytes > layout::kMaxPayloadBytes)
    throw BadArgument(probe, "tensor too large " + ShapeText(tensor.shape));
  return bytes;
}

std::size_t ExpectedIndex(const std::string& probe, const CompareAction& compare,
                          const TensorRef& tensor, std::uint32_t invocation) {
  const std::size_t index = compare.per_invocation ? invocation : 0;
  if (index >= compare.expected.size()) {
    throw BadArgument(
        probe, "invocation " + std::to_string(invocation) + " has no expected tensor: " +
                   std::to_string(compare.expected.size()) + " were given, one per invocation");
  }
  const ExpectedTensor& expected = compare.expected[index];
  const bool is_whole = !tensor.part.empty() && expected.shape == tensor.full_shape;
  if (expected.dtype != tensor.dtype || (expected.shape != tensor.shape && !is_whole)) {
    const std::string part = tensor.part.empty() ? "" : " (part " + tensor.part + ")";
    throw BadArgument(probe, "TensorCompare expects " + std::string(DtypeName(expected.dtype)) +
                                 ShapeText(expected.shape) + " for invocation " +
                                 std::to_string(invocation) + ", the tensor is " +
                                 std::string(DtypeName(tensor.dtype)) + ShapeText(tensor.shape) +
                                 part);
  }
  return index;
}

namespace {

// The ring in shared memory then holds headers and statistics, and the one in device memory has an
// entry more than was asked for, because the next replay writes one while the others are read.
void PutOnDevice(const RecordAction& record, std::uint32_t kept,
                 layout::SlotRegistration* registration) {
  layout::SlotRegistration& r = *registration;
  r.flags |= layout::kSlotOnDevice;
  r.device_capacity = std::min(r.capacity, kept);
  r.device_bytes = (std::uint64_t{r.device_capacity} + 1) *
                   layout::AlignUp(r.payload_bytes, kDeviceEntryAlignment);
  r.capacity = std::clamp(r.device_capacity, kDeviceHeaders, layout::kMaxCapacity);
  r.trigger = static_cast<std::uint8_t>(record.trigger);
  r.trigger_threshold = record.threshold;
  r.trigger_times = record.times;
}

// How many values it keeps. The ring has one entry more.
std::uint32_t KeptOnDevice(const RecordAction& record, std::uint64_t tensor_bytes,
                           std::uint64_t device_room) {
  if (!record.bounded) return record.capacity;
  const std::uint64_t entries = device_room / layout::AlignUp(tensor_bytes, kDeviceEntryAlignment);
  return entries < 2
             ? 0
             : static_cast<std::uint32_t>(std::min<std::uint64_t>(record.capacity, entries - 1));
}

// What the probe's actions do. Requires: lane, payload and kSlotOnDevice stand.
void PutActions(const ProbeOptions& options, const TensorRef& tensor,
                layout::SlotRegistration* registration) {
  layout::SlotRegistration& r = *registration;
  const bool is_direct = r.lane == static_cast<std::uint8_t>(layout::Lane::kDirect);
  if (options.print) {
    r.actions |= layout::kActionPrint;
    r.print_every = options.print->every;
    r.print_max_items = options.print->max_items;
    if (options.print->summary) r.flags |= layout::kPrintSummary;
  }
  if (options.record) {
    r.actions |= layout::kActionRecord;
    r.record_every = options.record->every;
    if (options.record->to_disk) {
      r.actions |= layout::kActionRecordToDisk;
      r.policy = static_cast<std::uint8_t>(layout::Policy::kWait);
    }
    if (options.record->skip_unchanged && is_direct && (r.flags & layout::kSlotOnDevice) == 0 &&
        r.payload_bytes >= kSkipFromBytes) {
      r.flags |= layout::kSlotSkipsUnchanged;
    }
  }
  if (options.compare) {
    r.actions |= layout::kActionCompare;
    r.policy = static_cast<std::uint8_t>(layout::Policy::kWait);
    r.compare_every = options.compare->every;
    r.compare_rtol = options.compare->rtol;
    r.compare_atol = options.compare->atol;
    if (options.compare->equal_nan) r.flags |= layout::kCompareEqualNan;
    if (options.compare->bitwise) r.flags |= layout::kCompareBitwise;
    if (options.compare->with == CompareAction::With::kFirst) r.flags |= layout::kCompareFirst;
    if (options.compare->with == CompareAction::With::kProbe) r.flags |= layout::kCompareProbe;
    const bool alone = !options.print && !options.record && !options.stats;
    const bool with_probe = options.compare->with == CompareAction::With::kProbe;
    // The kernel compares elements, not the values in them.
    const bool holds_two = layout::ValuesPerElement(tensor.dtype) == 2;
    if (holds_two && with_probe) {
      throw ProbeError(ErrorKind::kUnsupported,
                       "TensorCompare(expected=PROBE) does not take tensors of float4_e2m1fn_x2. "
                       "Compare x.view(torch.uint8)");
    }
    if ((options.compare->on_device || with_probe) && alone && !holds_two && is_direct) {
      r.flags |= layout::kSlotComparesOnDevice;
    }
  }
  if (options.stats) {
    r.actions |= layout::kActionStats;
    r.stats_every = options.stats->every;
    if (!options.stats->hash) r.flags |= layout::kStatsWithoutHash;
  }
}

}  // namespace

void SetGeometry(layout::SlotRegistration* registration) {
  const layout::SlotGeometry geometry = layout::GeometryOf(*registration);
  registration->payload_stride_bytes = geometry.payload_stride_bytes;
  registration->headers_offset = geometry.headers_offset;
  registration->payload_offset = geometry.payload_offset;
}

layout::SlotRegistration MakeRegistration(const std::string& name, const ProbeOptions& options,
                                          const TensorRef& tensor, std::uint64_t tensor_bytes,
                                          layout::Lane lane, std::uint64_t device_room) {
  layout::SlotRegistration r = {};
  const bool holds_stats = StatsAlone(options) && lane != layout::Lane::kCallback;
  const bool on_device = options.record && options.record->on_device && tensor_bytes != 0 &&
                         lane == layout::Lane::kDirect;
  const std::uint32_t kept =
      on_device ? KeptOnDevice(*options.record, tensor_bytes, device_room) : 0;
  if (on_device && kept == 0) {
    if (!tensor.part.empty()) {  // statistics of a part would be taken for those of the tensor
      ProbeOptions in_host = options;
      in_host.record->on_device = false;
      return MakeRegistration(name, in_host, tensor, tensor_bytes, lane);
    }
    ProbeOptions statistics = options;
    statistics.record.reset();
    if (!statistics.stats) statistics.stats = StatsAction{};
    return MakeRegistration(name, statistics, tensor, tensor_bytes, lane);
  }
  const std::uint64_t payload_bytes = holds_stats ? sizeof(layout::DeviceStats) : tensor_bytes;
  r.dtype = static_cast<std::uint16_t>(tensor.dtype);
  r.dims = static_cast<std::uint8_t>(tensor.shape.size());
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    r.shape[i] = static_cast<std::uint64_t>(tensor.shape[i]);
  }
  r.device_type = static_cast<std::uint8_t>(tensor.device_type);
  r.device_index = static_cast<std::int16_t>(tensor.device_index);
  r.lane = static_cast<std::uint8_t>(lane);
  r.capacity = holds_stats ? layout::kStatsCapacity : RingCapacity(name, options, payload_bytes);
  if (holds_stats) r.flags |= layout::kSlotHoldsStats;
  r.payload_bytes = payload_bytes;
  if (on_device) PutOnDevice(*options.record, kept, &r);
  SetGeometry(&r);
  r.wait_deadline_ms = WaitDeadlineMs();
  if (tensor.packed_from_strided) r.flags |= layout::kSourceNonContiguous;
  if (tensor.from_compiled_code) r.flags |= layout::kSlotCompiled;
  PutActions(options, tensor, &r);
  std::memcpy(r.name, name.data(), name.size());
  std::memcpy(r.site, options.site.data(), ring::CutLength(options.site, layout::kMaxNameBytes));
  std::memcpy(r.shard, tensor.shard.data(), ring::CutLength(tensor.shard, layout::kMaxShardBytes));
  std::memcpy(r.part, tensor.part.data(), std::min(tensor.part.size(), layout::kMaxPartBytes));
  std::memcpy(r.op, options.op.data(), ring::CutLength(options.op, layout::kMaxOpBytes));
  return r;
}

std::string WhyNoTrigger(const ProbeOptions& options, const layout::SlotRegistration& r) {
  if (!options.record || options.record->trigger == layout::ControlTrigger::kNone) return {};
  const bool is_captured =
      static_cast<layout::Lane>(r.lane) != layout::Lane::kHost &&
      static_cast<layout::LaneReason>(r.lane_reason) != layout::LaneReason::kEager;
  if (!is_captured || r.payload_bytes == 0) return {};
  if (static_cast<layout::Lane>(r.lane) != layout::Lane::kDirect) {
    return "its trigger does nothing: the callback lane has no rings in device memory";
  }
  const std::string device = std::to_string(r.device_index);
  if ((r.flags & layout::kSlotOnDevice) == 0) {
    return "its trigger does nothing: the rings of this process take as much memory of device " +
           device + " as they may, so this one keeps " +
           (r.part[0] == '\0' ? "statistics only" : "its part in shared memory") +
           ". More: CGDEBUG_DEVICE_MIB";
  }
  if (static_cast<std::uint32_t>(r.device_index) >= layout::kMaxFreezeDevices) {
    return "its trigger does nothing: rings can be stopped on the first " +
           std::to_string(layout::kMaxFreezeDevices) +
           " devices of a process, and this is device " + device +
           ". Let the process see fewer: CUDA_VISIBLE_DEVICES";
  }
  return {};
}

}  // namespace cgdebug
