#include "client/analysis/ranks/ranks_state.h"

#include <array>
#include <concepts>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

namespace cgdebug::analysis {
namespace {

using numerics::Stats;

constexpr std::uint64_t kEncodingVersion = 9;

template <typename T, typename U>
concept Is = std::same_as<std::remove_const_t<T>, U>;
template <typename T>
concept IsNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <typename T>
concept IsMap = requires {
  typename T::mapped_type;
};
template <typename T>
concept IsSet = requires {
  typename T::key_compare;
}
&&!IsMap<T>;

// What is encoded, member by member: the same list is written and read.
void Visit(auto& code, Is<Position> auto& position) {
  code(position.is_step, position.number, position.nth, position.is_call);
}
void Visit(auto& code, Is<RankPlace> auto& place) {
  code(place.position, place.order, place.probe, place.replay, place.timestamp_ns, place.is_call,
       place.serial);
}
void Visit(auto& code, Is<RankProcess> auto& of) {
  code(of.uuid, of.session, of.run, of.host, of.rank, of.world_size, of.restart, of.is_growing,
       of.is_cut_off, of.snapshots, of.unread.count, of.repeated.count, of.repeated.first,
       of.replay, of.step, of.lost, of.first, of.last, of.first_nonfinite, of.unread.why_first,
       of.first_told, of.told);
}
void Visit(auto& code, Is<Stats> auto& stats) {
  std::remove_const_t<std::remove_reference_t<decltype(stats)>>::ForEachField(
      stats, [&](const layout::Field& /*field*/, auto&... members) { code(members...); });
}
void Visit(auto& code, Is<Vote::Choice> auto& choice) {
  code(choice.stats, choice.hash, choice.processes);
}
void Visit(auto& code, Is<Vote::Range> auto& range) {
  code(range.least, range.most, range.has_nan);
}
void Visit(auto& code, Is<Vote::Parts> auto& parts) {
  code(parts.values, parts.processes, parts.is_scattered, parts.l1, parts.mean, parts.min,
       parts.max, parts.nonfinite, parts.count);
}
void Visit(auto& code, Is<ReplicaKey> auto& key) {
  code(key.attempt, key.probe, key.invocation, key.type, key.is_eager, key.graph, key.nth,
       key.ranks);
}
void Visit(auto& code, Is<Replica> auto& replica) {
  code(replica.order, replica.dtype, replica.is_part, replica.processes, replica.votes);
}
void Visit(auto& code, Is<RankState> auto& state) {
  code(state.processes, state.replicas, state.probes, state.unknown, state.unreadable, state.masks);
}

class Encoder {
 public:
  template <typename... T>
  void operator()(const T&... members) {
    (Put(members), ...);
  }

  std::string bytes;

 private:
  void Put(const IsNumber auto& number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void Put(const std::string& text) {
    Put(text.size());
    bytes += text;
  }
  void Put(const Bits& bits) {
    const std::vector<std::uint8_t> of = bits.ToBytes();
    Put(of.size());
    bytes.append(of.begin(), of.end());
  }
  void Put(const Vote& vote) { Put(vote.parts()); }
  template <typename T, std::size_t kSize>
  void Put(const std::array<T, kSize>& values) {
    for (const T& value : values) Put(value);
  }
  template <typename T, typename U>
  void Put(const std::pair<T, U>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value) Put(*value);
  }
  template <typename T>
  void Put(const T& value) {
    if constexpr (requires { value.begin(); }) {
      Put(value.size());
      for (const auto& one : value) Put(one);
    } else {
      Visit(*this, value);
    }
  }
};

// Every number is as long as its type, and every element takes a byte at least: however long
// foreign bytes say that something is, reading ends with them.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  template <typename... T>
  void operator()(T&... members) {
    (Take(members), ...);
  }

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  std::string_view Chunk(std::size_t size) {
    ok_ = ok_ && size <= rest_.size();
    const std::string_view chunk = rest_.substr(0, ok_ ? size : 0);
    rest_.remove_prefix(chunk.size());
    return chunk;
  }
  std::size_t Size() {
    std::size_t size = 0;
    Take(size);
    return ok_ ? size : 0;
  }

  void Take(IsNumber auto& number) {
    const std::string_view chunk = Chunk(sizeof(number));
    if (ok_) std::memcpy(&number, chunk.data(), sizeof(number));
  }
  void Take(bool& value) {
    std::uint8_t byte = 0;
    Take(byte);
    ok_ = ok_ && byte <= 1;
    value = byte == 1;
  }
  void Take(std::string& text) { text = Chunk(Size()); }
  // Refuses a process that is not there.
  void Take(Bits& bits) {
    std::size_t member = 0;
    for (const char byte : Chunk(Size())) {
      const auto byte_bits = static_cast<std::uint8_t>(byte);
      for (unsigned rest = byte_bits, at = 0; rest != 0; rest >>= 1, ++at) {
        if ((rest & 1) == 0) continue;
        ok_ = ok_ && member + at < process_count_;
        if (ok_) bits.Set(member + at);
      }
      member += 8;
    }
  }
  void Take(Vote& vote) {
    Vote::Parts parts;
    Take(parts);
    std::optional<Vote> taken = ok_ ? Vote::FromParts(std::move(parts)) : std::nullopt;
    ok_ = taken.has_value();
    if (taken) vote = *std::move(taken);
  }
  void Take(std::vector<RankProcess>& processes) {
    TakeAll(processes);
    process_count_ = processes.size();
  }
  template <typename T, std::size_t kSize>
  void Take(std::array<T, kSize>& values) {
    for (T& value : values) Take(value);
  }
  template <typename T, typename U>
  void Take(std::pair<T, U>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void Take(std::optional<T>& value) {
    bool has_value = false;
    Take(has_value);
    if (has_value) Take(value.emplace());
  }
  template <typename T>
  void Take(std::vector<T>& values) {
    TakeAll(values);
  }
  template <typename T>
  void Take(T& value) {
    if constexpr (IsMap<T>) {
      for (std::size_t left = Size(); ok_ && left > 0; --left) {
        typename T::key_type key;
        Take(key);
        const std::size_t before = value.size();
        const auto place = value.try_emplace(value.end(), std::move(key));
        ok_ = ok_ && value.size() > before;
        if (ok_) Take(place->second);
      }
    } else if constexpr (IsSet<T>) {
      for (std::size_t left = Size(); ok_ && left > 0; --left) {
        typename T::key_type key;
        Take(key);
        value.insert(value.end(), std::move(key));
      }
    } else {
      Visit(*this, value);
    }
  }
  template <typename T>
  void TakeAll(std::vector<T>& values) {
    for (std::size_t left = Size(); ok_ && left > 0; --left) Take(values.emplace_back());
  }

  std::string_view rest_;
  std::size_t process_count_ = 0;
  bool ok_ = true;
};

}  // namespace

std::string RankState::Encode() const {
  Encoder encoder;
  encoder(kEncodingVersion, *this);
  return std::move(encoder.bytes);
}

Result<RankState> RankState::Decode(const std::string& bytes) {
  Decoder decoder(bytes);
  std::uint64_t version = 0;
  decoder(version);
  RankState state;
  if (version == kEncodingVersion) decoder(state);
  if (!decoder.at_end() || version != kEncodingVersion || state.probes.size() > kMostProbes) {
    return Error{"these bytes are not the state of a comparison of ranks of this version"};
  }
  return state;
}

}  // namespace cgdebug::analysis
