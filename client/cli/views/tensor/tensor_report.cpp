#include "client/cli/views/tensor/tensor_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "client/analysis/ops/op_details.h"
#include "client/cli/views/tensor/tensor_json.h"
#include "client/cli/views/tensor/tensor_text.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/numerics/kernels/decode.h"

namespace cgdebug::cli {
namespace {

using numerics::TensorView;

Result<TensorView> ViewOf(const source::Tensor& tensor) {
  return numerics::MakeTensorView(
      tensor.slot.dtype, tensor.slot.shape,
      {reinterpret_cast<const std::byte*>(tensor.payload.data()), tensor.payload.size()});
}

// Flat indices of the first elements that are NaN or Inf.
std::vector<std::uint64_t> FindNonfinite(const TensorView& view, std::size_t limit) {
  std::vector<std::uint64_t> found;
  numerics::VisitDtype(view.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    if constexpr (numerics::kIsFloatingElement<T>) {
      for (std::uint64_t i = 0; i < view.count() && found.size() < limit; ++i) {
        if (!std::isfinite(numerics::ToNative(numerics::LoadElement<T>(view.data, i)))) {
          found.push_back(i);
        }
      }
    }
  });
  return found;
}

// Flat indices of the elements of largest magnitude, largest first; NaN counts as largest.
std::vector<std::uint64_t> FindLargest(const TensorView& view, std::size_t count) {
  struct Entry {
    bool is_nan;
    double magnitude;
    std::uint64_t index;
  };
  const auto is_larger = [](const Entry& a, const Entry& b) {
    if (a.is_nan != b.is_nan) return a.is_nan;
    if (!a.is_nan && a.magnitude != b.magnitude) return a.magnitude > b.magnitude;
    return a.index < b.index;
  };
  std::vector<Entry> heap;  // the smallest of the chosen on top
  count = std::min<std::uint64_t>(count, view.count());
  if (count == 0) return {};
  numerics::VisitDtype(view.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    for (std::uint64_t i = 0; i < view.count(); ++i) {
      const double value = numerics::ToDouble(numerics::LoadElement<T>(view.data, i));
      const Entry entry{std::isnan(value), std::abs(value), i};
      if (heap.size() == count && !is_larger(entry, heap.front())) continue;
      if (heap.size() == count) {
        std::pop_heap(heap.begin(), heap.end(), is_larger);
        heap.pop_back();
      }
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end(), is_larger);
    }
  });
  std::sort(heap.begin(), heap.end(), is_larger);
  std::vector<std::uint64_t> indices;
  for (const Entry& entry : heap) indices.push_back(entry.index);
  return indices;
}

std::string RowText(std::string_view name, const std::string& text) {
  return fmt::format("  {:<10}{}\n", name, text);
}

std::string Percent(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "";
  return fmt::format(" ({:.3g}%)", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string Head(const source::Tensor& tensor, const Style& style) {
  const source::Slot& slot = tensor.slot;
  const source::Snapshot& snapshot = tensor.snapshot;
  std::string head = fmt::format(
      "{} {}\n", style.Bold(Printable(SlotName(slot))),
      style.Dim((slot.counts_calls() ? "call " : "@") + ReplayText(slot, snapshot.key)));
  head += "  " + TensorLine(tensor, style.enabled(), 0) + "\n";
  std::string from = fmt::format("{} on {}", Printable(slot.session), Printable(slot.device));
  if (slot.rank >= 0) from += fmt::format(", rank {}", slot.rank);
  if (snapshot.step >= 0) from += fmt::format(", step {}", snapshot.step);
  from += OfThread(slot);
  if (slot.graph_id != 0) {
    const std::string graph = slot.graph.empty() ? std::to_string(slot.graph_id) : slot.graph;
    from += fmt::format(", graph {} call {}", Printable(graph), slot.invocation);
  }
  // A file of tensors does not say when or how they were made.
  if (snapshot.timestamp_ns != 0) {
    from += fmt::format("{}, {}", slot.graph_id == 0 ? ", eager" : "",
                        FormatTime(snapshot.timestamp_ns));
  }
  head += style.Dim("  " + from) + "\n";
  if (!slot.shard.empty()) head += style.Dim("  shard " + Printable(slot.shard)) + "\n";
  for (const auto& [word, fact] : analysis::OpFacts(slot)) {
    head += style.Dim(Printable(fmt::format("  {} {}", word, fact))) + "\n";
  }
  return head;
}

std::string StatisticsBlock(const source::Tensor& tensor, const Style& style) {
  const numerics::Stats& stats = tensor.stats;
  std::string counts, measures;
  numerics::Stats::ForEachNumber([&](const numerics::StatField& field, auto member) {
    if (field.label == nullptr) return;
    const auto& value = stats.*member;
    if constexpr (std::is_same_v<decltype(value), const double&>) {
      // Sums over no element are 0, which beside a mean of nan reads as a value.
      const bool is_sum = field.agreement == numerics::Agreement::kToItself;
      const double shown = is_sum && stats.finite() == 0 ? NAN : value;
      measures += RowText(field.label, numerics::FormatNumber(shown, 6));
    } else {
      const bool is_bad = &value != &stats.zero && value > 0;
      const std::string text = FormatGrouped(value) + Percent(value, stats.count);
      counts += RowText(field.label, is_bad ? style.Red(text) : text);
    }
  });
  if (stats.has_saturated) {
    const auto share = [&](std::uint64_t part) {
      return FormatGrouped(part) + Percent(part, stats.count);
    };
    const layout::DtypeInfo* info = layout::FindDtype(tensor.slot.dtype);
    if (info != nullptr && info->is_floating) {
      counts += RowText("subnormal", share(stats.subnormal));
    }
    counts += RowText("saturated", share(stats.saturated));
  }
  std::string first;
  if (stats.has_nonfinite) {
    first = RowText("first",
                    fmt::format("{} at {}", numerics::FormatRepr(stats.first_nonfinite_value),
                                numerics::FormatIndex(stats.first_nonfinite, tensor.slot.shape)));
  }
  const std::string hash =
      stats.has_ordered_hash ? RowText("hash", fmt::format("{:08x}", stats.ordered_hash)) : "";
  const std::string elements =
      FormatGrouped(stats.count) + "  " + numerics::FormatBytes(tensor.snapshot.payload_bytes);
  return "\n" + RowText("elements", elements) + counts + first + measures + hash;
}

std::string Histogram(const numerics::Stats& stats) {
  std::uint64_t highest = 0;
  for (const std::uint64_t bin : stats.histogram) highest = std::max(highest, bin);
  if (highest == 0 || !(stats.max > stats.min)) return "";
  constexpr double kBarColumns = 40;
  std::string out = "\n  histogram of the finite elements\n";
  const int bins = static_cast<int>(stats.histogram.size());
  // min + i * width would overflow for a range of nearly the whole type.
  const auto edge = [&](int i) {
    const double part = static_cast<double>(i) / bins;
    return stats.min * (1 - part) + stats.max * part;
  };
  for (int i = 0; i < bins; ++i) {
    const std::uint64_t bin = stats.histogram[static_cast<std::size_t>(i)];
    const double share = static_cast<double>(bin) / static_cast<double>(highest);
    const int full = static_cast<int>(std::ceil(share * kBarColumns));
    std::string bar;
    for (int column = 0; column < full; ++column) bar += "█";
    out += fmt::format("  {:>11.4g} .. {:<11.4g} {:>14}  {}\n", edge(i), edge(i + 1),
                       FormatGrouped(bin), bar);
  }
  return out;
}

std::string Elements(const char* title, const TensorView& view,
                     const std::vector<std::uint64_t>& indices, std::uint64_t more_count) {
  std::string out = fmt::format("\n  {}\n", title);
  for (const std::uint64_t i : indices) {
    out += fmt::format("  {:<24}{}\n", numerics::FormatIndex(i, view.shape),
                       numerics::FormatElement(view, i));
  }
  if (indices.empty()) out += "  none\n";
  if (more_count > 0) out += fmt::format("  and {} more\n", FormatGrouped(more_count));
  return out;
}

Json ElementJson(const TensorView& view, std::uint64_t i) {
  const layout::DtypeInfo* info = layout::FindDtype(view.dtype);
  if (view.dtype == layout::Dtype::kBool) return numerics::ElementAsInt64(view, i) != 0;
  if (!info->is_floating) return numerics::ElementAsInt64(view, i);
  if (view.dtype == layout::Dtype::kFloat4E2m1fnX2) {
    return numerics::ValuesOf(numerics::LoadElement<numerics::Float4E2m1fnX2>(view.data, i));
  }
  return JsonNumber(numerics::ElementAsDouble(view, i));
}

Json ElementsJson(const TensorView& view, const std::vector<std::uint64_t>& indices) {
  Json array = Json::array();
  for (const std::uint64_t i : indices) {
    array.push_back({{"index", i}, {"value", ElementJson(view, i)}});
  }
  return array;
}

bool HasPayload(const source::Tensor& tensor) {
  return tensor.snapshot.has_values && (!tensor.payload.empty() || tensor.stats.count == 0);
}

}  // namespace

Result<std::string> TensorReport(const source::Tensor& tensor, const TensorReportOptions& options,
                                 const Style& style) {
  std::string out = Head(tensor, style) + StatisticsBlock(tensor, style);
  if (options.where.empty() && options.topk == 0) out += Histogram(tensor.stats);
  if (!HasPayload(tensor)) {
    return out + style.Yellow(fmt::format("\n  no values: {}\n", WithoutValues(tensor.slot)));
  }
  const Result<TensorView> view = ViewOf(tensor);
  if (!view.ok()) return view.error();
  if (options.where == "nan") {
    const std::uint64_t all = tensor.stats.nonfinite();
    const auto found = FindNonfinite(*view, kMaxListedElements);
    out += Elements("elements that are NaN or Inf", *view, found,
                    all > found.size() ? all - found.size() : 0);
  }
  if (options.topk > 0) {
    out += Elements("elements of largest magnitude", *view, FindLargest(*view, options.topk), 0);
  }
  if (options.where.empty() && options.topk == 0 && options.values > 0) {
    out += "\n  " + numerics::FormatValues(*view, options.values, options.precision) + "\n";
  }
  return out;
}

Json TensorReportJson(const source::Tensor& tensor, const TensorReportOptions& options) {
  Json json = ToJson(tensor);
  json["site"] = tensor.slot.site;
  json["op"] = tensor.slot.op.text();
  if (!tensor.slot.op.empty()) json["details"] = analysis::OpDetailsJson(tensor.slot.details);
  json["payload_dropped"] = !tensor.snapshot.has_values;
  const Result<TensorView> view = ViewOf(tensor);
  if (!HasPayload(tensor) || !view.ok()) return json;
  Json values = Json::array();
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(options.values, view->count()); ++i) {
    values.push_back(ElementJson(*view, i));
  }
  json["values"] = std::move(values);
  if (options.where == "nan") {
    json["nonfinite"] = ElementsJson(*view, FindNonfinite(*view, kMaxListedElements));
  }
  if (options.topk > 0) json["topk"] = ElementsJson(*view, FindLargest(*view, options.topk));
  return json;
}

}  // namespace cgdebug::cli
