// op_diff.h: where two op logs begin to differ.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/ops/op_log.h"

namespace cgdebug::analysis {

// Rows of A and B that stand for the same tensor.
struct OpPair {
  enum class Verdict {
    kSame,       // dtype, shape, all statistics and the hashes
    kDifferent,  // one of them differs
    kUnknown,    // lost in one of the two, or without a hash
  };
  std::size_t a = 0;  // places in OpLog::rows
  std::size_t b = 0;
  Verdict verdict = Verdict::kSame;
  std::string reason = {};  // unless they are the same
};

struct OpDiff {
  enum class Verdict { kSame, kDifferent, kInconclusive };

  std::vector<OpPair> pairs;             // in the order of A
  std::vector<std::size_t> only_a = {};  // rows without a counterpart, as places
  std::vector<std::size_t> only_b = {};
  std::size_t different = 0;
  std::size_t unknown = 0;
  // Places in `pairs`: the first pair that differs, and the first that differs although its op
  // read the same in A and B.
  std::optional<std::size_t> first_different = {};
  std::optional<std::size_t> first_fault = {};
  // A fused kernel has no rows for most of its ops, so inputs of a pair may lack a counterpart. The
  // first pair, before `first_fault`, that differs although its other inputs agree; and those that
  // lack one, as places. The fault is in one of these.
  std::optional<std::size_t> first_suspect = {};
  std::vector<std::size_t> suspects_a = {};
  std::vector<std::size_t> suspects_b = {};
  // Whether the first difference may be one of rounding, by its statistics. If so: the first pair
  // that differs by more, if there is one, and its inputs that lack a counterpart.
  bool may_be_rounding = false;
  std::optional<std::size_t> first_large = {};
  std::vector<std::size_t> large_a = {};
  std::vector<std::size_t> large_b = {};
  // Sentences about what was not compared, and why.
  std::vector<std::string> missing = {};

  // Never kSame over something that was not compared, and never when nothing was.
  Verdict verdict() const {
    if (different > 0) return Verdict::kDifferent;
    return pairs.empty() || !missing.empty() ? Verdict::kInconclusive : Verdict::kSame;
  }
};

// Compares A with B, the reference.
OpDiff DiffOpLogs(const OpLog& a, const OpLog& b);

const char* NameOf(OpDiff::Verdict verdict);  // "same", "different", "inconclusive"
// `verdict` is good only where all is the same.
Severity SeverityOf(OpDiff::Verdict verdict);
Outcome OutcomeOf(OpDiff::Verdict verdict);
Answer OpDiffAnswer(const OpLog& a, const OpLog& b, const OpDiff& diff);
// What follows its first line.
void AddDifferences(const OpLog& a, const OpLog& b, const OpDiff& diff, Answer* answer);
Json OpDiffJson(const OpLog& a, const OpLog& b, const OpDiff& diff);

}  // namespace cgdebug::analysis
