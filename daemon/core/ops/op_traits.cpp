#include "daemon/core/ops/op_traits.h"

#include <algorithm>
#include <iterator>

#include "daemon/core/ops/op_text.h"

namespace cgdebug::ops {
namespace {

struct OpTraits {
  std::string_view op;  // its stem
  std::uint32_t traits;
};

constexpr auto kProduct = static_cast<std::uint32_t>(OpTrait::kProduct);
constexpr auto kBlunt = static_cast<std::uint32_t>(OpTrait::kBlunt);
constexpr auto kRectifier = static_cast<std::uint32_t>(OpTrait::kRectifier);
constexpr auto kWeighted = static_cast<std::uint32_t>(OpTrait::kWeighted);
constexpr auto kPassing = static_cast<std::uint32_t>(OpTrait::kPassing);
constexpr auto kLogarithm = static_cast<std::uint32_t>(OpTrait::kLogarithm);
constexpr auto kRoot = static_cast<std::uint32_t>(OpTrait::kRoot);
constexpr auto kQuotient = static_cast<std::uint32_t>(OpTrait::kQuotient);
constexpr auto kMean = static_cast<std::uint32_t>(OpTrait::kMean);
constexpr auto kGrowing = static_cast<std::uint32_t>(OpTrait::kGrowing);
constexpr auto kDropout = static_cast<std::uint32_t>(OpTrait::kDropout);
constexpr auto kNoise = static_cast<std::uint32_t>(OpTrait::kNoise);
constexpr auto kGiven = static_cast<std::uint32_t>(OpTrait::kGiven);
constexpr auto kMover = static_cast<std::uint32_t>(OpTrait::kMover);
constexpr auto kChooser = static_cast<std::uint32_t>(OpTrait::kChooser);
constexpr auto kInspector = static_cast<std::uint32_t>(OpTrait::kInspector);
// Each element that such an op takes counts in its result.
constexpr auto kPassesNanOn = kProduct | kWeighted | kPassing | kRoot | kLogarithm | kQuotient |
                              kMean | kGrowing | kGiven | kMover | kChooser;

constexpr OpTraits kOps[] = {
    {"_foreach_add", kGrowing},
    {"_foreach_mul", kGrowing},
    {"_fused_dropout", kDropout | kNoise},
    {"_native_batch_norm_legit", kWeighted},
    {"_softmax", kPassing},
    {"_to_copy", kBlunt | kGrowing | kMover},
    {"add", kGrowing},
    {"addcdiv", kQuotient},
    {"addcmul", kGrowing},
    {"addmm", kProduct | kWeighted | kPassing | kGrowing},
    {"addmv", kGrowing},
    {"amax", kBlunt},
    {"amin", kBlunt},
    {"arange", kBlunt},
    {"argmax", kBlunt},
    {"baddbmm", kProduct | kPassing | kGrowing},
    {"bernoulli", kBlunt | kDropout | kNoise},
    {"bmm", kProduct | kPassing | kGrowing},
    {"cat", kMover},
    {"cauchy", kNoise},
    {"ceil", kBlunt},
    {"clamp", kBlunt | kRectifier},
    {"clamp_max", kBlunt},
    {"clamp_min", kBlunt | kRectifier},
    {"clone", kMover},
    {"constant_pad_nd", kBlunt | kGiven},
    {"convolution", kProduct | kWeighted | kPassing | kGrowing},
    {"copy", kBlunt | kGrowing | kMover},
    {"cosh", kGrowing},
    {"cumsum", kGrowing},
    {"div", kPassing | kQuotient},
    {"dot", kGrowing},
    {"embedding", kBlunt},
    {"eq", kInspector},
    {"exp", kGrowing},
    {"expm1", kGrowing},
    {"exponential", kNoise},
    {"fill", kBlunt | kGiven},
    {"flip", kMover},
    {"floor", kBlunt},
    {"floor_divide", kBlunt | kQuotient},
    {"fmax", kChooser},
    {"fmin", kChooser},
    {"fmod", kBlunt | kQuotient},
    {"full", kGiven},
    {"full_like", kBlunt | kGiven},
    {"gather", kBlunt | kMover},
    {"gelu", kPassing},
    {"geometric", kNoise},
    {"hardsigmoid", kPassing},
    {"hardtanh", kBlunt | kRectifier},
    {"heaviside", kBlunt},
    {"index", kBlunt | kMover},
    {"index_fill", kGiven},
    {"index_put", kBlunt | kGiven},
    {"index_select", kBlunt | kMover},
    {"isfinite", kInspector},
    {"isinf", kInspector},
    {"isnan", kInspector},
    {"lift_fresh_copy", kGiven},
    {"linalg_vector_norm", kGrowing},
    {"linear", kProduct | kWeighted | kPassing | kGrowing},
    {"log", kLogarithm},
    {"log10", kLogarithm},
    {"log1p", kLogarithm},
    {"log2", kLogarithm},
    {"log_normal", kNoise},
    {"masked_fill", kBlunt | kGiven},
    {"masked_scatter", kChooser},
    {"masked_select", kChooser},
    {"max", kBlunt},
    {"max_pool2d_with_indices", kBlunt},
    {"maximum", kBlunt},
    {"mean", kMean},
    {"min", kBlunt},
    {"minimum", kBlunt},
    {"mm", kProduct | kWeighted | kPassing | kGrowing},
    {"mul", kBlunt | kPassing | kGrowing},
    {"mv", kGrowing},
    {"nan_to_num", kBlunt | kChooser},
    {"nansum", kChooser},
    {"native_batch_norm", kWeighted},
    {"native_dropout", kDropout | kNoise},
    {"native_layer_norm", kWeighted},
    {"ne", kInspector},
    {"new_full", kBlunt | kGiven},
    {"new_ones", kBlunt},
    {"new_zeros", kBlunt},
    {"nll_loss2d_forward", kChooser},
    {"nll_loss_backward", kBlunt},
    {"nll_loss_forward", kBlunt | kChooser},
    {"normal", kBlunt | kNoise},
    {"ones_like", kBlunt},
    {"pow", kGrowing},
    {"prod", kGrowing},
    {"rand", kNoise},
    {"rand_like", kBlunt | kNoise},
    {"randint", kNoise},
    {"randn", kNoise},
    {"randn_like", kBlunt | kNoise},
    {"random", kNoise},
    {"randperm", kNoise},
    {"reciprocal", kQuotient},
    {"relu", kBlunt | kRectifier},
    {"remainder", kBlunt | kQuotient},
    {"repeat", kMover},
    {"roll", kMover},
    {"round", kBlunt},
    {"rsqrt", kRoot},
    {"rsub", kGrowing},
    {"scalar_tensor", kGiven},
    {"scatter", kBlunt | kChooser},
    {"select_backward", kBlunt},
    {"select_scatter", kBlunt | kMover},
    {"sigmoid", kPassing},
    {"sign", kBlunt},
    {"silu", kPassing},
    {"sinh", kGrowing},
    {"slice_backward", kBlunt},
    {"slice_scatter", kBlunt | kMover},
    {"softplus", kPassing},
    {"sort", kBlunt},
    {"sqrt", kRoot},
    {"square", kGrowing},
    {"stack", kMover},
    {"std", kMean},
    {"sub", kGrowing},
    {"sum", kGrowing},
    {"tanh", kPassing},
    {"threshold", kBlunt | kRectifier},
    {"threshold_backward", kBlunt | kChooser},
    {"topk", kBlunt},
    {"tril", kBlunt | kGiven},
    {"triu", kBlunt | kGiven},
    {"trunc", kBlunt},
    {"uniform", kBlunt | kNoise},
    {"var", kMean},
    {"var_mean", kMean},
    {"where", kBlunt | kGiven},
    {"zero", kBlunt},
    {"zeros_like", kBlunt},
};
static_assert(std::ranges::is_sorted(kOps, {}, &OpTraits::op));

std::uint32_t TraitsOf(std::string_view op) {
  const std::string_view stem = StemOf(op);
  const OpTraits* const found = std::ranges::lower_bound(kOps, stem, {}, &OpTraits::op);
  return found != std::end(kOps) && found->op == stem ? found->traits : 0;
}

}  // namespace

bool HasTrait(OpTrait trait, std::string_view op) {
  return (TraitsOf(op) & static_cast<std::uint32_t>(trait)) != 0;
}

bool PassesNanOn(std::string_view op) { return (TraitsOf(op) & kPassesNanOn) != 0; }

bool IsCollective(std::string_view op) {
  constexpr std::string_view kNamespaces[] = {"c10d.", "c10d_functional.", "_c10d_functional."};
  return std::ranges::any_of(kNamespaces, [&](auto name) { return op.starts_with(name); });
}

}  // namespace cgdebug::ops
