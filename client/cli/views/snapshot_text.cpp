#include "client/cli/views/snapshot_text.h"

#include <fmt/format.h>

#include "client/cli/views/terminal.h"
#include "client/live/messages.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/wire/message_fields.h"
#include "proto/layout/counters.h"
#include "proto/layout/ring_layout.h"

namespace cgdebug::cli {

std::vector<std::uint64_t> ShapeOf(const google::protobuf::RepeatedField<std::uint64_t>& shape) {
  return {shape.begin(), shape.end()};
}

std::uint64_t Nonfinite(const v1::Stats& stats) {
  return stats.nan() + stats.pos_inf() + stats.neg_inf();
}

std::uint64_t Lost(const v1::Counters& counters) {
  return FieldsOf<layout::Counters>(counters).lost();
}

std::string LaneName(v1::ProbeInfo::Lane lane) {
  return std::string(layout::NameOf(static_cast<layout::Lane>(lane)));
}

std::string PolicyName(v1::ProbeInfo::Policy policy) {
  return std::string(layout::NameOf(static_cast<layout::Policy>(policy)));
}

std::vector<std::string_view> ActionsOf(const v1::ProbeInfo& probe) {
  std::vector<std::string_view> names;
  for (const int action : probe.actions()) {
    names.push_back(layout::NameAt(layout::kActionNames, static_cast<std::size_t>(action)));
  }
  return names;
}

std::string SelectorOf(const v1::FirstNonfinite& first) {
  const std::string call = first.invocation() == 0 ? "" : fmt::format("#{}", first.invocation());
  return first.probe() + call + first.qualifier();
}

std::string TypeText(const std::string& dtype,
                     const google::protobuf::RepeatedField<std::uint64_t>& shape) {
  const layout::Dtype known = live::DtypeOf(dtype);
  const std::vector<std::uint64_t> sizes = ShapeOf(shape);
  if (known == layout::Dtype::kInvalid) return Printable(dtype) + numerics::FormatShape(sizes);
  return numerics::FormatTensorType(known, sizes);
}

std::string ControlText(const v1::Control& control) {
  std::string text = control.mode() == v1::Control::OFF     ? "off"
                     : control.mode() == v1::Control::STATS ? "statistics"
                     : control.mode() == v1::Control::FULL  ? "values"
                                                            : "as registered";
  if (control.every() > 1) text += fmt::format(", one replay in {}", control.every());
  if (control.from() > 1 && control.until() != 0) {
    text += fmt::format(", replays {}..{}", control.from(), control.until());
  } else if (control.from() > 1) {
    text += fmt::format(", from replay {}", control.from());
  } else if (control.until() != 0) {
    text += fmt::format(", {} replay{}", control.until(), control.until() == 1 ? "" : "s");
  }
  if (control.trigger() == v1::Control::NONFINITE) text += ", where there is NaN or Inf";
  if (control.trigger() == v1::Control::INF) text += ", where there is Inf";
  if (control.trigger() == v1::Control::ABS_MAX) {
    text += fmt::format(", where abs max > {:g}", control.threshold());
  }
  return text;
}

std::string ProbeText(const std::string& name, std::uint32_t invocation) {
  return Printable(name) + (invocation == 0 ? "" : "#" + std::to_string(invocation));
}

}  // namespace cgdebug::cli
