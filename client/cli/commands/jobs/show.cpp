#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/output_file.h"
#include "client/cli/sources/source_tensor.h"
#include "client/cli/sources/sources.h"
#include "client/cli/views/tensor/npy.h"
#include "client/cli/views/tensor/tensor_report.h"
#include "client/cli/views/tensor/tensor_text.h"
#include "client/live/live_source.h"
#include "client/live/live_tensor.h"
#include "client/live/probe.h"
#include "client/live/sessions.h"
#include "client/source/merged_source.h"
#include "daemon/core/base/glob.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

struct ShowOptions {
  std::string inside;
  TensorReportOptions report;
  std::string output;
  bool force = false;
  WhichOptions which;
};

// Asks the daemon, for one rank if --ranks names one.
Result<source::Tensor> Fetch(Context& context, const Inside& inside) {
  std::optional<int> rank;
  if (!context.ranks.selects_all()) rank = context.ranks.Single();
  const std::string& session = context.options.session;
  const live::TensorName name{session,      inside.text, inside.replay,
                              inside.which, rank,        inside.iteration};
  Result<source::Tensor> tensor = live::GetTensor(context.client(), name);
  // A probe's name may contain a colon, so try the whole text as a name before taking a session
  // off.
  const bool may_have_source = inside.probe != inside.text;
  if (tensor.ok() || !may_have_source ||
      context.client().last_failure() != client::Failure::kNothingMatched) {
    return tensor;
  }
  return live::GetTensor(context.client(),
                         {inside.source.empty() ? session : inside.source, inside.probe,
                          inside.replay, inside.which, rank, inside.iteration});
}

// If other live sessions that were meant have such a probe too, says which one is shown and how to
// see another. `typed`: what was typed behind the source, and which of its slots were chosen.
void NoteOtherSessions(Context& context, const Inside& inside, const std::string& typed,
                       const source::Tensor& shown) {
  if (context.options.quiet) return;
  const Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok() || sessions->size() < 2) return;
  const Result<std::vector<live::Probe>> probes =
      live::ListProbes(context.client(), "", {shown.slot.probe}, live::LastStats::kNone);
  if (!probes.ok()) return;
  std::set<std::string> with_probe;
  for (const live::Probe& probe : *probes) {
    const source::Slot& slot = probe.slot;
    const bool is_meant = slot.probe == shown.slot.probe &&
                          inside.which.Matches(slot.graph_id, slot.graph, slot.shape);
    if (is_meant) with_probe.insert(probe.session);
  }
  const std::string& selector = context.SessionOr(inside.source);
  std::string of;
  std::vector<const live::Session*> others;
  for (const live::Session& session : *sessions) {
    // The daemon's answer to a Get has the key, a source the uuid.
    const bool is_shown = session.key == shown.session_key || session.uuid == shown.slot.uuid;
    if (is_shown) {
      of = fmt::format("pid {}", session.pid);
      if (session.rank >= 0) of += fmt::format(", rank {}", session.rank);
    } else if (session.state == live::SessionState::kAlive && with_probe.contains(session.key) &&
               context.ranks.Contains(session.rank) && live::MatchesSession(session, selector)) {
      others.push_back(&session);
    }
  }
  if (others.empty()) return;
  context.Note(Printable(fmt::format(
      "{} sessions have a probe '{}'; this is of {}. Another one: cgdebug-cli show -s {} {}",
      others.size() + 1, shown.slot.probe, of, others.back()->key, typed)));
}

// The keys of the live sessions that have the probe.
std::set<std::string> WithProbe(client::Client& client, const Inside& inside) {
  std::set<std::string> names = {inside.probe};
  if (Inside cut = inside; TakeSliceOffName(&cut)) names.insert(cut.probe);
  std::vector<std::string> globs;  // that also select the name that is spelled like them
  for (const std::string& name : names) {
    globs.push_back(name);
    globs.push_back(name.substr(0, name.rfind('#')));
  }
  const Result<std::vector<live::Probe>> probes =
      live::ListProbes(client, "", globs, live::LastStats::kNone);
  std::set<std::string> keys;
  if (!probes.ok()) return keys;
  for (const live::Probe& probe : *probes) {
    const source::Slot& slot = probe.slot;
    const bool is_meant = names.contains(SlotName(slot)) &&
                          inside.which.Matches(slot.graph_id, slot.graph, slot.shape);
    if (is_meant) keys.insert(probe.session);
  }
  return keys;
}

// The processes in which a live tensor is looked for: the ranks of one job that have the probe, and
// of a rank that was started again its newest process. As without a step, jobs that are alive come
// first, then the newest. Empty: none has it.
std::vector<live::Session> ProcessesOf(Context& context, const Inside& inside) {
  const Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok()) return {};
  const std::set<std::string> with_probe = WithProbe(context.client(), inside);
  std::vector<live::Session> meant;
  for (const live::Session& session : *sessions) {
    const bool is_meant = with_probe.contains(session.key) &&
                          context.ranks.Contains(session.rank) &&
                          live::MatchesSession(session, context.SessionOr(inside.source));
    if (is_meant) meant.push_back(session);
  }
  std::ranges::stable_sort(meant, live::ComesFirst);
  std::vector<live::Session> processes;
  for (const live::Session& session : meant) {
    const bool is_first = processes.empty();
    const bool is_other_rank =
        !is_first && session.rank >= 0 && !session.run_id.empty() &&
        session.run_id == processes.front().run_id &&
        session.restart_count == processes.front().restart_count &&
        std::ranges::find(processes, session.rank, &live::Session::rank) == processes.end();
    if (is_first || is_other_rank) processes.push_back(session);
  }
  return processes;
}

// Opens the source in which a tensor is looked for by its step or its values.
int Open(Context& context, const Inside& inside, std::unique_ptr<source::Source>* source) {
  const std::string name = inside.source.empty() ? "live" : inside.source;
  if (source::LooksLikePath(name)) return OpenSource(context, name, source);
  if (const int failed = context.Connect()) return failed;
  const std::vector<live::Session> processes = ProcessesOf(context, inside);
  if (processes.empty()) return OpenSource(context, name, source);  // which says why
  const live::Session& first = processes.front();
  const std::string selector = processes.size() == 1 ? first.key : first.run_id;
  Result<std::unique_ptr<source::Source>> opened = live::OpenLive(context.client(), selector);
  if (!opened.ok()) return context.Fail(kExitNoMatch, opened.error().message);
  std::set<std::string> uuids;
  for (const live::Session& process : processes) uuids.insert(process.uuid);
  *source = source::OnlyOf(*std::move(opened), uuids);
  return kExitOk;
}

int Save(Context& context, const ShowOptions& options, const source::Tensor& tensor) {
  const source::Slot& slot = tensor.slot;
  const std::string name = fmt::format("{}@{}", Printable(slot.probe), tensor.snapshot.key.replay);
  if (!tensor.snapshot.has_values) {
    return context.Fail(kExitNoMatch,
                        fmt::format("{} has no values: {}", name, WithoutValues(slot)));
  }
  const layout::DtypeInfo* info = layout::FindDtype(slot.dtype);
  const bool is_npy = options.output.ends_with(".npy");
  if (is_npy && info == nullptr) {
    return context.Fail(kExitTrouble, "this version does not know dtype " +
                                          Printable(slot.dtype_name) + "; give -o FILE.bin");
  }
  const std::string header = is_npy ? NpyHeader(slot.dtype, slot.shape) : "";
  const Result<void> written = WriteFile(options.output, options.force, header, tensor.payload);
  if (!written.ok()) return context.Fail(kExitTrouble, written.error().message);
  context.Note(fmt::format(
      "{} written to {}: {} {}{}, {}{}", name, options.output, Printable(slot.dtype_name),
      numerics::FormatShape(slot.shape), Printable(source::OfPart(slot)),
      numerics::FormatBytes(tensor.payload.size()), is_npy ? "" : ", raw little-endian elements"));
  if (is_npy && slot.dtype == layout::Dtype::kBfloat16) {
    context.Say(
        "NumPy has no bfloat16: the file holds uint16, the upper half of each float32. "
        "Values: (np.load(FILE).astype('uint32') << 16).view('float32')");
  } else if (is_npy && info->is_bits_in_npy()) {
    context.Say(
        fmt::format("NumPy has no {0}: the file holds uint{1}, the bits of each element. "
                    "Values: torch.from_numpy(np.load(FILE)).view(torch.{0}).float()",
                    info->name, 8 * info->bytes));
  }
  return kExitOk;
}

int FailToFind(Context& context, const Inside& inside, const Error& error) {
  std::error_code ignored;
  if (inside.source.empty() && std::filesystem::exists(inside.probe, ignored)) {
    return context.Fail(
        kExitTrouble, fmt::format("'{}' is a file: which probe of it? Type: cgdebug-cli info {}{}",
                                  inside.probe, ShellWord(inside.probe), context.SameJob()));
  }
  const bool said_by_daemon = context.client().last_failure() != client::Failure::kNone;
  return said_by_daemon ? context.Fail(error) : context.Fail(kExitNoMatch, error.message);
}

// It exists but is damaged; in a live job it may be gone by now.
int FailToRead(Context& context, const Error& error) {
  const bool said_by_daemon = context.client().last_failure() != client::Failure::kNone;
  return said_by_daemon ? context.Fail(error) : context.Fail(kExitTrouble, error.message);
}

// What `text` means if an '@' in it is a part of the probe's name, as it may be in a file.
std::optional<Inside> WithAtInName(const std::string& text) {
  if (text.find('@') == std::string::npos) return std::nullopt;
  const Result<Inside> inside = ParseInside(text + "@-1");
  return inside.ok() ? std::optional(*inside) : std::nullopt;
}

bool IsGlob(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

// Puts the one name that a glob selects in its place. False: it is no glob, or none matches.
// Fails: several match; the message names some.
Result<bool> TakeTheOneThatMatches(const std::set<std::string>& names, Inside* inside) {
  constexpr std::size_t kMostNamed = 3;
  if (!IsGlob(inside->probe)) return false;
  std::vector<std::string> matching;
  for (const std::string& name : names) {
    if (GlobMatch(inside->probe, name)) matching.push_back(name);
  }
  if (matching.empty()) return false;
  if (matching.size() == 1) {
    inside->probe = matching.front();
    inside->text = inside->source.empty() ? inside->probe : inside->source + ":" + inside->probe;
    return true;
  }
  const std::size_t named = std::min(matching.size(), kMostNamed);
  std::string list = fmt::format(
      "'{}'",
      fmt::join(matching.begin(), matching.begin() + static_cast<std::ptrdiff_t>(named), "', '"));
  if (matching.size() > named) list += fmt::format(" and {} more", matching.size() - named);
  const std::string source = inside->source.empty() ? "" : inside->source + ":";
  return Error{
      fmt::format("'{}' selects {} probes, and show shows one: {}. Type for example: "
                  "cgdebug-cli show {}",
                  inside->probe, matching.size(), list, ShellWord(source + matching.front()))};
}

// The tensor in `source` that is meant: a name may end in what looks like a slice or a replay, and
// a glob may select one probe. `inside` is then what was found.
Result<FoundTensor> FindIn(Context& context, source::Source& source,
                           const std::optional<Inside>& with_at, Inside* inside) {
  const Result<FoundTensor> found = FindTensor(source, context, *inside);
  if (found.ok()) return found;
  std::vector<Inside> others;
  if (Inside cut = *inside; TakeSliceOffName(&cut)) others.push_back(std::move(cut));
  if (with_at) others.push_back(*with_at);
  for (const Inside& other : others) {
    if (Result<FoundTensor> one = FindTensor(source, context, other); one.ok()) {
      *inside = other;
      return one;
    }
  }
  std::set<std::string> names;
  for (const source::Slot& slot : source.slots()) names.insert(SlotName(slot));
  const Result<bool> taken = TakeTheOneThatMatches(names, inside);
  if (!taken.ok()) return taken.error();
  return *taken ? FindTensor(source, context, *inside) : found;
}

// The names of the live probes that the glob selects.
std::set<std::string> LiveNames(Context& context, const Inside& inside) {
  std::set<std::string> names;
  if (!IsGlob(inside.probe)) return names;
  const Result<std::vector<live::Probe>> probes = live::ListProbes(
      context.client(), context.SessionOr(inside.source), {inside.probe}, live::LastStats::kNone);
  if (!probes.ok()) return names;
  for (const live::Probe& probe : *probes) names.insert(SlotName(probe.slot));
  return names;
}

int RunShow(Context& context, const ShowOptions& options) {
  Result<Inside> inside = ParseInside(options.inside);
  const std::optional<Inside> with_at = WithAtInName(options.inside);
  if (!inside.ok()) {
    const Error error = inside.error();
    std::unique_ptr<source::Source> source;
    const bool may_be_name = with_at && NeedsSource(*with_at) &&
                             Open(context, *with_at, &source) == kExitOk &&
                             FindTensor(*source, context, *with_at).ok();
    if (!may_be_name) return context.Fail(kExitTrouble, error.message + context.SameJob());
    inside = *with_at;
  }
  const std::string typed =
      ShellWord(options.inside.substr(inside->text.size() - inside->probe.size())) +
      SameWhich(options.which);
  const Result<WhichSlots> which = options.which.Parse();
  if (!which.ok()) return context.Fail(kExitTrouble, which.error().message);
  if (!which->graph.empty()) inside->which.graph = which->graph;
  if (which->shape) inside->which.shape = which->shape;
  if (!context.ranks.selects_all() && context.ranks.Single() < 0) {
    return context.Fail(kExitTrouble,
                        "show shows one tensor: give one rank. Type for example: --ranks 0");
  }
  Result<source::Tensor> tensor = Error{};
  if (NeedsSource(*inside)) {
    std::unique_ptr<source::Source> source;
    if (const int failed = Open(context, *inside, &source)) return failed;
    SayUnread(context, *source);
    const Result<FoundTensor> found = FindIn(context, *source, with_at, &*inside);
    if (!found.ok()) return FailToFind(context, *inside, found.error());
    tensor = LoadTensor(*source, *found);
    if (!tensor.ok()) return FailToRead(context, tensor.error());
  } else {
    if (const int failed = context.Connect()) return failed;
    tensor = Fetch(context, *inside);
    const bool is_unknown = context.client().last_failure() == client::Failure::kNothingMatched;
    if (!tensor.ok() && is_unknown) {
      const Result<bool> taken = TakeTheOneThatMatches(LiveNames(context, *inside), &*inside);
      if (!taken.ok()) return context.Fail(kExitNoMatch, taken.error().message);
      if (*taken || TakeSliceOffName(&*inside)) tensor = Fetch(context, *inside);
    }
  }
  if (!tensor.ok()) return FailToFind(context, *inside, tensor.error());
  const bool is_live = inside->source.empty() || !source::LooksLikePath(inside->source);
  if (is_live) NoteOtherSessions(context, *inside, typed, *tensor);
  if (!inside->slice.empty()) {
    if (Result<void> cut = CutSlice(&*tensor, inside->slice); !cut.ok()) {
      return context.Fail(kExitTrouble, cut.error().message);
    }
  }
  if (!options.output.empty()) return Save(context, options, *tensor);
  if (context.options.json) {
    Context::PrintJson(TensorReportJson(*tensor, options.report));
    return kExitOk;
  }
  const Result<std::string> report = TensorReport(*tensor, options.report, context.out);
  if (!report.ok()) return context.Fail(kExitTrouble, report.error().message);
  Context::Print(*report);
  return kExitOk;
}

}  // namespace

RunFunction AddShow(CLI::App& app) {
  auto options = std::make_shared<ShowOptions>();
  app.add_option("TENSOR", options->inside,
                 "[SOURCE:]PROBE[{SHAPE}][@g:GRAPH][@REPLAY[SLICE]]; a source is a session or a "
                 "recording; @-1 the newest (of a live job: of those that the daemon keeps), "
                 "@first-nan, @step:N")
      ->required();
  AddWhichOptions(app, &options->which);
  app.add_option("--values", options->report.values,
                 "how many values, from the edges; 64 by default")
      ->check(WholeNumber(0))
      ->type_name("N");
  app.add_option("--precision", options->report.precision,
                 "significant digits; 0: as many as needed")
      ->check(WholeNumber(0, 17))
      ->type_name("P");
  app.add_option("--where", options->report.where, "list the elements that are NaN or Inf")
      ->check(CLI::IsMember({"nan"}))
      ->type_name("{nan}");
  app.add_option("--topk", options->report.topk, "list the K elements of largest magnitude")
      ->check(WholeNumber(0))
      ->type_name("K");
  app.add_option("-o,--output", options->output, "write the elements: .npy, else raw; - for stdout")
      ->type_name("FILE");
  app.add_flag("-f,--force", options->force, "overwrite FILE");
  return [options](Context& context) { return RunShow(context, *options); };
}

}  // namespace cgdebug::cli
