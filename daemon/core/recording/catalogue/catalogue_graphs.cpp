#include "daemon/core/recording/catalogue/catalogue_graphs.h"

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/base/graph_labels.h"
#include "daemon/core/recording/catalogue/sqlite_statement.h"

namespace cgdebug::recording {

bool NameGraphs(sqlite3* database) {
  struct Row {
    std::string probe;
    std::string label;
    std::vector<std::uint64_t> shape;
    GraphSlot slot;
  };
  std::map<std::int64_t, std::deque<Row>> sessions;
  Statement select(database,
                   "select session, graph_id, graph_order, name, invocation, shape, "
                   "coalesce(graph_label, '') from probe where graph_id <> 0");
  bool done = select.Run();
  for (; done && select.has_row(); done = select.Next()) {
    Row& row = sessions[select.Integer(0)].emplace_back();
    row.probe = select.Text(3);
    row.shape = ParseShape(select.Text(5)).value_or(std::vector<std::uint64_t>());
    row.label = select.Text(6);
    row.slot = {.graph_id = static_cast<std::uint64_t>(select.Integer(1)),
                .order = static_cast<std::uint64_t>(select.Integer(2)),
                .probe = row.probe,
                .invocation = static_cast<std::uint32_t>(select.Integer(4)),
                .shape = row.shape,
                .label = row.label};
  }
  Statement update(database,
                   "update probe set graph = ?3 where session = ?1 and graph_id = ?2 and "
                   "graph is not ?3");
  for (const auto& [session, rows] : sessions) {
    std::vector<GraphSlot> slots;
    for (const Row& row : rows) slots.push_back(row.slot);
    for (const auto& [id, label] : NameGraphsOf(std::move(slots))) {
      done = done && update.Run(session, id, label);
    }
  }
  return done;
}

}  // namespace cgdebug::recording
