#include "client/cli/views/tensor/tensor_text.h"

#include <fmt/format.h>

#include "client/analysis/ops/op_log.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {

std::string TensorLine(const source::Tensor& tensor, bool colour, std::size_t type_width) {
  const source::Slot& slot = tensor.slot;
  if (slot.dtype != layout::Dtype::kInvalid) {
    return numerics::FormatTensorLine(slot.dtype, slot.shape, tensor.stats,
                                      {colour, type_width, slot.part});
  }
  std::string type = Printable(TypeText(slot));
  if (type.size() < type_width) type.resize(type_width, ' ');
  return type + "  " + numerics::FormatStats(slot.dtype, slot.shape, tensor.stats, colour);
}

std::string WithoutValues(const source::Slot& slot) {
  if (slot.op.row() == nullptr) {
    return "only the statistics were kept (TensorStats, set to statistics, over the daemon's "
           "memory limit, or left on the device). Use TensorRecord, or type: cgdebug-cli run "
           "--watch '*' --on nan -- COMMAND";
  }
  const std::string name = Printable(slot.probe);
  return fmt::format(
      "a row has statistics alone. {0}.value has them after this run, of each replay or call: "
      "cgdebug-cli run --watch 'op:*'{1} --values {2} -o values.cgrec -- COMMAND",
      name, slot.graph_id == 0 ? " --eager" : "", Printable(ShellWord(slot.probe)));
}

}  // namespace cgdebug::cli
