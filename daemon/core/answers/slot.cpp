#include "daemon/core/answers/slot.h"

#include <fmt/format.h>

#include "daemon/core/numerics/format.h"

namespace cgdebug::answers {

bool Matches(const WhichSlots& which, const Slot& slot) {
  return which.Matches(slot.graph_id, slot.graph, slot.shape);
}

std::string SlotText(const Slot& slot) { return SlotName(slot) + slot.qualifier; }

std::string SlotName(const Slot& slot) {
  return slot.invocation == 0 ? slot.probe : fmt::format("{}#{}", slot.probe, slot.invocation);
}

std::string TypeText(const Slot& slot) {
  if (slot.dtype != layout::Dtype::kInvalid) {
    return numerics::FormatTensorType(slot.dtype, slot.shape, slot.part);
  }
  return slot.dtype_name + numerics::FormatShape(slot.shape) +
         (slot.part.empty() ? "" : " part " + slot.part);
}

std::string FullShapeText(const Slot& slot) {
  if (slot.part.empty()) return numerics::FormatShape(slot.shape);
  const std::size_t shape = slot.part.find('[');
  return shape == std::string::npos ? "" : slot.part.substr(shape);
}

std::string OfPart(const Slot& slot) { return slot.part.empty() ? "" : " of part " + slot.part; }

std::string OfThread(const Slot& slot) {
  return slot.thread > 1 ? fmt::format(", thread {}", slot.thread) : "";
}

std::string ReplayText(std::uint64_t replay, std::uint32_t iteration, bool in_body) {
  return in_body ? fmt::format("{}.{}", replay, iteration) : std::to_string(replay);
}

}  // namespace cgdebug::answers
