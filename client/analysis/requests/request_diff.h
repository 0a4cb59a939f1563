// request_diff.h: the rows of one token of a request in two sources, whatever batches, buckets,
// graphs or processes computed them, and where they begin to differ by more than rounding.
//
// Rows of other batch sizes are computed by other kernels and round otherwise, so few are equal bit
// for bit. What tells a fault is growth: |a - b| / max(|a|, |b|) of a row that is several times
// what it was in every probe before it of the same call. Where no values were kept, sketches of the
// rows tell their distance, not exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/diff/align.h"
#include "client/analysis/requests/row_values.h"
#include "client/source/source.h"

namespace cgdebug::analysis::requests {

// An error is growth if it is more than this times the largest before it.
inline constexpr double kGrowth = 6;
// The same of errors that sketches tell.
inline constexpr double kGrowthOfSketches = 12;

// One row of one probe in both sources.
struct RowPair {
  std::size_t probe = 0;  // place in RequestDiff::probes
  Token token;
  Spot a;
  Spot b;
  std::size_t row_a = 0;
  std::size_t row_b = 0;
  double error = 0;  // |a - b| / max(|a|, |b|) of the row, 2-norms; infinite: only one is finite
  bool is_by_sketch = false;  // it is an estimate
};

struct ProbeRows {
  std::string name;  // as SlotName()
  std::uint64_t compared = 0;
  std::uint64_t equal = 0;  // of them bit for bit
  std::uint64_t grown = 0;  // of them with growth of the error
  double largest = 0;       // error
};

struct RequestDiff {
  std::vector<ProbeRows> probes;  // in the order of A's calls
  std::uint64_t requests = 0;     // with a row in both
  std::uint64_t tokens = 0;       // likewise
  std::uint64_t compared = 0;     // rows of probes
  std::uint64_t equal = 0;        // bit for bit
  std::uint64_t alike = 0;        // equal sketches, and more is not known
  std::uint64_t by_sketch = 0;    // compared by their sketches, and not equal bit for bit
  std::uint64_t grown = 0;
  std::optional<RowPair> first;    // growth
  double before_first = 0;         // the largest error in the probes before it, of the same row
  std::optional<RowPair> unequal;  // the first that is not equal bit for bit, or in its sketch
  std::optional<RowPair> largest;  // error without growth
  double least_growth = 0;         // a smaller error is growth in no row
  // Sentences: what was not compared, and why.
  std::vector<std::string> missing;

  Outcome outcome() const { return OutcomeOf(first.has_value(), missing.empty() && compared > 0); }
};

// Compares two sources at each look. What one look has compared may be gone in the next; what came
// and went between two looks is missing.
class RequestComparison {
 public:
  virtual ~RequestComparison() = default;
  // a, b: the sources as they are now. is_last: no look follows.
  // Fails: a source that cannot be read, or has no rows of requests.
  virtual Result<void> Look(source::Source& a, source::Source& b, bool is_last) = 0;
  // Of all looks.
  virtual RequestDiff Answer() const = 0;
  // How soon what was new in the last look may be gone, as RequestRows::kept_ns().
  virtual std::optional<std::int64_t> kept_ns() const = 0;
};
// scope: of both.
std::unique_ptr<RequestComparison> MakeRequestComparison(const Scope& scope);

// The answer of one look. Fails: as Look().
Result<RequestDiff> CompareRequests(source::Source& a, source::Source& b, const Scope& scope);

}  // namespace cgdebug::analysis::requests
