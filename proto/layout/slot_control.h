// slot_control.h: what a daemon may change about a captured slot while it replays.
//
// The control lies in SlotCredit, a line that only the daemon writes. `control` holds mode,
// trigger, period and a version in one word. The version is odd while the fields around it change;
// a writer that finds it odd, or changed after it read the other fields, keeps the control it had.
// So a control takes effect between replays, as a whole, without a lock.
//
//   control := version(16) | every(32) | lossless(4) | trigger(4) | mode(8)
#pragma once

#include <cstdint>

#include "proto/layout/field.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::layout {

enum class ControlMode : std::uint8_t {
  kAsRegistered = 0,
  kOff = 1,
  kStats = 2,  // statistics only
  kFull = 3,   // the values
};
constexpr std::string_view NameOf(ControlMode mode) {
  constexpr std::string_view kNames[] = {"registered", "off", "stats", "full"};
  return NameAt(kNames, static_cast<std::size_t>(mode));
}
enum class ControlTrigger : std::uint8_t {
  kNone = 0,
  kNonfinite = 1,  // NaN or Inf
  kInf = 2,
  kAbsMax = 3,    // abs max above the threshold, or not finite
  kChanged = 4,   // other statistics than in the replay before that was looked at
  kMismatch = 5,  // a comparison of the job failed; the daemon decides that
};
constexpr std::string_view NameOf(ControlTrigger trigger) {
  constexpr std::string_view kNames[] = {"", "nan", "inf", "abs_max", "changed", "mismatch"};
  return NameAt(kNames, static_cast<std::size_t>(trigger));
}

// Whether a recording needs every snapshot of the slot. If so, the periods of its actions leave
// nothing out, and the writer waits for room in a full ring as with Policy::kWait.
enum class Lossless : std::uint8_t {
  kAsRegistered = 0,  // kSlotLossless decides
  kOn = 1,
  kOff = 2,
};

struct SlotControl {
  ControlMode mode = ControlMode::kAsRegistered;
  ControlTrigger trigger = ControlTrigger::kNone;  // with kFull: values only if it holds
  Lossless lossless = Lossless::kAsRegistered;     // independent of the mode and its end
  std::uint32_t every = 0;  // replays from, from + every, ...; 0 = as registered
  std::uint64_t from = 1;
  std::uint64_t until = 0;      // 0 = without end
  std::int64_t expires_ns = 0;  // CLOCK_REALTIME; 0 = never
  double threshold = 0;

  // Numbers are those of `Control` in proto/control.proto, names those in JSON.
  template <typename Self, typename Visitor>
  static constexpr void ForEachField(Self& self, Visitor&& visit) {
    visit(Field{1, "mode"}, self.mode);
    visit(Field{2, "every"}, self.every);
    visit(Field{3, "from"}, self.from);
    visit(Field{4, "until"}, self.until);
    visit(Field{5, "on"}, self.trigger);
    visit(Field{6, "threshold"}, self.threshold);
    visit(Field{7, "expires_ns"}, self.expires_ns);
  }
};

constexpr std::uint64_t ControlWord(std::uint16_t version, const SlotControl& control) {
  return static_cast<std::uint64_t>(version) << 48 |
         static_cast<std::uint64_t>(control.every) << 16 |
         static_cast<std::uint64_t>(control.lossless) << 12 |
         static_cast<std::uint64_t>(control.trigger) << 8 |
         static_cast<std::uint64_t>(control.mode);
}
constexpr std::uint16_t ControlVersion(std::uint64_t word) {
  return static_cast<std::uint16_t>(word >> 48);
}
// The fields in the word. Numbers that no daemon writes become "as registered".
constexpr SlotControl UnpackControl(std::uint64_t word) {
  SlotControl control;
  const std::uint64_t mode = word & 0xff;
  const std::uint64_t trigger = word >> 8 & 0xf;
  const std::uint64_t lossless = word >> 12 & 0xf;
  if (mode > 3 || trigger > 5 || lossless > 2) return control;
  control.mode = static_cast<ControlMode>(mode);
  control.trigger = static_cast<ControlTrigger>(trigger);
  control.lossless = static_cast<Lossless>(lossless);
  control.every = static_cast<std::uint32_t>(word >> 16);
  return control;
}
// What remains of a control after its end.
constexpr SlotControl Ended(const SlotControl& control) {
  SlotControl ended;
  ended.lossless = control.lossless;
  return ended;
}

// Whether the job has a trigger that looks at the statistics of each replay.
constexpr bool HasTriggerOnValues(const SlotFacts& r) {
  const auto trigger = static_cast<ControlTrigger>(r.trigger);
  return trigger != ControlTrigger::kNone && trigger != ControlTrigger::kMismatch;
}

// Whether statistics are made of what the slot writes. Of values that stay in device memory, only
// an action or a trigger of the job asks for them.
constexpr bool MakesStatistics(const SlotFacts& r) {
  return (r.flags & kSlotOnDevice) == 0 || r.stats_every != 0 || HasTriggerOnValues(r);
}

// Whether it makes them of each replay that it writes.
constexpr bool MakesStatisticsOfEach(const SlotFacts& r) {
  return (r.flags & kSlotOnDevice) == 0 || r.stats_every == 1 || HasTriggerOnValues(r);
}

// What is sent of one replay.
enum class Outcome : std::uint8_t {
  kSkip = 0,
  kStats = 1,
  kFull = 2,
  kTriggered = 3,  // values if the trigger holds, else statistics
};

// Periods of the actions, as registered.
struct Periods {
  std::uint32_t print = 0;
  std::uint32_t record = 0;
  std::uint32_t compare = 0;
  std::uint32_t stats = 0;
  bool lossless = false;  // kSlotLossless

  constexpr bool WantValues(std::uint64_t replay) const {
    return Wants(print, replay) || Wants(record, replay) || Wants(compare, replay);
  }
  constexpr bool WantStats(std::uint64_t replay) const { return Wants(stats, replay); }
  // Whether they want the values of any replay.
  constexpr bool HaveValues() const { return print != 0 || record != 0 || compare != 0; }
};

constexpr Periods PeriodsOf(const SlotFacts& r) {
  return {r.print_every, r.record_every, r.compare_every, r.stats_every,
          (r.flags & kSlotLossless) != 0};
}

constexpr bool IsLossless(const Periods& periods, const SlotControl& control) {
  return control.lossless == Lossless::kAsRegistered ? periods.lossless
                                                     : control.lossless == Lossless::kOn;
}

// Whether `control` applies to `replay`; the caller checks its expiry.
constexpr bool Holds(const SlotControl& control, std::uint64_t replay) {
  return control.mode != ControlMode::kAsRegistered && replay >= control.from &&
         (control.until == 0 || replay <= control.until);
}

// Whether Decide() may answer kStats or kTriggered, for any replay.
constexpr bool MayWantStats(const Periods& periods, const SlotControl& control) {
  return periods.stats != 0 || control.mode == ControlMode::kStats ||
         control.trigger != ControlTrigger::kNone;
}

constexpr Outcome Decide(const Periods& periods, const SlotControl& control, std::uint64_t replay) {
  const bool lossless = IsLossless(periods, control);
  const bool values = lossless ? periods.HaveValues() : periods.WantValues(replay);
  const bool any = values || (lossless ? periods.stats != 0 : periods.WantStats(replay));
  if (!Holds(control, replay)) {
    return values ? Outcome::kFull : any ? Outcome::kStats : Outcome::kSkip;
  }
  if (control.mode == ControlMode::kOff) return Outcome::kSkip;
  const bool due = control.every == 0 ? any : (replay - control.from) % control.every == 0;
  if (!due) return Outcome::kSkip;
  if (control.mode == ControlMode::kStats) return Outcome::kStats;
  return control.trigger == ControlTrigger::kNone ? Outcome::kFull : Outcome::kTriggered;
}

}  // namespace cgdebug::layout
