#include "proto/layout/ordered_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace cgdebug::layout {
namespace {

constexpr int kPairs = 100'000;  // of tensors, for each way in which they differ

// Bits of the elements of a tensor, in row-major order.
struct Elements {
  Dtype dtype;
  std::vector<std::uint64_t> bits;

  bool operator==(const Elements&) const = default;
  std::size_t bytes() const { return DtypeBytes(dtype); }
  std::uint64_t sign() const { return std::uint64_t{1} << (8 * bytes() - 1); }
};

std::uint64_t SumOf(const Elements& elements, bool may_be_nan = true) {
  const std::size_t bytes = elements.bytes();
  std::vector<std::byte> data(elements.bits.size() * bytes);
  for (std::size_t i = 0; i < elements.bits.size(); ++i) {
    std::memcpy(data.data() + i * bytes, &elements.bits[i], bytes);
  }
  return OrderedSum(elements.dtype, data.data(), elements.bits.size(), may_be_nan);
}

std::uint64_t HashOf(const Elements& elements) { return OrderedHash(SumOf(elements)); }

// Types with one NaN, of these bits, which counts as any other bits do.
std::optional<std::uint64_t> OnlyNan(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat8E4m3fnuz:
    case Dtype::kFloat8E5m2fnuz:
      return 0x80;
    case Dtype::kFloat8E8m0fnu:
      return 0xff;
    default:
      return std::nullopt;
  }
}

int MantissaBits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return 10;
    case Dtype::kBfloat16:
      return 7;
    case Dtype::kFloat32:
      return 23;
    case Dtype::kFloat64:
      return 52;
    case Dtype::kFloat8E4m3fn:
    case Dtype::kFloat8E4m3fnuz:
      return 3;
    case Dtype::kFloat8E8m0fnu:
      return 0;
    default:
      return 2;
  }
}

// The bits of a number that is 0 or a normal number of the type; its mantissa is cut off.
std::uint64_t Encode(Dtype dtype, double value) {
  const std::size_t width = 8 * DtypeBytes(dtype);
  const std::uint64_t mask = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
  if (!FindDtype(dtype)->is_floating) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) & mask;
  }
  if (value == 0) return 0;
  const int mantissa_bits = MantissaBits(dtype);
  const bool has_sign = dtype != Dtype::kFloat8E8m0fnu;
  const bool is_fnuz = has_sign && OnlyNan(dtype);
  const int exponent_bits = static_cast<int>(width) - (has_sign ? 1 : 0) - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - (is_fnuz ? 0 : 1);
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  const auto mantissa = static_cast<std::uint64_t>(std::ldexp(2 * fraction - 1, mantissa_bits));
  const std::uint64_t sign = value < 0 ? std::uint64_t{1} << (width - 1) : 0;
  return sign | static_cast<std::uint64_t>(exponent - 1 + bias) << mantissa_bits | mantissa;
}

class Random {
 public:
  std::uint64_t Below(std::uint64_t bound) { return engine_() % bound; }
  Dtype AnyDtype() { return kDtypes[Below(std::size(kDtypes))].dtype; }
  Dtype FloatingDtype() {
    for (;;) {
      const Dtype dtype = AnyDtype();
      if (FindDtype(dtype)->is_floating) return dtype;
    }
  }
  // Elements of any bits but NaN.
  Elements Tensor(Dtype dtype, std::size_t count) {
    return Filled(dtype, count, [&] {
      for (;;) {
        const std::uint64_t bits = dtype == Dtype::kBool ? Below(2) : engine_() & Mask(dtype);
        if (OnlyNan(dtype) == bits) continue;
        if ((bits & Mask(dtype) >> 1) <= LargestOrderedBits(dtype)) return bits;
      }
    });
  }
  Elements Filled(Dtype dtype, std::size_t count, const std::function<std::uint64_t()>& element) {
    Elements elements{dtype, std::vector<std::uint64_t>(count)};
    std::ranges::generate(elements.bits, element);
    return elements;
  }
  std::vector<std::size_t> Permutation(std::size_t count) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, engine_);
    return order;
  }
  void Shuffle(Elements* elements) { std::ranges::shuffle(elements->bits, engine_); }

 private:
  static std::uint64_t Mask(Dtype dtype) {
    return ~std::uint64_t{0} >> (64 - 8 * DtypeBytes(dtype));
  }

  std::mt19937_64 engine_{20};
};

using Change = std::function<Elements(Random*, Elements*)>;  // may change the first one as well

void ExpectNoCollision(const char* what, const Change& change) {
  Random random;
  int pairs = 0;
  for (int tries = 0; pairs < kPairs && tries < 50 * kPairs; ++tries) {
    Elements a = {};
    const Elements b = change(&random, &a);
    if (a == b) continue;
    ++pairs;
    ASSERT_EQ(a.dtype, b.dtype);
    ASSERT_NE(HashOf(a), HashOf(b))
        << what << ", " << DtypeName(a.dtype) << ", " << a.bits.size() << " elements";
  }
  EXPECT_EQ(pairs, kPairs) << what;
}

// The tensor `a` of [outer, middle, inner] with its middle dimension in another order.
Elements Reordered(Random* random, const Elements& a, std::size_t outer, std::size_t middle,
                   std::size_t inner) {
  Elements b = a;
  const std::vector<std::size_t> order = random->Permutation(middle);
  for (std::size_t o = 0; o < outer; ++o) {
    for (std::size_t m = 0; m < middle; ++m) {
      for (std::size_t i = 0; i < inner; ++i) {
        b.bits[(o * middle + m) * inner + i] = a.bits[(o * middle + order[m]) * inner + i];
      }
    }
  }
  return b;
}

TEST(OrderedHash, SeesRowsColumnsAndHeadsInAnotherOrder) {
  const auto sizes = [](Random* random) { return 1 + random->Below(9); };
  ExpectNoCollision("rows", [&](Random* random, Elements* a) {
    const std::size_t rows = 1 + sizes(random), columns = sizes(random);
    *a = random->Tensor(random->AnyDtype(), rows * columns);
    return Reordered(random, *a, 1, rows, columns);
  });
  ExpectNoCollision("columns", [&](Random* random, Elements* a) {
    const std::size_t rows = sizes(random), columns = 1 + sizes(random);
    *a = random->Tensor(random->AnyDtype(), rows * columns);
    return Reordered(random, *a, rows, columns, 1);
  });
  ExpectNoCollision("heads", [&](Random* random, Elements* a) {
    const std::size_t tokens = sizes(random), heads = 2 + random->Below(3), width = 4;
    *a = random->Tensor(random->AnyDtype(), tokens * heads * width);
    return Reordered(random, *a, tokens, heads, width);
  });
}

TEST(OrderedHash, SeesATranspose) {
  ExpectNoCollision("transpose", [](Random* random, Elements* a) {
    const std::size_t rows = 2 + random->Below(7), columns = 2 + random->Below(7);
    *a = random->Tensor(random->AnyDtype(), rows * columns);
    Elements b = *a;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) b.bits[c * rows + r] = a->bits[r * columns + c];
    }
    return b;
  });
}

TEST(OrderedHash, SeesTwoElementsOrWordsExchanged) {
  ExpectNoCollision("elements", [](Random* random, Elements* a) {
    *a = random->Tensor(random->AnyDtype(), 2 + random->Below(100));
    Elements b = *a;
    std::swap(b.bits[random->Below(b.bits.size())], b.bits[random->Below(b.bits.size())]);
    return b;
  });
  for (const std::size_t bytes : {4, 8, 16}) {
    ExpectNoCollision("words", [bytes](Random* random, Elements* a) {
      const std::size_t words = 2 + random->Below(20);
      *a = random->Tensor(random->AnyDtype(), 0);
      const std::size_t each = std::max<std::size_t>(bytes / a->bytes(), 1);
      *a = random->Tensor(a->dtype, words * each);
      Elements b = *a;
      const std::size_t x = random->Below(words) * each, y = random->Below(words) * each;
      for (std::size_t i = 0; i < each; ++i) std::swap(b.bits[x + i], b.bits[y + i]);
      return b;
    });
  }
}

TEST(OrderedHash, SeesSignsThatMoved) {
  ExpectNoCollision("x and -x exchanged", [](Random* random, Elements* a) {
    *a = random->Tensor(random->FloatingDtype(), 2 + random->Below(60));
    const std::size_t x = random->Below(a->bits.size()), y = random->Below(a->bits.size());
    a->bits[y] = a->bits[x] ^ a->sign();
    Elements b = *a;
    std::swap(b.bits[x], b.bits[y]);
    return b;
  });
  ExpectNoCollision("two signs flipped", [](Random* random, Elements* a) {
    *a = random->Tensor(random->FloatingDtype(), 2 + random->Below(60));
    Elements b = *a;
    for (int i = 0; i < 2; ++i) b.bits[random->Below(b.bits.size())] ^= b.sign();
    return b;
  });
}

TEST(OrderedHash, SeesSimpleNumbersInAnotherOrder) {
  const std::pair<const char*, std::function<double(Random*)>> kinds[] = {
      {"1 and -1", [](Random* random) { return random->Below(2) != 0 ? 1 : -1; }},
      {"powers of two",
       [](Random* random) { return std::ldexp(1, static_cast<int>(random->Below(7))); }},
      {"small integers", [](Random* random) { return static_cast<double>(random->Below(8)) - 4; }},
      {"zeros and ones", [](Random* random) { return static_cast<double>(random->Below(2)); }},
  };
  for (const auto& kind : kinds) {
    const std::function<double(Random*)>& value = kind.second;  // clang 14 captures no binding
    ExpectNoCollision(kind.first, [&](Random* random, Elements* a) {
      const Dtype dtype = random->AnyDtype();
      *a = random->Filled(dtype, 2 + random->Below(120), [&] {
        const double number = value(random);
        return Encode(dtype, dtype == Dtype::kBool ? number > 0 : number);
      });
      Elements b = *a;
      random->Shuffle(&b);
      return b;
    });
  }
}

// The n-th letter of the words of Thue and Morse, of which sums of powers up to any degree are the
// same as those of the word with the letters exchanged.
TEST(OrderedHash, SeesWordsThatManyHashesDoNot) {
  ExpectNoCollision("a b b a and b a a b", [](Random* random, Elements* a) {
    const std::size_t order = 1 + random->Below(8), length = 1 + random->Below(9);
    const std::size_t before = random->Below(5);
    const Elements of_a = random->Tensor(random->AnyDtype(), length);
    const Elements of_b = random->Tensor(of_a.dtype, length);
    *a = random->Tensor(of_a.dtype, before);
    Elements b = *a;
    for (unsigned i = 0; i < 1u << order; ++i) {
      const bool is_odd = __builtin_parity(i) != 0;
      const Elements& to_a = is_odd ? of_b : of_a;
      const Elements& to_b = is_odd ? of_a : of_b;
      a->bits.insert(a->bits.end(), to_a.bits.begin(), to_a.bits.end());
      b.bits.insert(b.bits.end(), to_b.bits.begin(), to_b.bits.end());
    }
    return b;
  });
}

TEST(OrderedHash, SeesEveryBit) {
  ExpectNoCollision("one bit", [](Random* random, Elements* a) {
    *a = random->Tensor(random->AnyDtype(), 1 + random->Below(60));
    Elements b = *a;
    b.bits[random->Below(b.bits.size())] ^= std::uint64_t{1} << random->Below(8 * b.bytes());
    const bool is_nan = std::ranges::any_of(b.bits, [&](std::uint64_t bits) {
      return (bits & (b.sign() - 1)) > LargestOrderedBits(b.dtype);
    });
    return is_nan ? *a : b;
  });
}

TEST(OrderedHash, IsTheSumOfItsElementsInAnyOrder) {
  Random random;
  for (const DtypeInfo& info : kDtypes) {
    const Elements elements = random.Tensor(info.dtype, 1001);
    std::uint64_t sum = 0;
    for (const std::size_t i : random.Permutation(elements.bits.size())) {
      const std::uint64_t bits = elements.bits[i];
      sum += info.bytes == 1   ? OrderedTermOf(i, static_cast<std::uint8_t>(bits))
             : info.bytes == 2 ? OrderedTermOf(i, static_cast<std::uint16_t>(bits))
             : info.bytes == 4 ? OrderedTermOf(i, static_cast<std::uint32_t>(bits))
                               : OrderedTermOf(i, bits);
    }
    EXPECT_EQ(sum, SumOf(elements)) << info.name;
    EXPECT_EQ(sum, SumOf(elements, /*may_be_nan=*/false)) << info.name;
  }
}

TEST(OrderedHash, TakesEveryNanForTheSameOneButNotItsPlace) {
  Random random;
  for (const DtypeInfo& info : kDtypes) {
    if (!info.is_floating || OnlyNan(info.dtype) || ValuesPerElement(info.dtype) == 2) continue;
    Elements a = random.Tensor(info.dtype, 50);
    const Elements without = a;
    a.bits[17] = LargestOrderedBits(info.dtype) + 1;
    Elements b = a;
    b.bits[17] = a.sign() | (a.sign() - 1);
    EXPECT_EQ(HashOf(a), HashOf(b)) << info.name;
    EXPECT_NE(HashOf(a), HashOf(without)) << info.name;
    std::swap(b.bits[17], b.bits[18]);
    EXPECT_NE(HashOf(a), HashOf(b)) << info.name;
  }
}

// Recordings hold it.
TEST(OrderedHash, IsFrozen) {
  Elements elements{Dtype::kUint8, std::vector<std::uint64_t>(40)};
  std::iota(elements.bits.begin(), elements.bits.end(), std::uint64_t{1});
  EXPECT_EQ(HashOf(elements), 0x9edccc17u);
  EXPECT_EQ(HashOf({Dtype::kFloat32, {}}), 0u);
}

}  // namespace
}  // namespace cgdebug::layout
