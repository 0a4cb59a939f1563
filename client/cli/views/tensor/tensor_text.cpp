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

std::string ForValues(const source::Slot& slot) {
  if (!analysis::ParseOpText(slot.op)) {
    return "Use TensorRecord, or type: cgdebug-cli run --watch '*' --on nan -- python train.py";
  }
  return fmt::format("Type: cgdebug-cli run --watch 'op:*'{} --values {} -- python train.py",
                     slot.graph_id == 0 ? " --eager" : "", Printable(ShellWord(slot.probe)));
}

}  // namespace cgdebug::cli
