#include "client/analysis/ranks_state.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <stdexcept>

#include "daemon/core/base/field_codec.h"
#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::analysis {
namespace {

using numerics::Stats;

constexpr std::uint64_t kEncodingVersion = 4;
// How far apart the outermost elements of replicas may be that are close, relative to the largest.
constexpr double kOutermostTolerance = 1e-3;

// Bytes of any kind, which a JSON text could not hold.
Json Binary(const std::string& bytes) {
  return Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}
std::string BytesOf(const Json& json) {
  const auto& bytes = json.get_binary();
  return {bytes.begin(), bytes.end()};
}

Json ToJson(const Position& position) {
  return Json::array({position.is_step, position.number, position.nth});
}
Position PositionOf(const Json& json) {
  return {json.at(0).get<bool>(), json.at(1).get<std::uint64_t>(), json.at(2).get<std::uint64_t>()};
}

Json ToJson(const std::optional<RankPlace>& place) {
  if (!place) return nullptr;
  return Json::array(
      {ToJson(place->position), place->order, place->probe, place->replay, place->timestamp_ns});
}
std::optional<RankPlace> PlaceOf(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return RankPlace{PositionOf(json.at(0)), json.at(1).get<std::uint64_t>(),
                   json.at(2).get<std::string>(), json.at(3).get<std::uint64_t>(),
                   json.at(4).get<std::int64_t>()};
}

Json ToJson(const RankProcess& process) {
  return Json::array({process.uuid,
                      process.session,
                      process.run,
                      process.host,
                      process.rank,
                      process.world_size,
                      process.restart,
                      process.is_growing,
                      process.is_cut_off,
                      process.snapshots,
                      process.unread,
                      process.repeated,
                      process.first_repeated,
                      process.replay,
                      process.step,
                      process.lost,
                      ToJson(process.first),
                      ToJson(process.last),
                      ToJson(process.first_nonfinite),
                      process.first_unread});
}
RankProcess ProcessOf(const Json& json) {
  RankProcess process;
  std::size_t at = 0;
  const auto take = [&](auto& member) { json.at(at++).get_to(member); };
  take(process.uuid);
  take(process.session);
  take(process.run);
  take(process.host);
  take(process.rank);
  take(process.world_size);
  take(process.restart);
  take(process.is_growing);
  take(process.is_cut_off);
  take(process.snapshots);
  take(process.unread);
  take(process.repeated);
  take(process.first_repeated);
  take(process.replay);
  take(process.step);
  take(process.lost);
  process.first = PlaceOf(json.at(at++));
  process.last = PlaceOf(json.at(at++));
  process.first_nonfinite = PlaceOf(json.at(at++));
  take(process.first_unread);
  return process;
}

// As bytes: a number for each member would be most of the state of many ranks, and of the time that
// it takes to merge it.
Json ToJson(const Bits& bits) { return Json::binary(bits.ToBytes()); }
// Fails: nullopt if a member is not below `end`.
std::optional<Bits> BitsOf(const Json& json, std::size_t end) {
  Bits bits;
  std::size_t member = 0;
  for (const std::uint8_t byte : json.get_binary()) {
    for (unsigned rest = byte, at = 0; rest != 0; rest >>= 1, ++at) {
      if ((rest & 1) == 0) continue;
      if (member + at >= end) return std::nullopt;
      bits.Set(member + at);
    }
    member += 8;
  }
  return bits;
}

// Refuses what is nested deeper than any state is: the parser would run out of stack.
class IsShallow : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return Enter(); }
  bool key(string_t& /*value*/) override { return true; }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t /*size*/) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  static constexpr int kDeepest = 16;
  bool Enter() { return ++depth_ <= kDeepest; }
  bool Leave() {
    --depth_;
    return true;
  }

  int depth_ = 0;
};

}  // namespace

std::size_t Bits::Count() const {
  std::size_t count = 0;
  for (const std::uint64_t word : words_) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

std::vector<std::uint8_t> Bits::ToBytes() const {
  std::vector<std::uint8_t> bytes;
  for (const std::uint64_t word : words_) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      bytes.push_back(static_cast<std::uint8_t>(word >> shift));
    }
  }
  while (!bytes.empty() && bytes.back() == 0) bytes.pop_back();
  return bytes;
}

std::vector<std::size_t> Bits::Members() const {
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    for (std::uint64_t word = words_[i]; word != 0; word &= word - 1) {
      members.push_back(i * 64 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }
  return members;
}

bool HaveSameValues(const Vote::Value& a, const Vote::Value& b) {
  if (a.hash && b.hash) return *a.hash == *b.hash;
  return numerics::DifferencesOf(a.stats, b.stats).empty();
}

bool AreClose(const Stats& a, const Stats& b, double tolerance) {
  Vote both;
  both.Add(0, a, std::nullopt);
  both.Add(1, b, std::nullopt);
  return both.IsClose(tolerance);
}

void Vote::Range::Take(double number) {
  if (std::isnan(number)) {
    has_nan = true;
    return;
  }
  least = std::min(least, number);
  most = std::max(most, number);
}

void Vote::Range::Take(const Range& other) {
  has_nan = has_nan || other.has_nan;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

void Vote::TakeRanges(const Stats& stats) {
  l1_.Take(stats.l1);
  mean_.Take(stats.mean);
  min_.Take(stats.min);
  max_.Take(stats.max);
  nonfinite_.Take(static_cast<double>(stats.nonfinite()));
  count_.Take(static_cast<double>(stats.count));
}

bool Vote::IsClose(double tolerance) const {
  if (!nonfinite_.Within(0) || nonfinite_.most > 0 || !count_.Within(0)) return false;
  const double l1 = l1_.most;
  const double abs_max = std::max(std::fabs(min_.least), std::fabs(max_.most));
  const double outermost = kOutermostTolerance * abs_max;
  return l1_.Within(tolerance * l1) && mean_.Within(tolerance * l1 / std::max(count_.most, 1.0)) &&
         min_.Within(outermost) && max_.Within(outermost);
}

void Vote::Put(const Value& value) {
  if (is_scattered_) return;
  for (Value& own : values_) {
    if (!HaveSameValues(own, value)) continue;
    for (const std::size_t process : value.processes.Members()) own.processes.Set(process);
    // Or one without a hash would make others the same whose hashes differ.
    if (!own.hash) own.hash = value.hash;
    return;
  }
  values_.push_back(value);
  if (values_.size() <= kMostValues) return;
  is_scattered_ = true;
  values_.clear();
}

void Vote::Add(std::size_t process, const Stats& stats, std::optional<std::uint64_t> hash) {
  if (processes_.Has(process)) return;
  processes_.Set(process);
  TakeRanges(stats);
  Value value{.stats = stats, .hash = hash, .processes = {}};
  value.processes.Set(process);
  Put(value);
}

void Vote::Merge(const Vote& other, const std::vector<std::size_t>& places) {
  const auto here = [&](const Bits& processes) {
    Bits bits;
    for (const std::size_t process : processes.Members()) {
      // Bytes of another process are checked where they are decoded.
      if (!processes_.Has(places.at(process))) bits.Set(places.at(process));
    }
    return bits;
  };
  for (const Value& theirs : other.values_) {
    const Bits added = here(theirs.processes);
    if (added.Count() > 0) Put({.stats = theirs.stats, .hash = theirs.hash, .processes = added});
  }
  if (other.is_scattered_) {
    is_scattered_ = true;
    values_.clear();
  }
  for (const std::size_t process : here(other.processes_).Members()) processes_.Set(process);
  l1_.Take(other.l1_);
  mean_.Take(other.mean_);
  min_.Take(other.min_);
  max_.Take(other.max_);
  nonfinite_.Take(other.nonfinite_);
  count_.Take(other.count_);
}

Json Vote::ToJson() const {
  Json values = Json::array(), ranges = Json::array();
  for (const Value& value : values_) {
    values.push_back(Json::array({Binary(EncodeFields(value.stats)),
                                  value.hash ? Json(*value.hash) : Json(nullptr),
                                  analysis::ToJson(value.processes)}));
  }
  for (const Range* range : {&l1_, &mean_, &min_, &max_, &nonfinite_, &count_}) {
    ranges.push_back(Json::array({range->least, range->most, range->has_nan}));
  }
  return Json::array({values, analysis::ToJson(processes_), is_scattered_, ranges});
}

bool Vote::FromJson(const Json& json, std::size_t process_count, Vote* vote) {
  Bits of_values;
  for (const Json& value : json.at(0)) {
    const std::optional<Stats> stats = DecodeFields<Stats>(BytesOf(value.at(0)));
    if (!stats) return false;
    std::optional<std::uint64_t> hash;
    if (!value.at(1).is_null()) hash = value.at(1).get<std::uint64_t>();
    const std::optional<Bits> processes = BitsOf(value.at(2), process_count);
    if (!processes || processes->Count() == 0) return false;
    for (const std::size_t process : processes->Members()) {
      if (of_values.Has(process)) return false;
      of_values.Set(process);
    }
    vote->values_.push_back({.stats = *stats, .hash = hash, .processes = *processes});
  }
  const std::optional<Bits> processes = BitsOf(json.at(1), process_count);
  if (!processes) return false;
  vote->processes_ = *processes;
  vote->is_scattered_ = json.at(2).get<bool>();
  const bool has_all = of_values == *processes;
  if (vote->is_scattered_ ? !vote->values_.empty() : !has_all) return false;
  std::size_t at = 0;
  for (Range* range :
       {&vote->l1_, &vote->mean_, &vote->min_, &vote->max_, &vote->nonfinite_, &vote->count_}) {
    const Json& one = json.at(3).at(at++);
    *range = {one.at(0).get<double>(), one.at(1).get<double>(), one.at(2).get<bool>()};
  }
  return true;
}

std::string ReplicaKey::Name() const {
  std::string name = invocation == 0 ? probe : fmt::format("{}#{}", probe, invocation);
  if (!graph.empty()) name += "@g:" + graph;
  return name;
}

std::string RankState::Encode() const {
  Json json = {{"version", kEncodingVersion}, {"processes", Json::array()},
               {"replicas", Json::array()},   {"unknown", unknown},
               {"unreadable", unreadable},    {"masks", masks}};
  for (const RankProcess& process : processes) json["processes"].push_back(ToJson(process));
  for (const auto& [key, replica] : replicas) {
    Json votes = Json::array();
    for (const auto& [position, vote] : replica.votes) {
      votes.push_back(Json::array({analysis::ToJson(position), vote.ToJson()}));
    }
    json["replicas"].push_back(
        Json::array({key.attempt.first, key.attempt.second, key.probe, key.invocation, key.type,
                     key.graph, key.nth, key.ranks, replica.order, replica.ranks, std::move(votes),
                     key.is_eager, analysis::ToJson(replica.processes)}));
  }
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(json);
  return {bytes.begin(), bytes.end()};
}

Result<RankState> RankState::Decode(const std::string& bytes) {
  const Error failed{"these bytes are not the state of a comparison of ranks of this version"};
  try {
    IsShallow is_shallow;
    if (!Json::sax_parse(bytes, &is_shallow, Json::input_format_t::msgpack)) return failed;
    const Json json = Json::from_msgpack(bytes);
    if (json.at("version").get<std::uint64_t>() != kEncodingVersion) return failed;
    RankState state;
    for (const Json& process : json.at("processes")) state.processes.push_back(ProcessOf(process));
    json.at("unknown").get_to(state.unknown);
    json.at("unreadable").get_to(state.unreadable);
    json.at("masks").get_to(state.masks);
    for (const Json& one : json.at("replicas")) {
      ReplicaKey key;
      one.at(0).get_to(key.attempt.first);
      one.at(1).get_to(key.attempt.second);
      one.at(2).get_to(key.probe);
      one.at(3).get_to(key.invocation);
      one.at(4).get_to(key.type);
      one.at(5).get_to(key.graph);
      one.at(6).get_to(key.nth);
      one.at(7).get_to(key.ranks);
      one.at(11).get_to(key.is_eager);
      Replica& replica = state.replicas[key];
      one.at(8).get_to(replica.order);
      one.at(9).get_to(replica.ranks);
      const std::optional<Bits> processes = BitsOf(one.at(12), state.processes.size());
      if (!processes) return failed;
      replica.processes = *processes;
      for (const Json& vote : one.at(10)) {
        const auto [place, is_new] = replica.votes.try_emplace(PositionOf(vote.at(0)));
        if (!is_new || !Vote::FromJson(vote.at(1), state.processes.size(), &place->second)) {
          return failed;
        }
      }
    }
    return state;
  } catch (const Json::exception&) {
    return failed;
  }
}

}  // namespace cgdebug::analysis
