// op_text.h: the text that says what a row of an op log is (SlotRegistration::op), parsed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Whether SlotRegistration::op is that of a row which shows an input of a captured graph once more,
// at the end of the graph: "40 input.end 3" of the input that row 3 shows. It is no row of the log.
constexpr bool IsInputEnd(std::string_view op) {
  return op.find(" input.end ") != std::string_view::npos;
}

// Parses SlotRegistration::op of a row that says what is not shown (layout::IsOpGap). Fails:
// nullopt for any other.
struct OpGap {
  std::string of;  // "12", "log", "eager", "job"
  std::string text;
};
std::optional<OpGap> ParseOpGap(std::string_view op);

// "mm" of "aten.mm.default" and of "aten.mm.out"; with the namespace if it is not aten.
std::string_view BaseOf(std::string_view op);
// The same without the "_" at the end of an op that writes in place.
std::string_view StemOf(std::string_view op);

}  // namespace cgdebug::ops
