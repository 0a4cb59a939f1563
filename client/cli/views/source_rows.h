// source_rows.h: the slots of a source, as lines of its tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/analysis/diff/align.h"
#include "client/analysis/source_rows.h"
#include "client/cli/views/fold.h"
#include "client/cli/views/terminal.h"
#include "client/source/source.h"

namespace cgdebug::cli {

using analysis::RowsOf;
using analysis::SourceRow;
using analysis::Totals;
using analysis::TotalsOf;

std::string ReplaysText(const std::vector<source::Key>& keys);

// What one line shows of several slots.
struct Folded {
  std::string tensor;  // their type, or how many
  std::string device;
  std::string graph;
  std::uint64_t snapshots = 0;
  std::uint64_t last_replay = 0;
  std::uint64_t lost = 0;
  std::uint64_t bad = 0;  // slots
  Totals totals = {};
};

Folded Summarize(source::Source& source, const std::vector<const SourceRow*>& fold);
std::string FindingsText(const source::Source& source, const Folded& folded, const Style& style);

FoldKey FoldKeyOf(const source::Slot& slot);
Folds<SourceRow> FoldsOf(const source::Source& source, const std::vector<SourceRow>& rows,
                         bool is_whole);

// Whether a probe and a rank are not enough to say which tensor is meant.
bool HasSeveralJobs(const source::Source& source);

// Columns that say which job a row belongs to, if the rows differ in that.
class OwnerColumns {
 public:
  explicit OwnerColumns(const source::Source& source);

  std::vector<TextTable::Column> Columns() const {
    std::vector<TextTable::Column> columns;
    if (has_jobs_) columns.push_back({"SESSION"});
    if (has_ranks_) columns.push_back({"RANK", TextTable::Align::kRight});
    return columns;
  }
  std::vector<std::string> Cells(const source::Slot& slot) const {
    std::vector<std::string> cells;
    if (has_jobs_) cells.push_back(Printable(slot.session));
    if (has_ranks_) cells.push_back(std::to_string(slot.rank));
    return cells;
  }

 private:
  bool has_jobs_;
  bool has_ranks_;
};

}  // namespace cgdebug::cli
