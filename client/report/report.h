// report.h: one HTML file that shows a source, or two side by side: the verdict of `check` or
// `diff`, every probe over the replays, and each probe by itself. It asks no network: the charting
// library (d3) and the data are in it.
//
// No protobuf and no daemon behind this header, as with source.h: the Python extension links it.
#pragma once

#include <cstddef>
#include <string>

#include "client/analysis/diff/align.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::report {

struct ReportOptions {
  analysis::Scope scope;
  // How the user names the sources; the commands in the page say it. Empty: their paths.
  std::string name_a = {};
  std::string name_b = {};
  // The replays share columns until the page is this small, unless it has thousands of probes.
  std::size_t most_bytes = 1'900'000;
};

struct Report {
  std::string html;
  std::string verdict;  // one sentence
};

// `b`: null, or what `a` is compared with. Fails: a source that cannot be read, a build without d3.
Result<Report> MakeReport(source::Source& a, source::Source* b, const ReportOptions& options);

}  // namespace cgdebug::report
