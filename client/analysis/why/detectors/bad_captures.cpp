// Captures that failed, that hold no work, that nobody replays, or that are made again and again.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "client/analysis/ops/graph_notes.h"
#include "client/analysis/why/detectors.h"

namespace cgdebug::analysis::why {
namespace {

using layout::GraphFacts;
using layout::GraphState;

bool IsUnreplayed(const GraphFacts& graph) {
  return graph.state == GraphState::kLive && graph.nodes > 0u && graph.replays == 0u;
}

struct Kind {
  std::string_view name;
  bool (*matches)(const GraphFacts&);
  const char* says;
  const char* refute;
};

constexpr Kind kKinds[] = {
    {"failed_capture", [](const GraphFacts& graph) { return graph.state == GraphState::kFailed; },
     "ended with an error: there is no graph", "a capture that is tried, and given up on purpose"},
    {"empty_capture",
     [](const GraphFacts& graph) { return graph.state == GraphState::kLive && graph.nodes == 0u; },
     "recorded no work: what ran meanwhile went to another stream, or ran at once",
     "a graph that only holds a memory pool, as torch.compile makes one"},
    {"captured_again",
     [](const GraphFacts& graph) { return graph.alike_gone >= layout::kManyCaptures; },
     "replaced one that was captured in the same place, again and again",
     "shapes that change for good reason"},
    {"unreplayed", IsUnreplayed,
     "was never replayed: what it stands for ran outside of it, or not at all",
     "a replay that is yet to come"},
};

// What a job with an op log tells of its captures that ended with an error.
class BrokenCaptures {
 public:
  explicit BrokenCaptures(const source::Source& source) {
    for (std::size_t i = 0; i < source.slots().size(); ++i) {
      const source::Slot& slot = source.slots()[i];
      const std::optional<BrokenCapture> one = ReadBrokenCapture(slot);
      if (one) notes_[{slot.session, slot.rank, one->graph_id}] = {i, one->text};
    }
  }

  // "; aten.item.default at model.py:7 raised ..."; empty if it is not known.
  std::string TextOf(const source::Slot& process, const GraphFacts& graph) const {
    const auto note = notes_.find({process.session, process.rank, graph.graph_id});
    return note == notes_.end() ? "" : "; " + note->second.text;
  }

  // A recording has no census: there they are all that is known.
  void AddTo(Found* answer) const {
    for (const auto& [key, note] : notes_) {
      answer->findings.push_back({.level = Level::kConsistent,
                                  .kind = kKinds[0].name,
                                  .place = {.slot = note.slot, .command = "info"},
                                  .sentence = fmt::format("capture {} {}; {}", std::get<2>(key),
                                                          kKinds[0].says, note.text),
                                  .refute = kKinds[0].refute});
    }
  }

 private:
  struct Note {
    std::size_t slot = 0;
    std::string text;
  };
  std::map<std::tuple<std::string, int, std::uint64_t>, Note> notes_;
};

// Where the graphs were captured that are replayed. An engine captures one graph for each size of a
// batch in advance, at one place, and replays those that it needs.
std::set<std::string> PlacesOfReplayed(const std::vector<GraphFacts>& graphs) {
  std::set<std::string> places;
  for (const GraphFacts& graph : graphs) {
    if (graph.replays > 0u && !graph.stack.empty()) places.insert(graph.stack);
  }
  return places;
}

std::string NameOf(const GraphFacts& graph) {
  return graph.label.empty() ? fmt::format("capture {}", graph.order) : "graph " + graph.label;
}

std::size_t SlotOf(const source::Source& source, const source::Slot& process) {
  const auto& slots = source.slots();
  const auto found = std::ranges::find_if(slots, [&](const source::Slot& one) {
    return one.rank == process.rank && one.session == process.session;
  });
  return found == slots.end() ? slots.size() : static_cast<std::size_t>(found - slots.begin());
}

std::string NameOf(const source::Slot& process) {
  return process.rank < 0 ? process.session : fmt::format("rank {}", process.rank);
}

void Note(const std::string& sentence, Found* answer) {
  answer->not_looked += (answer->not_looked.empty() ? "" : "; ") + sentence;
}

void NoteUnlisted(const source::ProcessGraphs& process, Found* answer) {
  if (process.census.unlisted == 0) return;
  Note(fmt::format("{} captures of {} are counted, and not listed one by one",
                   process.census.unlisted, NameOf(process.of)),
       answer);
}

// A finding has a place, and this process has none.
void NoteWithoutProbe(const source::ProcessGraphs& process, Found* answer) {
  for (const GraphFacts& graph : process.census.graphs) {
    const auto kind =
        std::ranges::find_if(kKinds, [&](const Kind& one) { return one.matches(graph); });
    if (kind == std::end(kKinds)) continue;
    Note(fmt::format("captures of {}, which has no probe: {} {}", NameOf(process.of), NameOf(graph),
                     kind->says),
         answer);
    return;
  }
}

// found: captures of one kind.
Finding BadCaptureOf(const Kind& kind, const std::vector<const GraphFacts*>& found,
                     const source::Slot& process, std::size_t slot, const BrokenCaptures& broken) {
  const GraphFacts& first = *found.front();
  Finding finding{
      .level = Level::kConsistent,
      .kind = kind.name,
      .place = {.slot = slot, .command = "graphs"},
      .sentence = fmt::format("{} {}{}", NameOf(first), kind.says, broken.TextOf(process, first)),
      .refute = kind.refute};
  if (found.size() > 1) finding.sentence += fmt::format("; {} like it", found.size() - 1);
  for (const GraphFacts* graph : found) {
    const std::string by = graph->stack.empty() ? "" : ", captured by " + graph->stack;
    finding.facts.push_back({finding.place, NameOf(*graph) + by + broken.TextOf(process, *graph)});
  }
  return finding;
}

}  // namespace

Found FindBadCaptures(const Evidence& evidence) {
  Found answer;
  const source::Source& source = *evidence.source;
  const BrokenCaptures broken(source);
  if (!evidence.graphs) {
    broken.AddTo(&answer);
    const bool has_graph = std::ranges::any_of(
        source.slots(), [](const source::Slot& slot) { return slot.graph_id != 0; });
    if (has_graph) {
      answer.not_asked =
          "captures that recorded no work, or that failed without an op log, which a recording "
          "does not keep: cgdebug-cli graphs, while the job lives";
    }
    return answer;
  }
  std::size_t count = 0;
  std::size_t spare = 0;
  for (const source::ProcessGraphs& process : *evidence.graphs) {
    NoteUnlisted(process, &answer);
    const std::size_t slot = SlotOf(source, process.of);
    if (slot == source.slots().size()) {
      NoteWithoutProbe(process, &answer);
      continue;
    }
    const std::set<std::string> places = PlacesOfReplayed(process.census.graphs);
    for (const Kind& kind : kKinds) {
      std::vector<const GraphFacts*> found;
      for (const GraphFacts& graph : process.census.graphs) {
        if (!kind.matches(graph)) continue;
        const bool is_spare = IsUnreplayed(graph) && places.contains(graph.stack);
        if (is_spare) {
          ++spare;
        } else {
          found.push_back(&graph);
        }
      }
      count += process.census.graphs.size();
      if (found.empty()) continue;
      answer.findings.push_back(BadCaptureOf(kind, found, process.of, slot, broken));
    }
  }
  SetClean(count / std::size(kKinds), "capture has work and is replayed",
           "captures have work and are replayed", &answer);
  if (spare > 0 && !answer.clean.empty()) {
    answer.clean += fmt::format(", but for {} captured where those are, as for other sizes", spare);
  }
  return answer;
}

}  // namespace cgdebug::analysis::why
