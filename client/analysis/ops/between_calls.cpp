#include "client/analysis/ops/between_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "client/analysis/ops/op_log.h"

namespace cgdebug::analysis {
namespace {

using source::Key;
using source::Slot;
using source::Source;

// Whether a row of that name is outside of all modules, and not behind the forward pass.
bool IsOutside(const std::string& name) {
  return (name.starts_with("fwd/") || name.starts_with("in/")) && name.rfind('/') == name.find('/');
}

bool AreOfOneLog(const Slot& a, const Slot& b) {
  return a.counts_calls() && b.counts_calls() && a.session == b.session && a.rank == b.rank &&
         a.thread == b.thread;
}

// A row of a call.
struct Row {
  std::size_t slot = 0;
  OpText text;
  bool is_outside = false;
};

// What a source has of two calls, one after the other.
class TwoCalls {
 public:
  TwoCalls(Source& source, const Slot& slot, std::uint64_t call) : source_(source), call_(call) {
    for (std::size_t i = 0; i < source.slots().size(); ++i) {
      const Slot& one = source.slots()[i];
      if (!AreOfOneLog(one, slot)) continue;
      if (const OpText* const text = one.op.row()) Add(i, *text);
    }
  }

  BetweenCalls Find() {
    const bool is_whole =
        !rows_.empty() && rows_.begin()->first == 1 && rows_.rbegin()->first == rows_.size();
    if (!is_whole || !HadEnded() || LacksRows()) return {};
    std::uint32_t first = 0, lowest_input = std::numeric_limits<std::uint32_t>::max();
    for (auto row = rows_.rbegin(); row != rows_.rend(); ++row) {
      const OpText& text = row->second.text;
      if (!row->second.is_outside || !text.is_covered) break;
      for (const std::uint32_t input : text.inputs) lowest_input = std::min(lowest_input, input);
      if (lowest_input >= row->first) first = row->first;
    }
    if (first <= 1) return {};  // the call is nothing but this
    return {first, call_ + 1};
  }

 private:
  void Add(std::size_t slot, const OpText& text) {
    of_log_.push_back(slot);
    if (KeyAt(slot, call_)) {
      rows_.try_emplace(text.number, Row{slot, text, IsOutside(source_.slots()[slot].probe)});
    }
    if (!of_next_ && KeyAt(slot, call_ + 1)) of_next_ = slot;
  }

  // Whether the last row had come when the next call began: else that may be of another thread,
  // in recordings that know no threads.
  bool HadEnded() const {
    const auto last = SnapshotAt(rows_.rbegin()->second.slot, call_);
    const auto next = of_next_ ? SnapshotAt(*of_next_, call_ + 1) : std::nullopt;
    return last && next && static_cast<std::uint64_t>(last->timestamp_ns) <= next->serial;
  }

  bool LacksRows() {
    return !source_.MayLack(of_log_, call_).empty() || !source_.MayLack(of_log_, call_ + 1).empty();
  }

  std::optional<Key> KeyAt(std::size_t slot, std::uint64_t call) const {
    const Result<std::optional<Key>> key = source_.Find(slot, call);
    return key.ok() ? *key : std::nullopt;
  }
  std::optional<source::Snapshot> SnapshotAt(std::size_t slot, std::uint64_t call) const {
    const std::optional<Key> key = KeyAt(slot, call);
    if (!key) return std::nullopt;
    const Result<source::Snapshot> snapshot = source_.Get(slot, *key);
    return snapshot.ok() ? std::optional(*snapshot) : std::nullopt;
  }

  Source& source_;
  const std::uint64_t call_;
  std::vector<std::size_t> of_log_ = {};     // slots of its rows, whatever their calls
  std::map<std::uint32_t, Row> rows_ = {};   // by number
  std::optional<std::size_t> of_next_ = {};  // the slot of a row of the next call
};

}  // namespace

BetweenCalls BetweenCallsOf(Source& source, std::size_t slot, std::uint64_t call) {
  const Slot& of = source.slots()[slot];
  if (!of.counts_calls() || of.op.row() == nullptr) return {};
  return TwoCalls(source, of, call).Find();
}

std::uint64_t NextCallOf(Source& source, std::size_t slot, std::uint64_t replay) {
  const OpText* const text = source.slots()[slot].op.row();
  if (!text || !IsOutside(source.slots()[slot].probe)) return 0;
  const BetweenCalls between = BetweenCallsOf(source, slot, replay);
  return between.first_row != 0 && text->number >= between.first_row ? between.next_call : 0;
}

std::string WhenText(const Slot& slot, std::uint64_t replay, std::uint64_t next_call) {
  if (next_call != 0) return fmt::format("between call {} and {}", replay, next_call);
  return fmt::format("{} {}", ReplayWord(slot), replay);
}

std::string WhenMark(const Slot& slot, std::uint64_t replay, std::uint64_t next_call) {
  if (!slot.counts_calls()) return fmt::format("@{}", replay);
  return (next_call != 0 ? "" : "in ") + WhenText(slot, replay, next_call);
}

}  // namespace cgdebug::analysis
