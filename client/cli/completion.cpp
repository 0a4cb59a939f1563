#include "client/cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "client/cli/command_line.h"

namespace cgdebug::cli {
namespace {

struct Flag {
  std::vector<std::string> names;  // "-f", "--follow"
  bool takes_value = false;
  std::vector<std::string> choices;
  std::string dynamic;  // "sessions"; empty otherwise
};

struct Verb {
  std::string path;  // "", "tail", "daemon stop"
  std::vector<Flag> flags;
  std::vector<std::string> words;  // what may stand next: verbs below, or choices
  std::string dynamic;             // "probes", "sessions", or "sources" for both and files
};

// The values in a type name such as "{a,b}".
std::vector<std::string> Choices(const std::string& type_name) {
  std::vector<std::string> choices;
  const std::size_t begin = type_name.find('{');
  const std::size_t end = type_name.find('}');
  if (begin == std::string::npos || end == std::string::npos) return choices;
  std::string rest = type_name.substr(begin + 1, end - begin - 1);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    choices.push_back(rest.substr(0, comma));
    rest.erase(0, comma + 1);
  }
  return choices;
}

void AddPositional(const CLI::Option& option, Verb* verb) {
  const std::string name = option.get_name(true);
  if (name == "SOURCE" || name == "A" || name == "RECORDING") verb->dynamic = "sources";
  if (verb->dynamic.empty() && (name == "PROBE" || name == "TENSOR")) verb->dynamic = "probes";
  if (name == "SESSION") verb->dynamic = "sessions";
  for (const std::string& choice : Choices(option.get_type_name())) verb->words.push_back(choice);
}

Verb MakeVerb(const CLI::App& app, const std::string& path) {
  Verb verb;
  verb.path = path;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      AddPositional(*option, &verb);
      continue;
    }
    Flag flag;
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    flag.takes_value = option->get_type_size() != 0;
    if (flag.takes_value) flag.choices = Choices(option->get_type_name());
    if (option->get_type_name() == "SESSION") flag.dynamic = "sessions";
    verb.flags.push_back(std::move(flag));
  }
  return verb;
}

std::vector<Verb> Walk(const CLI::App& app, const std::string& path) {
  std::vector<Verb> verbs = {MakeVerb(app, path)};
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name().starts_with("__")) continue;
    verbs.front().words.push_back(sub->get_name());
    const std::string sub_path = path.empty() ? sub->get_name() : path + " " + sub->get_name();
    for (Verb& verb : Walk(*sub, sub_path)) verbs.push_back(std::move(verb));
  }
  return verbs;
}

std::string Join(const std::vector<std::string>& words, const char* separator = " ") {
  return fmt::format("{}", fmt::join(words, separator));
}

std::vector<std::string> FlagNames(const Verb& root, const Verb& verb) {
  std::vector<std::string> names;
  for (const Flag& flag : verb.flags)
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  if (&root == &verb) return names;
  for (const Flag& flag : root.flags) {
    for (const std::string& name : flag.names) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

// Finds the verb, then the words that may follow: fixed ones (_cgdebug_words), names from the
// daemon, which are data and never expanded (_cgdebug_live), or files.
std::string ShellBody(const std::vector<Verb>& verbs) {
  std::string paths, values, words;
  std::vector<std::string> seen;
  for (const Verb& verb : verbs) {
    const std::size_t space = verb.path.rfind(' ');
    if (!verb.path.empty()) {
      const std::string before = space == std::string::npos ? "" : verb.path.substr(0, space);
      const std::string last = space == std::string::npos ? verb.path : verb.path.substr(space + 1);
      paths += fmt::format("      '{} {}') verb='{}' ;;\n", before, last, verb.path);
    }
    for (const Flag& flag : verb.flags) {
      if (!flag.takes_value) continue;
      const std::string key = fmt::format("'{}'", Join(flag.names, "'|'"));
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      std::string offer = "_cgdebug_files";
      if (!flag.choices.empty()) offer = fmt::format("_cgdebug_words '{}'", Join(flag.choices));
      if (!flag.dynamic.empty()) offer = "_cgdebug_live " + flag.dynamic;
      values += fmt::format("    {}) {}; return ;;\n", key, offer);
    }
    words +=
        fmt::format("    '{}')\n      if [[ $cur == -* ]]; then\n        _cgdebug_words '{}'\n",
                    verb.path, Join(FlagNames(verbs.front(), verb)));
    if (verb.path == "run") {
      words += "      else\n        _cgdebug_programs\n";
    } else if (verb.dynamic == "sources") {
      words += "      else\n        _cgdebug_sources; _cgdebug_live sessions\n";
    } else if (!verb.dynamic.empty()) {
      words += fmt::format("      else\n        _cgdebug_live {}\n", verb.dynamic);
    } else if (!verb.words.empty()) {
      words += fmt::format("      else\n        _cgdebug_words '{}'\n", Join(verb.words));
    } else {
      words += "      else\n        _cgdebug_files\n";
    }
    words += "      fi ;;\n";
  }
  return fmt::format(
      "  if [[ ${{before[0]}} == run && \" ${{before[*]}} \" == *' -- '* ]]; then  # the job's "
      "words\n"
      "    if [[ $prev == -- ]]; then _cgdebug_programs; else _cgdebug_files; fi\n"
      "    return\n"
      "  fi\n"
      "  for word in \"${{before[@]}}\"; do\n    case \"$verb $word\" in\n{}    esac\n  done\n"
      "  case \"$prev\" in\n{}  esac\n  case \"$verb\" in\n{}  esac\n",
      paths, values, words);
}

std::string Bash(const std::vector<Verb>& verbs) {
  return R"sh(# bash completion of cgdebug-cli; load with: source <(cgdebug-cli completion bash)
_cgdebug_words() { COMPREPLY=($(compgen -W "$1" -- "$cur")); }
_cgdebug_files() { COMPREPLY=($(compgen -f -- "$cur")); }
_cgdebug_sources() {
  mapfile -t COMPREPLY < <(compgen -d -- "$cur"; compgen -f -X '!*.safetensors' -- "$cur")
}
_cgdebug_programs() { mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur"); }
_cgdebug_live() {
  local name
  while IFS= read -r name; do
    [[ $name == "$cur"* ]] && COMPREPLY+=("$before_name$(printf '%q' "$name")")
  done < <(cgdebug-cli __complete "$@" 2>/dev/null)
}
_cgdebug_cli() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb='' word before_name='' of=''
  # RECORDING:PROBE is three words, or one where COMP_WORDBREAKS has no colon.
  if [[ $cur == : ]]; then
    of=$prev cur=''
  elif [[ $prev == : && COMP_CWORD -gt 2 ]]; then
    of=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $cur == *.cgrec:* ]]; then
    of=${cur%%.cgrec:*}.cgrec cur=${cur#*.cgrec:} before_name=$(printf '%q' "$of"):
  fi
  if [[ -d $of ]]; then
    COMPREPLY=()
    _cgdebug_live probes "$of"
    return
  fi
  local before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  COMPREPLY=()
)sh" + ShellBody(verbs) +
         "}\ncomplete -o filenames -F _cgdebug_cli cgdebug-cli\n";
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::vector<Verb> verbs = Walk(app, "");
  for (Verb& verb : verbs) {
    if (verb.path != "help") continue;
    verb.words = verbs.front().words;
    verb.words.emplace_back("variables");
  }
  return Bash(verbs);
}

}  // namespace cgdebug::cli
