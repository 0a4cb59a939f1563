// op_log_table.h: the table of an op log's rows, written by the producer and read by the daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/layout/op_log_layout.h"

namespace cgdebug::ring {

// What stays the same from replay to replay, for one row.
struct OpLogRow {
  std::uint64_t probe_id = 0;
  std::uint32_t invocation = 0;
  std::uint32_t launch = 0;  // as layout::OpLogRow::launch
  layout::Dtype dtype = layout::Dtype::kInvalid;
  std::vector<std::uint64_t> shape;
  std::string name;
  std::string site;          // "file.py:12", may be empty
  std::string op;            // as layout::SlotRegistration::op
  std::string details = {};  // a JSON object, or empty
};

// Texts that are too long are cut; details that are too long are left out.
// Requires: at most kMaxDims dimensions each.
std::vector<std::byte> EncodeOpLog(std::span<const OpLogRow> rows);

// Trusts nothing in `table`.
// Fails: nullopt with the reason.
std::optional<std::vector<OpLogRow>> DecodeOpLog(std::span<const std::byte> table, std::size_t rows,
                                                 std::string* reason);

}  // namespace cgdebug::ring
