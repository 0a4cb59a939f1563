#include "client/cli/views/live/top_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "client/cli/views/fold.h"
#include "client/cli/views/json.h"
#include "client/cli/views/live/session_text.h"
#include "daemon/core/base/realtime.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using Align = TextTable::Align;

constexpr std::size_t kNarrowColumns = 70;    // with fewer, tables keep what matters most
constexpr std::size_t kMostNameColumns = 32;  // that a name takes from optional columns

const live::FirstNonfinite* FirstOf(const live::Session& session, const char** what) {
  const auto& nan = session.first_nan;
  const auto& inf = session.first_inf;
  const bool is_nan = nan && (!inf || nan->serial <= inf->serial);
  *what = is_nan ? "NaN" : "Inf";
  return is_nan ? &*nan : inf ? &*inf : nullptr;
}

std::string FirstText(const live::Session& session, const Style& style) {
  const char* what = nullptr;
  const live::FirstNonfinite* first = FirstOf(session, &what);
  std::string text;
  if (first != nullptr) {
    text = Printable(fmt::format("{} {} @{}", what, SlotText(first->slot), first->replay));
  }
  if (const std::uint64_t different = session.replicas.different; different > 0) {
    text += fmt::format("{}{} replicas differ", text.empty() ? "" : ", ", FormatGrouped(different));
  }
  return text.empty() ? "-" : style.Red(text);
}

std::string ColoredState(const live::Session& session, const Style& style) {
  const std::string text = StateText(session);
  if (text == NameOf(live::SessionState::kAlive)) return text;
  return session.state == live::SessionState::kDied ? style.Red(text) : style.Yellow(text);
}

// Three digits are enough to read and few enough to stand still.
std::string RateText(double rate) {
  return rate >= 100 || rate == 0 ? FormatGrouped(static_cast<std::uint64_t>(std::llround(rate)))
                                  : fmt::format("{:.1f}", rate);
}

bool IsInTrouble(const TopSession& one) {
  const live::Session& session = one.session;
  return session.state != live::SessionState::kAlive || session.first_nan || session.first_inf ||
         session.counters.lost() > 0 || !session.not_seen.empty() || session.failed_probes > 0 ||
         session.replicas.different > 0;
}

// The line that stands for all sessions without a line of their own.
std::string OthersText(const std::vector<const TopSession*>& others, const Style& style) {
  std::size_t bad = 0;
  std::optional<double> slowest;
  for (const TopSession* one : others) {
    bad += IsInTrouble(*one);
    if (one->rates) slowest = std::min(slowest.value_or(one->rates->replays), one->rates->replays);
  }
  std::string text = fmt::format("and {} more: ", others.size());
  text += bad == 0
              ? "all alive, finite, nothing lost"
              : style.Red(fmt::format(
                    "{} with NaN, Inf, losses, mismatches or unequal replicas, or ended", bad));
  if (slowest) text += fmt::format("; the slowest {} replays/s", RateText(*slowest));
  return text;
}

// The sessions that get a line of their own, the others after them.
std::vector<const TopSession*> Arranged(const std::vector<TopSession>& sessions, std::size_t lines,
                                        std::size_t* shown) {
  std::vector<const TopSession*> all;
  for (const TopSession& one : sessions) all.push_back(&one);
  *shown = all.size();
  if (all.size() <= lines) return all;
  *shown = lines - 1;
  std::stable_partition(all.begin(), all.end(),
                        [](const TopSession* one) { return IsInTrouble(*one); });
  return all;
}

TextTable SessionTable(const std::vector<const TopSession*>& sessions, bool is_narrow,
                       const Style& style) {
  std::vector<TextTable::Column> columns = {{"JOB", Align::kLeft, false, 16},
                                            {"RANK", Align::kRight},
                                            {"STATE", Align::kLeft, false, 16},
                                            {"REPLAYS/S", Align::kRight},
                                            {"LOST", Align::kRight},
                                            {"REPLAY", Align::kRight, true},
                                            {"READ/S", Align::kRight, true},
                                            {"STEP", Align::kRight, true},
                                            {"PROBES", Align::kRight, true},
                                            {"FIRST NAN OR INF", Align::kLeft, false, 16}};
  if (is_narrow) {
    columns = {{"RANK", Align::kLeft, false, 4},
               {"STATE", Align::kLeft, false, 5},
               {"RUNS/S", Align::kRight},
               {"LOST", Align::kRight},
               {"NAN, INF", Align::kLeft, false, 12}};
  }
  TextTable table(columns);
  for (const TopSession* one : sessions) {
    const live::Session& session = one->session;
    const std::uint64_t lost = session.counters.lost();
    const std::string job = Printable(one->job);
    const std::string rank = session.rank < 0 ? "-" : std::to_string(session.rank);
    const std::string replays = one->rates ? RateText(one->rates->replays) : "-";
    std::string lost_text = FormatGrouped(lost);
    if (one->rates && one->rates->lost > 0 && !is_narrow) {
      lost_text += fmt::format(" +{}/s", RateText(one->rates->lost));
    }
    if (lost > 0) lost_text = style.Yellow(lost_text);
    if (is_narrow) {
      table.Add({session.rank < 0 ? job : fmt::format("{} {}", rank, job),
                 ColoredState(session, style), replays, lost_text, FirstText(session, style)});
      continue;
    }
    const std::string bytes =
        one->rates
            ? numerics::FormatBytes(static_cast<std::uint64_t>(std::llround(one->rates->bytes)))
            : "-";
    table.Add({job, rank, ColoredState(session, style), replays, lost_text,
               fmt::format("{:>7}", FormatGrouped(session.replay)), fmt::format("{:>8}", bytes),
               session.step < 0 ? "-" : FormatGrouped(static_cast<std::uint64_t>(session.step)),
               std::to_string(session.probes), FirstText(session, style)});
  }
  return table;
}

std::string ChangeText(const std::optional<TopChange>& change, const Style& style) {
  if (!change) return "-";
  if (change->became_nonfinite) return style.Red("NaN/Inf");
  const double from = std::abs(change->from), to = std::abs(change->to);
  if (std::isnan(from) && std::isnan(to)) return "none";
  if (std::isnan(to)) return style.Red("to none");  // no element is finite any more
  if (std::isnan(from)) return "finite";
  if (from == to) return "=";
  if (from == 0) return style.Yellow("from 0");
  const double ratio = to / from;
  if (ratio >= 10) return style.Yellow(ratio >= 1000 ? ">x999" : fmt::format("x{:.0f}", ratio));
  const double percent = (ratio - 1) * 100;
  if (std::abs(percent) < 0.05) return percent > 0 ? "+0.0%" : "-0.0%";
  return std::abs(percent) < 10 ? fmt::format("{:+.1f}%", percent)
                                : fmt::format("{:+.0f}%", percent);
}

std::string ModeText(const live::Probe& probe, const Style& style) {
  if (probe.retired) return style.Dim("gone");
  if (!probe.control) return "-";
  std::string text(NameOf(probe.control->mode));
  if (probe.control->every > 1) text += fmt::format(" 1/{}", probe.control->every);
  if (probe.control->trigger != layout::ControlTrigger::kNone) text += " if";
  return style.Yellow(text);
}

TextTable ProbeTable(const TopModel& model, const std::vector<const TopProbe*>& rows,
                     std::size_t name_columns, bool is_narrow, const Style& style) {
  std::set<int> ranks;
  std::set<std::string> jobs;
  for (const TopSession& one : model.sessions()) {
    ranks.insert(one.session.rank);
    jobs.insert(one.job);
  }
  std::vector<TextTable::Column> columns = {
      {"PROBE", Align::kLeft, false, is_narrow ? 12 : std::max<std::size_t>(name_columns, 10)}};
  if (ranks.size() > 1) columns.push_back({"RANK", Align::kRight});
  columns.insert(columns.end(), {{"NAN+INF", Align::kRight},
                                 {"CHANGE", Align::kRight},
                                 {"RMS", Align::kRight, is_narrow},
                                 {"MODE", Align::kLeft, is_narrow, 5},
                                 {"ABS MAX", Align::kRight, true},
                                 {"REPLAY", Align::kRight, true},
                                 {"LOST", Align::kRight, true},
                                 {"TENSOR", Align::kLeft, true}});
  if (jobs.size() > 1) columns.push_back({"JOB", Align::kLeft, true, 16});
  TextTable table(columns);
  for (const TopProbe* one : rows) {
    const live::Probe& probe = one->probe;
    const auto& stats = probe.last_stats;
    const std::uint64_t bad = stats ? stats->nonfinite() : 0;
    const auto number = [&](double value) {
      return fmt::format("{:>8}",
                         !stats || std::isnan(value) ? "-" : numerics::FormatNumber(value, 3));
    };
    std::vector<std::string> cells = {PadToColumns(NameText(*one), name_columns)};
    if (ranks.size() > 1) {
      cells.push_back(probe.slot.rank < 0 ? "-" : std::to_string(probe.slot.rank));
    }
    // What an older snapshot had stays a finding.
    const bool saw = probe.first_nan || probe.first_inf;
    cells.push_back(bad > 0 ? style.Red(numerics::FormatCount(bad))
                    : saw   ? style.Red("earlier")
                    : stats ? "0"
                            : "-");
    const std::string change = ChangeText(one->change, style);
    cells.push_back(std::string(8 - std::min<std::size_t>(DisplayWidth(change), 8), ' ') + change);
    cells.push_back(number(stats ? stats->rms : 0));
    cells.push_back(ModeText(probe, style));
    cells.push_back(number(stats ? stats->abs_max : 0));
    cells.push_back(fmt::format("{:>7}", FormatGrouped(probe.replay)));
    cells.push_back(LostText(probe.counters.lost(), style));
    cells.push_back(Printable(TypeText(probe.slot)));
    if (jobs.size() > 1) {
      const TopSession* session = model.Find(probe.session);
      cells.push_back(session == nullptr ? "-" : Printable(session->job));
    }
    table.Add(std::move(cells));
  }
  return table;
}

// Appends the title and `rows` lines of a table. Its last line names the columns that had no
// room; it is left out, because it would take the place of a row.
void Append(const std::string& text, std::size_t rows, std::vector<std::string>* lines) {
  std::size_t begin = 0;
  for (std::size_t row = 0; row <= rows && begin < text.size(); ++row) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines->push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string HeadText(const TopModel& model, const TopChoice& choice, const Style& style) {
  const live::Status& status = model.status();
  std::string text =
      fmt::format("{}  {}", style.Bold("cgdebug top"), FormatTimeOfDay(RealtimeNs()).substr(0, 8));
  if (!choice.filter.empty()) {
    text += "  " + style.Yellow(fmt::format("only {}", Printable(choice.filter)));
  }
  text += fmt::format("  daemon {}", status.pid);
  if (const auto load = model.daemon_load()) text += fmt::format("  cpu {:.1f}%", 100 * *load);
  text += fmt::format("  rss {}", numerics::FormatBytes(status.rss_bytes));
  if (status.shm_total_bytes > 0) {
    const bool is_low = status.shm_free_bytes < status.shm_total_bytes / 10;
    const std::string free =
        fmt::format("/dev/shm {} free", numerics::FormatBytes(status.shm_free_bytes));
    text += "  " + (is_low ? style.Yellow(free) : free);
  }
  return text;
}

std::string NothingText(const TopModel& model, const TopChoice& choice) {
  if (model.sessions().empty()) {
    return "no job with a probe is alive. To start one: cgdebug-cli run --watch '*' -- python "
           "train.py";
  }
  if (model.probes().empty()) return "no probe has seen a tensor yet";
  const std::string name = Printable(choice.filter);
  const bool is_job = std::ranges::any_of(model.sessions(), [&](const TopSession& one) {
    return one.session.label == choice.filter || one.session.key == choice.filter;
  });
  return is_job ? fmt::format("{} is a job, not a probe. Type: cgdebug-cli top -s {}", name, name)
                : fmt::format("no probe is called {}", name);
}

// Where to begin so that row `at` is on the screen.
std::size_t FirstRow(std::size_t first, std::size_t page, std::size_t count,
                     std::optional<std::size_t> at) {
  if (at && *at < first) first = *at;
  if (at && *at >= first + page) first = *at - page + 1;
  return std::min(first, count > page ? count - page : 0);
}

}  // namespace

std::string NameText(const TopProbe& probe) { return Printable(SlotText(probe.probe.slot)); }

std::vector<const TopProbe*> RowsOf(const TopModel& model, const TopChoice& choice) {
  std::vector<const TopProbe*> rows;
  for (const TopProbe& one : model.probes()) {
    if (choice.selector.Matches(one.probe.slot.probe)) rows.push_back(&one);
  }
  // Largest first; equal ones stay in graph order.
  const auto by = [&](auto key) {
    std::ranges::stable_sort(rows, [&](auto a, auto b) { return key(*a) > key(*b); });
  };
  switch (choice.sort) {
    case TopSort::kChange:
      by([](const TopProbe& one) { return one.heat; });
      break;
    case TopSort::kAbsMax:
      by([](const TopProbe& one) {
        const auto& stats = one.probe.last_stats;
        return stats && !std::isnan(stats->abs_max) ? stats->abs_max : -1;
      });
      break;
    case TopSort::kNonfinite:
      by([](const TopProbe& one) {
        const auto& stats = one.probe.last_stats;
        const bool saw = one.probe.first_nan || one.probe.first_inf;
        return std::make_pair(saw, stats ? stats->nonfinite() : 0);
      });
      break;
    case TopSort::kLost:
      by([](const TopProbe& one) { return one.probe.counters.lost(); });
      break;
    case TopSort::kName:
      std::ranges::stable_sort(
          rows, {}, [](const TopProbe* one) -> const auto& { return one->probe.slot.probe; });
      break;
    case TopSort::kOrder:
      break;
  }
  if (choice.held.empty()) return rows;
  std::map<TopId, std::size_t> place;
  for (const TopId& id : choice.held) place.emplace(id, place.size());
  const auto place_of = [&](const TopProbe* one) {
    const auto found = place.find(one->id());
    return found == place.end() ? place.size() : found->second;
  };
  std::ranges::stable_sort(rows, {}, place_of);
  return rows;
}

TopFrame DrawTop(const TopModel& model, const std::string& notice, const std::string& foot,
                 const std::optional<TopSize>& size, const Style& style, TopChoice* choice) {
  TopFrame frame;
  const std::size_t columns = size ? size->columns : 0;
  const std::size_t rows = size ? size->rows : SIZE_MAX;
  const bool is_narrow = size && columns < kNarrowColumns;
  frame.lines.push_back(HeadText(model, *choice, style));
  if (!notice.empty()) frame.lines.push_back(notice);

  const std::vector<const TopProbe*> probes = RowsOf(model, *choice);
  const std::size_t most_sessions = size ? std::max<std::size_t>(rows / 3, 3) - 1 : SIZE_MAX;
  std::size_t shown = 0;
  std::vector<const TopSession*> sessions = Arranged(model.sessions(), most_sessions, &shown);
  const std::vector<const TopSession*> others(sessions.begin() + static_cast<std::ptrdiff_t>(shown),
                                              sessions.end());
  sessions.resize(shown);
  const bool is_roomy = rows >= 16;
  if (is_roomy) frame.lines.emplace_back();
  if (!sessions.empty()) {
    Append(SessionTable(sessions, is_narrow, style).Render(style, columns), sessions.size(),
           &frame.lines);
  }
  if (!others.empty()) frame.lines.push_back(OthersText(others, style));
  if (is_roomy && !sessions.empty()) frame.lines.emplace_back();

  if (probes.empty()) {
    const std::string text = NothingText(model, *choice);
    Append(size ? WrapLines(text, columns) : text, rows, &frame.lines);
  } else {
    const std::size_t used = frame.lines.size() + 2;  // the titles, and the foot
    frame.page = std::min(probes.size(), rows > used ? rows - used : 1);
    std::optional<std::size_t> at;
    std::size_t name_columns = 0;
    for (std::size_t i = 0; i < probes.size(); ++i) {
      if (choice->selected == probes[i]->id()) at = i;
      name_columns = std::max(name_columns, DisplayWidth(NameText(*probes[i])));
    }
    choice->first_row = FirstRow(choice->first_row, frame.page, probes.size(), at);
    if (at) frame.highlighted = frame.lines.size() + 1 + *at - choice->first_row;
    const auto begin = probes.begin() + static_cast<std::ptrdiff_t>(choice->first_row);
    const std::vector<const TopProbe*> page(begin, begin + static_cast<std::ptrdiff_t>(frame.page));
    const TextTable table =
        ProbeTable(model, page, std::min(name_columns, kMostNameColumns), is_narrow, style);
    Append(table.Render(style, columns), page.size(), &frame.lines);
  }
  if (size) frame.lines.resize(std::max<std::size_t>(rows, 2) - 1);
  if (!foot.empty()) frame.lines.push_back(foot);
  return frame;
}

Json ToJson(const TopModel& model, const TopChoice& choice) {
  Json json = {{"seconds", model.seconds()}};
  json["daemon"] = FieldJson(model.status());
  Json sessions = Json::array();
  for (const TopSession& one : model.sessions()) {
    Json session = FieldJson(one.session);
    session["replays_per_s"] = one.rates ? JsonNumber(one.rates->replays) : Json();
    session["bytes_per_s"] = one.rates ? JsonNumber(one.rates->bytes) : Json();
    session["lost_per_s"] = one.rates ? JsonNumber(one.rates->lost) : Json();
    sessions.push_back(std::move(session));
  }
  json["sessions"] = std::move(sessions);
  Json probes = Json::array();
  for (const TopProbe* one : RowsOf(model, choice)) {
    Json probe = FieldJson(one->probe);
    probe["rms_before"] = one->change ? JsonNumber(one->change->from) : Json();
    probes.push_back(std::move(probe));
  }
  json["probes"] = std::move(probes);
  return json;
}

}  // namespace cgdebug::cli
