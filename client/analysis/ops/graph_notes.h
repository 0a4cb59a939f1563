// graph_notes.h: what jobs say of their captured graphs beside the rows of op logs: the order of
// their ops (races.h), and the memory that they read (audit.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/json_number.h"
#include "client/source/source.h"

namespace cgdebug::analysis {

// A graph that has notes.
struct NotedGraph {
  std::string session;
  int rank = -1;
  std::uint64_t graph_id = 0;
  std::string graph;     // what it is called
  std::size_t slot = 0;  // one that tells it
};

// "rank 0, graph bs=8".
std::string GraphText(const NotedGraph& graph);

// What the notes of one kind say of all graphs. `Graph` is a NotedGraph.
template <typename Graph>
struct GraphNotes {
  std::vector<Graph> graphs;
  std::vector<std::string> not_looked;  // what was not looked at, and why: sentences
  bool goes_on = false;                 // of a live job: more may come

  bool complete() const { return not_looked.empty(); }
};

// Takes the first word of a note, or a number; nothing if it is none.
std::string_view TakeWord(std::string_view* text);
std::optional<std::uint64_t> TakeNumber(std::string_view* text);

// Of a note that tells with which op a capture ended with an error (layout::IsOpOrder).
struct BrokenCapture {
  std::uint64_t graph_id = 0;
  std::string text;
};
// Nothing for any other slot.
std::optional<BrokenCapture> ReadBrokenCapture(const source::Slot& slot);

// What is said of graphs without a note.
struct NotesWords {
  const char* nobody;  // "no graph was captured with an op log"
  const char* what;    // "the memory"
  const char* look;    // what to type
};

// The graphs that rows or probes are of, with their names.
using NotedKey = std::tuple<std::string, int, std::uint64_t>;  // session, rank, graph_id
using NamedGraphs = std::map<NotedKey, std::string>;
NamedGraphs NamedGraphsOf(const source::Source& source);
// Sentences about graphs that have no note, and about what all of the source lacks.
std::vector<std::string> NotNoted(const source::Source& source,
                                  const std::vector<std::string>& unseen, bool has_graphs,
                                  const NotesWords& words);

// Reads the notes of the slots for which `is_note` is true. `read` gets what follows the number of
// the graph, and the graph; `add_missing` gets each graph, and adds what is not known of it.
template <typename Graph, typename IsNote, typename Read, typename AddMissing>
void ReadGraphNotes(const source::Source& source, const NotesWords& words, IsNote is_note,
                    Read read, AddMissing add_missing, GraphNotes<Graph>* notes) {
  std::map<NotedKey, Graph> graphs;
  for (std::size_t i = 0; i < source.slots().size(); ++i) {
    const source::Slot& slot = source.slots()[i];
    if (!is_note(slot)) continue;
    std::string_view text = slot.op.text();
    (void)TakeWord(&text);
    const std::optional<std::uint64_t> graph_id = TakeNumber(&text);
    if (!graph_id) continue;
    const auto [known, is_new] = graphs.try_emplace({slot.session, slot.rank, *graph_id});
    if (is_new) {
      static_cast<NotedGraph&>(known->second) = {slot.session, slot.rank, *graph_id,
                                                 std::to_string(*graph_id), i};
    }
    read(text, &known->second);
  }
  std::vector<std::string> unseen;
  for (const auto& [key, name] : NamedGraphsOf(source)) {
    const auto known = graphs.find(key);
    if (known == graphs.end()) {
      unseen.push_back(name.empty() ? std::to_string(std::get<2>(key)) : name);
    } else if (!name.empty()) {
      known->second.graph = name;
    }
  }
  for (auto& [key, graph] : graphs) {
    add_missing(graph, &notes->not_looked);
    notes->graphs.push_back(std::move(graph));
  }
  for (std::string& text : NotNoted(source, unseen, !notes->graphs.empty(), words)) {
    notes->not_looked.push_back(std::move(text));
  }
  notes->goes_on = source.Describe().is_growing;
}

// At most `max_rows` of them.
void AddNotLooked(const std::vector<std::string>& not_looked, std::size_t max_rows, Answer* answer);
// What all such answers have. `graphs`: one object for each graph.
template <typename Notes>
Json NotesJson(const source::Source& source, const Notes& notes, Json graphs) {
  return {{"source", source.Describe().path}, {"verdict", NameOf(notes.outcome())},
          {"found", notes.found()},           {"complete", notes.complete()},
          {"graphs", std::move(graphs)},      {"not_looked_at", notes.not_looked},
          {"goes_on", notes.goes_on}};
}

}  // namespace cgdebug::analysis
