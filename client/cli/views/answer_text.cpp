#include "client/cli/views/answer_text.h"

namespace cgdebug::cli {

std::string AnswerText(const Style& style, const analysis::Answer& answer) {
  std::string out;
  for (const analysis::Statement& statement : answer.statements()) {
    const std::string line = Printable(statement.text);
    switch (statement.severity) {
      case analysis::Severity::kPlain:
        out += line;
        break;
      case analysis::Severity::kGood:
        out += style.Green(line);
        break;
      case analysis::Severity::kWarning:
        out += style.Yellow(line);
        break;
      case analysis::Severity::kBad:
        out += style.Red(line);
        break;
    }
    out += '\n';
  }
  return out;
}

}  // namespace cgdebug::cli
