#include "client/cli/run/excuses.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "client/analysis/check/check.h"
#include "client/analysis/check/check_report.h"
#include "client/live/live_source.h"
#include "client/source/source.h"

namespace cgdebug::cli {
namespace {

using live::FirstNonfinite;
using live::Session;

class Unexcused {
 public:
  // Lifetime: both outlive it.
  Unexcused(const source::Source& source, const analysis::Check& check)
      : source_(source), check_(check) {}

  void PutFirsts(Session* session, RunSummary* summary) const {
    Put("NaN", check_.first_nan, session, &session->first_nan, &session->found_nan, summary);
    Put("Inf", check_.first_inf, session, &session->first_inf, &session->found_inf, summary);
  }

 private:
  void Put(std::string_view what, const analysis::FirstsOfKind& firsts, Session* session,
           std::optional<FirstNonfinite>* first, std::string* sentence, RunSummary* summary) const {
    // Of a slot that the daemon no longer shows nobody knows more than that.
    if (*first && !IsShown(*session, (*first)->slot.order)) return;
    const auto found = firsts.find(session->uuid);
    if (found == firsts.end()) {
      first->reset();
      return sentence->clear();
    }
    const analysis::FirstOfKind& one = found->second;
    const source::Slot& slot = source_.slots()[one.slot];
    const bool is_known =
        *first && (*first)->slot.order == slot.order && (*first)->replay == one.replay;
    const bool is_between = one.next_call != 0;
    if (is_known && !is_between) return;  // the daemon knows more of it
    *first = FirstNonfinite{.slot = slot,
                            .replay = one.replay,
                            .serial = one.moment.serial,
                            .step = one.step,
                            .count = one.count,
                            .kept = FirstNonfinite::Kept::kStatistics};
    *sentence = fmt::format("{}, {}. Type: cgdebug-cli check {}",
                            analysis::FirstOfKindText(source_, what, one),
                            GroupedCount(one.count, "element"), session->key);
    if (is_between) summary->next_calls[{session->key, slot.order}] = one.next_call;
    if (!slot.op.empty()) summary->rows[{session->key, slot.order}] = source::PlaceInCall(slot);
  }

  bool IsShown(const Session& session, std::uint64_t order) const {
    return std::ranges::any_of(source_.slots(), [&](const source::Slot& slot) {
      return slot.uuid == session.uuid && slot.order == order;
    });
  }

  const source::Source& source_;
  const analysis::Check& check_;
};

Result<analysis::Check> CheckOf(source::Source& source) {
  return analysis::RunCheck(source, {.scope = {}, .frames = 0, .trusts_hashes = true});
}

// Fails: the rows cannot be read. Then what the daemon found stands.
Result<void> SortOutLive(client::Client* client, Session* session, RunSummary* summary) {
  const Result<std::unique_ptr<source::Source>> source = live::OpenLive(*client, session->key);
  if (!source.ok()) return source.error();
  const Result<analysis::Check> check = CheckOf(**source);
  if (!check.ok()) return check.error();
  Unexcused(**source, *check).PutFirsts(session, summary);
  summary->open += check->open();
  return {};
}

}  // namespace

void SortOutExcuses(client::Client* client, RunSummary* summary) {
  for (Session& session : summary->sessions) {
    const auto is_row = [&](const std::optional<FirstNonfinite>& first) {
      return first && summary->rows.contains({session.key, first->slot.order});
    };
    if (!is_row(session.first_nan) && !is_row(session.first_inf)) continue;
    summary->is_checked = true;
    if (!SortOutLive(client, &session, summary).ok()) ++summary->open;
  }
}

void SortOutExcusesIn(const std::string& recording, RunSummary* summary) {
  const Result<std::unique_ptr<source::Source>> source = source::Open(recording);
  if (!source.ok()) return;
  const Result<analysis::Check> check = CheckOf(**source);
  if (!check.ok()) return;
  const Unexcused unexcused(**source, *check);
  for (Session& session : summary->sessions) unexcused.PutFirsts(&session, summary);
  summary->open = check->open();
}

}  // namespace cgdebug::cli
