// answer_text.h: answers as the text that Python and the command line show.
#pragma once

#include <string>

#include "client/analysis/check/check_report.h"
#include "client/analysis/diff/diff_report.h"
#include "client/analysis/ranks/ranks_report.h"

namespace cgdebug::analysis {

inline std::string CheckText(source::Source& source, const Check& check) {
  return CheckAnswer(source, check).Text();
}
inline std::string DiffText(source::Source& a, source::Source& b, const Diff& diff) {
  return DiffAnswer(a, b, diff).Text();
}
inline std::string RanksText(const RanksReport& report, const RanksOptions& options) {
  return RanksAnswer(report, options).Text();
}

}  // namespace cgdebug::analysis
