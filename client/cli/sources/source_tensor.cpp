#include "client/cli/sources/source_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include "client/cli/sources/sources.h"
#include "client/cli/views/tensor/tensor_text.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/base/suggest.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using source::Key;
using source::Slot;
using source::Source;

// The replay of one slot that is meant, or nothing if it has none. It may be one that cannot be
// read; LoadTensor then says why.
Result<std::optional<Key>> FindKey(Source& source, std::size_t slot, const Inside& inside) {
  if (!inside.first_nan && inside.step < 0 && inside.replay > 0) {
    return source.Find(slot, static_cast<std::uint64_t>(inside.replay), inside.iteration);
  }
  const Result<std::vector<Key>> keys = source.Keys(slot);
  if (!keys.ok()) return keys.error();
  if (!inside.first_nan && inside.step < 0) {
    const auto back = static_cast<std::size_t>(-inside.replay);
    if (back > keys->size()) return std::optional<Key>();
    return std::optional<Key>((*keys)[keys->size() - back]);
  }
  for (const Key& key : *keys) {
    const Result<source::Snapshot> snapshot = source.Get(slot, key);
    if (!snapshot.ok()) return std::optional<Key>(key);
    if (inside.step >= 0) {
      if (snapshot->step == inside.step) return std::optional<Key>(key);
      continue;
    }
    const Result<numerics::Stats> stats = source::StatsOf(source, *snapshot);
    if (!stats.ok() || stats->nonfinite() > 0) return std::optional<Key>(key);
  }
  return std::optional<Key>();
}

// Explains why an existing probe lacks the requested snapshot.
std::string WhyNot(Source& source, std::size_t slot, const Inside& inside) {
  const Result<std::vector<Key>> keys = source.Keys(slot);
  if (!keys.ok() || keys->empty()) return "has no snapshot";
  const std::uint64_t first = keys->front().replay, last = keys->back().replay;
  const std::string range = fmt::format("{}..{}", first, last);
  if (inside.first_nan) return fmt::format("has no NaN or Inf in its replays {}", range);
  if (inside.step >= 0) {
    return fmt::format("has no snapshot of step {}, only of replays {}", inside.step, range);
  }
  if (inside.replay < 0) return fmt::format("has only {} snapshots", keys->size());
  const auto replay = static_cast<std::uint64_t>(inside.replay);
  const bool has_replay =
      std::ranges::any_of(*keys, [&](const Key& key) { return key.replay == replay; });
  if (inside.iteration && has_replay) {
    return fmt::format("has replay {}, but no iteration {} of it", replay, *inside.iteration);
  }
  if (source.slots()[slot].counts_calls()) {
    return fmt::format(
        "has no call {}: it did not run in that call, or its snapshots were lost or "
        "not recorded; it has calls {}",
        replay, range);
  }
  if (source.slots()[slot].in_body && replay > first && replay < last) {
    return fmt::format(
        "has no replay {}: the body of its conditional node did not run then, or "
        "its snapshots were lost or not recorded",
        replay);
  }
  return fmt::format(
      "has no replay {}: {}", replay,
      replay > first && replay < last ? "it was lost or not recorded" : "it has replays " + range);
}

// One dimension of a slice.
struct Cut {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool drops = false;
};

Result<Cut> ParseCut(std::string_view text, std::uint64_t size) {
  const auto number = [&](std::string_view word, std::int64_t fallback) {
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    if (word.empty()) return std::optional<std::int64_t>(fallback);
    std::int64_t value = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size()) {
      return std::optional<std::int64_t>();
    }
    return std::optional<std::int64_t>(value < 0 ? value + static_cast<std::int64_t>(size) : value);
  };
  const std::size_t colon = text.find(':');
  const auto limit = static_cast<std::int64_t>(size);
  const bool is_range = colon != std::string_view::npos;
  const auto first = number(text.substr(0, colon), is_range ? 0 : -1);
  const auto last = is_range ? number(text.substr(colon + 1), limit)
                             : std::optional<std::int64_t>(first ? *first + 1 : 0);
  if (!first || !last || *first < 0 || *first >= limit || *last <= *first) {
    return Error{fmt::format(
        "'{}' selects nothing of a dimension of {}; write an index such as 0 or -1, or a range "
        "such as 1:3",
        text, size)};
  }
  return Cut{static_cast<std::uint64_t>(*first),
             static_cast<std::uint64_t>(std::min(*last, limit) - *first), !is_range};
}

}  // namespace

bool NeedsSource(const Inside& inside) {
  return inside.first_nan || inside.step >= 0 ||
         (!inside.source.empty() && source::LooksLikePath(inside.source));
}

Result<FoundTensor> FindTensor(Source& source, const Context& context, const Inside& inside) {
  const std::string typed = inside.source.empty() ? "live" : inside.source;
  const std::string info = " Type: cgdebug-cli info " + ShellWord(typed) + context.SameJob();
  std::vector<std::string> names;
  std::optional<std::size_t> other_slot;
  std::set<std::string> others;  // with that name, but not meant
  std::set<std::string> with_replay;
  std::optional<FoundTensor> found;
  source::Moment found_at;
  for (std::size_t slot = 0; slot < source.slots().size(); ++slot) {
    const Slot& slot_info = source.slots()[slot];
    names.push_back(SlotName(slot_info));
    if (SlotName(slot_info) != inside.probe || !context.ranks.Contains(slot_info.rank)) continue;
    if (!Matches(inside.which, slot_info)) {
      others.insert(SlotText(slot_info));
      continue;
    }
    if (found && source.slots()[found->slot].rank != slot_info.rank) {
      return Error{fmt::format("{} has '{}' on several ranks. Type for example: --ranks {}",
                               source.Describe().path, inside.probe, slot_info.rank)};
    }
    if (found && !IsOfSameJob(source.slots()[found->slot], slot_info)) {
      return Error{fmt::format("{} has '{}' of several jobs. Type for example: -s {}",
                               source.Describe().path, inside.probe,
                               KeyOfJob(source, source::ProcessOf(slot_info)))};
    }
    other_slot = slot;
    const Result<std::optional<Key>> key = FindKey(source, slot, inside);
    if (!key.ok()) return key.error();
    if (!*key) continue;
    const Result<source::Snapshot> snapshot = source.Get(slot, **key);
    if (!snapshot.ok()) return FoundTensor{slot, **key};
    with_replay.insert(SlotText(slot_info));
    const source::Moment moment = MomentOf(slot_info, *snapshot);
    const bool is_earliest = inside.first_nan || inside.step >= 0;
    if (found && (is_earliest ? moment >= found_at : moment <= found_at)) continue;
    found = FoundTensor{slot, **key};
    found_at = moment;
  }
  const bool has_number = !inside.first_nan && inside.step < 0 && inside.replay > 0;
  if (const std::string ambiguous =
          AmbiguousReplay({with_replay.begin(), with_replay.end()}, inside.replay,
                          inside.source.empty() ? "" : inside.source + ":", context.SameJob());
      has_number && !ambiguous.empty()) {
    return Error{source.Describe().path + ": " + ambiguous};
  }
  if (found) return *found;
  if (!other_slot && !others.empty()) {
    return Error{fmt::format("in {} there is no '{}{}', only {}", source.Describe().path,
                             inside.probe, inside.which.Text(), fmt::join(others, ", "))};
  }
  if (other_slot) {
    return Error{fmt::format("in {} '{}' {}.{}", source.Describe().path, inside.probe,
                             WhyNot(source, *other_slot, inside), info)};
  }
  return Error{fmt::format("{} has no probe '{}'.{}{}", source.Describe().path, inside.probe,
                           DidYouMean(inside.probe, names), info)};
}

Result<source::Tensor> LoadTensor(Source& source, const FoundTensor& found) {
  const Result<source::Snapshot> snapshot = source.Get(found.slot, found.key);
  if (!snapshot.ok()) return snapshot.error();
  source::Tensor tensor;
  tensor.slot = source.slots()[found.slot];
  if (tensor.slot.device.empty()) tensor.slot.device = "file";
  tensor.snapshot = *snapshot;
  tensor.snapshot.payload_bytes = tensor.slot.payload_bytes;
  const Result<numerics::Stats> stats = source::StatsOf(source, *snapshot);
  if (!stats.ok()) return stats.error();
  tensor.stats = *stats;
  if (!snapshot->has_values) return tensor;
  const Result<source::Values> values = source.Load(*snapshot);
  if (!values.ok()) return values.error();
  tensor.payload.assign(reinterpret_cast<const char*>(values->bytes.data()), values->bytes.size());
  return tensor;
}

Result<void> CutSlice(source::Tensor* tensor, const std::string& slice) {
  std::vector<std::uint64_t> shape = tensor->slot.shape;
  const layout::Dtype dtype = tensor->slot.dtype;
  const std::size_t item_bytes = layout::DtypeBytes(dtype);
  if (!tensor->snapshot.has_values || item_bytes == 0) {
    return Error{fmt::format("there is nothing to slice: {}", WithoutValues(tensor->slot))};
  }
  if (slice.size() < 3 || slice.back() != ']')
    return Error{"'" + slice + "' is not a slice; write for example [0,:8]"};
  std::string_view rest = std::string_view(slice).substr(1, slice.size() - 2);
  std::vector<Cut> cuts;
  while (true) {
    const std::size_t comma = rest.find(',');
    if (cuts.size() == shape.size()) {
      return Error{fmt::format("'{}' has more dimensions than the tensor: {}", slice,
                               numerics::FormatShape(shape))};
    }
    const Result<Cut> cut = ParseCut(rest.substr(0, comma), shape[cuts.size()]);
    if (!cut.ok()) return cut.error();
    cuts.push_back(*cut);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  // For each dimension, keeps some of the blocks of the inner dimensions.
  std::string kept = std::move(tensor->payload);
  for (std::size_t dim = 0; dim < cuts.size(); ++dim) {
    std::size_t inner_bytes = item_bytes;
    for (std::size_t i = dim + 1; i < shape.size(); ++i) inner_bytes *= shape[i];
    std::string next;
    for (std::size_t at = 0; at < kept.size(); at += inner_bytes * shape[dim]) {
      next.append(kept, at + cuts[dim].first * inner_bytes, cuts[dim].count * inner_bytes);
    }
    kept = std::move(next);
    shape[dim] = cuts[dim].count;
  }
  std::vector<std::uint64_t> left;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (dim >= cuts.size() || !cuts[dim].drops) left.push_back(shape[dim]);
  }
  const auto view = numerics::MakeTensorView(
      dtype, left, {reinterpret_cast<const std::byte*>(kept.data()), kept.size()});
  if (!view.ok()) return view.error();
  tensor->stats = numerics::ComputeStats(*view);
  tensor->slot.shape = left;
  tensor->snapshot.payload_bytes = kept.size();
  tensor->payload = std::move(kept);
  return {};
}

}  // namespace cgdebug::cli
