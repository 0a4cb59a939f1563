// row_values.h: the values of the rows of a snapshot, or their sketches, and how far two rows are
// apart.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "client/analysis/requests/request_rows.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"
#include "proto/layout/dtype.h"

namespace cgdebug::analysis::requests {

// The values of one snapshot, or sketches, by rows.
struct Rows {
  layout::Dtype dtype = layout::Dtype::kInvalid;  // of the bytes
  source::Values values;
  std::uint64_t bytes_of_row = 0;
  double rounding = 0;  // of the tensor itself
  bool is_sketch = false;

  std::span<const std::byte> Row(std::size_t row) const {
    return values.bytes.subspan(row * bytes_of_row, bytes_of_row);
  }
  std::uint64_t Elements() const { return bytes_of_row / layout::DtypeBytes(dtype); }
};

struct RowError {
  bool is_equal = false;  // bit for bit, as far as these rows show
  double relative = 0;    // |a - b| / max(|a|, |b|), 2-norms; infinite: only one is finite
};

// The difference of two sketches is the sketch of the difference, and as long as that, on average.
RowError CompareRows(const Rows& a, std::size_t row_a, const Rows& b, std::size_t row_b);

// A snapshot, which its source may have let go since.
struct Spot {
  std::shared_ptr<const source::Slot> slot;
  source::Key key;
};

// What a source has of one probe in one call.
struct Kept {
  const Seen* tensor = nullptr;
  const Seen* sketch = nullptr;

  const Seen* any() const { return tensor != nullptr ? tensor : sketch; }
};
Kept KeptIn(const Call& call, const ProbeName& name);

// Reads one source. Requires: of each Seen, that the source has it.
class RowReader {
 public:
  explicit RowReader(source::Source& source);

  // Fails: why they cannot be compared.
  Result<Rows> RowsOf(const Seen& seen, std::size_t rows);
  // The same of what a probe of sketches saw.
  Result<Rows> SketchesOf(const Seen& seen, std::size_t rows);
  bool HasValues(const Seen* seen);
  // Whether the call has neither values nor a sketch, though others have one.
  bool IsSketchGone(const Kept& kept);
  // The order of snapshots in a call.
  std::pair<std::int64_t, std::uint64_t> PlaceOf(const Seen& seen);
  std::string TextOf(const Seen& seen) const;
  Spot SpotOf(const Seen& seen);
  // Nothing: it is not known.
  std::optional<numerics::Stats> StatsOf(const Seen& seen);
  const source::Slot& SlotOf(const Seen& seen) const { return source_.slots()[seen.slot]; }

 private:
  // The tensors of which a slot may have sketches: those of its probe that have as many vectors.
  struct Sketched {
    std::uint64_t count = 0;
    double rounding = 0;    // the largest
    bool is_whole = false;  // they are so short that they are their own sketches
  };
  const Sketched& SketchedIn(std::size_t sketch);

  source::Source& source_;
  std::set<std::string> sketched_probes_;  // with sketches of some call
  std::map<std::size_t, Sketched> sketched_;
  std::map<std::size_t, std::shared_ptr<const source::Slot>> slots_;  // those that were asked for
};

}  // namespace cgdebug::analysis::requests
