#include "client/cli/command_line.h"

#include <fmt/format.h>

#include <exception>
#include <regex>

#include "client/cli/pager.h"
#include "client/cli/progress.h"
#include "client/source/source.h"
#include "daemon/core/base/suggest.h"

namespace cgdebug::cli {
namespace {

// Examples first: most people who ask for help look for a line to copy.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(30); }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return make_expanded(app);
    std::string help = app->get_description() + "\n\n";
    if (const std::string examples = app->get_footer(); !examples.empty()) {
      help += "Examples:\n" + examples + "\n";
    }
    help += make_usage(app, name);
    const bool is_whole = app->get_parent() == nullptr;
    if (is_whole) help += make_subcommands(app, mode);  // on the first screen of any terminal
    help += make_positionals(app);
    help += make_groups(app, mode);
    if (!is_whole) {
      help += make_subcommands(app, mode);
      help +=
          fmt::format("\nGlobal options (--json, --session, --ranks ...): {} --help\n", kProgram);
    }
    // CLI11 leaves two lines between groups.
    for (std::size_t at = 0; (at = help.find("\n\n\n")) != std::string::npos;) help.erase(at, 1);
    return help;
  }
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override {
    return app->get_parent() == nullptr ? CommandList(/*all=*/false)
                                        : CLI::Formatter::make_subcommands(app, mode);
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    for (const CLI::App* parent = app; (parent = parent->get_parent()) != nullptr;) {
      name = parent->get_name() + " " + name;
    }
    std::string usage = "Usage: " + name + " [OPTIONS]";
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional() || option->get_group().empty()) continue;
      const bool many = option->get_items_expected_max() > 1;
      const std::string text = option->get_name(true) + (many ? "..." : "");
      usage += option->get_required() ? " " + text : " [" + text + "]";
    }
    const bool has_verbs = !app->get_subcommands([](const CLI::App*) { return true; }).empty();
    return usage + (has_verbs ? " COMMAND\n" : "\n");
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_positional() || option->get_type_size() == 0) return "";
    if (option->get_type_name().empty()) return "";
    // A validator appends what it allows. If that is a list, the type name shows it already.
    const std::string text = option->get_type_name();
    return " " +
           text.substr(0, text.find("}:") == std::string::npos ? text.size() : text.find("}:") + 1);
  }
};

void AddGlobals(CLI::App& app, GlobalOptions& options) {
  app.set_version_flag("-V,--version", fmt::format("{} {}", kProgram, CGDEBUG_VERSION),
                       "version of this program; of the daemon: cgdebug-cli daemon status");
  const std::string group = "Global options";
  app.add_option("--socket", options.socket, "the daemon's socket")
      ->type_name("PATH")
      ->group(group);
  app.add_option("-s,--session", options.session,
                 "key, label, run id or pid of a job, live or recorded")
      ->type_name("SESSION")
      ->group(group);
  app.add_option("--ranks", options.ranks, "only these ranks: 0,1,8..15")
      ->type_name("RANKS")
      ->group(group);
  app.add_flag("--json", options.json, "JSON; one line each for streams")->group(group);
  app.add_option("--color", options.color, "when to colour")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("{auto,always,never}")
      ->group(group);
  app.add_flag("--no-spawn", options.no_spawn, "do not start a daemon")->group(group);
  app.add_flag("--no-pager", options.no_pager, "do not show long output in PAGER (less)")
      ->group(group);
  app.add_flag("-q,--quiet", options.quiet, "no hints, notes and summaries")->group(group);
}

std::vector<std::string> OptionNames(const CLI::App* app) {
  std::vector<std::string> names;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

// CLI11 says "Could not convert: --rtol = abc".
std::string NoNumber(const std::string& said) {
  const std::size_t name = said.find("--"), equals = said.find(" = ");
  if (name == std::string::npos || equals == std::string::npos || equals < name) return said;
  return fmt::format("{} '{}' is not a number", said.substr(name, equals - name),
                     said.substr(equals + 3));
}

// CLI11 says "--lines: 1 required N missing" and "SOURCE: At Most 2 required but received 4".
std::string WrongCount(const std::string& said) {
  static const std::regex kMissing("(.+): 1 required (.+) missing");
  static const std::regex kTooMany("(.+): At Most ([0-9]+) required but received ([0-9]+)");
  std::smatch part;
  if (std::regex_match(said, part, kMissing)) {
    return fmt::format("{} needs a value: {}", part.str(1), part.str(2));
  }
  if (std::regex_match(said, part, kTooMany)) {
    return fmt::format("{} words are too many for {}, which takes {}", part.str(3), part.str(1),
                       part.str(2));
  }
  return said;
}

// CLI11 says "--only: nna not in {nan,changed}".
std::string WrongWord(const std::string& said) {
  static const std::regex kNotIn("(.+): (.*) not in \\{(.+)\\}");
  std::smatch part;
  if (!std::regex_match(said, part, kNotIn)) return said + ".";
  std::vector<std::string> words;
  for (std::string rest = part.str(3); !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    words.push_back(rest.substr(0, comma));
    rest.erase(0, comma + 1);
  }
  const std::string close = DidYouMean(part.str(2), words);
  const std::string last = words.back();
  words.pop_back();
  return fmt::format("{} is {}{}{}, not '{}'.{}", part.str(1), fmt::join(words, ", "),
                     words.empty() ? "" : " or ", last, part.str(2), close);
}

// " record start"; empty for the program itself.
std::string WordsOf(const CLI::App* app) {
  if (app->get_parent() == nullptr) return {};
  return WordsOf(app->get_parent()) + " " + app->get_name();
}

std::string HelpOf(const CLI::App* app) {
  return fmt::format("Type: {}{} --help", kProgram, WordsOf(app));
}

// What CLI11 found wrong, except words that it does not know.
std::string ErrorText(const CLI::ParseError& error, const std::string& help) {
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    return fmt::format("{}. {}", NoNumber(error.what()), help);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return fmt::format("{}. {}", WrongCount(error.what()), help);
  }
  return fmt::format("{} {}", WrongWord(error.what()), help);
}

// An option that `run` does not know, and that may be the job's.
std::string ExtraOfJobText(const CLI::App* run, const std::string& extra) {
  const std::string close =
      extra.starts_with("--") ? DidYouMean(extra, OptionNames(run)) : std::string();
  const std::string job = ShellWord(run->get_option("COMMAND")->results().front());
  return close.empty()
             ? fmt::format(
                   "{0} run has no option '{1}'. If it is the job's: put -- before the "
                   "job. Type: {0} run -- {2} ...",
                   kProgram, extra, job)
             : fmt::format(
                   "{} run has no option '{}'.{} {}. If it is the job's: put -- before the "
                   "job",
                   kProgram, extra, close, HelpOf(run));
}

// What to type instead of a word too many; empty if nobody knows.
std::string Instead(const CLI::App* parsed, const std::string& extra) {
  if (parsed->get_name() == "show") {
    const std::string first = parsed->get_option("TENSOR")->results().front();
    return fmt::format("{} show {}", kProgram, ShellWord(first + ":" + extra));
  }
  if (parsed->get_name() == "ps") return fmt::format("{} ps -s {}", kProgram, ShellWord(extra));
  return {};
}

std::vector<std::string> SubNames(const CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

}  // namespace

CommandLine::CommandLine(Context& context)
    : context_(context),
      app_("See the tensors inside a CUDA graph from outside the process", kProgram) {
  app_.formatter(std::make_shared<HelpFormatter>());
  app_.footer(
      "  cgdebug-cli run --watch '*' -- python train.py   look at every module\n"
      "  cgdebug-cli tail -f 'blk3.*'                     watch a job that runs\n"
      "  cgdebug-cli show blk3.attn.out                   look at one tensor\n"
      "  cgdebug-cli doctor                               when something does not work\n");
  app_.require_subcommand(0, 1);
  app_.fallthrough();
  app_.set_help_flag("-h,--help", "this text");
  AddGlobals(app_, context.options);
  for (const Command& command : Commands()) {
    CLI::App* sub = app_.add_subcommand(std::string(command.name), std::string(command.summary));
    sub->footer(std::string(command.examples));
    sub->group(command.examples.empty() ? "" : std::string(command.group));
    entries_.push_back({sub, command.add(*sub), command.output});
  }
  app_.allow_extras();  // set after the commands, which would inherit it; Run() checks extras
  context.app = &app_;
}

std::vector<std::string> CommandLine::VerbNames() const {
  std::vector<std::string> names;
  for (const Command& command : Commands()) {
    if (!command.examples.empty()) names.emplace_back(command.name);
  }
  return names;
}

const CLI::App* CommandLine::ParsedApp() const {
  const CLI::App* app = &app_;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

int CommandLine::Explain(const CLI::ParseError& error) {
  const CLI::App* parsed = ParsedApp();
  const std::vector<std::string> extras = app_.remaining(true);
  const bool wants_help = dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr;
  if (wants_help && (parsed != &app_ || extras.empty())) {
    Context::Print(parsed->help());
    return kExitOk;
  }
  if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) {
    Context::Print(fmt::format("{}\n", error.what()));
    return kExitOk;
  }
  const std::string help = HelpOf(parsed);
  const bool lacks_verb =
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !SubNames(parsed).empty();
  if (lacks_verb && (extras.empty() || !extras.front().starts_with("-"))) {
    const std::vector<std::string> names = SubNames(parsed);
    return context_.Fail(
        kExitTrouble, extras.empty()
                          ? fmt::format("which of {}? {}", fmt::join(names, ", "), help)
                          : fmt::format("no command '{} {}'.{} {}", parsed->get_name(),
                                        extras.front(), DidYouMean(extras.front(), names), help));
  }
  const bool is_extra = wants_help || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  return context_.Fail(kExitTrouble, is_extra && !extras.empty() ? ExtraText(parsed, extras.front())
                                                                 : ErrorText(error, help));
}

// Requires: `extra` is a word that `parsed` does not know.
std::string CommandLine::ExtraText(const CLI::App* parsed, const std::string& extra) const {
  const std::string help = HelpOf(parsed);
  if (extra.starts_with("-") && parsed->get_name() == "run" && parsed->count("COMMAND") > 0) {
    return ExtraOfJobText(parsed, extra);
  }
  if (extra.starts_with("-")) {
    return fmt::format("{}{} has no option '{}'.{} {}", kProgram, WordsOf(parsed), extra,
                       DidYouMean(extra, OptionNames(parsed)), help);
  }
  if (parsed == &app_) {
    return fmt::format("no command '{}'.{} {}", extra, DidYouMean(extra, VerbNames()), help);
  }
  const std::string instead = Instead(parsed, extra);
  return fmt::format("'{}' is one word too many. {}", extra,
                     instead.empty() ? help : "Type: " + instead);
}

int CommandLine::Run(int argc, const char* const* argv) {
  context_.words.assign(argv + 1, argv + argc);
  try {
    app_.parse(argc, argv);
    // Words that no command knows end up here; `daemon start` passes them on.
    const CLI::App* parsed = ParsedApp();
    if (app_.remaining_size(true) > 0 && (parsed == &app_ || !parsed->get_allow_extras())) {
      throw CLI::ExtrasError(app_.remaining(true));
    }
    const Result<void> resolved = context_.Resolve();
    if (!resolved.ok()) return context_.Fail(kExitTrouble, resolved.error().message);
    for (const Entry& entry : entries_) {
      if (!entry.app->parsed()) continue;
      const bool is_text = entry.output == Output::kText;
      const Pager pager(is_text && !context_.options.no_pager);
      const Progress progress(is_text || entry.output == Output::kFile,
                              fmt::format("{}", fmt::join(context_.words, " ")));
      return entry.run(context_);
    }
    Context::Print(app_.help());
    return kExitTrouble;
  } catch (const CLI::ParseError& error) {
    const Result<void> ignored = context_.Resolve();
    (void)ignored;
    return Explain(error);
  } catch (const std::exception& failure) {
    return context_.Fail(kExitTrouble, failure.what());
  }
}

}  // namespace cgdebug::cli
