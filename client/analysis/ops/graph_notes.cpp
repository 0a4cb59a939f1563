#include "client/analysis/ops/graph_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "client/analysis/ops/op_log.h"
#include "proto/layout/op_log_layout.h"

namespace cgdebug::analysis {

std::string GraphText(const NotedGraph& graph) {
  return (graph.rank >= 0 ? fmt::format("rank {}, ", graph.rank) : "") + "graph " + graph.graph;
}

std::string_view TakeWord(std::string_view* text) {
  const std::size_t end = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return word;
}

std::optional<std::uint64_t> TakeNumber(std::string_view* text) {
  const std::string_view word = TakeWord(text);
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (failure != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

std::optional<BrokenCapture> ReadBrokenCapture(const source::Slot& slot) {
  if (!layout::IsOpOrder(slot.op.text())) return std::nullopt;
  std::string_view rest = slot.op.text();
  (void)TakeWord(&rest);
  const std::optional<std::uint64_t> graph_id = TakeNumber(&rest);
  if (!graph_id || TakeWord(&rest) != "broke") return std::nullopt;
  return BrokenCapture{.graph_id = *graph_id, .text = std::string(rest)};
}

NamedGraphs NamedGraphsOf(const source::Source& source) {
  NamedGraphs graphs;
  for (const source::Slot& slot : source.slots()) {
    if (slot.graph_id != 0) graphs[{slot.session, slot.rank, slot.graph_id}] = slot.graph;
  }
  return graphs;
}

std::vector<std::string> NotNoted(const source::Source& source,
                                  const std::vector<std::string>& unseen, bool has_graphs,
                                  const NotesWords& words) {
  std::vector<std::string> texts;
  if (!has_graphs) {
    texts.push_back(fmt::format("anything: {}. {}", words.nobody, words.look));
  } else if (!unseen.empty()) {
    texts.push_back(fmt::format("{} of {} graph{}, the first: {}. {}", words.what, unseen.size(),
                                unseen.size() == 1 ? "" : "s", unseen.front(), words.look));
  }
  for (std::string& text : GapsOfAll(source)) texts.push_back(std::move(text));
  return texts;
}

void AddNotLooked(const std::vector<std::string>& not_looked, std::size_t max_rows,
                  Answer* answer) {
  const std::size_t shown = std::min(not_looked.size(), max_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    answer->Add(Severity::kWarning, "not looked at: " + not_looked[i]);
  }
  if (shown < not_looked.size()) {
    answer->Add(Severity::kWarning,
                fmt::format("not looked at: and {} more like these", not_looked.size() - shown));
  }
}

}  // namespace cgdebug::analysis
