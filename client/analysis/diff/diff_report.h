// diff_report.h: a Diff in words and as JSON; the same words in the command line and in Python.
#pragma once

#include <string>

#include "client/analysis/answer.h"
#include "client/analysis/diff/diff.h"
#include "client/analysis/json_number.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// The first difference, what it looks like, and what was not compared.
Answer DiffAnswer(source::Source& a, source::Source& b, const Diff& diff);

// A line for each probe that differs, the worst in its own words; `all` for the others too.
std::string DiffStatText(source::Source& a, const Diff& diff, bool all);

// Names of the probes that differ, one a line, in graph order.
std::string DiffNamesText(source::Source& a, const Diff& diff);

Json DiffJson(source::Source& a, source::Source& b, const Diff& diff);

}  // namespace cgdebug::analysis
