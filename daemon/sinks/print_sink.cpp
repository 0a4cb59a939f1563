#include "daemon/sinks/print_sink.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/numerics/format.h"

namespace cgdebug::sinks {
namespace {

constexpr std::uint32_t kMaxItems = 10'000;  // whatever the registration asks for

}  // namespace

std::string RenderPrint(const pipeline::Snapshot& snapshot, const pipeline::PayloadPtr& payload) {
  const pipeline::SlotIdentity& slot = *snapshot.slot;
  const layout::SlotFacts& registration = slot.registration;
  const std::int32_t rank = slot.session->rank;
  const std::string head = fmt::format(
      "[cgdebug] {}@{}{} {}{}  ", rank >= 0 ? fmt::format("r{} ", rank) : "", snapshot.replay,
      slot.IsInBody() && (!slot.CountsCalls() || snapshot.iteration > 0)
          ? fmt::format(".{}", snapshot.iteration)
          : "",
      slot.probe, registration.invocation > 0 ? fmt::format("#{}", registration.invocation) : "");
  std::string values;
  if (registration.print_max_items > 0 && payload != nullptr) {
    const auto view = numerics::MakeTensorView(slot.dtype, slot.shape, *payload);
    if (view.ok())
      values = numerics::FormatValues(*view, std::min(registration.print_max_items, kMaxItems));
  }
  if ((registration.flags & layout::kPrintSummary) == 0 && payload != nullptr) {
    return head + numerics::FormatTensorType(slot.dtype, slot.shape, slot.part) + "  " + values;
  }
  // The summary shows a single element already.
  const bool shows_values = !values.empty() && snapshot.stats.count > 1;
  return head +
         numerics::FormatTensorLine(slot.dtype, slot.shape, snapshot.stats, {.part = slot.part}) +
         (shows_values ? "\n          " + values : "");
}

void PrintSink::Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback& feedback) {
  const pipeline::SlotIdentity& slot = *delivery.snapshot->slot;
  if (delivery.seen_before || !slot.Has(layout::kActionPrint) ||
      (!delivery.snapshot->forced &&
       !layout::Wants(slot.registration.print_every, delivery.snapshot->replay))) {
    return;
  }
  std::string text = RenderPrint(*delivery.snapshot, delivery.payload);
  const auto terminal = terminals_.try_emplace(slot.session, *slot.session).first;
  const bool shown = terminal->second.Write(text + "\n");
  events_->Add(slot.session, pipeline::PrintLine{delivery.snapshot, std::move(text)});
  feedback.AddPrinted(1, shown ? 1 : 0);
}

void PrintSink::EndSession(const pipeline::SessionPtr& session, bool /*died*/) {
  terminals_.erase(session);
}

}  // namespace cgdebug::sinks
