#include "client/cli/commands/find/verified_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/commands/find/left_rows.h"
#include "client/cli/exit_codes.h"
#include "client/cli/remote/job_questions.h"
#include "client/cli/sources/sources.h"
#include "client/live/sessions.h"

namespace cgdebug::cli {
namespace {

constexpr unsigned kTimeoutSeconds = 5;
constexpr std::size_t kMostAsked = 8;

using analysis::why::Finding;
using analysis::why::Level;

bool CanBeRunAgain(const source::Source& source, const Finding& finding) {
  const source::Slot& slot = source.slots()[finding.place.slot];
  return finding.level == Level::kShown && finding.place.replay > 0 && slot.graph_id != 0;
}

std::optional<std::int64_t> PidOf(const std::vector<live::Session>& sessions,
                                  const source::Slot& slot) {
  const auto found = std::ranges::find_if(sessions, [&](const live::Session& one) {
    return one.state == live::SessionState::kAlive && slot.uuid.starts_with(one.key);
  });
  if (found == sessions.end()) return std::nullopt;
  return found->pid;
}

// The sentence about `name` in a replay that was run again: whether it is not finite there either.
std::string Compared(const Json& answer, const std::string& name, Finding* finding) {
  const std::string verified = answer.value("verified", "");
  for (const Json& row : answer.value("rows", Json::array())) {
    if (row.value("name", "") != name) continue;
    if (row.value("nan", 0) + row.value("pos_inf", 0) + row.value("neg_inf", 0) == 0) {
      return fmt::format("not reproduced: {} is finite in the replay that was run again", name);
    }
    finding->level = Level::kVerified;
    return "verified: run again, " + verified;
  }
  const Json not_seen = answer.value("not_seen", Json::object());
  for (const Json& row : not_seen.value("rows", Json::array())) {
    if (row.value("name", "") != name) continue;
    return fmt::format("not verified: {} was not seen in the replay that was run again: {}", name,
                       row.value("reason", ""));
  }
  return fmt::format("not verified: the job has no row {}", name);
}

void Verify(Context& context, const std::vector<live::Session>& sessions,
            const source::Source& source, bool says_why_not, Finding* finding) {
  const source::Slot& slot = source.slots()[finding->place.slot];
  const std::optional<std::int64_t> pid = PidOf(sessions, slot);
  if (!pid) return;
  const Json question = {{"graph", std::to_string(slot.graph_id)},
                         {"replay", finding->place.replay},
                         {"rows", Json::array()},
                         {"hashes", true},
                         {"timeout_s", kTimeoutSeconds}};
  Result<JobAnswer> answer = AskJob(context, *pid, question);
  if (!answer.ok() && !says_why_not) return;  // the job takes no questions
  if (answer.ok()) CompareLeftRows(context, *pid, &*answer);
  std::string text;
  if (!answer.ok()) {
    text = "not verified: the job takes no questions. Type: cgdebug-cli run --rewind 64 -- COMMAND";
  } else if (answer->code > kExitFound && !answer->json.contains("rows")) {
    const bool is_other = answer->json.value("reason", "") == "not_reproduced";
    text = (is_other ? "" : "not verified: ") + answer->text;
  } else {
    text = Compared(answer->json, slot.probe, finding);
  }
  finding->facts.insert(finding->facts.begin(), {finding->place, std::move(text)});
}

}  // namespace

void VerifyCauses(Context& context, const source::Source& source, bool all,
                  analysis::why::Causes* causes) {
  if (!causes->goes_on) return;  // a recording has no graphs
  std::vector<Finding*> chosen;
  for (Finding& finding : causes->findings) {
    if (CanBeRunAgain(source, finding)) chosen.push_back(&finding);
    if (chosen.size() == (all ? kMostAsked : 1)) break;
  }
  if (chosen.empty()) return;
  const Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok()) return;
  for (Finding* const finding : chosen) Verify(context, *sessions, source, all, finding);
}

}  // namespace cgdebug::cli
