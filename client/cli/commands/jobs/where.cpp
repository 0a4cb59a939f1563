#include "client/analysis/where.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/diff/align.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/ops/trails.h"
#include "client/analysis/pieces.h"
#include "client/cli/command.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/live/session_text.h"
#include "client/live/sessions.h"
#include "client/source/source.h"
#include "daemon/core/base/duration.h"

namespace cgdebug::cli {
namespace {

using analysis::Passed;
using analysis::Place;
using analysis::Trail;

// One process, as a command shows it.
struct Rank {
  std::string name;   // "rank 3", or the session
  std::string state;  // "alive"
  std::string session;
  std::string selector;  // what names it, or its file, on the command line
  std::string among;     // " --ranks 3": options that tell it from the other processes of a file
  int rank = -1;
  int pid = 0;
  Place place = {};
  std::optional<analysis::PieceNote> piece = {};  // of a graph that is launched in pieces
  std::optional<analysis::PieceNote> eager = {};  // of an op that waits for other ranks
  bool is_odd = false;
  bool is_file = false;
};
struct Job {
  std::string name;
  std::vector<Rank> ranks = {};
  std::string missing = {};  // which ranks are not shown; empty: none
};

std::string StopText(const Place::Stop& stop, bool with_site) {
  std::string text = stop.name;
  std::string more = stop.number == 0 ? "" : fmt::format("#{}", stop.number);
  if (with_site && !stop.site.empty()) more += (more.empty() ? "" : ", ") + stop.site;
  return more.empty() ? text : fmt::format("{} ({})", text, more);
}

std::string Noun(const Place& place, std::size_t count) {
  return fmt::format("{}{}", place.has_rows ? "row" : "probe", count == 1 ? "" : "s");
}

std::string BeforeText(const Place& place) {
  std::string text = StopText(*place.before, true);
  if (place.before_last) text += fmt::format(" .. {}", StopText(*place.before_last, true));
  return text;
}

std::string PlaceText(const Place& place) {
  const std::string graph =
      fmt::format("graph {}, replay {}",
                  place.graph.empty() ? std::to_string(place.graph_id) : place.graph, place.replay);
  switch (place.kind) {
    case Place::Kind::kNowhere:
      return "no probe was reached, and no graph with a probe was launched";
    case Place::Kind::kInside:
      return fmt::format(
          "{}: {}before {} ({} of {} {})", graph,
          place.after ? fmt::format("after {}, ", StopText(*place.after, false)) : "",
          BeforeText(place), place.count, place.total, Noun(place, place.total));
    case Place::Kind::kLaunched:
      return fmt::format("{}: launched, before its first {}, {}", graph, Noun(place, 1),
                         BeforeText(place));
    case Place::Kind::kPassed:
    case Place::Kind::kFinished:
      return fmt::format("{}: after the last of {} {}, {}; {}", graph, place.total,
                         Noun(place, place.total), StopText(*place.after, true),
                         place.kind == Place::Kind::kFinished
                             ? "no later replay was launched"
                             : "launches of this graph are not counted");
    case Place::Kind::kEager: {
      const std::string next =
          !place.before ? ""
          : place.count == place.total
              ? fmt::format(", the last of {} {}; the next call begins with {}", place.total,
                            Noun(place, place.total), BeforeText(place))
              : fmt::format(", before {}", BeforeText(place));
      return fmt::format("call {}: after {}{}", place.replay, StopText(*place.after, true), next);
    }
    case Place::Kind::kEagerRuns:
      break;
  }
  return fmt::format("call {}: after {}", place.replay, StopText(*place.after, true));
}

std::string MovedText(const Place& place) {
  if (place.moved_ns == 0) return {};
  return fmt::format("; moved {} ago", FormatDuration(live::SecondsSince(place.moved_ns)));
}

// Whether it ran eagerly a moment ago: then it need not be where the others are.
bool IsUnderWay(const Rank& rank) {
  constexpr double kMomentSeconds = 2;
  const bool is_eager =
      rank.place.kind == Place::Kind::kEager || rank.place.kind == Place::Kind::kEagerRuns;
  return is_eager && !rank.is_file && rank.place.moved_ns != 0 &&
         live::SecondsSince(rank.place.moved_ns) < kMomentSeconds;
}

std::string NextCommand(const Rank& rank) {
  const Place& place = rank.place;
  const std::string session = rank.is_file ? "" : fmt::format(" -s {}", ShellWord(rank.selector));
  const std::string inside = rank.is_file ? rank.selector + ":" : "";
  if (place.kind == Place::Kind::kNowhere) {
    return rank.is_file ? fmt::format("cgdebug-cli info {}{}", ShellWord(rank.selector), rank.among)
                        : fmt::format("cgdebug-cli graphs {}", ShellWord(rank.selector));
  }
  const bool is_under_way =
      place.kind == Place::Kind::kInside || place.kind == Place::Kind::kLaunched;
  if (place.has_rows) {
    const std::string graph = place.graph_id == 0   ? "@g:eager"
                              : place.graph.empty() ? fmt::format("@g:{}", place.graph_id)
                                                    : "@g:" + place.graph;
    const std::uint64_t whole = is_under_way && place.replay > 1 ? place.replay - 1 : place.replay;
    return fmt::format("cgdebug-cli ops {}{}",
                       ShellWord(fmt::format("{}{}@{}", rank.selector, graph, whole)), rank.among);
  }
  if (!place.after) return fmt::format("cgdebug-cli graphs {}", ShellWord(rank.selector));
  return fmt::format("cgdebug-cli show{} {}{}", session,
                     ShellWord(fmt::format("{}{}@{}", inside, place.after->typed, place.replay)),
                     rank.among);
}

std::string LaunchesText(const Place& place) {
  std::string text;
  for (const analysis::Launches& graph : place.also_launched) {
    text += fmt::format("{}graph {}, replay {}", text.empty() ? "" : "; ",
                        graph.graph.empty() ? std::to_string(graph.graph_id) : graph.graph,
                        graph.count.value_or(0));
  }
  return text;
}

Json StopJson(const std::optional<Place::Stop>& stop) {
  if (!stop) return nullptr;
  return {{"name", stop->name},
          {"number", stop->number == 0 ? Json(nullptr) : Json(stop->number)},
          {"site", stop->site}};
}

Json RankJson(const Rank& rank) {
  const Place& place = rank.place;
  Json also = Json::array();
  for (const analysis::Launches& graph : place.also_launched) {
    also.push_back({{"graph", graph.graph},
                    {"graph_id", graph.graph_id},
                    {"replay", graph.count.value_or(0)}});
  }
  return {{"session", rank.session},
          {"rank", rank.rank},
          {"pid", rank.pid},
          {"state", rank.state},
          {"place", NameOf(place.kind)},
          {"graph", place.graph},
          {"graph_id", place.graph_id},
          {"replay", place.replay},
          {"launches", place.launches ? Json(*place.launches) : Json(nullptr)},
          {"of", place.has_rows ? "rows" : "probes"},
          {"passed", place.count},
          {"total", place.total},
          {"after", StopJson(place.after)},
          {"before", StopJson(place.before)},
          {"before_last", StopJson(place.before_last)},
          {"moved_ns", place.moved_ns},
          {"odd", rank.is_odd},
          {"also_launched", std::move(also)},
          {"piece", rank.piece ? Json(ToText(*rank.piece)) : Json(nullptr)},
          {"waits", rank.eager ? Json(rank.eager->text) : Json(nullptr)},
          {"next", NextCommand(rank)}};
}

int Show(const Context& context, std::vector<Job> jobs, const std::vector<std::string>& missing) {
  bool is_unknown = !missing.empty();
  bool has_probes = false, has_rows = false, has_runs = false;
  for (Job& job : jobs) {
    std::vector<Place> places;
    for (const Rank& rank : job.ranks) places.push_back(rank.place);
    const std::vector<bool> odd = analysis::FindOdd(places);
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
      const Place& place = places[i];
      job.ranks[i].is_odd = odd[i] && !IsUnderWay(job.ranks[i]);
      has_runs |= place.kind == Place::Kind::kEagerRuns && !job.ranks[i].is_file;
      is_unknown |=
          place.kind == Place::Kind::kNowhere && !job.ranks[i].piece && !job.ranks[i].eager;
      if (place.kind != Place::Kind::kInside && place.kind != Place::Kind::kLaunched) continue;
      (place.has_rows ? has_rows : has_probes) = true;
    }
  }
  const int exit_code = ExitCodeOf(analysis::OutcomeOf(/*found=*/false, !is_unknown));
  if (context.options.json) {
    Json list = Json::array();
    for (const Job& job : jobs) {
      Json ranks = Json::array();
      for (const Rank& rank : job.ranks) ranks.push_back(RankJson(rank));
      list.push_back({{"job", job.name}, {"ranks", std::move(ranks)}, {"not_shown", job.missing}});
    }
    Context::PrintJson({{"jobs", std::move(list)}, {"missing", missing}});
    return exit_code;
  }
  std::string out;
  for (const Job& job : jobs) {
    out += context.out.Bold(Printable(job.name));
    if (!job.missing.empty()) out += "  " + Printable(job.missing);
    out += "\n";
    for (const Rank& rank : job.ranks) {
      std::string line = fmt::format("{}  {}  {}{}", Printable(rank.name), rank.state,
                                     Printable(PlaceText(rank.place)), MovedText(rank.place));
      if (rank.is_odd) line += context.out.Red("  <-- differs");
      out += fmt::format("{}  -> {}\n", line, Printable(NextCommand(rank)));
      if (rank.piece) out += "    " + Printable(ToText(*rank.piece)) + "\n";
      if (rank.eager) out += "    " + Printable(ToText(*rank.eager)) + ", and no op since\n";
      if (const std::string also = LaunchesText(rank.place); !also.empty()) {
        out += fmt::format("    launched too, and not finished: {}\n", Printable(also));
      }
    }
  }
  Context::Print(out);
  if (has_probes) {
    context.Note(
        "a probe is sent beside the job's own kernels: those after the probe named last may have "
        "run, the next probe's included");
  }
  if (has_rows) {
    context.Note(
        "rows with .. between them are looked at together: one of their ops is not done. To name "
        "it, type: CGDEBUG_OP_LOG_BATCH=1 in front of the job's command");
  }
  if (has_runs) context.Note("the rows of a call come once a second, and when it ends");
  for (const std::string& text : missing) context.Note(PrintableLines(text));
  return exit_code;
}

// Which ranks of a job are not among those that are shown, and were not left out by --ranks.
// `all`: its sessions, also those that ended.
std::string MissingText(const Context& context, const live::JobRanks& all,
                        const live::JobRanks& shown) {
  if (!all.has_ranks()) return {};
  std::set<std::uint64_t> ended;
  for (const live::Session* session : all.sessions) {
    const bool is_shown = std::ranges::find(shown.sessions, session->rank, &live::Session::rank) !=
                          shown.sessions.end();
    if (session->rank >= 0 && !is_shown && context.ranks.Contains(session->rank)) {
      ended.insert(static_cast<std::uint64_t>(session->rank));
    }
  }
  std::string text = live::MissingRanksText(all);
  if (ended.empty()) return text;
  const live::Session& first = *all.sessions.front();
  return fmt::format(
      "{}{}rank{} {} ended, type: cgdebug-cli where {}{}", text, text.empty() ? "" : "; ",
      ended.size() == 1 ? "" : "s", analysis::RangesText({ended.begin(), ended.end()}),
      ShellWord(first.run_id.empty() ? first.label : first.run_id), context.SameRanks());
}

// How far the sessions came, by their keys.
struct LiveTrails {
  std::map<std::string, Trail> trails;
  analysis::PieceNotes<std::string> pieces;
};
LiveTrails TrailsOf(const std::vector<live::SessionGraphs>& graphs,
                    const std::vector<live::Session>& sessions,
                    const std::vector<live::Probe>& probes) {
  LiveTrails all;
  for (const live::SessionGraphs& session : graphs) {
    for (const layout::GraphFacts& graph : session.graphs) {
      if (graph.state != layout::GraphState::kLive || graph.probes == 0) continue;
      all.trails[session.session].graphs.push_back({graph.graph_id, graph.label, graph.replays});
    }
  }
  std::set<std::string> alive;
  for (const live::Session& session : sessions) {
    if (session.state == live::SessionState::kAlive) alive.insert(session.key);
  }
  for (const live::Probe& probe : probes) {
    all.pieces.Add(probe.session, probe.slot);
    if (probe.slot.op.is_no_row()) continue;
    // A job that ends closes its probes.
    const bool is_in_body = probe.slot.in_body && !probe.slot.counts_calls();
    if ((probe.retired && alive.contains(probe.session)) || is_in_body) continue;
    Passed passed = analysis::PassedAt(probe.slot);
    passed.launch = probe.launch;
    passed.replay = std::max(probe.counters.replays, probe.reached);
    passed.last_ns = probe.last_timestamp_ns;
    passed.inside_ns = probe.reached_ns;
    all.trails[probe.session].passed.push_back(std::move(passed));
  }
  return all;
}

int RunLive(Context& context, const std::string& wanted) {
  if (const int failed = context.Connect()) return failed;
  // First, because it makes the daemon look at the rings.
  const Result<std::vector<live::SessionGraphs>> graphs =
      live::ListGraphs(context.client(), wanted);
  if (!graphs.ok()) return context.Fail(graphs.error());
  Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok()) return context.Fail(sessions.error());
  std::erase_if(*sessions, [&](const live::Session& session) {
    return !live::MatchesSession(session, wanted);
  });
  const std::vector<live::Session> all = *sessions;
  std::erase_if(*sessions, [&](const live::Session& session) {
    return !context.ranks.Contains(session.rank);
  });
  std::vector<live::Session> shown = wanted.empty() ? live::Current(*sessions) : *sessions;
  if (shown.empty()) {
    return context.FailNoJob(
        "no job with a probe is here. Type: cgdebug-cli ps -a, or cgdebug-cli run --watch '*' -- "
        "python train.py");
  }
  const Result<std::vector<live::Probe>> probes = live::ListProbesAndGaps(context.client(), wanted);
  if (!probes.ok()) return context.Fail(probes.error());
  LiveTrails known = TrailsOf(*graphs, all, *probes);
  std::vector<Job> jobs;
  for (const live::JobRanks& group : live::GroupByJob(shown)) {
    Job job{.name = group.name};
    for (const live::JobRanks& whole : live::GroupByJob(all)) {
      if (whole.name == group.name) job.missing = MissingText(context, whole, group);
    }
    for (const live::Session* session : group.sessions) {
      job.ranks.push_back({.name = session->rank < 0 ? fmt::format("pid {}", session->pid)
                                                     : fmt::format("rank {}", session->rank),
                           .state = StateText(*session),
                           .session = session->label,
                           .selector = session->key,
                           .rank = session->rank,
                           .pid = session->pid,
                           .place = analysis::FindPlace(known.trails[session->key]),
                           .piece = known.pieces.Of(session->key),
                           .eager = known.pieces.EagerOf(session->key)});
    }
    std::ranges::stable_sort(job.ranks, {}, &Rank::rank);
    jobs.push_back(std::move(job));
  }
  return Show(context, std::move(jobs), {});
}

// Why the job may have come further than its file shows.
std::vector<std::string> WhyFurther(const Context& context, source::Source& source,
                                    const std::string& path) {
  const source::Description description = source.Describe();
  std::vector<std::string> missing;
  std::uint64_t lost = 0;
  for (const source::Gap& gap : source.Gaps()) {
    if (gap.before_replay == 0) lost += gap.count;
  }
  if (lost > 0) {
    missing.push_back(
        fmt::format("{} snapshots are missing at the end, so the job may have come further. Type: "
                    "cgdebug-cli info {}{}",
                    lost, ShellWord(path), context.SameJob()));
  }
  if (description.is_cut_off) {
    missing.push_back(fmt::format("{} ends early ({}), so the job may have come further", path,
                                  description.ending));
  }
  for (const std::string& damage : description.damage) missing.push_back("damaged: " + damage);
  return missing;
}

int RunFile(Context& context, const std::string& path) {
  std::unique_ptr<source::Source> source;
  if (const int failed = OpenSource(context, path, &source)) return failed;
  const source::Description description = source->Describe();
  analysis::PieceNotes<source::Process> pieces;
  std::vector<std::string> missing = description.unread;
  const auto is_meant = [&](const source::Slot& one) { return context.ranks.Contains(one.rank); };
  for (std::string& text : NotSeenTexts(*source, is_meant, is_meant)) {
    missing.push_back(std::move(text));
  }
  Result<analysis::Trails> read = analysis::ReadTrails(*source, is_meant);
  if (!read.ok()) return context.Fail(kExitTrouble, read.error().message);
  analysis::Trails& trails = *read;
  for (const source::Slot& slot : source->slots()) {
    if (!is_meant(slot) || !analysis::ReadPieceNote(slot)) continue;
    pieces.Add(source::ProcessOf(slot), slot);
    trails.try_emplace(source::ProcessOf(slot));
  }
  if (trails.empty()) {
    return context.Fail(kExitNoMatch,
                        fmt::format("{} has no probe{}. Type: cgdebug-cli info {}{}", path,
                                    context.ranks.selects_all() ? "" : " of these ranks",
                                    ShellWord(path), context.SameSession()));
  }
  for (std::string& text : WhyFurther(context, *source, path)) missing.push_back(std::move(text));
  Job job{.name = path};
  std::map<int, std::size_t> of_rank;
  std::map<std::pair<int, std::string>, std::size_t> of_label;
  for (const auto& [process, trail] : trails) {
    ++of_rank[process.rank];
    ++of_label[{process.rank, process.session}];
  }
  for (const auto& [process, trail] : trails) {
    const auto& [rank, session, uuid] = process;
    const bool is_one_of_several = of_rank[rank] > 1 || !context.options.session.empty();
    const std::string key = KeyOfJob(*source, process);
    std::string name = rank < 0 ? session : fmt::format("rank {}", rank);
    if (of_label[{rank, session}] > 1) name += fmt::format(" ({})", key);
    job.ranks.push_back({.name = std::move(name),
                         .state = description.is_growing ? "is being recorded" : "recorded",
                         .session = session,
                         .selector = path,
                         .among = (is_one_of_several ? " -s " + key : "") +
                                  (rank >= 0 ? fmt::format(" --ranks {}", rank) : ""),
                         .rank = rank,
                         .place = analysis::FindPlace(trail),
                         .piece = pieces.Of(process),
                         .eager = pieces.EagerOf(process),
                         .is_file = true});
  }
  return Show(context, {std::move(job)}, missing);
}

}  // namespace

RunFunction AddWhere(CLI::App& app) {
  auto selector = std::make_shared<std::string>();
  app.add_option("SOURCE", *selector,
                 "key, label, run id or pid, also of a dead job; or a recording: where it ends. "
                 "Default: the jobs that are alive");
  return [selector](Context& context) {
    if (source::LooksLikePath(*selector)) return RunFile(context, *selector);
    return RunLive(context,
                   *selector == "live" ? context.SessionOr("") : context.SessionOr(*selector));
  };
}

}  // namespace cgdebug::cli
