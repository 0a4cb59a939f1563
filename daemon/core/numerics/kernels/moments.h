// moments.h: sums of a part of a tensor, and how two parts become one. Internal to
// daemon/core/numerics.
#pragma once

namespace cgdebug::numerics {

// Count, mean and squares around the mean of the finite elements seen so far.
struct Moments {
  double count = 0;
  double mean = 0;
  double squares = 0;
  double sum_abs = 0;
  double sum_squared = 0;

  void Merge(const Moments& other) {  // Chan, Golub, LeVeque
    const double total = count + other.count;
    if (total == 0) return;
    const double delta = other.mean - mean;
    squares += other.squares + delta * delta * (count * other.count / total);
    mean += delta * (other.count / total);
    sum_abs += other.sum_abs;
    sum_squared += other.sum_squared;
    count = total;
  }
};

}  // namespace cgdebug::numerics
