#include "client/cli/views/fold.h"

#include <fmt/format.h>

namespace cgdebug::cli {

std::string GraphText(const source::Slot& slot) {
  if (slot.graph_id != 0) {
    return slot.graph.empty() ? std::to_string(slot.graph_id) : Printable(slot.graph);
  }
  return slot.device.empty() ? "-" : "eager";
}

std::string OneOf(const std::set<std::string>& texts, const char* noun) {
  return texts.size() == 1 ? *texts.begin() : fmt::format("{} {}", texts.size(), noun);
}

std::string LostText(std::uint64_t lost, const Style& style) {
  return lost == 0 ? "0" : style.Yellow(std::to_string(lost));
}

std::string FoldedFindings(std::uint64_t bad, const std::string& qualifier, std::uint64_t replay,
                           const Style& style) {
  const std::string each = style.Dim("  -v: each");
  if (bad == 0) return "none saw NaN or Inf" + each;
  const std::string where = qualifier.starts_with("@g:") ? qualifier.substr(3) : qualifier;
  return style.Red(fmt::format("{} saw NaN or Inf, first {} @{}", bad, Printable(where), replay)) +
         each;
}

}  // namespace cgdebug::cli
