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

// What a memory pool held when an audit looked.
struct PoolMemory {
  // Who has memory of it: a stream, or who keeps it; empty: not known.
  struct Part {
    std::uint64_t bytes = 0;
    std::uint64_t blocks = 0;
    std::string text = {};
  };

  std::string pool;  // "0.7", as `graphs` calls it
  std::uint64_t device = 0;
  std::uint64_t bytes = 0;  // that were taken from the device
  std::uint64_t segments = 0;
  std::uint64_t held = 0;
  std::uint64_t waiting = 0;       // freed, and not yet free: a stream may not be done with it
  std::vector<Part> streams = {};  // if several have some
  std::vector<Part> keepers = {};  // of what is held, the most bytes first
  Part more = {};                  // what others hold
};

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
  std::vector<PoolMemory> memory = {};    // of its pool, by device
};

struct Audit : GraphNotes<GraphAudit> {
  // What is latent or a hazard may be meant.
  bool found() const;
  Outcome outcome() const { return OutcomeOf(found(), complete()); }
};

Audit ReadAudit(const source::Source& source);

// The graphs of which the memory is known, without those that say the same of a pool as one that
// was looked at later. The pool with the most bytes comes first.
std::vector<const GraphAudit*> GraphsOfPools(const Audit& audit);
// "pool 0.7 on cuda:0: 4.0 MiB in 2 segments, 3.0 MiB held, 1.0 MiB free", and who holds it.
std::vector<std::string> PoolLines(const PoolMemory& memory);
Json PoolsJson(const std::vector<PoolMemory>& memory);

// At most `max_rows` findings of a graph.
Answer AuditAnswer(const Audit& audit, std::size_t max_rows = 10);
Json AuditJson(const source::Source& source, const Audit& audit);

}  // namespace cgdebug::analysis
