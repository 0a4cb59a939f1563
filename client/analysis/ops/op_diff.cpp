#include "client/analysis/ops/op_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <string_view>

#include "client/analysis/diff/statistics_verdict.h"
#include "client/analysis/ops/op_details.h"
#include "client/analysis/wording.h"
#include "daemon/core/numerics/stats_difference.h"

namespace cgdebug::analysis {
namespace {

constexpr std::size_t kMaxCells = std::size_t{64} << 20;  // of the table of an alignment
constexpr std::size_t kMaxMissingOpLines = 8;
constexpr std::size_t kMaxSuspects = 8;
constexpr std::size_t kMaxOnly = 6;
constexpr std::size_t kNone = SIZE_MAX;

using Places = std::vector<std::size_t>;
using KeyOf = std::function<std::string(const OpRow&)>;

// For each row of A its counterpart in B, or kNone.
class RowAligner {
 public:
  RowAligner(const OpLog& a, const OpLog& b)
      : a_(a), b_(b), of_a_(a.rows.size(), kNone), of_b_(b.rows.size(), kNone) {}

  Places Run() {
    // Eager and compiled code order their backward passes differently, and compiled code does not
    // know its modules: what the order leaves over is found by name, then by op alone.
    AlignByOrder([](const OpRow& row) {
      return fmt::format("{}|{}|{}", PlaceOf(row), KeyOfOp(row), row.type);
    });
    AlignByName();
    AlignByOrder([](const OpRow& row) {
      const std::string_view place = PlaceOf(row);
      const std::string_view phase = place.substr(0, place.find('/'));
      return fmt::format("{}|{}|{}", phase, KeyOfOp(row), row.type);
    });
    // A fused kernel writes what the last of its ops would.
    AlignByOrder(KeyOfContent);
    // The same op of the same module, with another dtype or shape.
    AlignByOrder([](const OpRow& row) { return fmt::format("{}|{}", PlaceOf(row), KeyOfOp(row)); });
    return of_a_;
  }

 private:
  // Inputs are paired by their names alone.
  static std::string KeyOfOp(const OpRow& row) {
    return row.op == "input" ? row.name : std::string(BaseOf(row.op));
  }

  // Rows without statistics get keys that no other row has. Sums are left out: the same elements
  // have others in another order.
  static std::string KeyOfContent(const OpRow& row) {
    if (!row.stats || !row.stats->has_hash) {
      return fmt::format("{}", static_cast<const void*>(&row));
    }
    const numerics::Stats& stats = *row.stats;
    std::string key = fmt::format("{}|{}|{:x}", row.op == "input", row.type, stats.hash);
    numerics::Stats::ForEachNumber([&](const numerics::StatField& field, auto member) {
      if (field.agreement == numerics::Agreement::kExact) key += fmt::format("|{}", stats.*member);
    });
    return key;
  }

  static Places Left(const Places& counterparts) {
    Places left;
    for (std::size_t i = 0; i < counterparts.size(); ++i) {
      if (counterparts[i] == kNone) left.push_back(i);
    }
    return left;
  }

  void Pair(std::size_t a, std::size_t b) {
    of_a_[a] = b;
    of_b_[b] = a;
  }

  // Pairs what is left along its longest common subsequence.
  void AlignByOrder(const KeyOf& key_of) {
    Places left_a = Left(of_a_), left_b = Left(of_b_);
    std::map<std::string, std::uint32_t> numbers;
    const auto keys_of = [&](const OpLog& log, const Places& places) {
      std::vector<std::uint32_t> keys;
      for (const std::size_t place : places) {
        const auto number = static_cast<std::uint32_t>(numbers.size());
        keys.push_back(numbers.try_emplace(key_of(log.rows[place]), number).first->second);
      }
      return keys;
    };
    const std::vector<std::uint32_t> a = keys_of(a_, left_a), b = keys_of(b_, left_b);
    std::size_t begin = 0, end_a = a.size(), end_b = b.size();
    while (begin < std::min(end_a, end_b) && a[begin] == b[begin]) {
      Pair(left_a[begin], left_b[begin]);
      ++begin;
    }
    while (end_a > begin && end_b > begin && a[end_a - 1] == b[end_b - 1]) {
      Pair(left_a[--end_a], left_b[--end_b]);
    }
    const std::size_t rows = end_a - begin, columns = end_b - begin;
    if (rows == 0 || columns == 0 || rows + 1 > kMaxCells / (columns + 1)) return;
    std::vector<std::uint32_t> length((rows + 1) * (columns + 1), 0);
    const auto at = [&](std::size_t i, std::size_t j) -> std::uint32_t& {
      return length[i * (columns + 1) + j];
    };
    for (std::size_t i = rows; i-- > 0;) {
      for (std::size_t j = columns; j-- > 0;) {
        at(i, j) = a[begin + i] == b[begin + j] ? at(i + 1, j + 1) + 1
                                                : std::max(at(i + 1, j), at(i, j + 1));
      }
    }
    for (std::size_t i = 0, j = 0; i < rows && j < columns;) {
      if (a[begin + i] == b[begin + j]) {
        Pair(left_a[begin + i++], left_b[begin + j++]);
      } else if (at(i + 1, j) >= at(i, j + 1)) {
        ++i;
      } else {
        ++j;
      }
    }
  }

  void AlignByName() {
    std::map<std::string, std::size_t> named;
    for (const std::size_t place : Left(of_b_)) {
      const OpRow& row = b_.rows[place];
      named.try_emplace(row.name + '|' + row.type, place);
    }
    for (const std::size_t place : Left(of_a_)) {
      const OpRow& row = a_.rows[place];
      const auto found = named.find(row.name + '|' + row.type);
      if (found == named.end()) continue;
      Pair(place, found->second);
      named.erase(found);
    }
  }

  const OpLog& a_;
  const OpLog& b_;
  Places of_a_;
  Places of_b_;
};

void JudgePair(const OpRow& a, const OpRow& b, OpPair* pair) {
  if (a.type != b.type) {
    pair->verdict = OpPair::Verdict::kDifferent;
    pair->reason = fmt::format("{} against {}: the {} differs", a.type, b.type,
                               a.dtype == b.dtype ? "shape" : "dtype");
    return;
  }
  if (!a.stats || !b.stats) {
    pair->verdict = OpPair::Verdict::kUnknown;
    pair->reason = fmt::format("lost in {}", a.stats ? "B" : "A");
    return;
  }
  const layout::DtypeInfo* info = layout::FindDtype(a.dtype);
  const StatisticsVerdict verdict =
      JudgeStatistics({*a.stats, "A"}, {*b.stats, "B"}, {.equal_nan = true},
                      {.can_be_nan = info != nullptr && info->is_floating, .is_row = true});
  pair->reason = verdict.reason;
  switch (verdict.kind) {
    case StatisticsVerdict::Kind::kSame:
      break;
    case StatisticsVerdict::Kind::kDifferent:
      pair->verdict = OpPair::Verdict::kDifferent;
      break;
    case StatisticsVerdict::Kind::kUnknown:
      pair->verdict = OpPair::Verdict::kUnknown;
      break;
  }
}

using PairTest = std::function<bool(const OpPair&)>;

bool IsSame(const OpPair& pair) { return pair.verdict == OpPair::Verdict::kSame; }

// Whether two tensors differ by more than rounding may, by their statistics. The same elements in
// another shape, such as a weight that one of the two transposes, do not.
bool IsLarge(const OpRow& a, const OpRow& b, const OpPair& pair) {
  constexpr double kAtol = 1e-6;
  if (pair.verdict != OpPair::Verdict::kDifferent) return false;
  const layout::DtypeInfo* info = layout::FindDtype(a.dtype);
  if (!a.stats || !b.stats || a.dtype != b.dtype || info == nullptr) return true;
  if (a.shape != b.shape) {
    return !(a.stats->has_hash && b.stats->has_hash && a.stats->hash == b.stats->hash &&
             a.stats->count == b.stats->count);
  }
  const double rtol = info->bytes <= 2 ? 2e-2 : 1e-3;
  return !info->is_floating || !numerics::MayBeClose(*a.stats, *b.stats, rtol, kAtol);
}

// What a row is made of, through rows without a counterpart. Returns whether rows show all of it,
// and whether it agrees where it has a counterpart.
class Ancestry {
 public:
  Ancestry(const OpLog& log, const std::vector<const OpPair*>& pair_of, PairTest agrees = IsSame)
      : log_(log), pair_of_(pair_of), agrees_(std::move(agrees)), seen_(log.rows.size(), false) {}

  bool Agrees(std::size_t place) {
    for (Places left = {place}; !left.empty();) {
      const OpRow& row = log_.rows[left.back()];
      left.pop_back();
      if (!row.is_covered || log_.UnseenBeside(row) != nullptr) return false;
      for (const std::uint32_t number : row.inputs) {
        const OpRow* input = log_.Find(number);
        if (input == nullptr) return false;
        const auto at = static_cast<std::size_t>(input - log_.rows.data());
        if (pair_of_[at] != nullptr) {
          if (!agrees_(*pair_of_[at])) return false;
        } else if (!seen_[at]) {
          seen_[at] = true;
          found_.push_back(at);
          // An input without a counterpart may be what differs.
          if (input->op == "input") return false;
          left.push_back(at);
        }
      }
    }
    return true;
  }
  // Rows without a counterpart that it is made of, by number.
  Places Take() {
    std::sort(found_.begin(), found_.end());
    return std::move(found_);
  }

 private:
  const OpLog& log_;
  const std::vector<const OpPair*>& pair_of_;  // by place in the log
  const PairTest agrees_;
  std::vector<bool> seen_;
  Places found_;
};

// Finds the first pair before the first fault that differs although all that it is made of agrees,
// as far as it has a counterpart.
void FindSuspects(const OpLog& a, const OpLog& b, const std::vector<const OpPair*>& pair_of_a,
                  const std::vector<const OpPair*>& pair_of_b, OpDiff* diff) {
  for (std::size_t i = 0; i < diff->first_fault.value_or(diff->pairs.size()); ++i) {
    const OpPair& pair = diff->pairs[i];
    if (pair.verdict != OpPair::Verdict::kDifferent) continue;
    Ancestry of_a(a, pair_of_a), of_b(b, pair_of_b);
    if (!of_a.Agrees(pair.a) || !of_b.Agrees(pair.b)) continue;
    diff->first_suspect = i;
    diff->first_fault.reset();
    diff->suspects_a = of_a.Take();
    diff->suspects_b = of_b.Take();
    return;
  }
}

// Behind a first divergence of rounding: the first pair that differs by more although what it is
// made of does not.
void FindLarge(const OpLog& a, const OpLog& b, const std::vector<const OpPair*>& pair_of_a,
               const std::vector<const OpPair*>& pair_of_b, OpDiff* diff) {
  const auto is_large = [&](const OpPair& pair) {
    return IsLarge(a.rows[pair.a], b.rows[pair.b], pair);
  };
  const std::optional<std::size_t> named =
      diff->first_suspect ? diff->first_suspect : diff->first_fault;
  if (!named || is_large(diff->pairs[*named])) return;
  diff->may_be_rounding = true;
  const auto agrees = [&](const OpPair& pair) {
    return pair.verdict != OpPair::Verdict::kUnknown && !is_large(pair);
  };
  for (std::size_t i = *named + 1; i < diff->pairs.size(); ++i) {
    const OpPair& pair = diff->pairs[i];
    if (!is_large(pair)) continue;
    Ancestry of_a(a, pair_of_a, agrees), of_b(b, pair_of_b, agrees);
    const bool is_fault = of_a.Agrees(pair.a) && of_b.Agrees(pair.b);
    if (diff->first_large && !is_fault) continue;
    diff->first_large = i;
    diff->large_a = of_a.Take();
    diff->large_b = of_b.Take();
    if (is_fault) return;
  }
}

std::string ReadRows(const OpRow& row) {
  std::string text;
  for (const std::uint32_t number : row.inputs) {
    text += fmt::format("{}#{}", text.empty() ? "" : ", ", number);
  }
  return text;
}

// "#3 fwd/m/mul_0 (net.py:12), #4 fwd/m/relu_0 (net.py:13) and 2 more"
std::string RowsText(const OpLog& log, const Places& places, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(places.size(), most); ++i) {
    const OpRow& row = log.rows[places[i]];
    text += fmt::format("{}#{} {}", i == 0 ? "" : ", ", row.number, row.name);
    if (!row.site.empty()) text += fmt::format(" ({})", row.site);
  }
  return text + AndMore(places.size(), most);
}

// "2 rows are only in A: #3 fwd/m/mul_0 (net.py:12), #4 fwd/m/relu_0 (net.py:13)"
std::string OnlyText(const OpLog& log, const Places& places, const char* side) {
  return fmt::format("{} only in {}: {}", Count(places.size(), "row is", "rows are"), side,
                     RowsText(log, places, kMaxOnly));
}

// What a pair is made of that has no counterpart.
std::string SuspectsText(const OpLog& a, const OpLog& b, const Places& of_a, const Places& of_b) {
  std::vector<std::string> sides;
  const auto add = [&](const OpLog& log, const Places& places, const char* side) {
    if (places.empty()) return;
    sides.push_back(fmt::format("only {} has: {}", side, RowsText(log, places, kMaxSuspects)));
  };
  add(a, of_a, "A");
  add(b, of_b, "B");
  return fmt::format("it is made of what {}", fmt::join(sides, "; and of what "));
}

// Compares the rows of A with their counterparts, in the order of A.
class OpComparison {
 public:
  // Lifetime: both outlive it.
  OpComparison(const OpLog& a, const OpLog& b) : a_(a), b_(b) {}

  OpDiff Run() {
    const Places counterparts = RowAligner(a_, b_).Run();
    for (std::size_t place = 0; place < a_.rows.size(); ++place) {
      if (counterparts[place] == kNone) {
        diff_.only_a.push_back(place);
      } else {
        Add({.a = place, .b = counterparts[place]});
      }
    }
    std::vector<const OpPair*> pair_of_a(a_.rows.size(), nullptr);
    std::vector<const OpPair*> pair_of_b(b_.rows.size(), nullptr);
    for (const OpPair& pair : diff_.pairs) pair_of_a[pair.a] = pair_of_b[pair.b] = &pair;
    for (std::size_t place = 0; place < b_.rows.size(); ++place) {
      if (pair_of_b[place] == nullptr) diff_.only_b.push_back(place);
    }
    for (std::size_t i = 0; i < diff_.pairs.size() && !diff_.first_fault; ++i) {
      const OpPair& pair = diff_.pairs[i];
      if (pair.verdict == OpPair::Verdict::kDifferent && InputsAgree(a_, pair.a, pair_of_a) &&
          InputsAgree(b_, pair.b, pair_of_b)) {
        diff_.first_fault = i;
      }
    }
    FindSuspects(a_, b_, pair_of_a, pair_of_b, &diff_);
    FindLarge(a_, b_, pair_of_a, pair_of_b, &diff_);
    TellMissing();
    return std::move(diff_);
  }

 private:
  void Add(OpPair pair) {
    const OpRow& row = a_.rows[pair.a];
    const OpRow& other = b_.rows[pair.b];
    JudgePair(row, other, &pair);
    uncovered_ += !(row.is_covered && other.is_covered);
    if (pair.verdict == OpPair::Verdict::kUnknown) {
      ++diff_.unknown;
      if (first_unknown_.empty()) {
        first_unknown_ = fmt::format("#{} {}: {}", row.number, row.name, pair.reason);
      }
    }
    if (pair.verdict == OpPair::Verdict::kDifferent) {
      ++diff_.different;
      if (!diff_.first_different) diff_.first_different = diff_.pairs.size();
    }
    diff_.pairs.push_back(std::move(pair));
  }

  // Whether rows show all that a row read, and it is the same as in the other log.
  static bool InputsAgree(const OpLog& log, std::size_t place,
                          const std::vector<const OpPair*>& pair_of) {
    const OpRow& row = log.rows[place];
    const bool is_certain = row.is_covered && log.UnseenBeside(row) == nullptr;
    return is_certain && std::ranges::all_of(row.inputs, [&](std::uint32_t number) {
             const OpRow* input = log.Find(number);
             if (input == nullptr) return false;
             const OpPair* of = pair_of[static_cast<std::size_t>(input - log.rows.data())];
             return of != nullptr && of->verdict == OpPair::Verdict::kSame;
           });
  }

  void TellMissing() {
    std::vector<std::string>& missing = diff_.missing;
    if (diff_.pairs.empty()) missing.push_back("the two have no row in common");
    if (!diff_.only_a.empty()) missing.push_back(OnlyText(a_, diff_.only_a, "A"));
    if (!diff_.only_b.empty()) missing.push_back(OnlyText(b_, diff_.only_b, "B"));
    if (diff_.unknown > 0) {
      missing.push_back(fmt::format("{} not be compared, the first is {}",
                                    Count(diff_.unknown, "row can", "rows can"), first_unknown_));
    }
    if (uncovered_ > 0) {
      missing.push_back(
          fmt::format("{} something that no row shows", Count(uncovered_, "op reads", "ops read")));
    }
    for (const auto& [log, side] : {std::pair(&a_, "A"), std::pair(&b_, "B")}) {
      for (const std::string& gap : log->gaps) {
        missing.push_back(fmt::format("{}: {}", side, gap));
      }
    }
  }

  const OpLog& a_;
  const OpLog& b_;
  OpDiff diff_;
  std::size_t uncovered_ = 0;  // pairs
  std::string first_unknown_;
};

// What an op was given, without numbers of rows and addresses, which are others in each log.
std::string Comparable(const std::string& arguments) {
  std::string text;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    text += arguments[i];
    const bool is_hex = arguments.compare(i, 2, "0x") == 0;
    if (arguments[i] != '#' && !is_hex) continue;
    i += is_hex ? 1 : 0;
    while (i + 1 < arguments.size() &&
           std::isxdigit(static_cast<unsigned char>(arguments[i + 1])) != 0) {
      ++i;
    }
  }
  return text;
}

// "self=#3.view([8, 4])", "dim=1"
std::vector<std::string> ArgumentsOf(const OpRow& row) {
  std::vector<std::string> arguments(1);
  int depth = 0;
  for (const char c : ParseOpDetails(row.details).arguments) {
    depth += std::string_view("([{<").find(c) != std::string_view::npos ? 1 : 0;
    depth -= std::string_view(")]}>").find(c) != std::string_view::npos ? 1 : 0;
    if (c == ',' && depth == 0) {
      arguments.emplace_back();
    } else if (c != ' ' || !arguments.back().empty()) {
      arguments.back() += c;
    }
  }
  return arguments;
}

// Empty if what the two ops were given does not differ, but for tensors, or is not known.
std::string ArgumentsText(const OpRow& a, const OpRow& b) {
  const std::vector<std::string> of_a = ArgumentsOf(a), of_b = ArgumentsOf(b);
  if (of_a.front().empty() || of_b.front().empty()) return "";
  std::vector<std::string> only_a, only_b;
  for (std::size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
    const bool are_same =
        i < of_a.size() && i < of_b.size() && Comparable(of_a[i]) == Comparable(of_b[i]);
    if (are_same) continue;
    if (i < of_a.size()) only_a.push_back(of_a[i]);
    if (i < of_b.size()) only_b.push_back(of_b[i]);
  }
  if (only_a.empty() && only_b.empty()) return "";
  return fmt::format("\n  its arguments differ: {} against {}", fmt::join(only_a, ", "),
                     fmt::join(only_b, ", "));
}

std::string PairText(const OpLog& a, const OpLog& b, const OpPair& pair) {
  const OpRow& row = a.rows[pair.a];
  const OpRow& other = b.rows[pair.b];
  std::string text = fmt::format("#{} {}  {}", row.number, row.name, row.type);
  if (other.name != row.name) text += fmt::format("  (B: #{} {})", other.number, other.name);
  if (!row.site.empty()) text += fmt::format("  {}", row.site);
  return text + "\n  " + pair.reason + ArgumentsText(row, other);
}

}  // namespace

const char* NameOf(OpDiff::Verdict verdict) {
  switch (verdict) {
    case OpDiff::Verdict::kSame:
      return "same";
    case OpDiff::Verdict::kDifferent:
      return "different";
    case OpDiff::Verdict::kInconclusive:
      break;
  }
  return "inconclusive";
}

OpDiff DiffOpLogs(const OpLog& a, const OpLog& b) { return OpComparison(a, b).Run(); }

Severity SeverityOf(OpDiff::Verdict verdict) {
  return verdict == OpDiff::Verdict::kSame ? Severity::kGood : Severity::kBad;
}

Outcome OutcomeOf(OpDiff::Verdict verdict) {
  return analysis::OutcomeOf(verdict == OpDiff::Verdict::kDifferent,
                             verdict == OpDiff::Verdict::kSame);
}

Answer OpDiffAnswer(const OpLog& a, const OpLog& b, const OpDiff& diff) {
  Answer answer;
  answer.Add(SeverityOf(diff.verdict()),
             fmt::format("{}: {} compared, {} differ", NameOf(diff.verdict()),
                         Count(diff.pairs.size() - diff.unknown, "row"), diff.different));
  if (a.replay > 0 && b.replay > 0) {
    answer.Add(Severity::kPlain, fmt::format("in {} (A) against {} (B)", a.RunText(), b.RunText()));
  }
  AddDifferences(a, b, diff, &answer);
  return answer;
}

void AddDifferences(const OpLog& a, const OpLog& b, const OpDiff& diff, Answer* answer) {
  const auto add = [&](const std::string& text) { answer->Add(Severity::kPlain, text); };
  if (diff.first_fault) {
    const OpPair& pair = diff.pairs[*diff.first_fault];
    const std::string inputs = ReadRows(a.rows[pair.a]);
    add("first divergence: " + PairText(a, b, pair));
    add(inputs.empty() ? "  nothing in the log has written it before"
                       : fmt::format("  what it read, {}, agrees", inputs));
  }
  if (diff.first_suspect) {
    const OpPair& pair = diff.pairs[*diff.first_suspect];
    add(fmt::format("first divergence: {}", PairText(a, b, pair)));
    add("  " + SuspectsText(a, b, diff.suspects_a, diff.suspects_b));
    if (!diff.may_be_rounding) {
      add(fmt::format("  what these read agrees, so the fault is in one of them or in #{}",
                      a.rows[pair.a].number));
    }
  }
  if (diff.may_be_rounding && !diff.first_large) {
    add("  by its statistics that may be rounding, and so may all that differs behind it");
  } else if (diff.may_be_rounding) {
    const OpPair& pair = diff.pairs[*diff.first_large];
    add("  by its statistics that may be rounding");
    add("first difference that is more: " + PairText(a, b, pair));
    if (!diff.large_a.empty() || !diff.large_b.empty()) {
      add("  " + SuspectsText(a, b, diff.large_a, diff.large_b));
    }
  }
  const std::optional<std::size_t> named =
      diff.first_suspect ? diff.first_suspect : diff.first_fault;
  if (diff.first_different && (!named || *diff.first_different < *named)) {
    const OpPair& pair = diff.pairs[*diff.first_different];
    const OpRow& row = a.rows[pair.a];
    add(fmt::format("{}: {}", named ? "differs earlier" : "first difference",
                    PairText(a, b, pair)));
    const UnseenNodes* unseen = a.UnseenBeside(row);
    if (unseen == nullptr) unseen = b.UnseenBeside(b.rows[pair.b]);
    add(unseen != nullptr
            ? fmt::format("  its input may be what differs: no row shows {}", unseen->Text())
        : row.is_covered && b.rows[pair.b].is_covered
            ? fmt::format("  of what it read, {}, something differs or was not compared",
                          ReadRows(row))
            : "  no row shows all that it read, so its input may be what differs");
  }
  for (std::size_t i = 0; i < std::min(diff.missing.size(), kMaxMissingOpLines); ++i) {
    add("not compared: " + diff.missing[i]);
  }
  if (diff.missing.size() > kMaxMissingOpLines) {
    add(fmt::format("not compared: {} more", diff.missing.size() - kMaxMissingOpLines));
  }
}

Json OpDiffJson(const OpLog& a, const OpLog& b, const OpDiff& diff) {
  const auto pair_json = [&](std::optional<std::size_t> place) -> Json {
    if (!place) return nullptr;
    const OpPair& pair = diff.pairs[*place];
    const OpRow& row = a.rows[pair.a];
    return {{"a", row.number},  {"b", b.rows[pair.b].number},
            {"name", row.name}, {"name_b", b.rows[pair.b].name},
            {"op", row.op},     {"inputs", row.inputs},
            {"site", row.site}, {"reason", pair.reason}};
  };
  const auto names_json = [](const OpLog& log, const Places& places) -> Json {
    Json names = Json::array();
    for (const std::size_t place : places) names.push_back(log.rows[place].name);
    return names;
  };
  const auto rows_json = [](const OpLog& log, const Places& places) -> Json {
    Json rows = Json::array();
    for (const std::size_t place : places) {
      const OpRow& row = log.rows[place];
      rows.push_back({{"number", row.number},
                      {"name", row.name},
                      {"op", row.op},
                      {"type", row.type},
                      {"site", row.site}});
    }
    return rows;
  };
  const auto log_json = [](const OpLog& log) -> Json {
    return {{"graph", log.graph},
            {"graph_id", log.graph_id},
            {"session", log.session},
            {"replay", log.replay},
            {"rows", log.rows.size()}};
  };
  return {{"verdict", NameOf(diff.verdict())},
          {"a", log_json(a)},
          {"b", log_json(b)},
          {"compared", diff.pairs.size() - diff.unknown},
          {"different", diff.different},
          {"only_a", diff.only_a.size()},
          {"only_b", diff.only_b.size()},
          {"rows_only_a", rows_json(a, diff.only_a)},
          {"rows_only_b", rows_json(b, diff.only_b)},
          {"first_divergence", pair_json(diff.first_fault)},
          {"first_difference", pair_json(diff.first_different)},
          {"first_suspect", pair_json(diff.first_suspect)},
          {"suspects_a", names_json(a, diff.suspects_a)},
          {"suspects_b", names_json(b, diff.suspects_b)},
          {"may_be_rounding", diff.may_be_rounding},
          {"first_large", pair_json(diff.first_large)},
          {"large_a", names_json(a, diff.large_a)},
          {"large_b", names_json(b, diff.large_b)},
          {"missing", diff.missing}};
}

}  // namespace cgdebug::analysis
