#include "client/cli/commands/find/left_rows.h"

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "client/analysis/ops/op_log.h"
#include "client/cli/exit_codes.h"
#include "client/live/live_source.h"

namespace cgdebug::cli {
namespace {

using analysis::OpLog;
using analysis::OpRow;

// The rows that the replay left, and that are still kept.
Result<OpLog> ReadLeft(Context& context, std::int64_t pid, const std::string& graph,
                       std::int64_t replay) {
  Result<live::LiveLog> log =
      live::OpenLiveLog(context.client(), std::to_string(pid), graph, [](int) { return true; });
  if (!log.ok()) return log.error();
  std::vector<std::string> others;
  return analysis::ReadOpLog(*log->source, {.graph = log->is_whole ? graph : "", .replay = replay},
                             &others);
}

// Of a row as the job told it: [op, elements, hash, ordered hash].
bool IsOf(const Json& told, const OpRow& row) {
  return told.at(0) == row.op && told.at(1) == row.stats->count;
}

bool IsSame(const Json& told, const OpRow& row) {
  return told.at(2) == fmt::format("{:016x}", row.stats->hash) &&
         (!row.stats->has_ordered_hash ||
          told.at(3) == fmt::format("{:08x}", row.stats->ordered_hash));
}

}  // namespace

void CompareLeftRows(Context& context, std::int64_t pid, JobAnswer* answer) {
  const Json hashes = answer->json.value("hashes", Json::object());
  answer->json.erase("hashes");
  if (hashes.empty()) return;
  const auto replay = answer->json.value("replay", std::int64_t{0});
  const auto capture = answer->json.value("capture", std::uint64_t{0});
  const std::string graph = capture > 0 ? std::to_string(capture) : "";
  const Result<OpLog> left = ReadLeft(context, pid, graph, replay);
  if (!left.ok()) return;
  std::map<std::string, std::size_t> named;
  for (const OpRow& row : left->rows) ++named[row.name];
  std::size_t same = 0;
  for (const OpRow& row : left->rows) {
    const auto told = hashes.find(row.name);
    const bool is_known = told != hashes.end() && row.stats && row.stats->has_hash;
    if (!is_known || named[row.name] > 1 || !IsOf(*told, row)) continue;
    if (IsSame(*told, row)) {
      ++same;
      continue;
    }
    answer->code = kExitInconclusive;
    answer->text = fmt::format(
        "not reproduced: replay {}, run again, makes other bits than it left in its op log, first "
        "in row #{} {}. The {} rows before it that can be compared have the same bits",
        replay, row.number, row.name, same);
    if (const std::string script = answer->json.value("script", ""); !script.empty()) {
      answer->text += fmt::format(". What was written has what the second run made: {}", script);
    }
    answer->json = {{"verdict", "inconclusive"},
                    {"reason", "not_reproduced"},
                    {"graph", answer->json.value("graph", "")},
                    {"replay", replay},
                    {"row", {{"number", row.number}, {"name", row.name}}},
                    {"error", answer->text}};
    return;
  }
  if (same == 0) return;
  answer->text += fmt::format(
      "\n{} of the {} rows that the replay left in its op log were "
      "compared, and have the same bits",
      same, left->rows.size());
  answer->json["rows_compared"] = same;
}

}  // namespace cgdebug::cli
