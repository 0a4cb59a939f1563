// tensor_core_sums.cuh: statistics of a large bfloat16 tensor, with the sums on the tensor cores.
//
// To add elements one by one takes more instructions than a multiprocessor issues while it reads
// them. mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16") takes 128 or 256 at once. It
// computes D = A * B + C, where lanes 4 i to 4 i + 3 hold rows i and i + 8 of A and column i of B:
//   - If row i of A and column i of B are the same elements x, and row i + 8 has their signs, then
//     D[i][i] is the sum of x * x and D[i + 8][i] the sum of |x|. The rest of D is of no use.
//   - If B is all ones, each column of D is the sums of the rows of A.
// Products of bfloat16 are exact. A tensor core cuts off sums where float32 would round them. From
// compute capability 9.0 on it does so 25 bits below the largest term, and then four steps of 16
// elements are good to 2e-6. The sum of so many squares is exact if they are close to each other,
// as the variance needs (short_floats.cuh). Sums of more squares are made in float64.
#pragma once

#include <cstdint>

#include "libprobe/capture/kernels/tensor_stats.cuh"

namespace cgdebug::capture {

// Bits of a bfloat16 that is a power of two.
constexpr std::uint32_t PowerOfTwo(int exponent) {
  return static_cast<std::uint32_t>(exponent + 127) << 7;
}

#if __CUDA_ARCH__ >= 900

__device__ inline void MultiplyAndAdd(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                      std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                      std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Pairs of bfloat16, half by half.
__device__ inline std::uint32_t MostPairOrNan(std::uint32_t a, std::uint32_t b) {
  asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ inline std::uint32_t AbsPair(std::uint32_t a) {
  asm("abs.bf16x2 %0, %0;" : "+r"(a));
  return a;
}
__device__ inline std::uint32_t ScalePair(std::uint32_t a, std::uint32_t by) {
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(by), "r"(0x80008000));
  return a;
}
// 1 or -1. In one instruction, which the compiler would not use.
__device__ inline std::uint32_t SignPair(std::uint32_t a, std::uint32_t ones) {
  asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(a) : "r"(0x80008000), "r"(ones));
  return a;
}

// What a lane keeps of groups that were added on the tensor cores. It has kGroupVectors vectors of
// each.
template <int kGroupVectors>
class GroupSums {
  static_assert(kGroupVectors % 4 == 0);

 public:
  // Adds the group that the warp holds. Returns false if it cannot be added in this way: it has a
  // NaN, an Inf, a subnormal, or a number so large that squares might leave the range of float32.
  __device__ bool Add(const uint4 (&vectors)[kGroupVectors]) {
    constexpr std::uint32_t kMost = PowerOfTwo(58), kLeast = PowerOfTwo(-50);
    const Words first(vectors[0]);
    std::uint32_t least = first.words[0], most = first.words[0], bits = 0;
    std::uint32_t smallest = AbsPair(first.words[0]);
#pragma unroll
    for (int v = 0; v < kGroupVectors; ++v) {
      const Words all(vectors[v]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        least = LeastPair(least, all.words[i], Bfloat16{});
        most = MostPairOrNan(most, all.words[i]);
        smallest = LeastPair(smallest, AbsPair(all.words[i]), Bfloat16{});
        bits ^= all.words[i];
      }
    }
    const std::uint32_t largest = MostPairOrNan(AbsPair(least), AbsPair(most));
    std::uint32_t magnitude = max(largest & 0xffff, largest >> 16);
    std::uint32_t zeros = 0;
    if (min(smallest & 0xffff, smallest >> 16) < kSmallestNormal) {
      if (!CountZeros(vectors, &zeros)) magnitude = 0xffff;
    }
    magnitude = __reduce_max_sync(0xffffffffu, magnitude);
    if (magnitude > kMost) return false;
    if (magnitude < kLeast && magnitude != 0) {
      // Squares would be subnormal.
      uint4 scaled[kGroupVectors];
#pragma unroll
      for (int v = 0; v < kGroupVectors; ++v) scaled[v] = Scaled(vectors[v]);
      AddProducts(scaled, 1 / kScale);
    } else {
      AddProducts(vectors, 1);
    }
    least_ = LeastPair(least_, least, Bfloat16{});
    most_ = MostPair(most_, most, Bfloat16{});
    hash_ ^= bits;
    zero_ += zeros;
    ++groups_;
    return true;
  }

  __device__ void AddTo(Part<Bfloat16>* part) const {
    const unsigned lane = threadIdx.x % 32;
    const double sum = lane % 4 == 0 ? sum_ : 0;
    const bool on_diagonal = lane / 8 == lane % 4;
    const double l2_squared = on_diagonal ? l2_squared_ : 0;
    const double moved = part->shift * (groups_ * double{kGroupVectors * 8});
    part->sum += sum - moved;
    part->sum_squares += l2_squared + part->shift * (moved - 2 * sum);
    part->l1 += on_diagonal ? l1_ : 0;
    part->l2_squared += l2_squared;
    part->zero += zero_;
    part->min =
        Least(part->min, Least(LowerHalf(least_, Bfloat16{}), UpperHalf(least_, Bfloat16{})));
    part->max = Most(part->max, Most(LowerHalf(most_, Bfloat16{}), UpperHalf(most_, Bfloat16{})));
    part->hash ^= WidenHash(hash_ << 16 ^ (hash_ & 0xffff0000), zero_);
  }

 private:
  static constexpr std::uint32_t kSmallestNormal = Bfloat16::kMantissa + 1u;
  static constexpr double kScale = 0x1p64;

  __device__ static uint4 Scaled(const uint4& v) {
    constexpr std::uint32_t kBy = PowerOfTwo(64) * 0x10001;
    return {ScalePair(v.x, kBy), ScalePair(v.y, kBy), ScalePair(v.z, kBy), ScalePair(v.w, kBy)};
  }

  // Returns false if an element is subnormal.
  __device__ static bool CountZeros(const uint4 (&vectors)[kGroupVectors], std::uint32_t* zeros) {
    constexpr std::uint32_t kMagnitude = 0x7fff7fff;
    std::uint32_t nonzero = 0;         // two counts
    std::uint32_t least = kMagnitude;  // of what is not zero, less 1
#pragma unroll
    for (int v = 0; v < kGroupVectors; ++v) {
      const Words all(vectors[v]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Sets the sign's bit of what is not zero, and subtracts 1 from its magnitude. Zero becomes
        // the greatest magnitude.
        const std::uint32_t pair = (all.words[i] & kMagnitude) + kMagnitude;
        nonzero += pair >> 15 & 0x10001;
        least = LeastPair(least, pair & kMagnitude, Bfloat16{});
      }
    }
    *zeros = kGroupVectors * 8 - (nonzero & 0xffff) - (nonzero >> 16);
    return min(least & 0xffff, least >> 16) + 1 >= kSmallestNormal;
  }

  // `scale`: what to multiply an element by.
  __device__ void AddProducts(const uint4 (&vectors)[kGroupVectors], double scale) {
    constexpr std::uint32_t kOnes = PowerOfTwo(0) * 0x10001;
    const bool odd = (threadIdx.x & 4) != 0;  // the column of the diagonal
    float sum = 0, l1 = 0;
    double l2_squared = 0;
#pragma unroll
    for (int begin = 0; begin < kGroupVectors; begin += 4) {
      float sums[4] = {}, products[2][4] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const Words x(vectors[begin + k]);
        std::uint32_t sign[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) sign[i] = SignPair(x.words[i], kOnes);
        float(&to)[4] = products[k % 2];
        MultiplyAndAdd(to, x.words[0], sign[0], x.words[1], sign[1], x.words[0], x.words[1]);
        MultiplyAndAdd(to, x.words[2], sign[2], x.words[3], sign[3], x.words[2], x.words[3]);
        MultiplyAndAdd(sums, x.words[0], x.words[1], x.words[2], x.words[3], kOnes, kOnes);
      }
      sum += sums[0] + sums[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        l2_squared += static_cast<double>(odd ? products[k][1] : products[k][0]);
        l1 += odd ? products[k][3] : products[k][2];
      }
    }
    sum_ += scale * static_cast<double>(sum);
    l1_ += scale * static_cast<double>(l1);
    l2_squared_ += scale * scale * l2_squared;
  }

  double sum_ = 0;                    // of lanes 0, 4, ...
  double l1_ = 0, l2_squared_ = 0;    // of the lanes that hold the diagonal
  std::uint32_t least_ = 0x7f807f80;  // pairs
  std::uint32_t most_ = 0xff80ff80;
  std::uint32_t hash_ = 0;  // XOR of the pairs
  std::uint32_t zero_ = 0;
  std::uint32_t groups_ = 0;
};

#endif

// As ThreadVectors, for whole warps: the groups of vectors that a warp adds, of which the first is
// loaded ahead, and its share of the elements outside of groups.
template <int kGroupVectors>
class WarpGroups {
 public:
  using Type = Bfloat16;

  __device__ WarpGroups(const Span<Type::Raw>& span, std::uint64_t start, std::uint64_t stride)
      : span_(span),
        warp_(static_cast<std::uint32_t>(start / 32)),
        warps_(static_cast<std::uint32_t>(stride / 32)),
        count_(static_cast<std::uint32_t>(span.vector_count / kVectors)),
        at_(span.vectors() + std::uint64_t{warp_} * kVectors + threadIdx.x % 32) {
    if (warp_ < count_) Load();
  }

  template <typename Sink = ReadOnly>
  __device__ void AddTo(Part<Type>* part, const Sink& sink = {}) {
#if __CUDA_ARCH__ < 900
    ThreadVectors<Type>(span_, lane(), lanes()).AddTo(part, sink);
#else
    GroupSums<kGroupVectors> sums;
    part->in_order = span_.head == 0;
    EachGroup([&] {
      PassGroupTo(sink);
      if (sums.Add(vectors_)) {
        AddOrdered(part);
      } else {
        AddEach(part);
      }
    });
    sums.AddTo(part);
    span_.EachOutside(count_ * kVectors, lane(), lanes(), [&](std::uint64_t place, Type::Raw raw) {
      sink.Element(place, raw);
      part->Add(raw, place);
    });
    part->AddOutOfOrder(span_, lane(), lanes());
#endif
  }

  // As ThreadVectors.
  template <typename Sink>
  __device__ void PassTo(const Sink& sink) {
    EachGroup([&] { PassGroupTo(sink); });
    span_.EachOutside(count_ * kVectors, lane(), lanes(),
                      [&](std::uint64_t place, Type::Raw raw) { sink.Element(place, raw); });
  }

 private:
  static constexpr std::uint64_t kVectors = 32 * kGroupVectors;  // of a group

  __device__ std::uint64_t lane() const { return std::uint64_t{warp_} * 32 + threadIdx.x % 32; }
  __device__ std::uint64_t lanes() const { return std::uint64_t{warps_} * 32; }

  // Calls visit() with each group of this warp in `vectors_`, which lies at `at_`.
  template <typename Visit>
  __device__ void EachGroup(const Visit& visit) {
#pragma unroll 1
    for (std::uint32_t group = warp_; group < count_;) {
      visit();
      group += warps_;
      at_ += std::uint64_t{warps_} * kVectors;
      if (group < count_) Load();
    }
  }
  template <typename Sink>
  __device__ void PassGroupTo(const Sink& sink) const {
#pragma unroll
    for (int v = 0; v < kGroupVectors; ++v) sink.Vector(at_ + 32 * v, vectors_[v]);
  }
  __device__ void Load() {
#pragma unroll
    for (int v = 0; v < kGroupVectors; ++v) vectors_[v] = at_[32 * v];
  }
  __device__ void AddOrdered(Part<Type>* part) const {
#pragma unroll
    for (int v = 0; v < kGroupVectors; ++v) {
      part->AddOrdered(vectors_[v], span_.elements, at_ + 32 * v);
    }
  }
  __device__ void AddEach(Part<Type>* part) const {
#pragma unroll 1
    for (int v = 0; v < kGroupVectors; ++v) part->AddEach(span_.elements, at_ + 32 * v);
  }

  Span<Type::Raw> span_;
  std::uint32_t warp_, warps_, count_;
  const uint4* at_;
  uint4 vectors_[kGroupVectors] = {};
};

}  // namespace cgdebug::capture
