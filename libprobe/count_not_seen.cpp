// The public functions that count what this process could not see (slots/not_seen.h).
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "cgdebug/probe.h"
#include "libprobe/probe_table.h"
#include "libprobe/slots/not_seen.h"
#include "proto/layout/not_seen.h"

namespace cgdebug {
namespace {

// The probe whose call on this thread was refused last, so that a caller that hears of it, too,
// does not count the call again.
thread_local std::string refused_here;

// So that others know what it says if this process dies.
void ShowAccount(ProbeTable& table) noexcept {
  try {
    if (!table.not_seen.WantsSegment()) return;
    const ProbeTable::Lock lock = table.Acquire();
    (void)table.segment.Get();
  } catch (const std::exception&) {  // no room even for the control file: the process knows it
  }
}

}  // namespace

void CountRefused(std::string_view probe, std::string_view reason, bool is_captured) noexcept {
  CountNotSeen(probe, reason, is_captured);
  try {
    refused_here = probe;
  } catch (const std::bad_alloc&) {
  }
}

void CountNotSeen(std::string_view name, std::string_view reason, bool is_captured) noexcept {
  // The probes of a place have its name, and then more.
  const bool is_counted = !name.empty() && refused_here.starts_with(name);
  refused_here.clear();
  if (is_counted) return;
  try {
    ProbeTable& table = ProbeTable::Instance();
    table.not_seen.Count(name, reason, is_captured);
    ShowAccount(table);
  } catch (const std::exception&) {
  }
}

void CountHeldRow() noexcept {
  ProbeTable& table = ProbeTable::Instance();
  table.not_seen.CountRow();
  ShowAccount(table);
}

void LetGoOfHeldRows(std::uint64_t count) noexcept {
  ProbeTable::Instance().not_seen.LetGoOfRows(count);
}

void NotWanted(std::string_view name) noexcept { ProbeTable::Instance().not_seen.Forget(name); }

std::string NotSeenText() {
  const NotSeenCounts counts = NotSeenSoFar();
  std::string text;
  if (counts.calls != 0) {
    text = layout::ToText({.kind = layout::NotSeenKind::kRefused,
                           .count = counts.places,
                           .of = counts.wanted,
                           .calls = counts.calls,
                           .name = counts.name,
                           .reason = counts.reason});
  }
  if (counts.malformed != 0) {
    text += (text.empty() ? "" : "; ") + layout::ToText({.kind = layout::NotSeenKind::kMalformed,
                                                         .count = counts.malformed,
                                                         .reason = counts.malformed_reason});
  }
  return text;
}

NotSeenCounts NotSeenSoFar() { return ProbeTable::Instance().not_seen.counts(); }

}  // namespace cgdebug
