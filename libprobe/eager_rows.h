// eager_rows.h: the rows of an eager run of an op log, until rings have them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "libprobe/capture/lane/op_log_lane.h"
#include "libprobe/eager_calls.h"
#include "libprobe/op_log_pages.h"
#include "libprobe/slots/probe_state.h"
#include "proto/layout/device_stats.h"

namespace cgdebug {

class ProbeTable;

// Requires: the lock of the probe table, which is given where it is used: a forked child has
// another. Fails:    throws ProbeError.
class EagerRows {
 public:
  // `names`: how often the log has used each name. Both outlive it.
  EagerRows(ProbeState* log, OpLogPages::NameCounts* names) : log_(log), names_(names) {}

  // `awaited`: where the GPU will put the statistics; none: `stats` has them.
  void Add(ProbeTable& table, ring::OpLogRow row, const layout::DeviceStats& stats,
           const capture::EagerRow& awaited);
  // nullptr: rings have them all.
  ring::OpLogRow* Newest() { return rows_.empty() ? nullptr : &rows_.back(); }
  // Of a row that a GPU has yet to compute; nullopt: of none.
  std::optional<int> AwaitedDevice();
  // Gives up what the GPU has not computed. Returns the number of rows.
  std::size_t DropAwaited(ProbeTable& table);
  // Returns the number of the call that it was; 0: none.
  std::uint64_t End(ProbeTable& table);
  // Nobody sends them: the log is closed.
  void Forget(ProbeTable& table);

 private:
  // How many of them have statistics, from the first one on.
  std::size_t TakeComputed();
  // Writes those that are computed into rings; they are of `call`, and the last ones with `is_end`.
  void Send(ProbeTable& table, const EagerCall& call, bool is_end);
  // If the first one came before `limit`. What fails, End() raises.
  void SendLate(ProbeTable& table, std::chrono::steady_clock::time_point limit);
  // While rows wait: a call that hangs adds none, and sends the others in no other way.
  static void SendLateRows(ProbeTable* table);
  static void StartToSendLateRows(ProbeTable& table);

  ProbeState* log_;
  OpLogPages::NameCounts* names_;
  std::vector<ring::OpLogRow> rows_;
  std::vector<layout::DeviceStats> stats_;
  std::vector<capture::EagerRow> awaited_;
  std::size_t sent_ = 0;      // of the call under way
  EagerCall call_;            // theirs; none if they only say what is not shown
  std::uint64_t serial_ = 0;  // when it began
  std::chrono::steady_clock::time_point oldest_ = {};  // when the first of rows_ came
  std::exception_ptr late_failure_;                    // of SendLate()
};

}  // namespace cgdebug
