#include "daemon/core/numerics/tensor_view.h"

#include <string>

#include "daemon/core/numerics/format.h"

namespace cgdebug::numerics {

Result<TensorView> MakeTensorView(layout::Dtype dtype, std::span<const std::uint64_t> shape,
                                  std::span<const std::byte> data) {
  if (layout::FindDtype(dtype) == nullptr) {
    return Error{"tensor of unknown dtype " + std::to_string(static_cast<unsigned>(dtype)) +
                 ": it was written by a newer cgdebug. Update this one."};
  }
  const std::optional<std::uint64_t> bytes = PayloadBytes(dtype, shape);
  if (!bytes) return Error{"the shape " + FormatShape(shape) + " has more elements than memory"};
  if (*bytes != data.size()) {
    return Error{FormatTensorType(dtype, shape) + " takes " + std::to_string(*bytes) +
                 " bytes, but there are " + std::to_string(data.size())};
  }
  return TensorView{dtype, shape, data};
}

}  // namespace cgdebug::numerics
