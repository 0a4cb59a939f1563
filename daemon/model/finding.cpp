#include "daemon/model/finding.h"

#include <fmt/format.h>

#include "daemon/core/numerics/format.h"

namespace cgdebug::pipeline {

std::string SentenceOf(const Finding& finding, const std::string& graph,
                       const std::string& qualifier) {
  const SlotIdentity& slot = *finding.slot;
  const std::uint32_t call = slot.registration.invocation;
  const std::string name = slot.probe + (call == 0 ? "" : "#" + std::to_string(call)) + qualifier;
  std::string text = finding.kind == layout::FindingKind::kNan   ? "first NaN: "
                     : finding.kind == layout::FindingKind::kInf ? "first Inf: "
                     : finding.kind == layout::FindingKind::kReplica
                         ? "first replica that differs: "
                         : "first failed comparison: ";
  text += slot.CountsCalls() ? fmt::format("{} in call {}", name, finding.replay)
                             : fmt::format("{} @{}", name, finding.replay);
  if (slot.session->rank >= 0) text += fmt::format(" on rank {}", slot.session->rank);
  if (finding.count != 0) {
    text += fmt::format(", {} element{}", finding.count, finding.count == 1 ? "" : "s");
  }
  if (finding.element) {
    text += ", first non-finite at " + numerics::FormatIndex(*finding.element, slot.shape);
  }
  if (finding.step >= 0) text += fmt::format(", step {}", finding.step);
  if (slot.registration.thread > 1) {
    text += fmt::format(", thread {}", slot.registration.thread);
  }
  if (!graph.empty()) text += ", graph " + graph;
  if (!slot.site.empty()) text += ", probed at " + slot.site;
  const std::string& key = slot.session->key;
  if (finding.kind == layout::FindingKind::kMismatch) {
    const std::string said = finding.text.substr(0, finding.text.find('\n'));
    return fmt::format("{}: {} Type: cgdebug-cli tail --only mismatch -s {}", text, said, key);
  }
  if (finding.kind == layout::FindingKind::kReplica) {
    return fmt::format("{}: {}. Type: cgdebug-cli ranks -s '{}'", text, finding.text,
                       slot.session->run_id);
  }
  if (!slot.op.empty()) {
    if (slot.CountsCalls()) {
      return fmt::format("{}. Type: cgdebug-cli ops '{}@call:{}'", text, key, finding.replay);
    }
    const std::uint64_t id = slot.registration.graph_id;
    const std::string log = id == 0         ? fmt::format("eager.{}", slot.registration.order)
                            : graph.empty() ? std::to_string(id)
                                            : graph;
    return fmt::format("{}. Type: cgdebug-cli ops '{}@g:{}@{}'", text, key, log, finding.replay);
  }
  return fmt::format("{}. Type: cgdebug-cli show -s {} '{}@{}{}'{}", text, key, name,
                     slot.CountsCalls() ? "call:" : "", finding.replay,
                     finding.has_values ? " --where nan" : "");
}

}  // namespace cgdebug::pipeline
