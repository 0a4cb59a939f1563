// The table's graphs: their names, and the serial that their slots share.
#include <utility>

#include "libprobe/probe_table.h"
#include "libprobe/registration.h"

namespace cgdebug {
namespace {

constexpr std::size_t kMaxKnownCaptures = 16;

}  // namespace

ProbeTable::Capture& ProbeTable::FindCapture(std::uint64_t id) {
  if (captures_.size() > kMaxKnownCaptures) {
    std::erase_if(captures_, [&](const auto& item) { return item.first != id; });
  }
  Capture& capture = captures_[id];
  const bool is_spent = !graph_label_.scoped && labelled_capture_ != 0 && labelled_capture_ != id;
  if (!graph_label_.text.empty() && !is_spent) {
    capture.label = graph_label_.text;
    labelled_capture_ = id;
  }
  return capture;
}

GraphLabel ProbeTable::SetGraphLabel(GraphLabel label) {
  CheckGraphLabel(label.text);
  const std::lock_guard lock(mutex_);
  const bool is_spent = !graph_label_.scoped && std::exchange(labelled_capture_, 0) != 0;
  GraphLabel before = std::exchange(graph_label_, std::move(label));
  return is_spent ? GraphLabel() : before;
}

}  // namespace cgdebug
