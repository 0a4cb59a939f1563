// Memory that is written over before anybody read it, or read before it is written.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
namespace {

// Whether an op of the forward pass of a module wrote it.
bool IsOfForward(const Evidence& evidence, const Row& row) {
  return evidence.NameOf(row).starts_with("fwd/") && IsOfModule(evidence, row);
}

// Whether ops have computed it from what changes from call to call: not a copy of an input, a
// constant or noise.
bool IsComputed(const Log& log, const Row& row) {
  return std::ranges::any_of(row.inputs, [&](std::size_t place) {
    const Row& input = log.rows[place];
    if (input.is_input() || ops::HasTrait(ops::OpTrait::kNoise, input.op)) return false;
    if (ops::HasTrait(ops::OpTrait::kMover, input.op)) return IsComputed(log, input);
    return MovesOf(input).changed >= kFewestComparisons;
  });
}

// Looks at the rows of one log whose ops write over all that another row shows.
class Overwrites {
 public:
  Overwrites(const Evidence& evidence, std::size_t log_place)
      : evidence_(evidence), log_place_(log_place), log_(evidence.logs[log_place]) {}

  std::size_t looked_at() const { return looked_at_; }

  std::vector<Finding> Find() {
    std::vector<Finding> findings;  // one of each kind is enough
    std::vector<std::size_t> writers;
    for (std::size_t place = 0; place < log_.rows.size(); ++place) {
      const Row& row = log_.rows[place];
      if (BaseOf(row.op) != "copy_" || !IsOfForward(evidence_, row) || !IsComputed(log_, row) ||
          RunsOf(row).size() < kFewestRuns) {
        continue;
      }
      ++looked_at_;
      writers.push_back(place);
      if (findings.empty() && row.overwrites != SIZE_MAX &&
          IsLost(log_.rows[row.overwrites], place)) {
        findings.push_back(DescribeLost(row.overwrites, place));
      }
    }
    for (std::size_t place = 0; place < log_.rows.size(); ++place) {
      const auto writer =
          std::ranges::find_if(writers, [&](std::size_t one) { return IsLate(place, one); });
      if (writer == writers.end()) continue;
      findings.push_back(DescribeLate(place, *writer));
      break;
    }
    return findings;
  }

 private:
  // Whether a call that has `one` reads what `row` wrote.
  bool IsReadWith(const Row& one, const Row& row) const {
    return std::ranges::any_of(RunsOf(one), [&](std::size_t run) {
      return std::ranges::any_of(
          row.readers, [&](std::size_t reader) { return log_.rows[reader].at[run].is_here; });
    });
  }

  // What an op had computed, and nobody read before the op at `place` wrote over it.
  bool IsLost(const Row& before, std::size_t place) const {
    return !before.is_input() && IsOfForward(evidence_, before) && IsComputed(log_, before) &&
           MovesOf(before).changed >= kFewestComparisons && !IsReadWith(log_.rows[place], before);
  }

  // Whether each call reads what the op at `place` wrote in the call before, and then it writes
  // there what is not made of that, and nobody reads it in this call.
  bool IsLate(std::size_t input, std::size_t place) const {
    const Row& before = log_.rows[input];
    const Row& row = log_.rows[place];
    if (!before.is_input() || before.count != row.count || IsReadWith(before, row)) return false;
    const bool is_read = std::ranges::any_of(before.readers, [&](std::size_t reader) {
      return IsOfForward(evidence_, log_.rows[reader]);
    });
    if (!is_read || MovesOf(before).changed < kFewestComparisons) return false;
    std::size_t carried = 0;
    for (const std::size_t run : RunsOf(before)) {
      if (run == 0) continue;
      const Seen &now = before.at[run], &then = row.at[run - 1];
      if (!row.at[run].is_here || !then.is_here || now.xor_hash == 0 ||
          now.xor_hash != then.xor_hash || now.min != then.min || now.max != then.max) {
        return false;
      }
      ++carried;
    }
    return carried >= kFewestComparisons &&
           !std::ranges::binary_search(DescendantsOf(log_, input), place);
  }

  Finding DescribeLost(std::size_t before, std::size_t place) const {
    const std::size_t run = RunsOf(log_.rows[place]).back();
    return {.level = Level::kConsistent,
            .kind = "lost_write",
            .place = PlaceAt(evidence_, log_place_, before, run),
            .sentence = fmt::format(
                "what {} wrote is lost: {} writes over it before any op has read it, in {}",
                RowText(evidence_, log_place_, before), RowText(evidence_, log_place_, place),
                RunsWord(log_, RunsOf(log_.rows[place]).size())),
            .facts = {{PlaceAt(evidence_, log_place_, place, run),
                       fmt::format("{} ({}) writes the same memory",
                                   RowText(evidence_, log_place_, place), log_.rows[place].op)}},
            .follows = DescendantsOf(log_, place),
            .refute = "a read in no row, as by item() or numpy()"};
  }

  Finding DescribeLate(std::size_t before, std::size_t place) const {
    const std::size_t run = RunsOf(log_.rows[place]).back();
    Finding finding{
        .level = Level::kConsistent,
        .kind = "late_read",
        .place = PlaceAt(evidence_, log_place_, before, run),
        .sentence = fmt::format(
            "{} is read before {} writes it, in {}: each reads what the one before it wrote",
            RowText(evidence_, log_place_, before), RowText(evidence_, log_place_, place),
            RunsWord(log_, RunsOf(log_.rows[place]).size())),
        .follows = DescendantsOf(log_, before),
        .refute = "state that is meant to be of the call before"};
    for (const std::size_t reader : log_.rows[before].readers) {
      finding.facts.push_back({PlaceAt(evidence_, log_place_, reader, run),
                               fmt::format("{} reads it, before it is written",
                                           RowText(evidence_, log_place_, reader))});
    }
    return finding;
  }

  const Evidence& evidence_;
  const std::size_t log_place_;
  const Log& log_;
  std::size_t looked_at_ = 0;
};

}  // namespace

Found FindLostWrites(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log = 0; log < evidence.logs.size(); ++log) {
    Overwrites overwrites(evidence, log);
    std::ranges::move(overwrites.Find(), std::back_inserter(found.findings));
    looked_at += overwrites.looked_at();
  }
  SetClean(looked_at, "row that is written over was read before, and is not read too early",
           "rows that are written over were read before, and are not read too early", &found);
  return found;
}

}  // namespace cgdebug::analysis::why
