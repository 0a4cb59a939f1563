// Results of layers that nobody reads, though what comes after them goes on.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "client/analysis/op_log.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {

Answer FindUnread(const Evidence& evidence) {
  constexpr std::array kProducers = {std::string_view("mm"),     std::string_view("addmm"),
                                     std::string_view("bmm"),    std::string_view("baddbmm"),
                                     std::string_view("linear"), std::string_view("convolution")};
  const auto is_layer = [&](const Row& row) {
    return std::ranges::find(kProducers, StemOf(row.op)) != kProducers.end() &&
           evidence.NameOf(row).starts_with("fwd/");
  };
  Answer answer;
  std::size_t looked_at = 0;
  for (std::size_t log_place = 0; log_place < evidence.logs.size(); ++log_place) {
    const Log& log = evidence.logs[log_place];
    // Behind the last layer that is read, all are results.
    std::size_t end = log.rows.size();
    while (end > 0 && (!is_layer(log.rows[end - 1]) || log.rows[end - 1].readers.empty())) --end;
    std::vector<std::size_t> unread;
    for (std::size_t place = 0; place < end; ++place) {
      if (!is_layer(log.rows[place])) continue;
      ++looked_at;
      if (log.rows[place].readers.empty()) unread.push_back(place);
    }
    if (unread.empty()) continue;
    std::vector<std::string> names;
    for (const std::size_t row : unread) names.push_back(RowText(evidence, log_place, row));
    Finding finding{.level = Level::kConsistent,
                    .kind = "unread",
                    .place = PlaceAt(evidence, log_place, unread.front(), SIZE_MAX),
                    .sentence = fmt::format("nobody reads {}, and layers come after {}",
                                            NamesText(names), unread.size() == 1 ? "it" : "them"),
                    .refute = "a result of the model, or an op in no row that reads it"};
    for (std::size_t i = 0; i < unread.size(); ++i) {
      finding.facts.push_back(
          {PlaceAt(evidence, log_place, unread[i], SIZE_MAX),
           fmt::format("{} ({}): no row reads it", names[i], log.rows[unread[i]].op)});
    }
    answer.findings.push_back(std::move(finding));
  }
  if (answer.findings.empty() && looked_at > 0) {
    answer.clean = fmt::format("{} layer{} read", looked_at, looked_at == 1 ? " is" : "s are");
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
