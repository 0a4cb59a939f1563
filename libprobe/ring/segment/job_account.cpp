#include "libprobe/ring/segment/job_account.h"

#include <algorithm>
#include <atomic>

#include "libprobe/ring/shared_copy.h"

namespace cgdebug::ring {

std::uint64_t JobAccount::rows_in_job() const {
  const std::uint64_t sent = LoadRelaxed(shared_.rows_sent);
  const std::uint64_t begun = LoadRelaxed(shared_.rows_begun);
  return begun - std::min(begun, sent);
}

layout::NotSeen JobAccount::refused_places() const {
  layout::NotSeen refused{.kind = layout::NotSeenKind::kRefused};
  refused.calls = LoadAcquire(shared_.refused_calls);
  if (refused.calls == 0) return refused;
  refused.count = std::max<std::uint64_t>(LoadRelaxed(shared_.refused_places), 1);
  refused.of = LoadRelaxed(shared_.wanted_places);
  refused.gone = {.count = LoadRelaxed(shared_.gone_places),
                  .of = LoadRelaxed(shared_.gone_wanted),
                  .calls = LoadRelaxed(shared_.gone_calls),
                  .order = LoadRelaxed(shared_.gone_order)};
  const std::uint64_t first_untrusted = LoadAcquire(shared_.first);
  if (first_untrusted == 0) return refused;
  refused.name.resize(std::min(layout::NameBytesOf(first_untrusted), sizeof(shared_.name)));
  refused.reason.resize(std::min(layout::ReasonBytesOf(first_untrusted), sizeof(shared_.reason)));
  CopyShared(refused.name.data(), shared_.name, refused.name.size());
  CopyShared(refused.reason.data(), shared_.reason, refused.reason.size());
  std::atomic_thread_fence(std::memory_order_acquire);
  if (LoadRelaxed(shared_.first) != first_untrusted) {  // it is being written: the next look has it
    refused.name.clear();
    refused.reason.clear();
  }
  return refused;
}

layout::NotSeen JobAccount::malformed_settings() const {
  layout::NotSeen malformed{.kind = layout::NotSeenKind::kMalformed};
  malformed.count = LoadAcquire(shared_.malformed);
  if (malformed.count == 0) return malformed;
  const std::uint64_t bytes_untrusted = LoadRelaxed(shared_.setting_bytes);
  malformed.reason.resize(std::min<std::uint64_t>(bytes_untrusted, sizeof(shared_.setting)));
  CopyShared(malformed.reason.data(), shared_.setting, malformed.reason.size());
  return malformed;
}

}  // namespace cgdebug::ring
