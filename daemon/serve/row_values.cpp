#include "daemon/serve/row_values.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>

namespace cgdebug::serve {
namespace {

// A call of cgdebug.watch() that shows something near the row, and what that is.
struct Watch {
  std::string select;  // empty: there is none
  std::string options = {};
  std::string what = {};
};

// Whether it is an argument of an op, "mm_0.self", and not a parameter, "layers.3.weight".
bool IsArgumentOfOp(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return false;
  std::size_t digits = dot;
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1])) != 0) --digits;
  return digits < dot && digits > 0 && name[digits - 1] == '_';
}

Watch OfParameter(std::string parameter) {
  constexpr std::string_view kGrad = ".grad";
  const bool is_grad = parameter.ends_with(kGrad);
  if (is_grad) parameter.resize(parameter.size() - kGrad.size());
  const std::size_t dot = parameter.rfind('.');
  if (dot == std::string::npos) return {};
  return {.select = fmt::format("{},{}", parameter.substr(0, dot), parameter),
          .options = is_grad ? "params=True, grads=True, " : "params=True, ",
          .what = is_grad ? "the gradient of that parameter" : "that parameter"};
}

// "fwd/layers.3.attn/mm_2"
Watch WatchOf(const std::string& name) {
  const std::size_t first = name.find('/'), last = name.rfind('/');
  if (first == std::string::npos) return {};
  const std::string phase = name.substr(0, first);
  if (phase == "grad") return OfParameter(name.substr(first + 1) + ".grad");
  if (first == last) {
    const bool is_parameter = phase == "in" && !IsArgumentOfOp(name.substr(first + 1));
    return is_parameter ? OfParameter(name.substr(first + 1)) : Watch();
  }
  const std::string module = name.substr(first + 1, last - first - 1);
  if (phase == "in")
    return {module, "inputs=True, ", fmt::format("what {} is called with", module)};
  if (phase == "bwd") {
    return {module, "grads=True, ", fmt::format("the gradient of what {} returns", module)};
  }
  if (phase == "opt") return {};
  return {module, "", fmt::format("what {} returns", module)};
}

}  // namespace

std::string HowToGetValues(const pipeline::SlotIdentity& row) {
  std::string own = row.probe.substr(row.probe.find('/') + 1);
  for (char& c : own) {
    if (c == '/') c = '.';
  }
  std::string text =
      "Its tensor's memory is used again before that. For its values put a probe "
      "on the tensor";
  if (!row.site.empty()) text += fmt::format(", at {},", row.site);
  text += fmt::format(
      " and capture again: y = cgdebug.CudaGraphTensorProbe(\"{}\", [cgdebug.TensorRecord(8)])(y)",
      own);
  const Watch watch = WatchOf(row.probe);
  if (watch.select.empty()) return text;
  return text + fmt::format(". For {}: cgdebug.watch(model, select=\"{}\", {}values=8)", watch.what,
                            watch.select, watch.options);
}

}  // namespace cgdebug::serve
