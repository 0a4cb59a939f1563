#include "client/analysis/ranks_state.h"

#include <utility>

#include "client/analysis/json_number.h"
#include "daemon/core/base/field_codec.h"

namespace cgdebug::analysis {
namespace {

using numerics::Stats;

constexpr std::uint64_t kEncodingVersion = 5;

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
                      process.first_unread,
                      ToJson(process.first_told),
                      process.told});
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
  process.first_told = PlaceOf(json.at(at++));
  take(process.told);
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

Json ToJson(const Vote& vote) {
  const Vote::Parts& parts = vote.parts();
  Json values = Json::array(), ranges = Json::array();
  for (const Vote::Choice& value : parts.values) {
    values.push_back(
        Json::array({Binary(EncodeFields(value.stats)),
                     value.hash ? Json(*value.hash) : Json(nullptr), ToJson(value.processes)}));
  }
  for (const Vote::Range* range :
       {&parts.l1, &parts.mean, &parts.min, &parts.max, &parts.nonfinite, &parts.count}) {
    ranges.push_back(Json::array({range->least, range->most, range->has_nan}));
  }
  return Json::array({values, ToJson(parts.processes), parts.is_scattered, ranges});
}
// `process_count`: how many processes there are. Fails: nullopt for what ToJson() did not make.
std::optional<Vote> VoteOf(const Json& json, std::size_t process_count) {
  Vote::Parts parts;
  for (const Json& value : json.at(0)) {
    const std::optional<Stats> stats = DecodeFields<Stats>(BytesOf(value.at(0)));
    if (!stats) return std::nullopt;
    std::optional<std::uint64_t> hash;
    if (!value.at(1).is_null()) hash = value.at(1).get<std::uint64_t>();
    const std::optional<Bits> processes = BitsOf(value.at(2), process_count);
    if (!processes) return std::nullopt;
    parts.values.push_back({{*stats, hash}, *processes});
  }
  const std::optional<Bits> processes = BitsOf(json.at(1), process_count);
  if (!processes) return std::nullopt;
  parts.processes = *processes;
  parts.is_scattered = json.at(2).get<bool>();
  std::size_t at = 0;
  for (Vote::Range* range :
       {&parts.l1, &parts.mean, &parts.min, &parts.max, &parts.nonfinite, &parts.count}) {
    const Json& one = json.at(3).at(at++);
    *range = {one.at(0).get<double>(), one.at(1).get<double>(), one.at(2).get<bool>()};
  }
  return Vote::FromParts(std::move(parts));
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

std::string RankState::Encode() const {
  Json json = {{"version", kEncodingVersion}, {"processes", Json::array()},
               {"replicas", Json::array()},   {"unknown", unknown},
               {"unreadable", unreadable},    {"masks", masks},
               {"probes", Json::array()}};
  for (const RankProcess& process : processes) json["processes"].push_back(ToJson(process));
  for (const auto& [probe, of] : probes) {
    json["probes"].push_back(Json::array({probe, ToJson(of)}));
  }
  for (const auto& [key, replica] : replicas) {
    Json votes = Json::array();
    for (const auto& [position, vote] : replica.votes) {
      votes.push_back(Json::array({ToJson(position), ToJson(vote)}));
    }
    json["replicas"].push_back(
        Json::array({key.attempt.first, key.attempt.second, key.probe, key.invocation, key.type,
                     key.graph, key.nth, key.ranks, replica.order, replica.ranks, std::move(votes),
                     key.is_eager, ToJson(replica.processes)}));
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
    for (const Json& one : json.at("probes")) {
      const std::optional<Bits> of = BitsOf(one.at(1), state.processes.size());
      if (!of || state.probes.size() >= kMostProbes) return failed;
      state.probes[one.at(0).get<std::string>()] = *of;
    }
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
        std::optional<Vote> taken = VoteOf(vote.at(1), state.processes.size());
        if (!taken) return failed;
        const bool is_new =
            replica.votes.try_emplace(PositionOf(vote.at(0)), *std::move(taken)).second;
        if (!is_new) return failed;
      }
    }
    return state;
  } catch (const Json::exception&) {
    return failed;
  }
}

}  // namespace cgdebug::analysis
