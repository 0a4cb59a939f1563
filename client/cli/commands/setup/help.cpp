#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "client/cli/command.h"
#include "daemon/core/base/suggest.h"
#include "daemon/core/words/settings.h"

namespace cgdebug::cli {
namespace {

struct HelpOptions {
  std::vector<std::string> words;
  bool man = false;
  bool all = false;
};

// After parsing, CLI::App::help() of a command returns the help of the verb parsed below it.
std::string HelpOf(const CLI::App& app) {
  return app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal);
}

// Escapes text so that troff neither joins its lines nor takes them for requests.
std::string Literal(std::string_view text) {
  std::string out = ".nf\n";
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '-') {
      out += "\\-";
    } else {
      out += c == '\\' ? std::string("\\e") : std::string(1, c);
    }
    begins_line = c == '\n';
  }
  if (!begins_line) out += '\n';
  return out + ".fi\n";
}

std::string VariablesText() {
  std::string out;
  for (const words::Setting& variable : words::Settings()) {
    out += fmt::format("{} ({})\n    {}\n", variable.names, variable.read_by, variable.meaning);
  }
  return out;
}

Json VariablesJson() {
  Json rows = Json::array();
  for (const words::Setting& variable : words::Settings()) {
    rows.push_back(
        {{"names", variable.names}, {"read_by", variable.read_by}, {"meaning", variable.meaning}});
  }
  return {{"variables", std::move(rows)}};
}

std::string Manual(const CLI::App& app) {
  std::string out = fmt::format(
      ".TH CGDEBUG\\-CLI 1 \"\" \"cgdebug {}\"\n.SH NAME\ncgdebug\\-cli \\- see the tensors inside "
      "a CUDA "
      "graph from outside the process\n.SH SYNOPSIS\n.B cgdebug\\-cli\n[OPTIONS] COMMAND ...\n"
      ".SH DESCRIPTION\n",
      CGDEBUG_VERSION);
  out += Literal(HelpOf(app));
  out += ".SH COMMANDS\n";
  for (const Command& command : Commands()) {
    if (command.examples.empty()) continue;
    out += fmt::format(".SS {}\n", command.name);
    const CLI::App* sub = app.get_subcommand(std::string(command.name));
    out += Literal(HelpOf(*sub));
    for (const CLI::App* verb : sub->get_subcommands([](const CLI::App*) { return true; })) {
      out += fmt::format(".SS {} {}\n", command.name, verb->get_name()) + Literal(HelpOf(*verb));
    }
  }
  out += ".SH ENVIRONMENT\n" + Literal(VariablesText());
  out +=
      ".SH EXIT STATUS\n0 done, 1 something found (NaN, a failed comparison), 2 trouble, 3 nothing "
      "found but something was missed, 4 nothing matched, 5 timed out, 128 + N ended by signal N.\n"
      ".SH SEE ALSO\ncgdebug\\-daemon \\-\\-help\n";
  return out;
}

int RunHelp(Context& context, const HelpOptions& options) {
  const CLI::App* app = context.app;
  if (options.man) {
    Context::PrintRaw(Manual(*app));
    return kExitOk;
  }
  if (options.all) {
    Context::Print(CommandList(/*all=*/true).substr(1));  // without the empty line in front
    return kExitOk;
  }
  if (options.words == std::vector<std::string>{"variables"}) {
    if (context.options.json) {
      Context::PrintJson(VariablesJson());
    } else {
      Context::Print(VariablesText());
    }
    return kExitOk;
  }
  std::string typed = "cgdebug-cli";
  for (const std::string& word : options.words) {
    std::vector<std::string> names;
    const CLI::App* found = nullptr;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (sub->get_name() == word) found = sub;
      if (!sub->get_group().empty()) names.push_back(sub->get_name());
    }
    if (found == nullptr) {
      return context.Fail(kExitTrouble, fmt::format("no command '{}'.{} Type: {} --help", word,
                                                    DidYouMean(word, names), typed));
    }
    app = found;
    typed += " " + word;
  }
  Context::Print(HelpOf(*app));
  return kExitOk;
}

}  // namespace

RunFunction AddHelp(CLI::App& app) {
  auto options = std::make_shared<HelpOptions>();
  app.add_option("COMMAND", options->words,
                 "a command of cgdebug-cli, or \"variables\"; default: the first commands");
  app.add_flag("--all", options->all, "every command, in groups");
  app.add_flag("--man", options->man, "the manual page, as troff");
  return [options](Context& context) { return RunHelp(context, *options); };
}

}  // namespace cgdebug::cli
