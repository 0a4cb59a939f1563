#include "client/analysis/requests/request_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/analysis/gaps.h"
#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::analysis::requests {
namespace {

using source::Key;
using source::Slot;
using source::Source;

std::string ProcessOf(const Slot& slot) {
  return slot.uuid.empty() ? fmt::format("{}/{}", slot.session, slot.rank) : slot.uuid;
}

CallName NameOf(const Slot& slot, const Key& key) {
  return {ProcessOf(slot), slot.graph_id, key.replay};
}

// The scope with the tables, whatever probes it has.
Scope WithTables(const Scope& scope) {
  Scope all = scope;
  all.probes = Selector();
  return all;
}

Error NotRows(const Source& source, const Slot& slot, const std::string& why) {
  return Error{fmt::format(
      "{}: the probe '{}' is not one of cgdebug.rows(): {}. Give your own probe another name",
      source.Describe().path, slot.probe, why)};
}

Result<Table> RowsIn(Source& source, std::size_t slot_index, const source::Snapshot& snapshot) {
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
  Table rows(slot.shape[0]);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const Token token{numerics::ElementAsInt64(*view, 2 * row),
                      numerics::ElementAsInt64(*view, 2 * row + 1)};
    if (token.request >= 0) rows[row] = token;
  }
  return rows;
}

// The module whose rows a probe tells; empty: those of the call. Nothing: it tells none.
std::optional<std::string> ToldBy(std::string_view probe) {
  if (probe == kRowsProbe) return "";
  if (!probe.starts_with(fmt::format("{}/", kRowsProbe))) return std::nullopt;
  return std::string(probe.substr(kRowsProbe.size() + 1));
}

// Which call of its probe in the whole one: those of a part follow those of the parts before it.
// Outside of graphs each is an iteration.
ProbeName NameIn(Call* call, const CallName& part, const Slot& slot, const std::string& probe,
                 std::uint32_t iteration) {
  const bool is_eager = slot.graph_id == 0;
  std::vector<std::uint64_t> dims;
  if (is_eager && !slot.shape.empty()) dims.assign(slot.shape.begin(), slot.shape.end() - 1);
  const auto [first, is_new] = call->firsts.try_emplace({probe, part, dims}, 0);
  for (const auto* all : {&call->probes, &call->sketches}) {
    if (!is_new) break;
    const auto behind = all->upper_bound({probe, UINT32_MAX, UINT32_MAX});
    if (behind == all->begin() || std::get<0>(std::prev(behind)->first) != probe) continue;
    first->second = std::max(first->second, std::get<1>(std::prev(behind)->first) + 1);
  }
  if (is_eager) return {probe, first->second + slot.invocation + iteration, 0};
  return {probe, first->second + slot.invocation, iteration};
}

}  // namespace

const Table& Call::TableOf(const ProbeName& probe) const {
  const std::string& name = std::get<0>(probe);
  for (const auto& [module, table] : tables) {
    const std::string output = fmt::format("fwd/{}", module);
    if (!name.starts_with(output)) continue;
    if (name.size() == output.size() || name[output.size()] == '/' || name[output.size()] == '.') {
      return table;
    }
  }
  return *rows;
}

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

Result<std::vector<Call*>> RequestRows::Look(Source& source, const Scope& scope) {
  seen_and_gone_.clear();
  kept_ns_.reset();
  for (auto& [name, call] : calls_) {
    call.is_gone = true;
    for (auto* all : {&call.probes, &call.sketches}) {
      for (auto& [probe, seen] : *all) seen.slot = kGone;
    }
  }
  if (const Result<void> read = ReadTables(source, scope); !read.ok()) return read.error();
  if (const Result<void> read = ReadProbes(source, scope); !read.ok()) return read.error();
  std::vector<Calls::iterator> new_calls;
  // Where nothing was seen there is nothing to compare, and a row would be taken for one that
  // another call computed again: engines tell the rows of passes that graphs compute, too.
  for (auto entry = calls_.begin(); entry != calls_.end(); ++entry) {
    const Call& call = entry->second;
    const bool saw_something = !call.probes.empty() || !call.sketches.empty();
    if (call.number == 0 && call.rows && saw_something) new_calls.push_back(entry);
  }
  std::ranges::sort(new_calls, {}, [](const auto& entry) { return entry->second.moment; });
  std::vector<Call*> fresh;
  for (const Calls::iterator entry : new_calls) {
    if (JoinsAnother(entry, source.slots())) continue;
    entry->second.number = ++last_number_;
    fresh.push_back(&entry->second);
  }
  return fresh;
}

bool RequestRows::JoinsAnother(Calls::iterator call, const std::vector<Slot>& slots) {
  const auto& [name, part] = *call;
  const auto first =
      std::ranges::find_if(*part.rows, [](const auto& row) { return row.has_value(); });
  if (first == part.rows->end()) return false;
  const std::pair<std::string, Token> key(name.process, **first);
  const auto [begin, end] = by_token_.equal_range(key);
  for (auto other = begin; other != end; ++other) {
    Call& whole = calls_.at(other->second);
    if (whole.is_gone || whole.rows != part.rows) continue;
    std::size_t known = 0;
    for (const auto& [probe, seen] : part.probes) known += whole.probes.contains(probe);
    for (const auto& [probe, seen] : part.sketches) known += whole.sketches.contains(probe);
    const bool is_new = known == 0;
    const bool has_more = known < part.probes.size() + part.sketches.size();
    if (!is_new && (!has_more || whole.graphs.contains(name.graph_id))) continue;
    for (const auto all : {&Call::probes, &Call::sketches}) {
      for (const auto& [probe, seen] : part.*all) {
        (whole.*all)
            .insert({NameIn(&whole, name, slots[seen.slot], std::get<0>(probe), seen.key.iteration),
                     seen});
      }
    }
    whole.tables.insert(part.tables.begin(), part.tables.end());
    whole.graphs.insert(name.graph_id);
    parts_.at(name).call = other->second;
    calls_.erase(call);
    return true;
  }
  by_token_.emplace(key, name);
  return false;
}

Result<void> RequestRows::ReadTables(Source& source, const Scope& scope) {
  const Scope of_rows = WithTables(scope);
  for (const std::size_t slot : WantedSlots(source, of_rows)) {
    const Slot& about = source.slots()[slot];
    const std::optional<std::string> module = ToldBy(about.probe);
    if (!module) continue;
    const Result<std::vector<Key>> keys = WantedKeys(source, slot, of_rows);
    if (!keys.ok()) return keys.error();
    if (const Result<void> counted = CountSeen(source, slot); !counted.ok()) return counted;
    for (const Key& key : *keys) {
      const CallName name = NameOf(about, key);
      const auto part = parts_.find(name);
      if (part != parts_.end()) {
        Call& call = calls_.at(part->second.call);
        call.is_gone = false;
        if (module->empty() || call.tables.contains(*module)) continue;
      }
      const Result<source::Snapshot> snapshot = source.Get(slot, key);
      if (!snapshot.ok()) continue;  // it is gone: its call has no rows
      Result<Table> rows = RowsIn(source, slot, *snapshot);
      if (!rows.ok()) return rows.error();
      Call& call = calls_[part == parts_.end() ? name : part->second.call];
      call.is_gone = false;
      if (!module->empty()) {
        call.tables.insert_or_assign(*module, *std::move(rows));
        continue;
      }
      call.moment = MomentOf(about, *snapshot);
      call.rows = *std::move(rows);
      call.graphs = {name.graph_id};
      parts_[name] = {name, snapshot->timestamp_ns};
    }
  }
  return {};
}

Result<void> RequestRows::ReadProbes(Source& source, const Scope& scope) {
  for (const std::size_t slot : WantedSlots(source, WithTables(scope))) {
    const Slot& about = source.slots()[slot];
    const std::string seen = SketchedBy(about.probe).value_or(about.probe);
    if (ToldBy(about.probe) || !scope.probes.Matches(seen)) continue;
    const Result<std::vector<Key>> keys = WantedKeys(source, slot, scope);
    if (!keys.ok()) return keys.error();
    if (const Result<void> counted = CountSeen(source, slot); !counted.ok()) return counted;
    for (const Key& key : *keys) {
      const CallName name = NameOf(about, key);
      const auto part = parts_.find(name);
      Call& call = calls_[part == parts_.end() ? name : part->second.call];
      call.is_gone = false;
      if (!call.rows) continue;
      auto& of_kind = seen == about.probe ? call.probes : call.sketches;
      Seen& known =
          of_kind.try_emplace(NameIn(&call, name, about, seen, key.iteration), Seen{kGone, {}})
              .first->second;
      if (known.slot == kGone) known = {slot, key, part->second.began_ns};
    }
  }
  return {};
}

Result<void> RequestRows::CountSeen(Source& source, std::size_t slot) {
  const Result<std::vector<Key>> keys = source.Keys(slot);
  if (!keys.ok()) return keys.error();
  const Slot& about = source.slots()[slot];
  Counted& counted =
      counted_[{ProcessOf(about), about.graph_id, about.order, source::SlotText(about)}];
  const std::uint64_t before = counted.count;
  for (const Key& key : *keys) {
    if (key.id <= counted.last_id) continue;
    ++counted.count;
    counted.last_id = key.id;
  }
  seen_and_gone_[slot] = counted.count - std::min<std::uint64_t>(counted.count, keys->size());
  if (before == 0 || counted.count == before) return {};
  const Result<source::Snapshot> first = source.Get(slot, keys->front());
  const Result<source::Snapshot> last = source.Get(slot, keys->back());
  if (first.ok() && last.ok()) {
    const std::int64_t kept_ns = last->timestamp_ns - first->timestamp_ns;
    kept_ns_ = std::min(kept_ns_.value_or(kept_ns), kept_ns);
  }
  return {};
}

void RequestRows::ForgetGone() {
  std::erase_if(calls_, [&](const auto& one) {
    gone_without_rows_ += one.second.is_gone && !one.second.rows;
    return one.second.is_gone;
  });
  const auto is_forgotten = [&](const CallName& call) { return !calls_.contains(call); };
  std::erase_if(parts_, [&](const auto& one) { return is_forgotten(one.second.call); });
  std::erase_if(by_token_, [&](const auto& one) { return is_forgotten(one.second); });
}

std::uint64_t RequestRows::CountCallsWithoutRows() const {
  const auto without =
      std::ranges::count_if(calls_, [](const auto& one) { return !one.second.rows; });
  return gone_without_rows_ + static_cast<std::uint64_t>(without);
}

std::vector<std::string> RequestRows::Gaps(Source& source, const Scope& scope) const {
  return SummarizeGaps(source, scope, seen_and_gone_).sentences;
}

}  // namespace cgdebug::analysis::requests
