#include "client/cli/sources/sources.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "client/cli/views/answer_text.h"
#include "client/live/live_source.h"
#include "client/live/sessions.h"
#include "client/source/merged_source.h"
#include "daemon/core/base/session_selector.h"
#include "daemon/core/base/suggest.h"
#include "daemon/core/recording/files/remote_files.h"
#include "daemon/core/recording/recording_reader.h"

namespace cgdebug::cli {
namespace {

std::optional<std::uint64_t> ParseReplay(std::string_view text) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  if (!is_whole || value == 0) return std::nullopt;
  return value;
}

Result<void> ParseReplays(std::string_view text, analysis::Scope* scope) {
  if (text.empty()) return {};
  const std::size_t dots = text.find("..");
  const auto first = ParseReplay(text.substr(0, dots));
  std::optional<std::uint64_t> last = first;
  if (dots != std::string_view::npos) {
    const std::string_view end = text.substr(dots + 2);
    last = end.empty() ? UINT64_MAX : ParseReplay(end);
  }
  if (!first || !last || *last < *first) {
    const std::size_t dash = text.find_first_of("-:");
    const bool has_ends = dash != std::string_view::npos && ParseReplay(text.substr(0, dash)) &&
                          ParseReplay(text.substr(dash + 1));
    const std::string meant =
        has_ends ? fmt::format("{}..{}", text.substr(0, dash), text.substr(dash + 1)) : "100..200";
    return Error{fmt::format(
        "'{}' is not a range of replays, which count from 1{}. Type for example: "
        "--replays {}",
        text, text.starts_with("step") ? " (one of a step: show PROBE@step:N)" : "", meant)};
  }
  scope->first_replay = *first;
  scope->last_replay = *last;
  return {};
}

// The part of the ranks that --ranks names.
std::unique_ptr<source::Source> OfRanks(const Context& context,
                                        std::unique_ptr<source::Source> source) {
  if (context.options.ranks.empty()) return source;
  return source::Only(std::move(source), [&context](const source::Slot& slot) {
    return context.ranks.Contains(slot.rank);
  });
}

// Restricts a file to the tensors of one job.
int PickSession(Context& context, const std::string& selector,
                std::unique_ptr<source::Source>* source) {
  const std::string path = (*source)->Describe().path;
  std::set<std::string> wanted = UuidsOf(**source, selector);
  std::vector<std::string> labels;
  for (const recording::RecordingReader* reader : (*source)->Recordings()) {
    for (const recording::Session& session : reader->sessions()) labels.push_back(session.label);
  }
  if (labels.empty()) {
    return context.Fail(kExitTrouble,
                        fmt::format("{} knows no session: leave out --session", path));
  }
  if (wanted.empty()) {
    return context.Fail(kExitNoMatch,
                        fmt::format("{} has no session '{}'.{} Type: cgdebug-cli info {}", path,
                                    selector, DidYouMean(selector, labels), ShellWord(path)));
  }
  *source = source::OnlyOf(std::move(*source), std::move(wanted));
  return kExitOk;
}

std::vector<std::string> LabelsOf(client::Client& client) {
  std::vector<std::string> labels;
  const Result<std::vector<live::Session>> sessions = live::ListSessions(client);
  if (!sessions.ok()) return labels;
  for (const live::Session& session : *sessions) labels.push_back(session.label);
  return labels;
}

// " Close: 'runs/a.cgrec'." if a source of such a name lies in the folder of a path that leads
// nowhere.
std::string CloseFiles(const std::string& typed) {
  constexpr std::size_t kMostFiles = 10'000;
  const std::filesystem::path path(typed);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::vector<std::string> names;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    const std::string name = (path.parent_path() / entry.path().filename()).string();
    if (source::LooksLikeSource(name)) names.push_back(Printable(name));
    if (names.size() == kMostFiles) break;
  }
  return DidYouMean(typed, names);
}

int OpenFile(Context& context, const std::string& path, const std::string& session,
             std::unique_ptr<source::Source>* source) {
  Result<std::unique_ptr<source::Source>> opened = source::Open(path);
  std::error_code ignored;
  if (!opened.ok() && !recording::IsUrl(path) && !std::filesystem::exists(path, ignored)) {
    std::string more = CloseFiles(path);
    // A probe may have a slash in its name.
    if (more.empty() && !source::LooksLikeSource(path)) {
      more = fmt::format(" If it is a probe, its job comes first: live {}", ShellWord(path));
    }
    return context.Fail(kExitTrouble, opened.error().message + (more.empty() ? "" : ".") + more);
  }
  if (!opened.ok()) {
    const bool is_folder = std::filesystem::is_directory(path, ignored);
    const std::string more =
        is_folder ? fmt::format(". Type: find {} -name '*.cgrec'", ShellWord(path)) : "";
    return context.Fail(kExitTrouble, opened.error().message + more);
  }
  *source = *std::move(opened);
  return session.empty() ? static_cast<int>(kExitOk) : PickSession(context, session, source);
}

// If no session was named, the job that comes first is meant. Says which newer one is not.
void NoteNewerJob(Context& context) {
  const Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok() || sessions->empty()) return;
  const live::Session& first = *std::ranges::min_element(*sessions, live::ComesFirst);
  const live::Session& newest =
      *std::ranges::max_element(*sessions, {}, &live::Session::created_ns);
  const bool is_same_run = !newest.run_id.empty() && newest.run_id == first.run_id;
  if (newest.key == first.key || is_same_run) return;
  context.Note(fmt::format("of job {}, which is alive. {} began later, and has ended: {}",
                           Printable(first.label), Printable(newest.label),
                           context.Again("-s " + newest.key)));
}

// Sets `job` to what `open` returns for the session that `text` means, or `wanted` if that is
// "live".
template <typename Job, typename Open>
int AskForJob(Context& context, const std::string& text, const std::string& wanted, Job* job,
              const Open& open) {
  const int failed = context.ConnectWith(context.MakeConnectOptions());
  if (failed != kExitOk) return failed;
  std::string session = text == "live" ? wanted : text;
  if (session.starts_with("live:")) session.erase(0, 5);
  Result<Job> opened = open(session);
  if (!opened.ok()) {
    if (context.client().last_failure() != client::Failure::kNone) {
      return context.Fail(opened.error());
    }
    const bool may_be_a_file = text != "live" && text == session;
    return context.FailNoJob(fmt::format(
        "{}{}.{} Type: {}", opened.error().message,
        may_be_a_file ? " and no file of this name" : "",
        DidYouMean(session, LabelsOf(context.client())) +
            (may_be_a_file ? CloseFiles(session) : ""),
        session.empty() ? "cgdebug-cli run --watch '*' -- python train.py" : "cgdebug-cli ps -a"));
  }
  *job = *std::move(opened);
  if (session.empty()) NoteNewerJob(context);
  return kExitOk;
}

}  // namespace

bool MatchesSession(const recording::Session& session, std::string_view selector) {
  return NamesSession(selector, session.label, session.run_id, session.pid, session.uuid);
}

bool IsOfSameJob(const source::Slot& a, const source::Slot& b) {
  return a.session == b.session && a.uuid == b.uuid;
}

std::string KeyOfJob(const source::Source& source, const source::Process& process) {
  constexpr std::size_t kKeyDigits = 8;
  const bool is_alone = std::ranges::none_of(source.slots(), [&](const source::Slot& other) {
    return other.session == process.session && other.uuid != process.uuid;
  });
  return is_alone ? ShellWord(process.session) : process.uuid.substr(0, kKeyDigits);
}

std::set<std::string> UuidsOf(const source::Source& source, std::string_view selector) {
  std::set<std::string> uuids;
  for (const recording::RecordingReader* reader : source.Recordings()) {
    for (const recording::Session& session : reader->sessions()) {
      if (MatchesSession(session, selector)) uuids.insert(session.uuid);
    }
  }
  return uuids;
}

int OpenSource(Context& context, const std::string& text, std::unique_ptr<source::Source>* source) {
  return OpenSource(context, text, context.options.session, source);
}

int OpenSource(Context& context, const std::string& text, const std::string& wanted,
               std::unique_ptr<source::Source>* source) {
  if (source::LooksLikePath(text)) return OpenFile(context, text, wanted, source);
  return AskForJob(context, text, wanted, source, [&](const std::string& session) {
    return live::OpenLive(context.client(), session);
  });
}

int OpenSourceOfRanks(Context& context, const std::string& text,
                      std::unique_ptr<source::Source>* source) {
  const int failed = OpenSource(context, text, source);
  if (failed == kExitOk) *source = OfRanks(context, std::move(*source));
  return failed;
}

int OpenOpLog(Context& context, const std::string& text, const analysis::OpLogChoice& choice,
              analysis::OpLog* log, std::vector<std::string>* others) {
  const auto read = [&](source::Source& source, const analysis::OpLogChoice& which,
                        std::vector<std::string>* not_chosen) {
    Result<analysis::OpLog> found = analysis::ReadOpLog(source, which, not_chosen);
    if (!found.ok()) return context.Fail(kExitNoMatch, found.error().message);
    *log = *std::move(found);
    return static_cast<int>(kExitOk);
  };
  const std::string& wanted = context.options.session;
  if (source::LooksLikePath(text)) {
    std::unique_ptr<source::Source> source;
    if (const int failed = OpenFile(context, text, wanted, &source)) return failed;
    return read(*OfRanks(context, std::move(source)), choice, others);
  }
  live::LiveLog live;
  const int failed = AskForJob(context, text, wanted, &live, [&](const std::string& session) {
    return live::OpenLiveLog(context.client(), session, choice.graph, [&](int rank) {
      return context.options.ranks.empty() || context.ranks.Contains(rank);
    });
  });
  if (failed != kExitOk) return failed;
  if (live.is_whole) return read(*OfRanks(context, std::move(live.source)), choice, others);
  *others = std::move(live.others);
  if (live.source->slots().empty()) {
    return context.Fail(kExitNoMatch,
                        analysis::NoOpLogText(live.source->Describe().path, choice.graph, *others));
  }
  std::vector<std::string> none;
  const int done = read(*live.source, {.replay = choice.replay, .typed = choice.typed}, &none);
  for (const std::uint64_t rank : live.ranks) {
    if (static_cast<int>(rank) != log->rank) log->other_ranks.push_back(rank);
  }
  return done;
}

std::string HeadLine(const source::Source& source) {
  const std::string head = source.Describe().head;
  return head.empty() ? "" : PrintableLines(head + "\n");
}

int ShowFound(const Context& context, const source::Source& source, analysis::Outcome outcome,
              const std::function<Json()>& json, const std::function<analysis::Answer()>& answer) {
  if (context.options.json) {
    Context::PrintJson(json());
  } else {
    Context::Print(HeadLine(source) + AnswerText(context.out, answer()));
  }
  return ExitCodeOf(outcome);
}

std::string RanksHere(source::Source& source) {
  if (const std::string ranks = source.Describe().ranks; !ranks.empty()) return ranks + "\n";
  std::string text;
  for (const source::AbsentRanks& run : AbsentRanksOf(source)) {
    text += fmt::format(
        "{}rank{} {} of {}: the others are not in here; to join recordings, type: "
        "cgdebug-cli extract --help\n",
        run.run.empty() ? "" : run.run + ": ", run.present.size() == 1 ? "" : "s",
        analysis::RangesText({run.present.begin(), run.present.end()}), run.world_size);
  }
  return text;
}

void SayUnread(const Context& context, const source::Source& source) {
  for (const std::string& why : source.Describe().unread) {
    context.Say(PrintableLines("not read: " + why));
  }
}

void SayNotAll(const Context& context, const analysis::GapSummary& gaps) {
  const std::size_t more = gaps.sentences.size() - 1;
  context.Say(PrintableLines(fmt::format("not all of it: {}{}", gaps.sentences.front(),
                                         more > 0 ? fmt::format(", and {} more", more) : "")));
}

Result<WhichSlots> WhichOptions::Parse() const {
  WhichSlots which{.graph = graph};
  if (shape.empty()) return which;
  which.shape = ParseShape(shape);
  if (which.shape) return which;
  return Error{fmt::format("'{}' is not a shape. Type for example: --shape 16,100", shape)};
}

std::string SameWhich(const WhichOptions& options) {
  return (options.graph.empty() ? "" : " --graph " + ShellWord(options.graph)) +
         (options.shape.empty() ? "" : " --shape " + ShellWord(options.shape));
}

void AddWhichOptions(CLI::App& app, WhichOptions* options) {
  app.add_option("--graph", options->graph, "only in this graph: its label, or eager")
      ->type_name("LABEL");
  app.add_option("--shape", options->shape, "only tensors of this shape")->type_name("16,100");
}

Result<analysis::Scope> MakeScope(const Context& context, const ScopeOptions& options) {
  analysis::Scope scope;
  Result<Selector> probes = Selector::Parse(options.probes);
  if (!probes.ok()) return probes.error();
  scope.probes = *std::move(probes);
  Result<WhichSlots> which = options.which.Parse();
  if (!which.ok()) return which.error();
  scope.which = *std::move(which);
  if (Result<void> replays = ParseReplays(options.replays, &scope); !replays.ok()) {
    return replays.error();
  }
  if (!context.ranks.selects_all()) {
    scope.wants_rank = [ranks = context.ranks](int rank) { return ranks.Contains(rank); };
  }
  return scope;
}

int FailNoProbe(const Context& context, const source::Source& source, const ScopeOptions& options,
                const std::string& typed) {
  std::set<std::string> distinct;
  for (const source::Slot& slot : source.slots()) distinct.insert(slot.probe);
  const std::vector<std::string> names(distinct.begin(), distinct.end());
  const source::Description about = source.Describe();
  const std::string& path = about.path;
  const auto is_shown = [&](const source::Slot& process) {
    return context.ranks.Contains(process.rank);
  };
  const std::vector<std::string> not_seen = NotSeenTexts(source, is_shown, is_shown);
  if (names.empty() && !not_seen.empty()) {
    return context.Fail(kExitInconclusive,
                        fmt::format("{} has no probe that saw a tensor. {}", path,
                                    PrintableLines(fmt::format("{}", fmt::join(not_seen, "; ")))));
  }
  if (!options.which.graph.empty() || !options.which.shape.empty()) {
    std::set<std::string> graphs;
    for (const source::Slot& slot : source.slots()) {
      graphs.insert((slot.graph.empty() ? "eager" : slot.graph) + " " + ShapeSelector(slot.shape));
    }
    return context.Fail(kExitNoMatch,
                        fmt::format("{} has no such probe in that graph and shape, only {}", path,
                                    fmt::join(graphs, ", ")));
  }
  if (options.probes.empty()) {
    const bool is_empty = source.slots().empty();
    // Not `info`, which may be what says this.
    const bool can_verify = is_empty && !source.Recordings().empty();
    return context.Fail(
        kExitNoMatch,
        fmt::format("{} has no probe{}{}{}", path,
                    is_empty || context.ranks.selects_all() ? "" : " on these ranks",
                    is_empty && !about.ending.empty() ? ": " + about.ending : "",
                    can_verify ? ". Type: cgdebug-cli verify " + ShellWord(path) : ""));
  }
  const std::string& wanted = options.probes.front();
  return context.Fail(kExitNoMatch,
                      fmt::format("no probe matches '{}' in {} ({} probe{}).{} Type: cgdebug-cli "
                                  "info {}",
                                  wanted, path, names.size(), names.size() == 1 ? "" : "s",
                                  DidYouMean(wanted, names), typed));
}

}  // namespace cgdebug::cli
