// audit.h: whether captured graphs still read the memory that the model has, as jobs found by
// themselves (python/cgdebug/_op_log/audit.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/analysis/ops/graph_notes.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// What the newest audit of one graph said.
struct GraphAudit : NotedGraph {
  std::uint64_t number = 0;  // how many audits there had been, with this one
  bool is_known = false;
  std::uint64_t tensors = 0;              // at which it was looked
  std::uint64_t replays = 0;              // that had been launched by then
  std::vector<std::string> wrong = {};    // sentences: the graph does not read what the model has
  std::vector<std::string> latent = {};   // likewise: it reads memory that may change hands
  std::vector<std::string> hazards = {};  // likewise: another graph may write what it reads
  std::vector<std::string> missing = {};  // what could not be looked at
};

struct Audit : GraphNotes<GraphAudit> {
  // What is latent or a hazard may be meant.
  bool found() const;
  Outcome outcome() const { return OutcomeOf(found(), complete()); }
};

Audit ReadAudit(const source::Source& source);

// At most `max_rows` findings of a graph.
Answer AuditAnswer(const Audit& audit, std::size_t max_rows = 10);
Json AuditJson(const source::Source& source, const Audit& audit);

}  // namespace cgdebug::analysis
