#include "client/analysis/requests/request_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::analysis::requests {
namespace {

using source::Key;
using source::Slot;
using source::Source;

CallName NameOf(const Slot& slot, const Key& key) {
  const std::string process =
      slot.uuid.empty() ? fmt::format("{}/{}", slot.session, slot.rank) : slot.uuid;
  return {process, slot.graph_id, key.replay};
}

Error NotRows(const Source& source, const Slot& slot, const std::string& why) {
  return Error{fmt::format(
      "{}: the probe '{}' is not one of cgdebug.rows(): {}. Give your own probe another name",
      source.Describe().path, slot.probe, why)};
}

Result<std::vector<std::optional<Token>>> RowsIn(Source& source, std::size_t slot_index,
                                                 const source::Snapshot& snapshot) {
  const Slot& slot = source.slots()[slot_index];
  if (slot.dtype != layout::Dtype::kInt64 || slot.shape.size() != 2 || slot.shape[1] != 2) {
    return NotRows(source, slot, "it is " + source::TypeText(slot) + ", not i64[rows,2]");
  }
  if (!snapshot.has_values) return NotRows(source, slot, "it has no values");
  const Result<source::Values> values = source.Load(snapshot);
  if (!values.ok()) return values.error();
  const Result<numerics::TensorView> view =
      numerics::MakeTensorView(slot.dtype, slot.shape, values->bytes);
  if (!view.ok()) return view.error();
  std::vector<std::optional<Token>> rows(slot.shape[0]);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const Token token{numerics::ElementAsInt64(*view, 2 * row),
                      numerics::ElementAsInt64(*view, 2 * row + 1)};
    if (token.request >= 0) rows[row] = token;
  }
  return rows;
}

}  // namespace

std::optional<std::string> SketchedBy(std::string_view probe) {
  if (!probe.starts_with(fmt::format("{}fwd/", kSketchOf))) return std::nullopt;
  return std::string(probe.substr(kSketchOf.size()));
}

std::string TokenText(const Token& token) {
  constexpr std::int64_t kMostNumbers = std::int64_t{1} << 53;
  return token.request < kMostNumbers
             ? fmt::format("request {} position {}", token.request, token.position)
             : fmt::format("request {:x} position {}", token.request, token.position);
}

Result<RequestRows> ReadRequestRows(Source& source, const Scope& scope) {
  Scope of_rows = scope;
  of_rows.probes = Selector();
  std::map<CallName, Call> calls;
  for (const std::size_t slot : WantedSlots(source, of_rows)) {
    const Slot& about = source.slots()[slot];
    if (about.probe != kRowsProbe) continue;
    const Result<std::vector<Key>> keys = WantedKeys(source, slot, of_rows);
    if (!keys.ok()) return keys.error();
    for (const Key& key : *keys) {
      const Result<source::Snapshot> snapshot = source.Get(slot, key);
      if (!snapshot.ok()) continue;  // it is gone: its call has no rows
      Result<std::vector<std::optional<Token>>> rows = RowsIn(source, slot, *snapshot);
      if (!rows.ok()) return rows.error();
      Call& call = calls[NameOf(about, key)];
      call.moment = MomentOf(about, *snapshot);
      call.rows = *std::move(rows);
    }
  }
  std::set<CallName> without;
  for (const std::size_t slot : WantedSlots(source, of_rows)) {
    const Slot& about = source.slots()[slot];
    const std::string seen = SketchedBy(about.probe).value_or(about.probe);
    if (about.probe == kRowsProbe || !scope.probes.Matches(seen)) continue;
    const Result<std::vector<Key>> keys = WantedKeys(source, slot, scope);
    if (!keys.ok()) return keys.error();
    for (const Key& key : *keys) {
      const auto call = calls.find(NameOf(about, key));
      if (call == calls.end()) {
        without.insert(NameOf(about, key));
      } else {
        auto& of_kind = seen == about.probe ? call->second.probes : call->second.sketches;
        of_kind.try_emplace({seen, about.invocation, key.iteration}, Seen{slot, key});
      }
    }
  }
  RequestRows result;
  result.calls_without_rows = without.size();
  // Where nothing was seen there is nothing to compare, and a row would be taken for one that
  // another call computed again: engines tell the rows of passes that graphs compute, too.
  for (auto& [name, call] : calls) {
    if (!call.probes.empty() || !call.sketches.empty()) result.calls.push_back(std::move(call));
  }
  std::ranges::sort(result.calls, {}, &Call::moment);
  for (std::size_t call = 0; call < result.calls.size(); ++call) {
    const auto& rows = result.calls[call].rows;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (rows[row]) result.tokens[*rows[row]].push_back({call, row});
    }
  }
  return result;
}

}  // namespace cgdebug::analysis::requests
