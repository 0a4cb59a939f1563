// answer.h: what a command that looks for something answers, before it becomes text: lines with
// what each is worth, and what the whole amounts to. Renderers colour it, print it, or make a page
// of it; nothing reads its own text again.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cgdebug::analysis {

// What was found, for the exit code and for JSON.
enum class Outcome {
  kNothing,       // and nothing is missing
  kFound,         // also if something is missing
  kInconclusive,  // nothing was found, but not all was looked at
};

constexpr Outcome OutcomeOf(bool found, bool complete) {
  if (found) return Outcome::kFound;
  return complete ? Outcome::kNothing : Outcome::kInconclusive;
}

constexpr std::string_view NameOf(Outcome outcome) {
  constexpr std::string_view kNames[] = {"nothing", "found", "inconclusive"};
  return kNames[static_cast<int>(outcome)];
}

enum class Severity { kPlain, kGood, kWarning, kBad };

// One line.
struct Statement {
  Severity severity = Severity::kPlain;
  std::string text;
};

class Answer {
 public:
  // Lines of `text`, the first of them with the severity and the others plain.
  void Add(Severity severity, std::string_view text);
  // Ends the last line with `text`.
  void Append(std::string_view text) { statements_.back().text += text; }
  // The sentence that stands for the whole. The first that is set counts.
  void SetTitle(std::string_view title) {
    if (!title_) title_ = title;
  }

  const std::vector<Statement>& statements() const { return statements_; }
  // Without a title, the first line.
  std::string title() const;
  // Without the newline at the end.
  std::string Text() const;

 private:
  std::vector<Statement> statements_;
  std::optional<std::string> title_;
};

}  // namespace cgdebug::analysis
