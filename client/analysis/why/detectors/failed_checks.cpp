// What `check` knows besides NaN and Inf.

#include "client/analysis/check/check_report.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Found FindFailedChecks(const Evidence& evidence) {
  Found answer;
  for (const analysis::Finding& one : evidence.check->findings) {
    const bool is_row = evidence.source->slots()[one.slot].op.row() != nullptr;
    Finding finding{.place = {one.slot, one.first_replay}};
    switch (one.kind) {
      case FindingKind::kMismatch:
        finding.kind = "mismatch";
        finding.refute = "nothing: the job asked for the comparison, and it failed";
        break;
      case FindingKind::kNeverWritten:
        finding.kind = "never_written";
        finding.level = is_row ? Level::kConsistent : Level::kShown;
        finding.refute = "a branch that is not taken";
        break;
      case FindingKind::kNearOverflow:
        finding.kind = "near_overflow";
        finding.level = Level::kConsistent;
        finding.refute = "values that are meant to be that large, and do not grow";
        break;
      case FindingKind::kStale:
        if (is_row) continue;  // links say more
        finding.kind = "stale_output";
        finding.level = Level::kConsistent;
        finding.refute = "a tensor that does not depend on the one that changed";
        break;
      default:
        continue;
    }
    finding.sentence = FindingText(*evidence.source, one);  // may read the whole call
    answer.findings.push_back(std::move(finding));
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
