#include "daemon/core/recording/meta.h"

#include <iterator>
#include <type_traits>

#include "daemon/core/recording/wire_format.h"

namespace cgdebug::recording {
namespace {

// The fields of each message, once for both directions: Archive is Encoder or Decoder.
template <typename Archive>
void Fields(Archive& a, numerics::Stats& m) {
  a.Varint(1, m.count);
  a.Varint(2, m.nan);
  a.Varint(3, m.pos_inf);
  a.Varint(4, m.neg_inf);
  a.Varint(5, m.zero);
  a.Varint(6, m.subnormal);
  a.Double(7, m.min);
  a.Double(8, m.max);
  a.Double(9, m.mean);
  a.Double(10, m.std);
  a.Double(11, m.abs_max);
  a.Double(12, m.l1);
  a.Double(13, m.l2);
  a.Optional(14, m.has_nonfinite, m.first_nonfinite);
  a.Double(15, m.first_nonfinite_value);
  a.Packed(16, m.histogram);
  a.OptionalFixed64(17, m.has_hash, m.hash);
}

template <typename Archive>
void Fields(Archive& a, Session& m) {
  a.Text(1, m.uuid);
  a.Text(2, m.label);
  a.Text(3, m.run_id);
  a.Text(4, m.command);
  a.Text(5, m.hostname);
  a.Text(6, m.version);
  a.Varint(7, m.pid);
  a.Signed(8, m.rank);
  a.Varint(9, m.world_size);
  a.Varint(10, m.restart_count);
  a.Varint(11, m.created_ns);
  a.Varint(12, m.id);
}

template <typename Archive>
void Fields(Archive& a, Slot& m) {
  a.Varint(1, m.session);
  a.Text(2, m.probe);
  a.Text(3, m.site);
  a.Text(4, m.device);
  a.Varint(5, m.dtype);
  a.Packed(6, m.shape);
  a.Varint(7, m.payload_bytes);
  a.Varint(8, m.capture_id);
  a.Varint(9, m.invocation);
  a.Varint(10, m.order);
  a.Varint(11, m.every);
  a.Varint(12, m.index);
  a.Varint(13, m.generation);
  a.Varint(14, m.id);
  a.Varint(15, m.from_ordinal);
  a.Text(16, m.shard);
  a.Text(17, m.graph_label);
  a.Varint(20, m.from_sequence);
}

template <typename Archive>
void Fields(Archive& a, Snapshot& m) {
  a.Varint(1, m.slot);
  a.Varint(2, m.ordinal);
  a.Varint(3, m.sequence);
  a.Signed(4, m.step);
  a.Varint(5, m.timestamp_ns);
  a.Varint(6, m.skipped);
  a.Varint(7, m.unchanged);
  a.Varint(8, m.stats_only);
  a.Message(9, m.stats);
  a.Fixed64(10, m.payload_hash);  // of records with a payload it stands in the header
  a.Optional(11, m.compared, m.comparison.mismatched);
  a.Double(12, m.comparison.max_abs);
  a.Double(13, m.comparison.max_rel);
  a.Fixed64(14, m.serial);
}

template <typename Archive>
void Fields(Archive& a, Loss& m) {
  a.Varint(1, m.slot);
  a.Varint(2, m.cause);
  a.Varint(3, m.count);
  a.Varint(4, m.first_ordinal);
  a.Varint(5, m.last_ordinal);
  a.Varint(6, m.after_sequence);
  a.Varint(7, m.before_sequence);
  a.Varint(8, m.timestamp_ns);
}

template <typename Archive>
void Fields(Archive& a, Mark& m) {
  a.Varint(1, m.kind);
  a.Varint(2, m.session);
  a.Signed(3, m.slot);
  a.Varint(4, m.sequence);
  a.Signed(5, m.step);
  a.Varint(6, m.timestamp_ns);
  a.Text(7, m.text);
  a.Varint(20, m.ordinal);
  a.Varint(21, m.skipped);
  a.Varint(22, m.count);
  a.Fixed64(23, m.serial);
}

template <typename Archive>
void Fields(Archive& a, Commit& m) {
  a.Varint(1, m.number);
  a.Varint(2, m.timestamp_ns);
}

template <typename Archive>
void Fields(Archive& a, SlotRun& m) {
  a.Varint(1, m.slot);
  a.Varint(2, m.row_count);
  a.Varint(3, m.first_sequence);
  a.Varint(4, m.last_sequence);
  a.Varint(5, m.first_ordinal);
  a.Varint(6, m.last_ordinal);
}

template <typename Archive>
void Fields(Archive& a, Index& m) {
  a.Varint(1, m.previous_offset);
  a.Varint(2, m.first_number);
  a.Repeated(3, m.runs);
  a.Packed(4, m.others);
}

template <typename Archive>
void Fields(Archive& a, End& m) {
  a.Varint(1, m.index_offset);
  a.Varint(2, m.reason);
  a.Varint(3, m.snapshots);
  a.Varint(4, m.lost);
  a.Varint(5, m.timestamp_ns);
  a.Text(15, m.padding);
}

class Encoder {
 public:
  template <typename T>
  void Varint(std::uint32_t field, const T& value) {
    out_.Varint(field, static_cast<std::uint64_t>(value));
  }
  template <typename T>
  void Signed(std::uint32_t field, const T& value) {
    out_.Signed(field, value);
  }
  void Fixed64(std::uint32_t field, std::uint64_t value) { out_.Fixed64(field, value); }
  void Double(std::uint32_t field, double value) { out_.Double(field, value); }
  void Text(std::uint32_t field, std::string_view value) { out_.Bytes(field, value); }
  void Optional(std::uint32_t field, bool present, std::uint64_t value) {
    if (present) out_.PresentVarint(field, value);
  }
  void OptionalFixed64(std::uint32_t field, bool present, std::uint64_t value) {
    if (present) out_.PresentFixed64(field, value);
  }
  template <typename Range>
  void Packed(std::uint32_t field, const Range& values) {
    out_.Packed(field, values);
  }
  template <typename T>
  void Message(std::uint32_t field, T& message) {
    Encoder inner;
    Fields(inner, message);
    out_.Message(field, inner.out_);
  }
  template <typename T>
  void Repeated(std::uint32_t field, std::vector<T>& messages) {
    for (T& message : messages) Message(field, message);
  }
  const std::string& bytes() const { return out_.bytes(); }

 private:
  WireWriter out_;
};

// Visits every field of the message once for each field on the wire and fills in the one that it
// is. Before the first, field 0 visits them all: absent means 0, whatever a struct begins with.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : in_(bytes) {}

  template <typename T>
  bool Read(T& message) {
    Fields(*this, message);
    clearing_ = false;
    while (in_.Next()) Fields(*this, message);
    return ok_ && in_.ok();
  }

  template <typename T>
  void Varint(std::uint32_t field, T& value) {
    if (Is(field)) value = static_cast<T>(in_.value());
  }
  template <typename T>
  void Signed(std::uint32_t field, T& value) {
    if (Is(field)) value = static_cast<T>(in_.signed_value());
  }
  void Fixed64(std::uint32_t field, std::uint64_t& value) { Varint(field, value); }
  void Double(std::uint32_t field, double& value) {
    if (Is(field)) value = in_.double_value();
  }
  void Text(std::uint32_t field, std::string& value) {
    if (Is(field)) value = in_.chunk();
  }
  void Optional(std::uint32_t field, bool& present, std::uint64_t& value) {
    if (Is(field)) present = !clearing_;
    Varint(field, value);
  }
  void OptionalFixed64(std::uint32_t field, bool& present, std::uint64_t& value) {
    Optional(field, present, value);
  }
  template <typename Range>
  void Packed(std::uint32_t field, Range& values) {
    if (!Is(field)) return;
    WireReader packed(in_.chunk());
    if constexpr (requires { values.push_back(0); }) {
      if (clearing_) values.clear();
      for (std::uint64_t value = 0; ok_ && !packed.empty();) {
        ok_ = packed.Take(&value);
        if (ok_) values.push_back(value);
      }
    } else {
      if (clearing_) values = {};
      for (auto value = values.begin(); ok_ && !packed.empty() && value != values.end(); ++value) {
        ok_ = packed.Take(&*value);
      }
    }
  }
  template <typename T>
  void Message(std::uint32_t field, T& message) {
    if (Is(field)) ok_ = Decoder(in_.chunk()).Read(message) && ok_;
  }
  template <typename T>
  void Repeated(std::uint32_t field, std::vector<T>& messages) {
    if (clearing_) return messages.clear();
    if (in_.field() == field) Message(field, messages.emplace_back());
  }

 private:
  bool Is(std::uint32_t field) const { return clearing_ || in_.field() == field; }

  WireReader in_;
  bool clearing_ = true;
  bool ok_ = true;
};

template <typename T>
std::string EncodeCopy(T message) {
  Encoder encoder;
  Fields(encoder, message);
  return encoder.bytes();
}

template <typename T>
std::optional<T> DecodeAny(std::string_view bytes) {
  T message;
  if (!Decoder(bytes).Read(message)) return std::nullopt;
  return message;
}

}  // namespace

std::string Encode(const Session& session) { return EncodeCopy(session); }
std::string Encode(const Slot& slot) { return EncodeCopy(slot); }
std::string Encode(const Snapshot& snapshot) { return EncodeCopy(snapshot); }
std::string Encode(const Loss& loss) { return EncodeCopy(loss); }
std::string Encode(const Mark& mark) { return EncodeCopy(mark); }
std::string Encode(const Commit& commit) { return EncodeCopy(commit); }
std::string Encode(const Index& index) { return EncodeCopy(index); }
std::string Encode(const End& end) { return EncodeCopy(end); }

template <>
std::optional<Session> Decode(std::string_view bytes) {
  return DecodeAny<Session>(bytes);
}
template <>
std::optional<Slot> Decode(std::string_view bytes) {
  return DecodeAny<Slot>(bytes);
}
template <>
std::optional<Snapshot> Decode(std::string_view bytes) {
  return DecodeAny<Snapshot>(bytes);
}
template <>
std::optional<Loss> Decode(std::string_view bytes) {
  return DecodeAny<Loss>(bytes);
}
template <>
std::optional<Mark> Decode(std::string_view bytes) {
  return DecodeAny<Mark>(bytes);
}
template <>
std::optional<Commit> Decode(std::string_view bytes) {
  return DecodeAny<Commit>(bytes);
}
template <>
std::optional<Index> Decode(std::string_view bytes) {
  return DecodeAny<Index>(bytes);
}
template <>
std::optional<End> Decode(std::string_view bytes) {
  return DecodeAny<End>(bytes);
}

std::string_view ToText(LossCause cause) {
  switch (cause) {
    case LossCause::kOverwritten:
      return "overwritten before it was read";
    case LossCause::kReleased:
      return "given up unread by the job";
    case LossCause::kAtDeath:
      return "half written when the job ended";
    case LossCause::kDisk:
      return "the disk was full or failed";
    case LossCause::kLimit:
      return "the recording had reached its size";
    case LossCause::kDaemonGone:
      return "no daemon was recording";
    case LossCause::kDamaged:
      return "the recording is damaged there";
    case LossCause::kCorrupted:
      return "damaged on its way: its checksum is wrong";
    case LossCause::kLeftOut:
      return "damaged in what it was copied from";
    case LossCause::kValuesGone:
      return "their values were no longer kept, only their statistics";
    case LossCause::kNoMemory:
      return "the daemon had no memory to read them";
    case LossCause::kNotKept:
      return "no longer kept";
    case LossCause::kUnread:
      return "not read in time when the recording was stopped";
  }
  return "unknown cause";
}

std::string_view ToText(StopReason reason) {
  switch (reason) {
    case StopReason::kNone:
      return "recording";
    case StopReason::kRequested:
      return "stopped";
    case StopReason::kReached:
      return "complete";
    case StopReason::kJobEnded:
      return "job ended";
    case StopReason::kDaemonStopped:
      return "daemon stopped";
    case StopReason::kMaxSize:
      return "size limit reached";
    case StopReason::kDiskFull:
      return "disk full";
    case StopReason::kWriteError:
      return "write failed";
    case StopReason::kCutOff:
      return "copied from one without its end";
  }
  return "unknown reason";
}

}  // namespace cgdebug::recording
