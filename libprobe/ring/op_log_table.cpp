#include "libprobe/ring/op_log_table.h"

#include <algorithm>
#include <cstring>

#include "libprobe/ring/utf8.h"

namespace cgdebug::ring {
namespace {

std::size_t Append(const std::string& text, std::size_t most, std::vector<std::byte>* table) {
  const std::size_t bytes = CutLength(text, most);
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  table->insert(table->end(), data, data + bytes);
  return bytes;
}

// Empty if the row may be used.
std::string Check(const layout::OpLogRow& row, std::size_t table_bytes) {
  const layout::DtypeInfo* dtype = layout::FindDtype(static_cast<layout::Dtype>(row.dtype));
  if (dtype == nullptr) return "unknown dtype " + std::to_string(row.dtype);
  if (row.dims > layout::kMaxDims) return "too many dimensions";
  std::uint64_t bytes = dtype->bytes;
  for (std::size_t i = 0; i < row.dims; ++i) {
    if (__builtin_mul_overflow(bytes, row.shape[i], &bytes)) bytes = ~std::uint64_t{0};
    if (bytes > layout::kMaxPayloadBytes) return "impossible shape";
  }
  const std::size_t text_bytes =
      std::size_t{row.name_bytes} + row.site_bytes + row.op_bytes + row.details_bytes;
  if (row.text_offset > table_bytes || text_bytes > table_bytes - row.text_offset) {
    return "a text lies outside the table";
  }
  if (row.name_bytes == 0 || row.name_bytes > layout::kMaxNameBytes) return "impossible name";
  return {};
}

}  // namespace

std::vector<std::byte> EncodeOpLog(std::span<const OpLogRow> rows) {
  std::vector<std::byte> table(rows.size() * sizeof(layout::OpLogRow));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const OpLogRow& from = rows[i];
    layout::OpLogRow row = {};
    row.probe_id = from.probe_id;
    row.invocation = from.invocation;
    row.launch = static_cast<std::uint16_t>(from.launch);
    row.dtype = static_cast<std::uint16_t>(from.dtype);
    row.dims = static_cast<std::uint8_t>(from.shape.size());
    std::copy(from.shape.begin(), from.shape.end(), row.shape);
    row.text_offset = static_cast<std::uint32_t>(table.size());
    const auto append = [&](const std::string& text, std::size_t most) {
      return static_cast<std::uint16_t>(Append(text, most, &table));
    };
    row.name_bytes = append(from.name, layout::kMaxNameBytes);
    row.site_bytes = append(from.site, layout::kMaxNameBytes);
    row.op_bytes = append(from.op, layout::kMaxOpTextBytes);
    if (from.details.size() <= layout::kMaxOpDetailsBytes) {
      row.details_bytes = append(from.details, layout::kMaxOpDetailsBytes);
    }
    std::memcpy(table.data() + i * sizeof(row), &row, sizeof(row));
  }
  return table;
}

std::optional<std::vector<OpLogRow>> DecodeOpLog(std::span<const std::byte> table, std::size_t rows,
                                                 std::string* reason) {
  if (table.size() / sizeof(layout::OpLogRow) < rows) {
    *reason = "the table of an op log's rows is too short";
    return std::nullopt;
  }
  std::vector<OpLogRow> decoded(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    layout::OpLogRow row;
    std::memcpy(&row, table.data() + i * sizeof(row), sizeof(row));
    const std::string wrong = Check(row, table.size());
    if (!wrong.empty()) {
      *reason = "the table of an op log's rows is damaged: row " + std::to_string(i) + ": " + wrong;
      return std::nullopt;
    }
    OpLogRow& to = decoded[i];
    to.probe_id = row.probe_id;
    to.invocation = row.invocation;
    to.launch = row.launch;
    to.dtype = static_cast<layout::Dtype>(row.dtype);
    to.shape.assign(row.shape, row.shape + row.dims);
    const char* text = reinterpret_cast<const char*>(table.data()) + row.text_offset;
    const auto take = [&text](std::size_t bytes) {
      text += bytes;
      return std::string(text - bytes, bytes);
    };
    to.name = take(row.name_bytes);
    to.site = take(row.site_bytes);
    to.op = take(row.op_bytes);
    to.details = take(row.details_bytes);
  }
  return decoded;
}

}  // namespace cgdebug::ring
