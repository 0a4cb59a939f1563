// verify.h: checks values against their recorded hashes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/source/source.h"

namespace cgdebug::analysis {

struct SnapshotName {
  std::size_t slot = 0;
  source::Key key;
};

struct DamagedSnapshot {
  std::size_t place = 0;  // in what was asked for
  std::string why;        // names the file and the place in it
};

// Reads the values of these snapshots, in several threads, and returns those that do not match
// their hash, in the order of their places.
std::vector<DamagedSnapshot> FindDamaged(const source::Source& source,
                                         const std::vector<SnapshotName>& snapshots);

}  // namespace cgdebug::analysis
