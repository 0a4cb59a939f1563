// graph_labels.h: what the graphs of a process are called.
//
// A capture's number means nothing to anybody. A graph that the user gave no label is called by the
// shape of its first probe, "8x512"; where another one has that name already, by the first probe in
// which the two differ as well, "8x512,attn=8x4x64". Graphs that are equal in all of that, or were
// given one label, are numbered in the order of their capture: "bs=8", "bs=8#2".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cgdebug {

// What a graph's name is made of. Lifetime: borrowed for the call.
struct GraphSlot {
  std::uint64_t capture_id = 0;  // 0: eager, in no graph
  std::uint64_t order = 0;       // of registration
  std::string_view probe = {};
  std::uint32_t invocation = 0;
  std::span<const std::uint64_t> shape = {};
  std::string_view label = {};  // the user's; empty: none
};

using GraphLabels = std::map<std::uint64_t, std::string>;  // by capture id

// Labels of all graphs of one process, each once. A graph's label depends on its own slots and on
// graphs that were captured before it, so later captures do not change it. `before`: labels that
// graphs had which have no slot any more; they stay taken, and are in the answer too.
GraphLabels NameGraphsOf(std::vector<GraphSlot> slots, GraphLabels before = {});

// What a person types, and reads, to tell slots of one name apart, for each of `slots`:
// "@g:bs=8" where they lie in several graphs, "{8,512}" where they have several shapes in one, as
// eager calls may. Empty where the name and the number of the call are enough.
std::vector<std::string> SlotQualifiers(const std::vector<GraphSlot>& slots,
                                        const GraphLabels& labels);

// Which slots of the probes that are named. Nothing set: all.
struct WhichSlots {
  std::string graph = {};  // a label, the number of a capture, or "eager"
  std::optional<std::vector<std::uint64_t>> shape = {};

  bool selects_all() const { return graph.empty() && !shape; }
  bool Matches(std::uint64_t capture_id, std::string_view label,
               std::span<const std::uint64_t> of_shape) const;
  // "@g:bs=8", "{8,512}", both or nothing.
  std::string Text() const;
};

// Why a replay number alone does not say which snapshot is meant, of several slots, and what to
// type. `names`: those that have that replay, with qualifiers. Empty for less than two.
std::string AmbiguousReplay(const std::vector<std::string>& names, std::int64_t replay);

// "8x512"; "scalar" without dimensions.
std::string ShapeLabel(std::span<const std::uint64_t> shape);
// "{8,512}", "{}".
std::string ShapeSelector(std::span<const std::uint64_t> shape);
// Of "8,512", "8x512", "[8, 512]", "{8,512}"; "scalar" or nothing between brackets has no
// dimensions. Fails: nullopt for anything else.
std::optional<std::vector<std::uint64_t>> ParseShape(std::string_view text);

}  // namespace cgdebug
