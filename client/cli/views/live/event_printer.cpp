#include "client/cli/views/live/event_printer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "client/analysis/ops/op_log.h"
#include "client/cli/views/json.h"
#include "client/cli/views/tensor/snapshot_text.h"
#include "client/cli/views/tensor/tensor_text.h"

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

std::string Identity(const source::Tensor& tensor) {
  return fmt::format("{} {} {}", tensor.session_key, ReplayText(tensor.slot, tensor.snapshot.key),
                     tensor.slot.order);
}

// "graph bs=8", "eager run", "op log" of an eager call.
std::string GraphText(const source::Slot& slot) {
  if (slot.counts_calls()) return "op log";
  if (slot.graph_id == 0) return "eager run";
  return "graph " + (slot.graph.empty() ? std::to_string(slot.graph_id) : Printable(slot.graph));
}

std::string BadRowsText(const live::Event::Bad& bad) {
  std::string counts;
  const auto add = [&](std::uint64_t count, const char* what) {
    if (count > 0) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, what);
  };
  add(bad.stats.nan, "NaN");
  add(bad.stats.pos_inf, "+Inf");
  add(bad.stats.neg_inf, "-Inf");
  const bool are_masks = bad.masks == bad.rows;
  std::string text = FormatGrouped(bad.rows);
  text += are_masks ? " with -Inf alone (a mask?)" : " with NaN or Inf";
  if (!are_masks && bad.masks > 0) {
    text += fmt::format(" ({} with -Inf alone: a mask?)", FormatGrouped(bad.masks));
  }
  const std::optional<analysis::OpText> first = analysis::ParseOpText(bad.first_op);
  text +=
      fmt::format(", first #{} {}: {}", first ? first->number : 0, Printable(bad.first), counts);
  if (bad.stats.nan == 0 && bad.with_nan > 0) {
    text += fmt::format("; NaN in {}", FormatGrouped(bad.with_nan));
  }
  return text;
}

// With what tells the slot from others of its probe.
std::string WithQualifier(const source::Slot& slot) {
  return Printable(slot.probe + slot.qualifier);
}

}  // namespace

live::Only ParseOnly(const std::string& only) {
  if (only == "nan") return live::Only::kNonfinite;
  if (only == "changed") return live::Only::kChanged;
  if (only == "mismatch") return live::Only::kFailed;
  return live::Only::kAll;
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
  // Rank 0 may be alone; where there is another one, lines without a prefix are those of rank 0.
  if (sources_.size() < 2 && rank <= 0 && !options_.always_prefix) return "";
  if (ranks_are_enough_ && rank >= 0) return fmt::format("r{} ", rank);
  const auto it = sources_.find(session);
  const bool named = it != sources_.end() && !it->second.label.empty();
  return Printable(named ? it->second.label : session) + " ";
}

std::string EventPrinter::Where(const source::Tensor& tensor) {
  See(tensor.session_key, tensor.slot.rank, tensor.slot.session);
  const std::int64_t step = tensor.snapshot.step;
  const std::uint32_t thread = tensor.slot.thread;
  const std::string of_step = step < 0 ? "" : fmt::format("/s{}", step);
  const std::string of_thread = thread > 1 ? fmt::format("/t{}", thread) : "";
  return options_.style.Dim(fmt::format("{}{}{}{}{}", Prefix(tensor.session_key, tensor.slot.rank),
                                        tensor.slot.counts_calls() ? "call " : "@",
                                        ReplayText(tensor.slot, tensor.snapshot.key), of_step,
                                        of_thread)) +
         " ";
}

std::string EventPrinter::HumanSnapshot(const source::Tensor& tensor) {
  last_snapshot_ = Identity(tensor);
  const source::Slot& slot = tensor.slot;
  std::string line;
  if (options_.timestamps) {
    line += options_.style.Dim(FormatTimeOfDay(tensor.snapshot.timestamp_ns)) + " ";
  }
  line += Where(tensor);
  line += Pad(ProbeText(slot.probe, slot.invocation) + GraphPart(slot.qualifier), &name_width_,
              kMaxNameWidth);
  type_width_ = std::max(type_width_, std::min(kMaxTypeWidth, Printable(TypeText(slot)).size()));
  return line + "  " + TensorLine(tensor, options_.style.enabled(), type_width_);
}

// Names the log, how many of its rows are bad, the first of them, and what shows them.
std::string EventPrinter::HumanPage(const live::Event& page) {
  const source::Slot& slot = page.tensor.slot;
  std::string line;
  if (options_.timestamps) {
    line += options_.style.Dim(FormatTimeOfDay(page.tensor.snapshot.timestamp_ns)) + " ";
  }
  line += Where(page.tensor) + fmt::format("{}: {} row{}", GraphText(slot),
                                           FormatGrouped(page.rows), page.rows == 1 ? "" : "s");
  const analysis::OpText* const first = slot.op.row();
  if (first && first->number > 1) line += fmt::format(" from #{}", first->number);
  if (page.bad.rows > 0) {
    const std::string bad = ", " + BadRowsText(page.bad);
    const bool are_masks = page.bad.masks == page.bad.rows;
    line += are_masks ? options_.style.Yellow(bad) : options_.style.Red(bad);
  }
  return line + options_.style.Dim("  " + OpsCommandOf(page.tensor.session_key, slot,
                                                       page.tensor.snapshot.key.replay));
}

// What TensorPrint wrote begins with the line of its snapshot. That line is left out if the
// snapshot was just printed and the values have lines of their own.
std::string EventPrinter::HumanPrint(const live::Event& print) {
  if (!options_.print_lines) return "";
  See(print.tensor.session_key, print.tensor.slot.rank, "");
  const std::string_view text = print.text;
  const bool repeats = Identity(print.tensor) == last_snapshot_;
  const std::size_t values = text.find_first_not_of(" \n", std::min(text.find('\n'), text.size()));
  if (!repeats || values == std::string_view::npos) return Indented(text);
  return "     " + Indented(text.substr(values));
}

std::string EventPrinter::HumanSession(const live::Event& change) {
  const live::Session& session = change.session;
  See(session.key, session.rank, session.label);
  if (change.kind == live::EventKind::kSessionJoined) {
    return fmt::format("-- session {} joined (pid {})", Printable(session.label), session.pid);
  }
  const std::uint64_t lost = session.counters.lost();
  const bool has_died = session.state == live::SessionState::kDied;
  std::string line =
      fmt::format("-- session {} {} after {} {}{}, {} lost", Printable(session.label),
                  has_died ? "died" : "ended", FormatGrouped(session.replay), session.replay_word(),
                  session.replay == 1 ? "" : "s", FormatGrouped(lost));
  const std::vector<std::string> not_seen = live::NotSeenTexts({&session});
  if (!not_seen.empty()) line += fmt::format("; not seen: {}", Printable(not_seen.front()));
  if (not_seen.size() > 1) {
    line += fmt::format(" and {} more: cgdebug-cli status {}", not_seen.size() - 1, session.key);
  }
  return has_died || lost > 0 || !not_seen.empty() ? options_.style.Yellow(line) : line;
}

std::string EventPrinter::Human(const live::Event& event) {
  const source::Slot& slot = event.tensor.slot;
  switch (event.kind) {
    case live::EventKind::kSnapshot:
      return HumanSnapshot(event.tensor);
    case live::EventKind::kPrint:
      return HumanPrint(event);
    case live::EventKind::kLoss: {
      // Without a probe it is the client that was too slow, for any of them.
      std::string of = slot.probe.empty() ? "" : WithQualifier(slot) + ": ";
      if (event.rows > 0) of = fmt::format("{}, {} rows: ", GraphText(slot), event.rows);
      return Where(event.tensor) +
             options_.style.Yellow(fmt::format("-- {}{} snapshot{} lost: {}", of, event.count,
                                               event.count == 1 ? "" : "s", Printable(event.text)));
    }
    case live::EventKind::kCompareFailed:
      return Where(event.tensor) + options_.style.Red("-- comparison FAILED: ") +
             WithQualifier(slot) + ": " + Indented(event.text);
    case live::EventKind::kUnequal:
      return Where(event.tensor) + options_.style.Red("-- replicas DIFFER: ") +
             WithQualifier(slot) + ": " + Indented(event.text);
    case live::EventKind::kFrozen:
      return Where(event.tensor) + options_.style.Yellow("-- " + Indented(event.text));
    case live::EventKind::kPage:
      return HumanPage(event);
    case live::EventKind::kSessionJoined:
    case live::EventKind::kSessionEnded:
      return HumanSession(event);
    case live::EventKind::kCaughtUp:
      break;
  }
  return "";
}

void EventPrinter::Count(const live::Event& event) {
  if (event.kind == live::EventKind::kSnapshot) {
    ++totals_.snapshots;
    if (event.tensor.stats.nonfinite() > 0) ++totals_.nonfinite;
    totals_.probes.insert(event.tensor.slot.probe);
  }
  if (event.kind == live::EventKind::kPage) {
    totals_.snapshots += event.rows;
    totals_.nonfinite += event.bad.rows;
    totals_.rows[fmt::format("{} {}", event.tensor.session_key, event.tensor.slot.order)] =
        event.rows;
  }
  totals_.lost += event.count;
  if (event.kind == live::EventKind::kCompareFailed) ++totals_.compare_failures;
}

void EventPrinter::Print(const live::Event& event) {
  Count(event);
  if (event.kind == live::EventKind::kCaughtUp) return;
  std::string line = options_.is_json ? Dump(ToJson(event), /*indented=*/false) : Human(event);
  if (line.empty()) return;
  line += '\n';
  WriteText(out_, line);
}

void EventPrinter::PrintBehind(const source::Tensor& last, std::size_t count) {
  const std::string text = fmt::format("and {} more behind them, the last {}", FormatGrouped(count),
                                       ProbeText(last.slot.probe, last.slot.invocation));
  WriteText(out_, Where(last) + options_.style.Dim(text) + "\n");
}

std::string EventPrinter::Summary() const {
  std::uint64_t rows = 0;
  for (const auto& [page, count] : totals_.rows) rows += count;
  std::string of;
  if (!totals_.probes.empty() || rows == 0) {
    of = fmt::format("{} probe{}", totals_.probes.size(), totals_.probes.size() == 1 ? "" : "s");
  }
  if (rows > 0) of += fmt::format("{}{} rows", of.empty() ? "" : " and ", FormatGrouped(rows));
  std::string text =
      fmt::format("{} snapshot{} of {}, {} lost", FormatGrouped(totals_.snapshots),
                  totals_.snapshots == 1 ? "" : "s", of, FormatGrouped(totals_.lost));
  if (totals_.nonfinite > 0) {
    text += fmt::format(", {} with NaN or Inf", FormatGrouped(totals_.nonfinite));
  }
  if (totals_.compare_failures > 0) {
    text += fmt::format(", {} failed comparisons", FormatGrouped(totals_.compare_failures));
  }
  return text;
}

}  // namespace cgdebug::cli
