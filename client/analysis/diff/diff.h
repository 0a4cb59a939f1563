// diff.h: what differs between two sources, and where the difference begins.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/diff/align.h"
#include "client/source/source.h"
#include "daemon/core/numerics/compare.h"

namespace cgdebug::analysis {

// What became of one pair of snapshots.
struct Judged {
  enum class Kind { kEqual, kDifferent, kNotCompared };
  std::size_t pair = 0;  // place in Diff::probes
  std::uint64_t position = 0;
  Kind kind = Kind::kEqual;
  std::optional<double> max_abs = {};  // of finite differences; with kDifferent and values
  bool by_nonfinite = false;           // a difference is NaN or infinite
};

struct DiffOptions {
  AlignOptions align;
  // Left out: those of torch.testing.assert_close for the dtype. A is actual, B expected.
  std::optional<double> rtol;
  std::optional<double> atol;
  bool equal_nan = false;
  bool bitwise = false;
  // Takes values with equal recorded hashes for equal, without reading them. Otherwise, values that
  // are called equal were read and checked against their hashes.
  bool trusts_hashes = false;
  bool stops_after_first = false;  // looks at nothing after the replay of the first difference
  std::size_t topk = 0;            // of the first difference: its K largest
  // Hears of every pair, in order. A pair that was called equal comes again, as not compared, when
  // its values turn out to be damaged.
  std::function<void(const Judged&)> on_judged = {};
};

// One snapshot of A that differs from its counterpart in B.
struct Difference {
  std::size_t pair = 0;  // place in Diff::probes
  std::uint64_t position = 0;
  source::Snapshot a = {};
  source::Snapshot b = {};
  numerics::CompareOptions tolerance = {};
  std::optional<numerics::CompareResult> values = {};  // absent: they cannot be compared
  std::string reason = {};
  std::vector<std::string> statistics = {};  // that differ, where only these were recorded
  struct Element {
    std::uint64_t index;
    std::string a;
    std::string b;
  };
  std::vector<Element> largest = {};
  // The greatest finite differences, where max_abs or max_rel of `values` is not finite.
  double finite_abs = 0;
  double finite_rel = 0;
  std::uint64_t equal_before = 0;  // snapshots of that replay, in graph order
  std::uint64_t different_after = 0;
};

// Snapshots that agree, by how that is known.
struct Equal {
  std::uint64_t bits = 0;        // the values were read: every bit is the same
  std::uint64_t tolerance = 0;   // the values were read: all within the tolerance
  std::uint64_t hashes = 0;      // by the XXH3-64 recorded of the bytes; the values were not read
  std::uint64_t statistics = 0;  // by all statistics and hashes; there are no values

  std::uint64_t total() const { return bits + tolerance + hashes + statistics; }
};

struct ProbeDiff {
  std::size_t a = 0;  // slots
  std::size_t b = 0;
  std::uint64_t compared = 0;
  Equal equal = {};
  std::uint64_t different = 0;
  std::uint64_t not_compared = 0;
  std::uint64_t first_different = 0;  // position; with different > 0
  bool has_values = false;            // of what differs; the numbers below then hold
  double max_abs = 0;                 // of finite differences; with_nonfinite counts the others
  double max_rel = 0;
  std::uint64_t with_nonfinite = 0;  // snapshots with elements whose difference is NaN or infinite
};

struct Diff {
  // kSameInPart: kSame, but of some tensors only a part was recorded.
  enum class Verdict { kSame, kDifferent, kIncomplete, kSameInPart };
  friend constexpr std::string_view NameOf(Verdict verdict) {
    constexpr std::string_view kNames[] = {"same", "different", "incomplete", "same_in_part"};
    return kNames[static_cast<std::size_t>(verdict)];
  }

  std::vector<ProbeDiff> probes;  // in graph order
  std::optional<Difference> first;
  std::uint64_t compared = 0;
  Equal equal;
  std::uint64_t different = 0;
  std::uint64_t in_part = 0;  // of those compared, the ones of which only a part was recorded
  std::uint64_t position_count = 0;  // replays, or steps
  bool stopped_early = false;
  bool by_step = false;
  // Sentences: everything that was not compared, and why; damage first.
  std::vector<std::string> missing;
  std::uint64_t missing_count = 0;

  // Never kSame over a gap, and never when nothing was compared.
  Verdict verdict() const {
    if (different > 0) return Verdict::kDifferent;
    if (missing_count > 0 || compared == 0) return Verdict::kIncomplete;
    return in_part > 0 ? Verdict::kSameInPart : Verdict::kSame;
  }
  Outcome outcome() const {
    return OutcomeOf(verdict() == Verdict::kDifferent, verdict() != Verdict::kIncomplete);
  }
};

// Fails: a source that cannot be read, invalid tolerances.
Result<Diff> Compare(source::Source& a, source::Source& b, const DiffOptions& options);

}  // namespace cgdebug::analysis
