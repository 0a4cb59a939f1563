#include "client/cli/views/event_printer.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/views/json.h"
#include "client/cli/views/snapshot_text.h"
#include "client/cli/views/tensor_text.h"
#include "client/live/messages.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMaxNameWidth = 32;
constexpr std::size_t kMaxTypeWidth = 20;

std::string Pad(std::string text, std::size_t* width, std::size_t max_width) {
  const std::size_t used = DisplayWidth(text);
  *width = std::max(*width, std::min(used, max_width));
  if (used < *width) text.append(*width - used, ' ');
  return text;
}

std::string PlainSnapshot(const v1::Snapshot& snapshot) {
  const source::Tensor tensor = live::TensorOf(snapshot);
  const numerics::Stats& stats = tensor.stats;
  return fmt::format("snapshot\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                     snapshot.timestamp_ns(), snapshot.session(), snapshot.rank(),
                     snapshot.replay(), ProbeText(snapshot.probe(), snapshot.invocation()),
                     snapshot.dtype(), numerics::FormatShape(tensor.slot.shape), stats.count,
                     stats.nan, stats.pos_inf + stats.neg_inf, numerics::FormatRepr(stats.min),
                     numerics::FormatRepr(stats.max), numerics::FormatRepr(stats.mean),
                     numerics::FormatRepr(stats.std));
}

std::string PlainLine(const char* kind, const std::string& session, int rank, std::uint64_t replay,
                      const std::string& probe, std::string text) {
  std::replace(text.begin(), text.end(), '\t', ' ');
  return fmt::format("{}\t{}\t{}\t{}\t{}\t{}", kind, session, rank, replay, Printable(probe),
                     Printable(text));
}

std::string LossText(const v1::Loss& loss) {
  return fmt::format("{} snapshot{} lost: {}", loss.count(), loss.count() == 1 ? "" : "s",
                     Printable(loss.cause()));
}

std::string Plain(const v1::TailReply& event) {
  switch (event.event_case()) {
    case v1::TailReply::kSnapshot:
      return PlainSnapshot(event.snapshot());
    case v1::TailReply::kPrint:
      return PlainLine("print", event.print().session(), event.print().rank(),
                       event.print().replay(), event.print().probe(), event.print().text());
    case v1::TailReply::kLoss:
      return PlainLine("loss", event.loss().session(), event.loss().rank(),
                       event.loss().before_replay(), event.loss().probe(),
                       std::to_string(event.loss().count())) +
             "\t" + Printable(event.loss().cause());
    case v1::TailReply::kCompareFailed:
      return PlainLine("compare_failed", event.compare_failed().session(),
                       event.compare_failed().rank(), event.compare_failed().replay(),
                       event.compare_failed().probe(), event.compare_failed().text());
    case v1::TailReply::kSessionChange: {
      const v1::Session& session = event.session_change().session();
      return PlainLine(event.session_change().ended() ? "session_ended" : "session_joined",
                       session.key(), session.rank(), session.replay(), "", session.label());
    }
    default:
      return "";
  }
}

// The shape is in the tensor's type already.
std::string GraphPart(const std::string& qualifier) {
  const std::size_t graph = qualifier.find("@g:");
  return graph == std::string::npos ? "" : Printable(qualifier.substr(graph));
}

// Continuation lines stand under the first, without empty ones.
std::string Indented(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  std::string out;
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += Printable(text.substr(0, end));
    if (end == text.size()) return out;
    text.remove_prefix(text.find_first_not_of('\n', end));
    out += "\n     ";
  }
}

std::string Identity(const std::string& session, std::uint32_t slot, std::uint64_t replay) {
  return fmt::format("{} {} {}", session, replay, slot);
}

}  // namespace

v1::TailRequest::Only ParseOnly(const std::string& only) {
  if (only == "nan") return v1::TailRequest::NONFINITE;
  if (only == "changed") return v1::TailRequest::CHANGED;
  if (only == "fail") return v1::TailRequest::FAILED;
  return v1::TailRequest::ALL;
}

void EventPrinter::See(const std::string& session, int rank, const std::string& label) {
  const auto [it, is_new] = sources_.try_emplace(session, Source{rank, label});
  if (!label.empty()) it->second.label = label;
  if (!is_new) return;
  std::set<int> ranks;
  for (const auto& [key, source] : sources_) ranks.insert(source.rank);
  ranks_are_enough_ = ranks.size() == sources_.size() && !ranks.contains(-1);
}

std::string EventPrinter::Prefix(const std::string& session, int rank) const {
  if (sources_.size() < 2 && !options_.always_prefix) return "";
  if (ranks_are_enough_ && rank >= 0) return fmt::format("r{} ", rank);
  const auto it = sources_.find(session);
  const bool named = it != sources_.end() && !it->second.label.empty();
  return Printable(named ? it->second.label : session) + " ";
}

std::string EventPrinter::Where(const std::string& session, int rank, std::uint64_t replay,
                                std::int64_t step) {
  See(session, rank, "");
  const std::string of_step = step < 0 ? "" : fmt::format("/s{}", step);
  return options_.style.Dim(fmt::format("{}@{}{}", Prefix(session, rank), replay, of_step)) + " ";
}

std::string EventPrinter::HumanSnapshot(const v1::Snapshot& snapshot) {
  See(snapshot.session(), snapshot.rank(), snapshot.session_label());
  last_snapshot_ = Identity(snapshot.session(), snapshot.slot(), snapshot.replay());
  std::string line;
  if (options_.timestamps) {
    line += options_.style.Dim(FormatTimeOfDay(snapshot.timestamp_ns())) + " ";
  }
  line += Where(snapshot.session(), snapshot.rank(), snapshot.replay(), snapshot.step());
  line += Pad(ProbeText(snapshot.probe(), snapshot.invocation()) + GraphPart(snapshot.qualifier()),
              &name_width_, kMaxNameWidth);
  const source::Tensor tensor = live::TensorOf(snapshot);
  type_width_ =
      std::max(type_width_, std::min(kMaxTypeWidth, Printable(TypeText(tensor.slot)).size()));
  return line + "  " + TensorLine(tensor, options_.style.enabled(), type_width_);
}

// What TensorPrint wrote begins with the line of its snapshot. That line is left out if the
// snapshot was just printed and the values have lines of their own.
std::string EventPrinter::HumanPrint(const v1::PrintLine& print) {
  if (!options_.print_lines) return "";
  See(print.session(), print.rank(), "");
  const std::string_view text = print.text();
  const bool repeats =
      Identity(print.session(), print.slot().slot(), print.replay()) == last_snapshot_;
  const std::size_t values = text.find_first_not_of(" \n", std::min(text.find('\n'), text.size()));
  if (!repeats || values == std::string_view::npos) return Indented(text);
  return "     " + Indented(text.substr(values));
}

std::string EventPrinter::HumanSession(const v1::SessionChange& change) {
  const v1::Session& session = change.session();
  See(session.key(), session.rank(), session.label());
  if (!change.ended()) {
    return fmt::format("-- session {} joined (pid {})", Printable(session.label()), session.pid());
  }
  const std::uint64_t lost = live::CountersOf(session.counters()).lost();
  std::string line = fmt::format(
      "-- session {} {} after {} replay{}, {} lost", Printable(session.label()),
      session.state() == v1::Session::DIED ? "died" : "ended", FormatGrouped(session.replay()),
      session.replay() == 1 ? "" : "s", FormatGrouped(lost));
  const bool is_bad = session.state() == v1::Session::DIED || lost > 0;
  return is_bad ? options_.style.Yellow(line) : line;
}

std::string EventPrinter::Human(const v1::TailReply& event) {
  switch (event.event_case()) {
    case v1::TailReply::kSnapshot:
      return HumanSnapshot(event.snapshot());
    case v1::TailReply::kPrint:
      return HumanPrint(event.print());
    case v1::TailReply::kLoss: {
      const v1::Loss& loss = event.loss();
      // Without a probe it is the client that was too slow, for any of them.
      const std::string of =
          loss.probe().empty() ? "" : Printable(loss.probe() + loss.slot().qualifier()) + ": ";
      return Where(loss.session(), loss.rank(), loss.before_replay()) +
             options_.style.Yellow(fmt::format("-- {}{}", of, LossText(loss)));
    }
    case v1::TailReply::kCompareFailed: {
      const v1::CompareFailed& failed = event.compare_failed();
      return Where(failed.session(), failed.rank(), failed.replay(), failed.step()) +
             options_.style.Red("-- comparison FAILED: ") +
             Printable(failed.probe() + failed.slot().qualifier()) + ": " + Indented(failed.text());
    }
    case v1::TailReply::kSessionChange:
      return HumanSession(event.session_change());
    default:
      return "";
  }
}

void EventPrinter::Count(const v1::TailReply& event) {
  if (event.has_snapshot()) {
    ++totals_.snapshots;
    if (live::StatsOf(event.snapshot().stats()).nonfinite() > 0) ++totals_.nonfinite;
    totals_.probes.insert(event.snapshot().probe());
  }
  if (event.has_loss()) totals_.lost += event.loss().count();
  if (event.has_compare_failed()) ++totals_.compare_failures;
}

void EventPrinter::Print(const v1::TailReply& event) {
  Count(event);
  if (event.has_caught_up()) return;
  std::string line;
  switch (options_.format) {
    case EventFormat::kJson:
      line = Dump(ToJson(event), /*indented=*/false);
      break;
    case EventFormat::kPlain:
      line = Plain(event);
      break;
    case EventFormat::kHuman:
      line = Human(event);
      break;
  }
  if (line.empty()) return;
  line += '\n';
  WriteText(out_, line);
}

std::string EventPrinter::Summary() const {
  std::string text =
      fmt::format("{} snapshot{} of {} probe{}, {} lost", FormatGrouped(totals_.snapshots),
                  totals_.snapshots == 1 ? "" : "s", totals_.probes.size(),
                  totals_.probes.size() == 1 ? "" : "s", FormatGrouped(totals_.lost));
  if (totals_.nonfinite > 0) {
    text += fmt::format(", {} with NaN or Inf", FormatGrouped(totals_.nonfinite));
  }
  if (totals_.compare_failures > 0) {
    text += fmt::format(", {} failed comparisons", FormatGrouped(totals_.compare_failures));
  }
  return text;
}

}  // namespace cgdebug::cli
