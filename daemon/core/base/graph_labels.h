// graph_labels.h: the names of a process's graphs.
//
// The number of a capture tells people nothing. A graph without a label of the user's is named
// after the shape of its first probe, "8x512". If another graph has that name already, the first
// probe in which the two differ is added: "8x512,attn=8x4x64". Graphs that are equal in all of
// that, or have the same label, are numbered in the order of their capture: "bs=8", "bs=8#2".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cgdebug {

// One slot of a graph, as far as names depend on it. Lifetime: borrowed for the call.
struct GraphSlot {
  std::uint64_t graph_id = 0;  // 0: eager, in no graph
  std::uint64_t order = 0;     // of registration
  std::string_view probe = {};
  std::uint32_t invocation = 0;
  std::span<const std::uint64_t> shape = {};
  std::string_view label = {};  // the user's; empty: none
};

using GraphLabels = std::map<std::uint64_t, std::string>;  // by capture id

// Labels of all graphs of one process, each label once. A graph's label depends on its own slots
// and on graphs captured before it, so later captures do not change it. `before`: labels of graphs
// that have no slot any more; they stay taken and are part of the answer.
GraphLabels NameGraphsOf(std::vector<GraphSlot> slots, GraphLabels before = {});

// For each of `slots`, the text that tells slots of one name apart: "@g:bs=8" if they lie in
// several graphs, "{8,512}" if they have several shapes in one, as eager calls may. Empty if the
// name and the number of the call are enough.
std::vector<std::string> SlotQualifiers(const std::vector<GraphSlot>& slots,
                                        const GraphLabels& labels);

// Which slots of the named probes are meant. Nothing set: all.
struct WhichSlots {
  std::string graph = {};  // a label, the number of a capture, or "eager"
  std::optional<std::vector<std::uint64_t>> shape = {};

  bool selects_all() const { return graph.empty() && !shape; }
  bool Matches(std::uint64_t graph_id, std::string_view label,
               std::span<const std::uint64_t> of_shape) const;
  // "@g:bs=8", "{8,512}", both or nothing.
  std::string Text() const;
};

// Why a replay number alone does not identify a snapshot among several slots, and what to type.
// `names` are the slots that have that replay, with qualifiers. Empty for fewer than two. `source`,
// "a.cgrec:", stands in front of a name that is typed, and `among`, " --ranks 0", behind it.
std::string AmbiguousReplay(const std::vector<std::string>& names, std::int64_t replay,
                            const std::string& source = "", const std::string& among = "");

// "8x512"; "scalar" without dimensions.
std::string ShapeLabel(std::span<const std::uint64_t> shape);
// "{8,512}", "{}".
std::string ShapeSelector(std::span<const std::uint64_t> shape);
// Parses "8,512", "8x512", "[8, 512]", "{8,512}". "scalar", or brackets with nothing in them, means
// no dimensions. Fails: nullopt for anything else.
std::optional<std::vector<std::uint64_t>> ParseShape(std::string_view text);

}  // namespace cgdebug
