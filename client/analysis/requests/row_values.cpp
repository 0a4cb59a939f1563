#include "client/analysis/requests/row_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "daemon/core/numerics/kernels/decode.h"
#include "daemon/core/replicas/spread.h"

namespace cgdebug::analysis::requests {
namespace {

using source::Slot;

// Half the distance of 1 to its neighbour, which is what rounding an element once changes at most.
// Types whose sums are added up in the type itself get as much again for these. Numbers that are
// not rounded have none.
double RoundingOf(layout::Dtype dtype) {
  using layout::Dtype;
  if (dtype == Dtype::kFloat8E8m0fnu || dtype == Dtype::kFloat4E2m1fnX2) return 0;
  const bool is_summed_in = dtype == Dtype::kFloat64 || dtype == Dtype::kFloat32;
  return (is_summed_in ? 8 : 0.5) * replicas::LastPlace(dtype);
}

// How many elements one row has, if the first dimensions of the tensor are the rows.
std::optional<std::uint64_t> ElementsOfARow(std::span<const std::uint64_t> shape,
                                            std::uint64_t rows) {
  std::uint64_t count = 1;
  for (std::size_t i = 0; i <= shape.size(); ++i) {
    if (count == rows) return numerics::ElementCount(shape.subspan(i));
    if (i == shape.size() || __builtin_mul_overflow(count, shape[i], &count)) break;
  }
  return std::nullopt;
}

}  // namespace

RowError CompareRows(const Rows& a, std::size_t row_a, const Rows& b, std::size_t row_b) {
  const std::span<const std::byte> left = a.Row(row_a), right = b.Row(row_b);
  if (a.dtype == b.dtype && std::ranges::equal(left, right)) return {.is_equal = true};
  double apart = 0, norm_a = 0, norm_b = 0;
  bool only_one_is_finite = false;
  numerics::VisitDtype(a.dtype, [&](auto element_a) {
    using A = typename decltype(element_a)::type;
    numerics::VisitDtype(b.dtype, [&](auto element_b) {
      using B = typename decltype(element_b)::type;
      for (std::size_t i = 0; i < left.size() / sizeof(A); ++i) {
        const double x = numerics::ToDouble(numerics::LoadElement<A>(left, i));
        const double y = numerics::ToDouble(numerics::LoadElement<B>(right, i));
        if (std::isfinite(x) && std::isfinite(y)) {
          apart += (x - y) * (x - y);
          norm_a += x * x;
          norm_b += y * y;
        } else if (x != y && !(std::isnan(x) && std::isnan(y))) {
          only_one_is_finite = true;
        }
      }
    });
  });
  if (only_one_is_finite) return {.relative = std::numeric_limits<double>::infinity()};
  const double norm = std::max(norm_a, norm_b);
  return {.relative = norm == 0 ? 0 : std::sqrt(apart / norm)};
}

Kept KeptIn(const Call& call, const ProbeName& name) {
  const auto in = [&](const std::map<ProbeName, Seen>& all) -> const Seen* {
    const auto found = all.find(name);
    return found == all.end() || found->second.slot == kGone ? nullptr : &found->second;
  };
  return {in(call.probes), in(call.sketches)};
}

RowReader::RowReader(source::Source& source) : source_(source) {
  for (const Slot& slot : source.slots()) {
    if (std::optional<std::string> of = SketchedBy(slot.probe)) sketched_probes_.insert(*of);
  }
}

Result<Rows> RowReader::RowsOf(const Seen& seen, std::size_t rows) {
  const Slot& slot = SlotOf(seen);
  if (!slot.part.empty()) return Error{"only a part was recorded"};
  const std::optional<std::uint64_t> elements = ElementsOfARow(slot.shape, rows);
  if (!elements) {
    return Error{
        "its first dimensions are not the rows of the call; those of a module are told by "
        "cgdebug.rows(..., of=MODULE)"};
  }
  if (layout::FindDtype(slot.dtype) == nullptr || slot.dtype == layout::Dtype::kFloat4E2m1fnX2) {
    return Error{"rows of this dtype are not compared"};
  }
  const Result<source::Snapshot> snapshot = source_.Get(seen.slot, seen.key);
  if (!snapshot.ok()) return snapshot.error();
  if (!snapshot->has_values) {
    return Error{
        "no values were recorded; keep them with cgdebug.watch(..., values=N), or sketches of "
        "rows with sketches=N, in both"};
  }
  Result<source::Values> values = source_.Load(*snapshot);
  if (!values.ok()) return values.error();
  const std::uint64_t bytes = *elements * layout::DtypeBytes(slot.dtype);
  if (values->bytes.size() != bytes * rows) return Error{"it has another size than its shape"};
  return Rows{slot.dtype, *std::move(values), bytes, RoundingOf(slot.dtype)};
}

Result<Rows> RowReader::SketchesOf(const Seen& seen, std::size_t rows) {
  const layout::Dtype dtype = SlotOf(seen).dtype;
  const Sketched of = SketchedIn(seen.slot);
  Result<Rows> sketches = RowsOf(seen, rows);
  if (!sketches.ok()) return sketches;
  sketches->rounding = of.rounding;
  sketches->is_sketch = !of.is_whole;
  if (of.is_whole) return sketches;
  const bool is_double = dtype == layout::Dtype::kInt64;  // bits, not numbers
  sketches->dtype = is_double ? layout::Dtype::kFloat64 : layout::Dtype::kFloat32;
  if (of.count == 0 || (!is_double && dtype != layout::Dtype::kInt32)) {
    return Error{"it is not told of what it is a sketch"};
  }
  return sketches;
}

const RowReader::Sketched& RowReader::SketchedIn(std::size_t sketch) {
  const auto [known, is_new] = sketched_.try_emplace(sketch);
  if (!is_new) return known->second;
  const Slot& slot = source_.slots()[sketch];
  const std::string probe = SketchedBy(slot.probe).value_or("");
  for (const Slot& one : source_.slots()) {
    const bool is_of_it = one.probe == probe && one.session == slot.session &&
                          one.uuid == slot.uuid && one.rank == slot.rank &&
                          one.graph_id == slot.graph_id && one.invocation == slot.invocation;
    if (!is_of_it || one.shape.size() != slot.shape.size() || one.shape.empty() ||
        !std::equal(one.shape.begin(), one.shape.end() - 1, slot.shape.begin())) {
      continue;
    }
    Sketched& found = known->second;
    const bool is_whole = one.shape == slot.shape && one.dtype == slot.dtype;
    found.is_whole = is_whole && (found.is_whole || found.count == 0);
    found.rounding = std::max(found.rounding, RoundingOf(one.dtype));
    ++found.count;
  }
  return known->second;
}

bool RowReader::HasValues(const Seen* seen) {
  if (seen == nullptr) return false;
  const Result<source::Snapshot> snapshot = source_.Get(seen->slot, seen->key);
  return snapshot.ok() && snapshot->has_values;
}

bool RowReader::IsSketchGone(const Kept& kept) {
  return kept.sketch == nullptr && !HasValues(kept.tensor) &&
         sketched_probes_.contains(SlotOf(*kept.any()).probe);
}

// A slot of an eager call is registered when its tensor first comes, which may be in a later call
// than that of slots behind it.
std::pair<std::int64_t, std::uint64_t> RowReader::PlaceOf(const Seen& seen) {
  const Slot& slot = SlotOf(seen);
  std::int64_t time_ns = seen.began_ns;
  if (slot.graph_id == 0) {
    const Result<source::Snapshot> snapshot = source_.Get(seen.slot, seen.key);
    if (snapshot.ok()) time_ns = snapshot->timestamp_ns;
  }
  return {time_ns, source::PlaceInCall(slot)};
}

std::string RowReader::TextOf(const Seen& seen) const {
  return source::SlotText(SlotOf(seen)) + source::ReplayMark(SlotOf(seen), seen.key.replay);
}

Spot RowReader::SpotOf(const Seen& seen) {
  std::shared_ptr<const Slot>& slot = slots_[seen.slot];
  if (slot == nullptr) slot = std::make_shared<const Slot>(SlotOf(seen));
  return {slot, seen.key};
}

std::optional<numerics::Stats> RowReader::StatsOf(const Seen& seen) {
  const Result<source::Snapshot> snapshot = source_.Get(seen.slot, seen.key);
  return snapshot.ok() ? snapshot->stats : std::nullopt;
}

}  // namespace cgdebug::analysis::requests
