// slot_accounts.h: what is missing from a recording, and the account of each slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "daemon/core/recording/account.h"
#include "daemon/core/recording/recording_contents.h"

namespace cgdebug::recording {

// Lifetime: the contents outlive it.
class SlotAccounts {
 public:
  explicit SlotAccounts(const RecordingContents& contents) : contents_(contents) {}

  // Looks at the contents again. Invalidates references from before.
  void Refresh();

  // In the order in which they were written; then those that were found here (kDamaged).
  const std::vector<Loss>& losses() const { return losses_; }
  // Whether it was closed because it had everything it wanted.
  bool had_all() const { return contents_.closed() && HadAll(contents_.stop_reason()); }
  Account Of(std::uint32_t slot) const;

 private:
  void FindMissing();
  void FindMissingEnds();
  void SortEnds();

  const RecordingContents& contents_;
  std::vector<Loss> losses_;
  // By slot: its places in losses_, and the last ordinal of the marks that closed it.
  std::unordered_map<std::uint32_t, std::vector<std::size_t>> losses_of_;
  std::unordered_map<std::uint32_t, std::uint64_t> closed_at_;
  bool has_ends_ = false;  // whether any mark says that a slot or a session has ended
};

}  // namespace cgdebug::recording
