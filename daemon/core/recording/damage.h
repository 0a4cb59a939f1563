// damage.h: what of a recording's files cannot be read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cgdebug::recording {

struct Damage {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;            // 0: not known
  std::uint64_t missing_records = 0;  // as far as the numbers of the records around it tell
  std::string what;
};

// Thread: any.
class DamageList {
 public:
  void Add(Damage damage) {
    const std::scoped_lock lock(mutex_);
    damage_.push_back(std::move(damage));
  }
  // Adds that a file cannot be read, once.
  void AddFile(const std::string& file, std::string what) {
    const std::scoped_lock lock(mutex_);
    if (std::ranges::count(damage_, file, &Damage::file) != 0) return;
    damage_.push_back({file, 0, 0, 0, std::move(what)});
  }
  std::vector<Damage> All() const {
    const std::scoped_lock lock(mutex_);
    return damage_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Damage> damage_;
};

}  // namespace cgdebug::recording
