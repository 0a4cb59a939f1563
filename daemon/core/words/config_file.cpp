#include "daemon/core/words/config_file.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>

#include "daemon/core/base/suggest.h"
#include "daemon/core/words/settings.h"

namespace cgdebug::words {
namespace {

constexpr std::string_view kPrefix = "CGDEBUG_";
constexpr std::size_t kMostBytes = 1 << 20;

// "CGDEBUG_WAIT_MS" -> "wait_ms".
std::string KeyOf(std::string_view variable) {
  std::string key(variable.substr(kPrefix.size()));
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

bool IsKey(const Setting& setting) {
  return setting.names.starts_with(kPrefix) && setting.read_by.starts_with("job") &&
         setting.names != "CGDEBUG_RUN_ID";
}

// Empty if there is none.
std::string VariableOf(std::string_view key) {
  for (const Setting& setting : Settings()) {
    if (IsKey(setting) && KeyOf(setting.names) == key) return std::string(setting.names);
  }
  return {};
}

std::vector<std::string> Keys() {
  std::vector<std::string> keys;
  for (const Setting& setting : Settings()) {
    if (IsKey(setting)) keys.push_back(KeyOf(setting.names));
  }
  return keys;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  Result<ConfigSettings> Parse() {
    for (SkipEmptyLines(); !rest_.empty(); SkipEmptyLines()) {
      if (const Result<void> pair = ParsePair(); !pair.ok()) return pair.error();
    }
    return std::move(settings_);
  }

 private:
  Error Wrong(const std::string& what) const {
    return Error{path_ + ":" + std::to_string(line_) + ": " + what};
  }

  void SkipBlanks() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t')) {
      rest_.remove_prefix(1);
    }
  }
  void SkipComment() {
    SkipBlanks();
    if (rest_.starts_with('#')) rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
  }
  bool SkipLineEnd() {
    if (rest_.starts_with("\r\n")) rest_.remove_prefix(1);
    if (!rest_.starts_with('\n')) return false;
    rest_.remove_prefix(1);
    ++line_;
    return true;
  }
  void SkipEmptyLines() {
    do {
      SkipComment();
    } while (SkipLineEnd());
  }

  Result<void> ParsePair() {
    const auto is_of_key = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    };
    const std::string key(rest_.begin(), std::find_if_not(rest_.begin(), rest_.end(), is_of_key));
    rest_.remove_prefix(key.size());
    SkipBlanks();
    if (key.empty() || !rest_.starts_with('=')) {
      return Wrong("this line is not KEY = VALUE. Write for example: watch = [\"blk*\"]");
    }
    rest_.remove_prefix(1);
    SkipBlanks();
    const std::string variable = VariableOf(key);
    if (variable.empty()) {
      std::string known;
      for (const std::string& one : Keys()) known += (known.empty() ? "" : ", ") + one;
      const std::string close = DidYouMean(key, Keys());
      return Wrong("there is no key '" + key + "'." +
                   (close.empty() ? " There are: " + known : close));
    }
    const bool is_known = std::any_of(settings_.begin(), settings_.end(),
                                      [&](const auto& one) { return one.first == variable; });
    if (is_known) return Wrong(key + " has a value already");
    const Result<std::string> text = ParseValue();
    if (!text.ok()) return text.error();
    if (const Result<void> checked = CheckSetting(variable, *text); !checked.ok()) {
      return Wrong(checked.error().message);
    }
    settings_.emplace_back(variable, *text);
    SkipComment();
    if (rest_.empty() || SkipLineEnd()) return {};
    return Wrong("more follows the value of " + key + " in its line");
  }

  // As the text of a variable.
  Result<std::string> ParseValue() {
    if (rest_.starts_with('[')) return ParseList();
    if (rest_.starts_with('"') || rest_.starts_with('\'')) return ParseString();
    const std::string word(rest_.substr(0, rest_.find_first_of(" \t\r\n#,]")));
    rest_.remove_prefix(word.size());
    if (word == "true") return std::string("1");
    if (word == "false") return std::string("0");
    const bool is_number = !word.empty() && word.size() < 20 &&
                           word.find_first_not_of("0123456789") == std::string::npos &&
                           (word == "0" || word.front() != '0');
    if (is_number) return word;
    return Wrong("'" + word +
                 "' is no value: write \"text\", [\"one\", \"two\"], true, false or a number");
  }

  Result<std::string> ParseList() {
    std::string text;
    rest_.remove_prefix(1);
    for (bool is_first = true;; is_first = false) {
      SkipEmptyLines();
      if (rest_.starts_with(']')) break;
      const Result<std::string> one = ParseString();
      if (!one.ok()) return one;
      if (one->empty() || one->find(',') != std::string::npos) {
        return Wrong("an entry of a list is not empty and has no comma");
      }
      text += (is_first ? "" : ",") + *one;
      SkipEmptyLines();
      if (rest_.starts_with(']')) break;
      if (!rest_.starts_with(',')) return Wrong("a list needs , or ] after each text");
      rest_.remove_prefix(1);
    }
    rest_.remove_prefix(1);
    return text;
  }

  Result<std::string> ParseString() {
    const char quote = rest_.empty() ? '\0' : rest_.front();
    if (quote != '"' && quote != '\'') return Wrong("a list has texts in quotes");
    if (rest_.starts_with("\"\"\"") || rest_.starts_with("'''")) {
      return Wrong("a text has one pair of quotes, in one line");
    }
    rest_.remove_prefix(1);
    std::string text;
    while (!rest_.empty() && rest_.front() != quote) {
      char c = rest_.front();
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) break;
      if (c == '\\' && quote == '"') {
        rest_.remove_prefix(1);
        if (rest_.empty() || (rest_.front() != '\\' && rest_.front() != '"')) {
          return Wrong("of the escapes there are \\\\ and \\\"; in '...' a \\ stands for itself");
        }
        c = rest_.front();
      }
      text += c;
      rest_.remove_prefix(1);
    }
    if (!rest_.starts_with(quote)) return Wrong("a text does not end in its line");
    rest_.remove_prefix(1);
    return text;
  }

  std::string_view rest_;
  const std::string& path_;
  int line_ = 1;
  ConfigSettings settings_;
};

}  // namespace

Result<ConfigSettings> ParseConfig(std::string_view text, const std::string& path) {
  return Parser(text, path).Parse();
}

Result<ConfigSettings> ReadConfig(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char part[4096];
  while (file.good() && text.size() <= kMostBytes) {
    file.read(part, sizeof(part));
    text.append(part, static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof() || text.size() > kMostBytes) {
    return text.size() > kMostBytes ? Error{path + " is too large for a file of settings"}
                                    : ErrnoError("cannot read " + path);
  }
  return ParseConfig(text, path);
}

}  // namespace cgdebug::words
