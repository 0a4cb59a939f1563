#include "client/cli/top/tensor_page.h"

#include <fmt/format.h>

#include <cstdint>

#include "client/cli/views/tensor/tensor_report.h"
#include "client/live/live_tensor.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

constexpr std::uint64_t kMostShownBytes = 256 << 20;

std::string CommandOf(const std::string& session, const source::Slot& slot,
                      const std::string& replay) {
  return fmt::format("cgdebug-cli show -s {} {}", session,
                     ShellWord(fmt::format("{}@{}", SlotText(slot), replay)));
}

}  // namespace

TensorPage PageOf(Context& context, const TopProbe& one) {
  const source::Slot& slot = one.probe.slot;
  if (slot.payload_bytes > kMostShownBytes) {
    return {"",
            {fmt::format("{}: {}", numerics::FormatBytes(slot.payload_bytes),
                         CommandOf(one.probe.session, slot, "-1"))}};
  }
  live::TensorName name{.session = one.probe.session, .probe = source::SlotName(slot)};
  if (!slot.qualifier.empty()) {
    name.which.graph = slot.graph_id == 0 ? "eager" : std::to_string(slot.graph_id);
    name.which.shape = slot.shape;
  }
  const Result<source::Tensor> tensor = live::GetTensor(context.client(), name);
  if (!tensor.ok()) return {"", {tensor.error().message, true}};
  const Result<std::string> report = TensorReport(*tensor, {}, context.out);
  if (!report.ok()) return {"", {report.error().message, true}};
  const std::string replay = source::ReplayText(slot, tensor->snapshot.key);
  // First, where it is in sight however many values follow.
  return {context.out.Dim(CommandOf(one.probe.session, slot, replay)) + "\n\n" + *report, {}};
}

}  // namespace cgdebug::cli
