// Inputs that stay the same in all runs although others change.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"
#include "daemon/core/ops/op_traits.h"

namespace cgdebug::analysis::why {
namespace {

bool IsOneValue(const Row& row) {
  return std::ranges::all_of(
      row.at, [](const Seen& seen) { return !seen.is_here || seen.min == seen.max; });
}

// How likely it is meant to stay, the least likely first. A length, or the position of a step of
// decoding, is one number above 1; a mask is of zeros and ones.
int MeantToStay(const Evidence& evidence, const Row& row) {
  enum { kOneNumber, kNumbers, kValues, kOneValue, kCountsUp };
  const bool is_one_value = IsOneValue(row);
  if (row.counts_up) return kCountsUp;
  if (evidence.IsFloating(row) || evidence.DtypeOf(row) == layout::Dtype::kBool) {
    return is_one_value && row.count > 1 ? kOneValue : kValues;
  }
  if (is_one_value && row.at[RunsOf(row).front()].min > 1) return kOneNumber;
  return is_one_value && row.count > 1 ? kOneValue : kNumbers;
}

// Whether it is what a program keeps that decodes with a model: which requests have ended, the
// number of the token that pads. No module reads it.
bool IsOfProgram(const Evidence& evidence, const Log& log, const Row& row) {
  const auto is_of_module = [&](const Row& one) { return IsOfModule(evidence, one); };
  // Not of an optimizer: its learning rate is one value, too.
  const auto is_of_program = [&](std::size_t reader) {
    const Row& one = log.rows[reader];
    return evidence.NameOf(one).starts_with("fwd/") && !is_of_module(one);
  };
  if (log.graph_id != 0 || std::ranges::none_of(log.rows, is_of_module) ||
      !std::ranges::all_of(row.readers, is_of_program)) {
    return false;
  }
  const bool is_flag = evidence.DtypeOf(row) == layout::Dtype::kBool;
  const bool is_number = evidence.SlotOf(row).shape.empty() && !evidence.IsFloating(row);
  const bool is_small = evidence.IsFloating(row) || row.at[RunsOf(row).front()].max <= 1;
  return is_flag || (IsOneValue(row) && (is_number || is_small));
}

// Whether it is a number of the program's code, which an op writes into a tensor.
bool IsGiven(const Evidence& evidence, const Log& log, const Row& row) {
  return evidence.SlotOf(row).shape.empty() &&
         std::ranges::all_of(row.readers, [&](std::size_t reader) {
           return ops::HasTrait(ops::OpTrait::kGiven, log.rows[reader].op);
         });
}

// Whether an earlier call made it, and no later one makes it again.
bool IsKeptResult(const Log& log, const Row& row) {
  const std::size_t made = MadeBefore(log, row);
  return made != SIZE_MAX && std::ranges::none_of(RunsOf(row), [&](std::size_t run) {
           return log.rows[made].at[run].is_here;
         });
}

// Whether attention reads keys or values that an earlier call made, and no later one, as those of
// an encoder are that has read the request. No other module reads them.
bool IsOfRequest(const Evidence& evidence, const Log& log, const Row& row) {
  constexpr std::array kAttention = {std::string_view("_scaled_dot_product"),
                                     std::string_view("scaled_dot_product"),
                                     std::string_view("bmm"), std::string_view("baddbmm")};
  bool is_read = false;
  for (const std::size_t reader : row.readers) {
    if (!IsOfModule(evidence, log.rows[reader])) continue;  // the order of beams changes
    const std::string_view base = BaseOf(log.rows[reader].op);
    is_read = std::ranges::any_of(kAttention, [&](auto one) { return base.starts_with(one); });
    if (!is_read) return false;
  }
  return is_read && IsKeptResult(log, row);
}

// Whether nothing that the row was made of changes, as the weight does of which a copy is kept.
bool IsMadeOfWhatStays(const Log& log, std::size_t made) {
  std::vector<std::size_t> places = {made};
  std::set<std::size_t> known;
  while (!places.empty()) {
    const std::size_t place = places.back();
    places.pop_back();
    for (const std::size_t input : log.rows[place].inputs) {
      if (MovesOf(log.rows[input]).changed > 0) return false;
      if (known.insert(input).second) places.push_back(input);
    }
  }
  return true;
}

// Whether each call multiplies something new by what an earlier one made of what stays, as images
// by the features of the texts that name their classes.
bool IsKeptFactor(const Log& log, const Row& row) {
  const auto multiplies = [&](std::size_t reader) {
    const Row& one = log.rows[reader];
    return ops::HasTrait(ops::OpTrait::kProduct, one.op) &&
           std::ranges::any_of(one.inputs, [&](std::size_t input) {
             return MovesOf(log.rows[input]).changed >= kFewestComparisons;
           });
  };
  return std::ranges::all_of(row.readers, multiplies) && IsKeptResult(log, row) &&
         IsMadeOfWhatStays(log, MadeBefore(log, row));
}

// Whether a part of the model has read it whose layers, several, all stay the same: nothing that it
// reads changes, as the texts of the classes do not while images come.
bool IsOfStillPart(const Evidence& evidence, const Log& log, const Row& row) {
  constexpr std::ptrdiff_t kFewestLayers = 2;
  const auto is_still_part = [&](const std::string& part) {
    const auto is_of_part = [&](const Row& one) {
      const std::string& name = evidence.NameOf(one);
      return ops::HasTrait(ops::OpTrait::kProduct, one.op) && name.starts_with(part) &&
             (name[part.size()] == '.' || name[part.size()] == '/');
    };
    std::ptrdiff_t still = 0;
    for (const Row& one : log.rows) {
      if (!is_of_part(one)) continue;
      if (!MovesOf(one).is_still(kFewestComparisons)) return false;
      ++still;
    }
    return still >= kFewestLayers;
  };
  const auto is_in_one = [&](std::size_t reader) {
    std::string part = evidence.NameOf(log.rows[reader]);  // "fwd/text.embeddings/embedding_0"
    if (!IsOfModule(evidence, log.rows[reader])) return false;
    part.resize(part.rfind('/'));
    for (std::size_t end = part.size(); end != std::string::npos; end = part.rfind('.')) {
      part.resize(end);
      if (is_still_part(part)) return true;
    }
    return false;
  };
  return !row.readers.empty() && std::ranges::all_of(row.readers, is_in_one);
}

// Whether it is how many labels a batch has, by which a loss is divided.
bool IsCountOfLabels(const Evidence& evidence, const Log& log, const Row& row) {
  const auto is_quotient = [&](std::size_t reader) {
    const Row& one = log.rows[reader];
    return ops::HasTrait(ops::OpTrait::kQuotient, one.op) && one.count == 1;
  };
  if (row.count != 1 || !std::ranges::all_of(row.readers, is_quotient)) return false;
  const double number = row.at[RunsOf(row).front()].max;
  return std::ranges::any_of(log.rows, [&](const Row& one) {
    return one.is_input() && !evidence.IsFloating(one) && MovesOf(one).changed > 0 &&
           static_cast<double>(one.count) == number;
  });
}

// Whether a call goes on from what an earlier one left, as with the cache of a decoder: an op of a
// module appends to an input, or writes into it. A training does not.
bool GoesOn(const Evidence& evidence, const Log& log) {
  const auto is_state = [&](std::size_t place) {
    const Row& row = log.rows[place];
    return row.is_input() && row.count > 1 && evidence.IsFloating(row) &&
           !IsNamedInput(evidence.NameOf(row)) && !MovesOf(row).is_still(1);
  };
  bool goes_on = false;
  for (const Row& row : log.rows) {
    if (evidence.NameOf(row).starts_with("bwd/")) return false;
    const std::string_view base = BaseOf(row.op);
    goes_on = goes_on || ((base == "cat" || base.ends_with('_')) && IsOfModule(evidence, row) &&
                          std::ranges::any_of(row.inputs, is_state));
  }
  return goes_on;
}

// Whether it is state that torch's GradScaler or an optimizer keeps of its steps, which it writes
// itself. What it only reads, such as the learning rate, is an input.
bool IsStateOfFramework(const Evidence& evidence, const Log& log, const Row& row) {
  std::string_view name = evidence.NameOf(row);
  if (name.starts_with("in/scaler/")) return true;
  if (!name.starts_with("in/opt/")) return false;
  name.remove_prefix(3);
  return std::ranges::any_of(row.readers, [&](std::size_t place) {
    const Row& reader = log.rows[place];
    return BaseOf(reader.op).ends_with('_') && name.starts_with(evidence.NameOf(reader) + ".self");
  });
}

// Whether it is labels or indices that the program draws between two calls, and an op outside of
// all modules reads, as a loss does: another batch, though no input.
bool IsDrawnBetweenCalls(const Evidence& evidence, const Log& log, const Row& row) {
  const auto is_outside = [&](const Row& one) {
    const std::string& name = evidence.NameOf(one);
    return name.starts_with("fwd/") && name.rfind('/') == name.find('/');
  };
  return log.graph_id == 0 && ops::HasTrait(ops::OpTrait::kNoise, row.op) && row.inputs.empty() &&
         !evidence.IsFloating(row) && is_outside(row) &&
         std::ranges::any_of(row.readers,
                             [&](std::size_t reader) { return is_outside(log.rows[reader]); });
}

// Where nothing that calls read changes: an input that an earlier call made of what no later call
// reads.
std::vector<Finding> FindKept(const Evidence& evidence, std::size_t log_place,
                              const std::vector<std::size_t>& frozen) {
  const Log& log = evidence.logs[log_place];
  for (const std::size_t place : frozen) {
    const std::vector<std::size_t> runs = RunsOf(log.rows[place]);
    const std::size_t made = MadeBefore(log, log.rows[place]);
    if (made == SIZE_MAX) continue;
    const auto is_lost = [&](const Row& row) {
      const std::string& name = evidence.NameOf(row);
      const std::vector<std::size_t> descendants =
          DescendantsOf(log, static_cast<std::size_t>(&row - log.rows.data()));
      return row.is_input() && !IsNamedInput(name) && row.count > 1 &&
             std::ranges::binary_search(descendants, made) &&
             std::ranges::none_of(runs, [&](std::size_t run) { return row.at[run].is_here; });
    };
    const auto lost = std::ranges::find_if(log.rows, is_lost);
    if (lost == log.rows.end()) continue;
    const std::size_t first = RunsOf(log.rows[made]).front();
    return {
        {.level = Level::kConsistent,
         .kind = "frozen_input",
         .place = PlaceAt(evidence, log_place, place, SIZE_MAX),
         .sentence = fmt::format(
             "the input {} is the same in {}: it is what {} made in {} of {}, which no later "
             "call reads",
             RowText(evidence, log_place, place), RunsWord(log, runs.size()),
             RowText(evidence, log_place, made), RunText(log, first), evidence.NameOf(*lost)),
         .facts = {{PlaceAt(evidence, log_place, made, first),
                    fmt::format("{} has the same elements", RowText(evidence, log_place, made))}},
         .refute = "a result that is kept on purpose"}};
  }
  return {};
}

// `sibling`: an input that changes while these do not.
Finding DescribeFrozen(const Evidence& evidence, std::size_t log_place,
                       const std::vector<std::size_t>& frozen, const Row& sibling) {
  const Log& log = evidence.logs[log_place];
  const Row& first = log.rows[frozen.front()];
  const Moves moves = MovesOf(sibling);
  Finding finding{
      .level = Level::kConsistent,
      .kind = "frozen_input",
      .place = PlaceAt(evidence, log_place, frozen.front(), SIZE_MAX),
      .sentence = fmt::format("the input {} is the same in {}, in which {} changes {} times",
                              evidence.NameOf(first), RunsWord(log, RunsOf(first).size()),
                              evidence.NameOf(sibling), moves.changed)};
  if (frozen.size() > 1) {
    finding.sentence += fmt::format("; so {} {} more input{}", frozen.size() == 2 ? "is" : "are",
                                    frozen.size() - 1, frozen.size() == 2 ? "" : "s");
  }
  for (const std::size_t place : frozen) {
    const Row& row = log.rows[place];
    const Seen& seen = row.at[RunsOf(row).back()];
    finding.facts.push_back({PlaceAt(evidence, log_place, place, RunsOf(row).back()),
                             fmt::format("{}: {} element{}, {:.3g} to {:.3g}, bit for bit the same",
                                         evidence.NameOf(row), row.count, row.count == 1 ? "" : "s",
                                         seen.min, seen.max)});
  }
  finding.refute = "a constant of the program, such as a table or a mask";
  return finding;
}

}  // namespace

Found FindFrozenInputs(const Evidence& evidence) {
  Found found;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    const bool goes_on = GoesOn(evidence, log);
    std::vector<std::size_t> frozen;
    const Row* sibling = nullptr;  // that changes most often
    for (std::size_t place = 0; place < log.rows.size(); ++place) {
      const Row& row = log.rows[place];
      const bool is_input = row.is_input() && !IsNamedInput(evidence.NameOf(row)) &&
                            !IsStateOfFramework(evidence, log, row);
      if (!is_input && !IsDrawnBetweenCalls(evidence, log, row)) continue;
      const Moves moves = MovesOf(row);
      if (moves.same + moves.changed < kFewestComparisons) continue;
      looked_at += is_input;
      if (moves.is_still(kFewestComparisons)) {
        // Where each call has whole sequences, so their positions are 0, 1, 2 and so on. Where
        // parts of a table are equally long, so are where they begin.
        const bool is_right = (row.counts_up && !goes_on) || IsOfRequest(evidence, log, row) ||
                              IsOfProgram(evidence, log, row) || IsGiven(evidence, log, row) ||
                              IsCountOfLabels(evidence, log, row) || IsKeptFactor(log, row) ||
                              IsOfStillPart(evidence, log, row);
        if (is_input && !is_right) frozen.push_back(place);
      } else if (moves.changed > 1 &&
                 (sibling == nullptr || MovesOf(*sibling).changed < moves.changed)) {
        sibling = &row;
      }
    }
    if (!frozen.empty() && sibling == nullptr) {
      std::ranges::move(FindKept(evidence, log_place, frozen), std::back_inserter(found.findings));
    }
    if (frozen.empty() || sibling == nullptr) continue;
    std::ranges::stable_sort(
        frozen, {}, [&](std::size_t place) { return MeantToStay(evidence, log.rows[place]); });
    found.findings.push_back(DescribeFrozen(evidence, log_place, frozen, *sibling));
  }
  SetClean(looked_at, "input changes when the others do", "inputs change when the others do",
           &found);
  return found;
}

}  // namespace cgdebug::analysis::why
