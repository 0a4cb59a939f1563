#include "client/cli/run/held_events.h"

#include <algorithm>
#include <iterator>

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMaxHeld = 4096;

bool IsOfSnapshot(const source::Tensor& print, const live::Event& event) {
  return event.kind == live::EventKind::kSnapshot &&
         event.tensor.session_key == print.session_key &&
         event.tensor.snapshot.key.replay == print.snapshot.key.replay &&
         event.tensor.slot.probe == print.slot.probe;
}

}  // namespace

// What TensorPrint wrote belongs to its snapshot. If it is on the terminal, that snapshot needs no
// line of its own.
void HeldEvents::Hold(const live::Event& event) {
  // An event that is not a snapshot stays behind the events that came before it.
  auto order = held_.empty() ? decltype(Held::order)() : held_.back().order;
  auto place = held_.end();
  if (event.kind == live::EventKind::kPrint) {
    const auto of = std::find_if(held_.rbegin(), held_.rend(), [&](const Held& held) {
      return IsOfSnapshot(event.tensor, held.event);
    });
    if (prints_reach_terminal_) {
      if (of != held_.rend()) held_.erase(std::next(of).base());
      return;
    }
    if (of != held_.rend()) {
      order = of->order;
      place = of.base();
    }
  } else if (event.kind == live::EventKind::kSnapshot || event.kind == live::EventKind::kPage) {
    order = {event.tensor.snapshot.serial, event.tensor.slot.order};
    while (place != held_.begin() && std::prev(place)->order > order) --place;
  }
  if (!streams_ && !findings_.Wants(event)) return;
  held_.insert(place, {order, Clock::now(), event});
  if (held_.size() > kMaxHeld) Print(Clock::time_point::max());
}

void HeldEvents::Print(Clock::time_point arrived_before) {
  while (!held_.empty() && held_.front().arrived < arrived_before) {
    const live::Event& event = held_.front().event;
    if (!streams_) PrintBehind(&event);
    if (streams_ || lines_.Shows(event)) printer_->Print(event);
    held_.pop_front();
  }
  if (held_.empty()) PrintBehind(nullptr);
}

void HeldEvents::PrintBehind(const live::Event* next) {
  for (const FindingLines::Behind& behind : lines_.TakeBehind(next)) {
    printer_->PrintBehind(behind.last.tensor, behind.count);
  }
}

}  // namespace cgdebug::cli
