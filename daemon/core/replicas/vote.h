// vote.h: the values that several processes have of one replica at one position.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::replicas {

// A set of small numbers.
class Bits {
 public:
  void Set(std::size_t at) {
    if (at / 64 >= words_.size()) words_.resize(at / 64 + 1);
    words_[at / 64] |= std::uint64_t{1} << at % 64;
  }
  bool Has(std::size_t at) const {
    return at / 64 < words_.size() && (words_[at / 64] >> at % 64 & 1) != 0;
  }
  std::size_t Count() const;
  std::vector<std::size_t> Members() const;
  // Bit 0 of the first byte is number 0; without zeros behind the last member.
  std::vector<std::uint8_t> ToBytes() const;
  bool operator==(const Bits&) const = default;

 private:
  std::vector<std::uint64_t> words_;  // the last one has a member
};

// What a snapshot holds, as far as statistics and hashes tell.
struct Value {
  numerics::Stats stats;
  std::optional<std::uint64_t> hash;  // of the bytes
};
bool HaveSameValues(const Value& a, const Value& b);
// As Vote::ProvesBeyond, of two values.
bool ProvesBeyond(const numerics::Stats& a, const numerics::Stats& b, double bound);

// The different values that the processes have of one replica at one position.
class Vote {
 public:
  // More different values are not kept apart.
  static constexpr std::size_t kMostValues = 64;

  struct Choice : Value {
    Bits processes;
  };
  struct Range {
    double least = INFINITY;
    double most = -INFINITY;
    bool has_nan = false;
    void Take(double number);
    void Take(const Range& other);
    // 0 if it is not known.
    double Width() const { return has_nan || !(least <= most) ? 0 : most - least; }
  };
  struct Parts {
    // Empty if there are too many. One without a hash is kept apart from those that have one: which
    // of them it is the same as is clear when all are here.
    std::vector<Choice> values;
    Bits processes;
    bool is_scattered = false;
    Range l1, mean, min, max, nonfinite, count;
  };

  Vote() = default;
  // Fails: nullopt if the parts contradict each other.
  static std::optional<Vote> FromParts(Parts parts);

  // A process has one value: a second one of the same position is not taken in.
  void Add(std::size_t process, const numerics::Stats& stats, std::optional<std::uint64_t> hash);
  // `places`: the process that each process of `other` is here.
  void Merge(const Vote& other, const std::vector<std::size_t>& places);

  const Parts& parts() const { return parts_; }
  // Empty if there are too many. One without a hash counts for the value with its statistics that
  // most processes have; if there is no such one, for itself. In whatever order they came.
  std::vector<Choice> values() const;
  // Whether some are known by statistics alone, which are the same in any order of the elements.
  bool lacks_hash() const;
  bool is_scattered() const { return parts_.is_scattered; }
  const Bits& processes() const { return parts_.processes; }
  // Whether the statistics prove that an element differs by more than `bound`, relative to the
  // largest magnitude of all: an outermost one does, or the elements do on average, or some are NaN
  // or Inf on some ranks alone. That they do not is no proof of anything: a transposed tensor has
  // the same statistics.
  bool ProvesBeyond(double bound) const;

 private:
  void TakeRanges(const numerics::Stats& stats);
  void Put(const Choice& value);

  Parts parts_;
};

}  // namespace cgdebug::replicas
