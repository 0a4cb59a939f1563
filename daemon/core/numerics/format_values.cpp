#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "daemon/core/numerics/format.h"
#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::numerics {
namespace {

template <typename T>
std::string ElementText(T element, int precision) {
  if constexpr (kHoldsTwo<T>) {
    const auto [first, second] = ValuesOf(element);
    return fmt::format("{:g}|{:g}", first, second);
  }
  const auto value = ToNative(element);
  if constexpr (std::is_same_v<T, Bool8>) {
    return value ? "True" : "False";
  } else if constexpr (!kIsFloatingElement<T>) {
    return fmt::format("{}", static_cast<std::int64_t>(value));
  } else {
    if (value != value) return "nan";
    if (precision > 0) return fmt::format("{:.{}g}", value, precision);
    return FormatRepr(static_cast<double>(value));
  }
}

// How many elements of each dimension are shown: both ends grow in turn, innermost dimension first,
// while the total stays within `max_items`.
std::vector<std::uint64_t> ShownOf(std::span<const std::uint64_t> shape, std::uint64_t max_items) {
  std::vector<std::uint64_t> shown(shape.size(), 1);
  std::uint64_t items = 1;
  for (std::uint64_t ends = 2; ends <= max_items + 1; ends += 2) {
    bool grew = false;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      const std::uint64_t wanted = std::min(ends, shape[dim]);
      if (wanted <= shown[dim] || items / shown[dim] * wanted > max_items) continue;
      items = items / shown[dim] * wanted;
      shown[dim] = wanted;
      grew = true;
    }
    if (!grew) break;
  }
  return shown;
}

class ValuePrinter {
 public:
  ValuePrinter(const TensorView& view, std::size_t max_items, int precision)
      : view_(view), precision_(precision), shown_(ShownOf(view.shape, max_items)) {}

  std::string Print() {
    Append(0, 0);
    return std::move(text_);
  }

 private:
  void Append(std::size_t dim, std::uint64_t flat) {
    if (dim == view_.shape.size()) {
      text_ += VisitDtype(view_.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        return ElementText(LoadElement<T>(view_.data, flat), precision_);
      });
      return;
    }
    const std::uint64_t size = view_.shape[dim], shown = std::min(shown_[dim], size);
    const std::uint64_t front = (shown + 1) / 2;
    text_ += '[';
    for (std::uint64_t i = 0; i < shown; ++i) {
      if (i > 0) text_ += ", ";
      if (i == front && shown < size) text_ += "..., ";
      Append(dim + 1, flat * size + (i < front ? i : size - shown + i));
    }
    if (shown == front && shown < size) text_ += ", ...";
    text_ += ']';
  }

  const TensorView& view_;
  const int precision_;
  const std::vector<std::uint64_t> shown_;
  std::string text_;
};

}  // namespace

std::string FormatValues(const TensorView& view, std::size_t max_items, int precision) {
  if (max_items == 0 && view.count() > 0) return view.shape.empty() ? "..." : "[...]";
  return ValuePrinter(view, max_items, std::min(precision, 17)).Print();
}

std::string FormatElement(const TensorView& view, std::uint64_t i) {
  return VisitDtype(view.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return ElementText(LoadElement<T>(view.data, i), 0);
  });
}

}  // namespace cgdebug::numerics
