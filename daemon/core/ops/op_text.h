// op_text.h: the text that says what a row of an op log is (SlotRegistration::op), parsed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "proto/layout/op_log_layout.h"

namespace cgdebug::ops {

// Nodes of a graph that write memory, and that belong to no op that the log follows.
struct UnseenNodes {
  std::uint32_t after = 0;   // the row before them; 0: they come before the first one
  std::uint32_t before = 0;  // the row behind them; 0: they come after the last one
  std::uint64_t count = 0;
  std::string names = {};  // some of what they run: "flash_fwd_kernel, memset"

  std::string Text() const;  // "3 kernels between #17 and #18: flash_fwd_kernel"
};

// Parses SlotRegistration::op. Fails: nullopt if it does not describe a row.
//   "17 aten.mm.default +2 -1 <3:flash_fwd_kernel >1:memset 3 5"
//   number, op; nodes that are explained and left out since the row before; unseen nodes in front
//   of the row, and behind the last row; inputs.
struct OpText {
  std::uint32_t number = 0;
  std::string op;
  std::vector<std::uint32_t> inputs = {};
  bool is_covered = true;
  bool has_nodes = false;
  std::uint64_t explained = 0;
  std::uint64_t left_out = 0;
  std::optional<UnseenNodes> unseen_before = {};
  std::optional<UnseenNodes> unseen_after = {};
};
std::optional<OpText> ParseOpText(std::string_view text);

// Parses SlotRegistration::op of a row that says what is not shown (layout::IsOpGap). Fails:
// nullopt for any other.
struct OpGap {
  std::string of;  // "12", "log", "eager", "job"
  std::string text;
};
std::optional<OpGap> ParseOpGap(std::string_view op);

// SlotRegistration::op of a slot, parsed when it is set. Empty: the slot is a probe.
class OpEntry {
 public:
  OpEntry() = default;
  OpEntry(std::string text);  // NOLINT(google-explicit-constructor): it is that text
  OpEntry(const char* text) : OpEntry(std::string(text)) {}  // NOLINT(google-explicit-constructor)

  const std::string& text() const { return text_; }
  bool empty() const { return text_.empty(); }
  // Null: it is no row.
  const OpText* row() const { return std::get_if<OpText>(&parsed_); }
  // Null: it is nothing that an op log does not show.
  const OpGap* gap() const { return std::get_if<OpGap>(&parsed_); }
  // Whether the row shows an input of a captured graph once more, at the end of the graph: "40
  // input.end 3" of the input that row 3 shows. It is no row of the log.
  bool is_input_end() const { return row() != nullptr && row()->op == "input.end"; }
  // Whether the slot has no tensor (layout::IsNoRow).
  bool is_no_row() const { return layout::IsNoRow(text_); }

 private:
  std::string text_;
  std::variant<std::monostate, OpText, OpGap> parsed_;
};

// "mm" of "aten.mm.default" and of "aten.mm.out"; with the namespace if it is not aten.
std::string_view BaseOf(std::string_view op);
// The same without the "_" at the end of an op that writes in place.
std::string_view StemOf(std::string_view op);

}  // namespace cgdebug::ops
