// tensor_stats.cuh: statistics of a tensor in one pass, on the GPU.
//
// Every element is widened to double, which is exact except for int64. Sums are doubles around a
// shift, one element of the tensor, so that a large mean does not swamp the variance (Chan, Golub,
// LeVeque, "Algorithms for computing the sample variance", 1983). Parts with the same shift can be
// added in any order. So can the parts of the ordered hash, which are sums of what each 16 bytes,
// or each element, adds (ordered_hash.h). 16-bit and 8-bit floats are first added in float32
// (short_floats.cuh, tensor_core_sums.cuh).
#pragma once

#include <cstdint>
#include <type_traits>

#include "libprobe/capture/kernels/element_types.cuh"
#include "libprobe/capture/kernels/grid_overlap.cuh"
#include "libprobe/capture/kernels/short_floats.cuh"
#include "proto/layout/device_stats.h"
#include "proto/layout/ordered_hash.h"

namespace cgdebug::capture {

// --- one thread's part -------------------------------------------------------------------------

// Where the vectors of 16 bytes lie among the elements of a tensor: behind `head` elements, which
// end at an address that is a multiple of 16.
template <typename Raw>
struct Span {
  static constexpr std::uint64_t kPerVector = 16 / sizeof(Raw);
  const Raw* elements;
  std::uint64_t count;
  std::uint64_t head;
  std::uint64_t vector_count;

  __device__ Span(const std::byte* from, std::uint64_t element_count)
      : elements(reinterpret_cast<const Raw*>(from)), count(element_count) {
    const std::uint64_t before = (0 - reinterpret_cast<std::uintptr_t>(from)) % 16 / sizeof(Raw);
    head = before < count ? before : count;
    vector_count = (count - head) / kPerVector;
  }
  __device__ const uint4* vectors() const {
    return reinterpret_cast<const uint4*>(elements + head);
  }

  // Calls visit(place, element) for elements `start`, `start + stride`, ... of those outside of the
  // first `whole` vectors.
  template <typename Visit>
  __device__ void EachOutside(std::uint64_t whole, std::uint64_t start, std::uint64_t stride,
                              const Visit& visit) const {
    const std::uint64_t in_vectors = whole * kPerVector;
#pragma unroll 1
    for (std::uint64_t i = start; i < count - in_vectors; i += stride) {
      const std::uint64_t place = i < head ? i : i + in_vectors;
      visit(place, elements[place]);
    }
  }
};

// A thread's first vectors, loaded before anything is known about them.
template <int kVectors, typename Reader>
struct Ahead {
  uint4 vectors[kVectors] = {};

  template <typename Raw>
  __device__ Ahead(const Span<Raw>& span, std::uint64_t start, std::uint64_t stride) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const std::uint64_t at = start + k * stride;
      if (at < span.vector_count) vectors[k] = Reader::Load(span.vectors() + at);
    }
  }
};

// The smaller of two numbers that are not NaN.
__device__ inline float Least(float a, float b) { return fminf(a, b); }
__device__ inline float Most(float a, float b) { return fmaxf(a, b); }
__device__ inline double Least(double a, double b) { return a < b ? a : b; }
__device__ inline double Most(double a, double b) { return a < b ? b : a; }

// What AddAll() does with what it reads, apart from adding it up: nothing.
struct ReadOnly {
  __device__ void Vector(const uint4*, uint4) const {}
  template <typename Raw>
  __device__ void Element(std::uint64_t, Raw) const {}
};

// Stores it, so that one pass both copies a tensor and computes its statistics.
// Requires: both tensors are aligned to 16.
struct CopyTo {
  const std::byte* from;
  std::byte* to;

  __device__ void Vector(const uint4* at, uint4 vector) const {
    *reinterpret_cast<uint4*>(to + (reinterpret_cast<const std::byte*>(at) - from)) = vector;
  }
  template <typename Raw>
  __device__ void Element(std::uint64_t place, Raw raw) const {
    reinterpret_cast<Raw*>(to)[place] = raw;
  }
};

// While parts are added, this bit of `count` says that `subnormal` has the saturated ones, too
// (device_stats.h).
constexpr std::uint64_t kHasSaturated = std::uint64_t{1} << 63;

// How a part reads a tensor whose elements lie in memory in their usual order.
struct UsualReader {
  // How many vectors of floats of 16 bits or more a thread adds while it loads as many; 0: it loads
  // one at a time, some ahead. More instructions, which a kernel that reads little has to fetch.
  static constexpr int kGroup = 0;
  // The place in the tensor of the element that is at `index` in memory.
  __device__ static std::uint64_t PlaceOf(std::uint64_t index) { return index; }
  __device__ static bool IsPermuted() { return false; }  // else no two places need be the same
  // By how much the place grows from element to element of each vector of `elements` that begins at
  // a multiple of them; 0: it does not grow evenly, or nothing is permuted.
  __device__ static constexpr std::uint32_t StepInVectors(std::uint32_t /*elements*/) { return 0; }
  __device__ static uint4 Load(const uint4* from) { return *from; }
};

template <typename Type, typename Reader = UsualReader>
struct Part {
  using Raw = typename Type::Raw;
  using Value = typename Type::Value;
  static constexpr std::uint64_t kPerVector = 16 / sizeof(Raw);
  // Short floats are added two vectors at a time or more, which makes two chains of additions.
  static constexpr int kGroup = kIsShortFloat<Type> && (sizeof(Raw) == 1 || Reader::kGroup == 0) ? 2
                                : Type::kFloating ? Reader::kGroup
                                                  : 0;
  using First = Ahead<kGroup != 0 ? kGroup : 3, Reader>;

  Value min;
  Value max;
  double shift;
  double sum = 0, sum_squares = 0, l1 = 0, l2_squared = 0;
  std::uint64_t hash = 0;
  std::uint64_t ordered = 0;                // sum of the ordered hash
  bool in_order = true;                     // vectors in memory are those of the ordered hash
  std::uint64_t first = ~std::uint64_t{0};  // index of the first non-finite element * 4 + its kind
  std::uint32_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, subnormal = 0;
  std::uint32_t saturated = 0;  // with kCountsSaturated

  __device__ explicit Part(double the_shift) : shift(the_shift) {
    max = -static_cast<Value>(__longlong_as_double(0x7ff0000000000000));
    min = -max;
  }

  __device__ static bool NonFinite(Raw raw) {
    if constexpr (Type::kFloating) return Type::NonFinite(raw);
    return false;
  }

  __device__ void AddFinite(Raw raw) {
    if constexpr (kCountsSaturated<Type>) saturated += SaturatedIn<Type>(raw);
    if constexpr (kHoldsTwo<Type>) {
      AddValue(raw, Type::ValueOf(raw));
      AddValue(raw, Type::ValueOf(raw >> 4));
    } else if constexpr (Type::kFloating) {
      AddValue(raw, Type::Get(raw));
    } else {
      AddValue(raw, static_cast<double>(raw));
    }
  }

  __device__ void AddValue(Raw raw, Value value) {
    if constexpr (Type::kFloating) {
      hash ^= static_cast<std::uint64_t>(__double_as_longlong(static_cast<double>(value)));
    } else {
      zero += raw == 0;
      hash ^= static_cast<std::uint64_t>(static_cast<std::int64_t>(raw));
    }
    min = Least(value, min);
    max = Most(value, max);
    if constexpr (!Type::kFloating && sizeof(Raw) == 8) {
      AddDouble(value, Distance(raw));
    } else {
      AddDouble(static_cast<double>(value), static_cast<double>(value) - shift);
    }
  }

  // From the shift, which is an integer as well. Neighbours may be the same double.
  __device__ double Distance(Raw raw) const {
    const auto from = static_cast<Raw>(shift);
    const auto distance =
        static_cast<Raw>(static_cast<std::uint64_t>(raw) - static_cast<std::uint64_t>(from));
    const bool overflows = ((raw ^ from) & (raw ^ distance)) < 0;
    return overflows ? static_cast<double>(raw) - shift : static_cast<double>(distance);
  }

  __device__ void CountSmall(Raw raw) {
    if constexpr (Type::kSign == 0) return;  // no zero
    if constexpr (kHoldsTwo<Type>) {
      const unsigned first = raw & 7, second = raw >> 4 & 7;
      zero += (first == 0) + (second == 0);
      subnormal += (first == 1) + (second == 1);
      return;
    }
    const Raw magnitude = raw & static_cast<Raw>(~Type::kSign);
    zero += magnitude == 0;
    subnormal += magnitude != 0 && magnitude <= Type::kMantissa;
  }

  __device__ void Add(Raw raw, std::uint64_t index) {
    const std::uint64_t place = Reader::PlaceOf(index);
    if (in_order) ordered += OrderedTerm(raw, place);
    if (NonFinite(raw)) {
      AddNonFinite(raw, place);
    } else {
      if constexpr (Type::kFloating) CountSmall(raw);
      AddFinite(raw);
    }
  }

  // What an element adds to the ordered hash. `place`: in logical order.
  __device__ static std::uint64_t OrderedTerm(Raw raw, std::uint64_t place) {
    auto bits = static_cast<std::make_unsigned_t<Raw>>(raw);
    if constexpr (Type::kFloating) {
      if constexpr (!kHasOneNan<Type>) {
        if (Type::NonFinite(raw) && Type::IsNan(raw)) bits = Type::kSign - 1;  // as OrderedBits()
      }
    }
    return layout::OrderedTermOf(place, bits);
  }

  // Adds a vector without a NaN to the ordered hash.
  __device__ void AddOrdered(uint4 v, const Raw* elements, const uint4* at) {
    if (!in_order) return;
    const auto n = static_cast<std::uint64_t>(at - reinterpret_cast<const uint4*>(elements));
    ordered += layout::OrderedTerm(n, v.x, v.y, v.z, v.w);
  }

  // Makes the ordered hash in a second pass if the vectors in memory are not those of the hash: the
  // tensor does not begin at a multiple of 16, or has another order in memory. Adds elements
  // `start`, `start + stride`, ... Apart, because it takes many registers and is rare.
  __device__ void AddOutOfOrder(const Span<Raw>& span, std::uint64_t start, std::uint64_t stride) {
    if (!in_order) ordered = OutOfOrder(span.elements, span.count, span.head, start, stride);
  }
  __device__ static __noinline__ std::uint64_t OutOfOrder(const Raw* elements, std::uint64_t count,
                                                          std::uint64_t head, std::uint64_t start,
                                                          std::uint64_t stride) {
    const std::uint32_t step = head == 0 ? Reader::StepInVectors(kPerVector) : 0;
    const std::uint64_t whole = step != 0 ? count / kPerVector : 0;
    const auto* const vectors = reinterpret_cast<const uint4*>(elements);
    std::uint64_t sum = 0;
#pragma unroll 2
    for (std::uint64_t v = start; v < whole; v += stride) {
      sum += OrderedVector(Reader::Load(vectors + v), Reader::PlaceOf(v * kPerVector), step);
    }
#pragma unroll 4
    for (std::uint64_t i = whole * kPerVector + start; i < count; i += stride) {
      sum += OrderedTerm(elements[i], Reader::PlaceOf(i));
    }
    return sum;
  }
  // What the elements at `place`, `place + step`, ... add.
  __device__ static std::uint64_t OrderedVector(uint4 v, std::uint64_t place, std::uint32_t step) {
    bool may_be_nan = false;
    if constexpr (Type::kFloating && !kHasOneNan<Type>) {
      may_be_nan = NonFinite(Extremes<Raw>::Of(v, Type::kSign).most);
    }
    // Neighbours in both orders: a vector of the hash, because dimensions have no part of a vector.
    if (step == 1 && !may_be_nan) {
      return layout::OrderedTerm(place / kPerVector, v.x, v.y, v.z, v.w);
    }
    union {
      uint4 whole;
      Raw raw[kPerVector];
    } pack;
    pack.whole = v;
    std::uint64_t sum = 0;
#pragma unroll
    for (std::uint64_t k = 0; k < kPerVector; ++k)
      sum += OrderedTerm(pack.raw[k], place + k * step);
    return sum;
  }

  __device__ void AddDouble(double value, double centred) {
    sum += centred;
    sum_squares += centred * centred;
    l1 += fabs(value);
    l2_squared += value * value;
  }

  __device__ void AddNonFinite(Raw raw, std::uint64_t place) {
    if constexpr (Type::kFloating) {
      const bool negative = !kHasOneNan<Type> && (raw & Type::kSign) != 0;
      const std::uint64_t kind = Type::IsNan(raw) ? 0 : negative ? 2 : 1;
      if (kind == 0) ++nan;
      if (kind == 1) ++pos_inf;
      if (kind == 2) ++neg_inf;
      const std::uint64_t key = place * 4 + kind;
      first = key < first ? key : first;
      // Widened by hand: the GPU's conversion drops the payload of a NaN. A signalling NaN becomes
      // quiet, as on the CPU.
      std::uint64_t wide = 0x7ff0000000000000;
      if (kind == 0) {
        if constexpr (!kHasOneNan<Type>) wide |= Type::NanMantissa(raw);
        if (sizeof(Raw) < 8) wide |= 0x0008000000000000;
      }
      hash ^= wide | (negative ? 0x8000000000000000 : 0);
    }
  }

  // What is kept of vectors of short floats apart from sums and counts.
  struct ShortFloats {
    std::uint32_t least, most;  // pairs
    std::uint32_t hash = 0;     // XOR of the elements as float32
    std::uint32_t zero = 0;

    __device__ ShortFloats() {
      constexpr std::uint32_t kInfinity = HalvesOf<Type>::Half::kExponent;
      least = kInfinity * 0x10001;
      most = least | 0x80008000;
    }
  };

  struct Nothing {};

  // Adds the vectors at `at`, `at + stride`, ... of the tensor at `elements`.
  template <int kVectors>
  __device__ void AddShortFloats(const uint4 (&vectors)[kVectors], const Raw* elements,
                                 const uint4* at, std::uint64_t stride, ShortFloats* kept) {
    const typename HalvesOf<Type>::Half half;
    using Sums = VectorSums<Type, kVectors>;
    const Sums of(vectors);
    if (!of.Holds()) {
#pragma unroll 1
      for (int v = 0; v < kVectors; ++v) AddEach(elements, at + v * stride);
      return;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) AddOrdered(vectors[v], elements, at + v * stride);
    of.AddMoved(shift, &sum, &sum_squares);
    l1 += static_cast<double>(Sums::Total(of.l1));
    l2_squared += static_cast<double>(Sums::Total(of.l2_squared));
    zero += of.zero;
    subnormal += of.subnormal;
    kept->least = LeastPair(kept->least, of.least, half);
    kept->most = MostPair(kept->most, of.most, half);
    kept->hash ^= of.hash;
    kept->zero += of.zero;
    if constexpr (kCountsSaturated<Type>) {
      if (of.MayBeSaturated()) {
        uint4 again[kVectors];  // as below
#pragma unroll
        for (int v = 0; v < kVectors; ++v) again[v] = at[v * stride];
        saturated += Sums::CountSaturated(again);
      }
    }
    if (of.HashLacksSubnormals()) {
      uint4 again[kVectors];  // so that no registers hold the first ones until here
#pragma unroll
      for (int v = 0; v < kVectors; ++v) again[v] = at[v * stride];
      kept->hash ^= of.HashOfSubnormals(again);
    }
  }

  __device__ void AddKept(const ShortFloats& kept) {
    const typename HalvesOf<Type>::Half half;
    min = Least(min, Least(LowerHalf(kept.least, half), UpperHalf(kept.least, half)));
    max = Most(max, Most(LowerHalf(kept.most, half), UpperHalf(kept.most, half)));
    hash ^= WidenHash(kept.hash, kept.zero);  // a vector has an even count
  }

  // Adds the elements of vectors `start`, `start + stride`, ... and those outside of vectors.
  // `first` holds the first ones. Loops are not unrolled: a probe's kernel runs once per replay,
  // and fetching its instructions is a good part of its time.
  template <typename Sink = ReadOnly>
  __device__ void AddAll(First first, const Span<Raw>& span, std::uint64_t start,
                         std::uint64_t stride, const Sink& sink = {}) {
    const uint4* const at = span.vectors() + start;
    const uint4* const end = span.vectors() + span.vector_count;
    in_order = span.head == 0 && !Reader::IsPermuted();
    if constexpr (kGroup != 0) {
      AddGroups(first, span.elements, at, end, stride, sink);
    } else {
      AddVectors(first, span.elements, at, end, stride, sink);
    }
    span.EachOutside(span.vector_count, start, stride, [&](std::uint64_t place, Raw raw) {
      sink.Element(place, raw);
      Add(raw, place);
    });
    AddOutOfOrder(span, start, stride);
  }

  template <typename Sink>
  __device__ void AddGroups(First first, const Raw* elements, const uint4* at, const uint4* end,
                            std::uint64_t stride, const Sink& sink) {
    std::conditional_t<kIsShortFloat<Type>, ShortFloats, Nothing> kept;
    const auto add = [&](const auto& vectors) {
      constexpr int kCount = sizeof(vectors) / sizeof(uint4);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sink.Vector(at + k * stride, vectors[k]);
      if constexpr (kIsShortFloat<Type>) {
        AddShortFloats(vectors, elements, at, stride, &kept);
      } else {
#pragma unroll
        for (int k = 0; k < kCount; ++k) AddVector(vectors[k], elements, at + k * stride);
      }
    };
    std::uint64_t left =
        at < end ? (static_cast<std::uint64_t>(end - at) + stride - 1) / stride : 0;  // vectors
#pragma unroll 1
    while (left >= kGroup) {
      uint4 group[kGroup];
#pragma unroll
      for (int k = 0; k < kGroup; ++k) group[k] = first.vectors[k];
      left -= kGroup;
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        if (static_cast<std::uint64_t>(k) < left) {
          first.vectors[k] = Reader::Load(at + (kGroup + k) * stride);
        }
      }
      add(group);
      at += kGroup * stride;
    }
#pragma unroll
    for (int k = 0; k < kGroup - 1; ++k) {
      if (static_cast<std::uint64_t>(k) >= left) break;
      const uint4 last[1] = {first.vectors[k]};
      add(last);
      at += stride;
    }
    if constexpr (kIsShortFloat<Type>) AddKept(kept);
  }

  template <typename Sink>
  __device__ void AddVectors(First first, const Raw* elements, const uint4* at, const uint4* end,
                             std::uint64_t stride, const Sink& sink) {
    constexpr int kAhead = sizeof(first.vectors) / sizeof(uint4);
#pragma unroll 1
    for (; at < end; at += stride) {
      const uint4 vector = first.vectors[0];
#pragma unroll
      for (int k = 1; k < kAhead; ++k) first.vectors[k - 1] = first.vectors[k];
      const uint4* const next = at + kAhead * stride;
      if (next < end) first.vectors[kAhead - 1] = Reader::Load(next);
      sink.Vector(at, vector);
      AddVector(vector, elements, at);
    }
  }

  // Adds the elements of a vector one by one.
  __device__ void AddEach(const Raw* elements, const uint4* at) {
    const auto* each = reinterpret_cast<const Raw*>(at);
    const auto index = static_cast<std::uint64_t>(each - elements);
#pragma unroll 1
    for (std::uint64_t k = 0; k < kPerVector; ++k) Add(each[k], index + k);
  }

  // Checks for rare elements once per vector, by its smallest and largest magnitude.
  __device__ void AddVector(uint4 vector, const Raw* elements, const uint4* at) {
    union {
      uint4 whole;
      Raw raw[kPerVector];
    } pack;
    pack.whole = vector;
    if constexpr (Type::kFloating) {
      Extremes<Raw> magnitudes = Extremes<Raw>::Of(vector, Type::kSign);
      if constexpr (kHoldsTwo<Type>) {
        magnitudes.least = 0;  // in each vector, for what it costs to look
      } else if constexpr (kHasOneNan<Type>) {
        if (HasByte(vector, Type::kNan)) return AddEach(elements, at);
      } else {
        if (NonFinite(magnitudes.most)) return AddEach(elements, at);
      }
      if (magnitudes.least <= Type::kMantissa) {
#pragma unroll
        for (std::uint64_t k = 0; k < kPerVector; ++k) CountSmall(pack.raw[k]);
      }
    }
#pragma unroll
    for (std::uint64_t k = 0; k < kPerVector; ++k) AddFinite(pack.raw[k]);
    AddOrdered(vector, elements, at);
  }

  __device__ layout::DeviceStats Result(std::uint64_t count) const {
    layout::DeviceStats stats;
    stats.count = kHoldsTwo<Type> ? 2 * count : count;
    stats.nan = nan;
    stats.pos_inf = pos_inf;
    stats.neg_inf = neg_inf;
    stats.zero = zero;
    stats.subnormal = subnormal;
    if constexpr (kCountsSaturated<Type>) {
      if (stats.count >> layout::kStatsSaturatedShift == 0) {
        stats.count |= kHasSaturated;
        stats.subnormal |= std::uint64_t{saturated} << layout::kStatsSaturatedShift;
      }
    }
    stats.min = static_cast<double>(min);
    stats.max = static_cast<double>(max);
    stats.shift = shift;
    stats.sum = sum;
    stats.sum_squares = sum_squares;
    stats.l1 = l1;
    stats.l2_squared = l2_squared;
    stats.hash = hash;
    stats.first_nonfinite = first;
    stats.flags = ordered;
    return stats;
  }

  // Adds the Result() of another part of the same tensor, as AddPart() below does.
  __device__ void Add(const layout::DeviceStats& other) {
    min = Least(min, static_cast<Value>(other.min));
    max = Most(max, static_cast<Value>(other.max));
    sum += other.sum;
    sum_squares += other.sum_squares;
    l1 += other.l1;
    l2_squared += other.l2_squared;
    hash ^= other.hash;
    ordered += other.flags;
    first = other.first_nonfinite < first ? other.first_nonfinite : first;
    nan += static_cast<std::uint32_t>(other.nan);
    pos_inf += static_cast<std::uint32_t>(other.pos_inf);
    neg_inf += static_cast<std::uint32_t>(other.neg_inf);
    zero += static_cast<std::uint32_t>(other.zero);
    subnormal += static_cast<std::uint32_t>(other.subnormal);
    saturated += static_cast<std::uint32_t>(other.subnormal >> layout::kStatsSaturatedShift);
  }
};

// The vectors that a thread adds one by one, of which the first are loaded ahead, and its share of
// the elements outside of vectors. `start`: the number of the thread among `stride`.
template <typename Type>
class ThreadVectors {
 public:
  __device__ ThreadVectors(const Span<typename Type::Raw>& span, std::uint64_t start,
                           std::uint64_t stride)
      : first_(span, start, stride), span_(span), start_(start), stride_(stride) {}

  template <typename Sink = ReadOnly>
  __device__ void AddTo(Part<Type>* part, const Sink& sink = {}) const {
    part->AddAll(first_, span_, start_, stride_, sink);
  }

  // Hands the same elements to the sink, and adds up nothing.
  template <typename Sink>
  __device__ void PassTo(const Sink& sink) const {
    constexpr int kAhead = sizeof(first_.vectors) / sizeof(uint4);
    const uint4* const vectors = span_.vectors();
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::uint64_t i = start_ + k * stride_;
      if (i < span_.vector_count) sink.Vector(vectors + i, first_.vectors[k]);
    }
#pragma unroll 4
    for (std::uint64_t i = start_ + kAhead * stride_; i < span_.vector_count; i += stride_) {
      sink.Vector(vectors + i, vectors[i]);
    }
    span_.EachOutside(span_.vector_count, start_, stride_,
                      [&](std::uint64_t place, auto raw) { sink.Element(place, raw); });
  }

 private:
  typename Part<Type>::First first_;
  Span<typename Type::Raw> span_;
  std::uint64_t start_, stride_;
};

// Passes what `ahead` (ThreadVectors or WarpGroups) reads to the sink. If `adds`, also adds it to
// the part and returns true.
template <typename Ahead, typename Type, typename Sink>
__device__ bool AddOrPass(Ahead& ahead, const Sink& sink, bool adds, Part<Type>* part) {
  if (!adds) {
    ahead.PassTo(sink);
    return false;
  }
  ahead.AddTo(part, sink);
  LetNextGridStart();  // as in ComputePart()
  return true;
}

// The shift: the first element, or 0 if that is not finite. Any number will do, as long as all
// parts use the same one.
template <typename Type>
__device__ double ShiftOf(const std::byte* from, std::uint64_t count) {
  if (count == 0) return 0;
  const auto raw = *reinterpret_cast<const typename Type::Raw*>(from);
  if constexpr (Type::kFloating) {
    return Type::NonFinite(raw) ? 0 : static_cast<double>(Type::Get(raw));
  } else {
    return static_cast<double>(raw);
  }
}

// --- parts added up ----------------------------------------------------------------------------

// While parts are added, first_nonfinite holds index * 4 + kind, where all ones means none, and
// `flags` the sum of the ordered hash.
__device__ inline void AddPart(layout::DeviceStats* into, const layout::DeviceStats& part) {
  into->nan += part.nan;
  into->pos_inf += part.pos_inf;
  into->neg_inf += part.neg_inf;
  into->zero += part.zero;
  into->subnormal += part.subnormal;
  into->min = part.min < into->min ? part.min : into->min;
  into->max = part.max > into->max ? part.max : into->max;
  into->sum += part.sum;
  into->sum_squares += part.sum_squares;
  into->l1 += part.l1;
  into->l2_squared += part.l2_squared;
  into->hash ^= part.hash;
  into->flags += part.flags;
  into->first_nonfinite =
      part.first_nonfinite < into->first_nonfinite ? part.first_nonfinite : into->first_nonfinite;
}

// Makes a part without elements that has the shift and the count of the others.
__device__ inline void Empty(layout::DeviceStats* part) {
  part->nan = part->pos_inf = part->neg_inf = part->zero = part->subnormal = part->hash =
      part->flags = 0;
  part->max = -__longlong_as_double(0x7ff0000000000000);
  part->min = -part->max;
  part->sum = part->sum_squares = part->l1 = part->l2_squared = 0;
  part->first_nonfinite = ~std::uint64_t{0};
}

template <typename T>
__device__ T FromLane(T value, int offset) {
  static_assert(sizeof(T) == 8);
  return __shfl_down_sync(0xffffffffu, value, offset);
}

__device__ inline layout::DeviceStats FromLane(const layout::DeviceStats& stats, int offset) {
  layout::DeviceStats other = stats;
  other.nan = FromLane(stats.nan, offset);
  other.pos_inf = FromLane(stats.pos_inf, offset);
  other.neg_inf = FromLane(stats.neg_inf, offset);
  other.zero = FromLane(stats.zero, offset);
  other.subnormal = FromLane(stats.subnormal, offset);
  other.min = FromLane(stats.min, offset);
  other.max = FromLane(stats.max, offset);
  other.sum = FromLane(stats.sum, offset);
  other.sum_squares = FromLane(stats.sum_squares, offset);
  other.l1 = FromLane(stats.l1, offset);
  other.l2_squared = FromLane(stats.l2_squared, offset);
  other.hash = FromLane(stats.hash, offset);
  other.first_nonfinite = FromLane(stats.first_nonfinite, offset);
  other.flags = FromLane(stats.flags, offset);
  return other;
}

#if __CUDA_ARCH__ >= 800
__device__ inline std::uint32_t SumInWarp(std::uint32_t value) {
  return __reduce_add_sync(0xffffffffu, value);
}
__device__ inline std::uint64_t XorInWarp(std::uint64_t value) {
  const std::uint32_t low = __reduce_xor_sync(0xffffffffu, static_cast<std::uint32_t>(value));
  const std::uint32_t high =
      __reduce_xor_sync(0xffffffffu, static_cast<std::uint32_t>(value >> 32));
  return static_cast<std::uint64_t>(high) << 32 | low;
}
__device__ inline float MinInWarp(
    float value) {  // no NaN among them; as integers they sort in the same order
  const int bits = __float_as_int(value);
  const int key = __reduce_min_sync(0xffffffffu, bits ^ (bits >> 31 & 0x7fffffff));
  return __int_as_float(key ^ (key >> 31 & 0x7fffffff));
}
#else
__device__ inline std::uint32_t SumInWarp(std::uint32_t value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
__device__ inline std::uint64_t XorInWarp(std::uint64_t value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value ^= __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
__device__ inline float MinInWarp(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fminf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}
#endif
__device__ inline double MinInWarp(double value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmin(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// The sum mod 2^64: 32 numbers of 27 bits have a sum of 32 bits.
__device__ inline std::uint64_t SumInWarp(std::uint64_t value) {
  constexpr std::uint32_t kPart = (1u << 27) - 1;
  const std::uint64_t low = SumInWarp(static_cast<std::uint32_t>(value) & kPart);
  const std::uint64_t middle = SumInWarp(static_cast<std::uint32_t>(value >> 27) & kPart);
  const std::uint64_t high = SumInWarp(static_cast<std::uint32_t>(value >> 54));
  return low + (middle << 27) + (high << 54);
}

// Four sums over a warp for the price of one and a half: the halves of the warp exchange what the
// other half keeps. Lane 8 * i gets the sum of value i.
__device__ inline double SumFourInWarp(double a, double b, double c, double d) {
  const bool upper = (threadIdx.x & 16) != 0;
  double first = upper ? c : a;
  double second = upper ? d : b;
  first += __shfl_xor_sync(0xffffffffu, upper ? a : c, 16);
  second += __shfl_xor_sync(0xffffffffu, upper ? b : d, 16);
  const bool odd = (threadIdx.x & 8) != 0;
  double value = odd ? second : first;
  value += __shfl_xor_sync(0xffffffffu, odd ? first : second, 8);
  for (int offset = 4; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// Adds up a warp's parts; every thread calls it. Each gets the sum, but of the four sums in float64
// lane 8 * i gets number i, which is returned. Rare values cost one vote.
template <typename Type, typename Reader>
__device__ double AddUpInWarp(Part<Type, Reader>* part) {
  part->min = MinInWarp(part->min);
  part->max = -MinInWarp(-part->max);
  part->hash = XorInWarp(part->hash);
  part->ordered = SumInWarp(part->ordered);
  part->zero = SumInWarp(part->zero);
  part->subnormal = SumInWarp(part->subnormal);
  if constexpr (kCountsSaturated<Type>) part->saturated = SumInWarp(part->saturated);
  if (__any_sync(0xffffffffu, part->first != ~std::uint64_t{0})) {
    part->nan = SumInWarp(part->nan);
    part->pos_inf = SumInWarp(part->pos_inf);
    part->neg_inf = SumInWarp(part->neg_inf);
    for (int offset = 16; offset > 0; offset /= 2) {
      const std::uint64_t other = __shfl_xor_sync(0xffffffffu, part->first, offset);
      part->first = other < part->first ? other : part->first;
    }
  }
  return SumFourInWarp(part->sum, part->sum_squares, part->l1, part->l2_squared);
}

// Stores the sum of a warp's parts in shared memory.
template <typename Type, typename Reader>
__device__ void StoreWarpSum(Part<Type, Reader> part, std::uint64_t count,
                             layout::DeviceStats* to) {
  const double sums = AddUpInWarp(&part);
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) *to = part.Result(count);
  __syncwarp();
  if (lane % 8 == 0) (&to->sum)[lane / 8] = sums;
}

union StatsWords {
  static constexpr unsigned kCount = sizeof(layout::DeviceStats) / sizeof(std::uint64_t);
  std::uint64_t words[kCount];
  layout::DeviceStats stats;
};

// The same in global memory, with one store: lane i stores word i.
template <typename Type, typename Reader>
__device__ void StoreWarpSumAtOnce(Part<Type, Reader> part, std::uint64_t count,
                                   layout::DeviceStats* to) {
  const double sums = AddUpInWarp(&part);
  constexpr unsigned kFirstSum = offsetof(layout::DeviceStats, sum) / sizeof(std::uint64_t);
  const unsigned lane = threadIdx.x % 32;
  const double sum = __shfl_sync(0xffffffffu, sums, static_cast<int>(lane - kFirstSum) * 8);
  StatsWords all;
  all.stats = part.Result(count);
  auto word = static_cast<std::uint64_t>(__double_as_longlong(sum));
#pragma unroll
  for (unsigned i = 0; i < StatsWords::kCount; ++i) {
    if (i == lane && (i < kFirstSum || i >= kFirstSum + 4)) word = all.words[i];
  }
  if (lane < StatsWords::kCount) reinterpret_cast<std::uint64_t*>(to)[lane] = word;
}

// The parts of the lanes of a block, but for its first warp.
template <int kThreads>
using LanesOfBlock = std::uint64_t[kThreads / 32 - 1][StatsWords::kCount][32];

// Stores the sum of a block's parts. It takes less time to add up the warps lane by lane, and then
// the lanes of one warp, than to add up the lanes of each.
template <int kThreads, typename Type, typename Reader>
__device__ void StoreBlockSum(Part<Type, Reader> part, std::uint64_t count,
                              LanesOfBlock<kThreads>& shared, layout::DeviceStats* to) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp != 0) {
    StatsWords mine;
    mine.stats = part.Result(count);
#pragma unroll
    for (unsigned i = 0; i < StatsWords::kCount; ++i) shared[warp - 1][i][lane] = mine.words[i];
  }
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int w = 0; w < kThreads / 32 - 1; ++w) {
    StatsWords other;
#pragma unroll
    for (unsigned i = 0; i < StatsWords::kCount; ++i) other.words[i] = shared[w][i][lane];
    part.Add(other.stats);
  }
  StoreWarpSumAtOnce(part, count, to);
}

// Every thread of the block calls it; thread 0 gets the sum. `shared` has one place per warp.
__device__ inline layout::DeviceStats ReduceInBlock(layout::DeviceStats mine,
                                                    layout::DeviceStats* shared) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  for (int offset = 16; offset > 0; offset /= 2) AddPart(&mine, FromLane(mine, offset));
  __syncthreads();
  if (lane == 0) shared[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    const unsigned warps = blockDim.x / 32;
    layout::DeviceStats total = shared[lane < warps ? lane : 0];
    if (lane >= warps) Empty(&total);
    for (int offset = 16; offset > 0; offset /= 2) AddPart(&total, FromLane(total, offset));
    mine = total;
  }
  return mine;
}

// Turns the sum of all parts into what leaves the GPU.
__device__ inline void Close(layout::DeviceStats* stats, bool hash) {
  const std::uint64_t key = stats->first_nonfinite;
  const std::uint64_t ordered = layout::OrderedHash(stats->flags);
  stats->flags = 0;
  if ((stats->count & kHasSaturated) != 0) {
    stats->count &= ~kHasSaturated;
    stats->flags = layout::kStatsHasSaturated;
  }
  if (hash) {
    stats->flags |= layout::kStatsHasHash | layout::kStatsHasOrderedHash |
                    ordered << layout::kStatsOrderedHashShift;
  } else {
    stats->hash = 0;
  }
  stats->first_nonfinite = 0;
  if (key == ~std::uint64_t{0}) return;
  stats->flags |= layout::kStatsHasNonfinite | (key & 3) << layout::kStatsFirstKindShift;
  stats->first_nonfinite = key / 4;
}

}  // namespace cgdebug::capture
