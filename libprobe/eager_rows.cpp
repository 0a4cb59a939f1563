#include "libprobe/eager_rows.h"

#include <pthread.h>

#include <csignal>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "libprobe/page_cut.h"
#include "libprobe/probe_table.h"
#include "libprobe/ring/shared_copy.h"
#include "proto/layout/realtime.h"

namespace cgdebug {
namespace {

// A process that is killed loses at most what came since.
constexpr std::chrono::seconds kBetweenSends{1};

}  // namespace

void EagerRows::Add(ProbeTable& table, ring::OpLogRow row, const layout::DeviceStats& stats,
                    const capture::EagerRow& awaited) {
  if (call_.number == 0 && !layout::IsNoRow(row.op)) {
    call_ = table.calls.BeginRun(table.step.get());
    serial_ = ring::NextSerial();
  }
  const auto now = std::chrono::steady_clock::now();
  if (rows_.empty()) oldest_ = now;
  try {
    stats_.push_back(stats);
    awaited_.push_back(awaited);
    rows_.push_back(std::move(row));
  } catch (...) {
    stats_.resize(rows_.size());
    awaited_.resize(rows_.size());
    throw;
  }
  table.not_seen.CountRow();
  if (table.not_seen.WantsSegment()) {  // so that others know of the row if this process dies
    try {
      (void)table.segment.Get();
    } catch (const ProbeError&) {  // the end of the call tells it
    }
  }
  table.rows_to_send.insert(this);
  if (now - oldest_ >= kBetweenSends) {
    Send(table, call_, /*is_end=*/false);
  } else if (!table.sends_late_rows) {
    StartToSendLateRows(table);
  }
}

std::size_t EagerRows::TakeComputed() {
  std::size_t count = 0;
  for (; count < rows_.size(); ++count) {
    capture::EagerRow& awaited = awaited_[count];
    if (awaited.stats == nullptr) continue;
    if (!capture::IsThere(awaited)) break;
    stats_[count] = *awaited.stats;
    capture::GiveBack(std::exchange(awaited, {}));
  }
  return count;
}

std::size_t EagerRows::DropAwaited(ProbeTable& table) {
  const std::size_t computed = TakeComputed();
  const std::size_t lost = rows_.size() - computed;
  const NotSeen::SentRows gone(&table.not_seen, lost);  // the log says so
  rows_.resize(computed);
  stats_.resize(computed);
  awaited_.resize(computed);
  return lost;
}

std::optional<int> EagerRows::AwaitedDevice() {
  const std::size_t computed = TakeComputed();
  if (computed == rows_.size()) return std::nullopt;
  return awaited_[computed].device;
}

void EagerRows::SendLate(ProbeTable& table, std::chrono::steady_clock::time_point limit) {
  if (rows_.empty() || oldest_ > limit) return;
  try {
    Send(table, call_, /*is_end=*/false);
  } catch (...) {
    late_failure_ = std::current_exception();
  }
}

void EagerRows::SendLateRows(ProbeTable* table) {
  while (true) {
    std::this_thread::sleep_for(kBetweenSends / 2);
    const ProbeTable::Lock lock = table->Acquire();
    if (table->rows_to_send.empty()) {
      table->sends_late_rows = false;
      return;
    }
    const auto limit = std::chrono::steady_clock::now() - kBetweenSends;
    for (EagerRows* const rows : std::set(table->rows_to_send)) rows->SendLate(*table, limit);
  }
}

void EagerRows::StartToSendLateRows(ProbeTable& table) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's handlers run in its own threads
  try {
    std::thread(&EagerRows::SendLateRows, &table).detach();
    table.sends_late_rows = true;
  } catch (const std::system_error&) {  // no more threads: rows go with those that come later
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::uint64_t EagerRows::End(ProbeTable& table) {
  const EagerCall call = std::exchange(call_, {});
  if (call.number != 0) table.calls.EndRun(call);
  Send(table, call, /*is_end=*/true);
  sent_ = 0;
  if (late_failure_) std::rethrow_exception(std::exchange(late_failure_, nullptr));
  return call.number;
}

void EagerRows::Forget(ProbeTable& table) { table.rows_to_send.erase(this); }

void EagerRows::Send(ProbeTable& table, const EagerCall& call, bool is_end) {
  const std::size_t lost = is_end ? DropAwaited(table) : 0;
  if (lost != 0 && !late_failure_) {
    late_failure_ = std::make_exception_ptr(
        ProbeError(ErrorKind::kSystem, std::to_string(lost) + " rows of eager ops are not seen: " +
                                           "the GPU has not computed them"));
  }
  const auto computed = static_cast<std::ptrdiff_t>(TakeComputed());
  std::vector<ring::OpLogRow> rows(std::make_move_iterator(rows_.begin()),
                                   std::make_move_iterator(rows_.begin() + computed));
  const std::vector<layout::DeviceStats> stats(stats_.begin(), stats_.begin() + computed);
  rows_.erase(rows_.begin(), rows_.begin() + computed);
  stats_.erase(stats_.begin(), stats_.begin() + computed);
  awaited_.erase(awaited_.begin(), awaited_.begin() + computed);
  if (rows_.empty()) table.rows_to_send.erase(this);
  // Also if there is no room for them: then the log says so.
  const NotSeen::SentRows sent(&table.not_seen, rows.size());
  table.op_logs.Name(&rows, names_);
  const std::uint64_t serial = call.number == 0 ? ring::NextSerial() : serial_;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < rows.size(); begin += count) {
    count = RowsOfNextPage(sent_, rows.size() - begin, is_end, layout::kMaxOpLogRows);
    sent_ += count;  // also if there is no room for them
    const auto page = std::span<const ring::OpLogRow>(rows).subspan(begin, count);
    capture::ProbeSlot* const slot = table.op_logs.HostSlot(*log_, page, call.thread);
    ring::SlotRingWriter& writer = *slot->writer;
    if (!(call.number == 0 ? writer.Begin(serial) : writer.BeginInCall(serial, call.number))) {
      continue;
    }
    ring::CopyShared(writer.payload(), stats.data() + begin, writer.payload_bytes());
    writer.Commit(layout::RealtimeNs(), call.number == 0 ? writer.step() : call.step);
  }
}

}  // namespace cgdebug
