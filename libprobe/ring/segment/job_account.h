// job_account.h: what a job says that it wanted to be seen and nobody sees.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/layout/not_seen.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// Lifetime: the control file's memory outlives it.
class JobAccount {
 public:
  explicit JobAccount(const std::byte* control)
      : shared_(*reinterpret_cast<const layout::NotSeenBlock*>(control + layout::kNotSeenOffset)) {}

  // What the producer could not watch.
  layout::NotSeen refused_places() const;
  layout::NotSeen malformed_settings() const;
  // Rows of op logs that wait in the job.
  std::uint64_t rows_in_job() const;

 private:
  const layout::NotSeenBlock& shared_;
};

}  // namespace cgdebug::ring
