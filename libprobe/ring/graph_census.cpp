#include "libprobe/ring/graph_census.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/utf8.h"
#include "proto/layout/realtime.h"

namespace cgdebug::ring {
namespace {

using layout::GraphEntry;
using layout::GraphState;
using layout::GraphTable;

constexpr int kReadAttempts = 4;
constexpr std::size_t kMaxAlike = 4096;  // pairs of label and stack that are remembered

const GraphEntry* Entries(const GraphTable* table) {
  return reinterpret_cast<const GraphEntry*>(table + 1);
}
GraphEntry* Entries(GraphTable* table) { return reinterpret_cast<GraphEntry*>(table + 1); }

void CopyText(char* to, std::size_t bytes, const std::string& text) {
  char copy[layout::kMaxGraphStackBytes + 1] = {};
  std::memcpy(copy, text.data(), CutLength(text, bytes - 1));
  CopyShared(to, copy, bytes);
}

std::string Text(const char* text, std::size_t bytes) { return {text, strnlen(text, bytes)}; }

std::optional<std::uint64_t> Known(std::uint64_t count) {
  return count == layout::kUnknownCount ? std::nullopt : std::optional(count);
}

// Fails: false if nothing is there, or the entry keeps changing.
bool ReadEntry(const GraphEntry& shared, GraphEntry* copy) {
  for (int i = 0; i < kReadAttempts; ++i) {
    const std::uint64_t word = LoadAcquire(shared.word);  // R1, pairs with W2
    if (layout::GraphStateOf(word) == GraphState::kEmpty) return false;
    if (layout::GraphVersion(word) % 2 != 0) continue;
    CopyShared(copy, &shared, sizeof(*copy));
    std::atomic_thread_fence(std::memory_order_acquire);  // R2, pairs with W1
    if (LoadRelaxed(shared.word) == word) {
      copy->word = word;
      return true;
    }
  }
  return false;
}

GraphFacts FactsOf(const GraphEntry& entry) {
  GraphFacts facts;
  facts.state = layout::GraphStateOf(entry.word);
  facts.order = entry.order;
  facts.graph_id = entry.graph_id;
  facts.nodes = Known(entry.nodes);
  facts.replays = Known(entry.replays);
  facts.probes = entry.probes;
  facts.probe_bytes = entry.probe_bytes;
  facts.alike = entry.alike;
  facts.alike_gone = entry.alike_gone;
  facts.begun_ns = entry.begun_ns;
  facts.ended_ns = entry.ended_ns;
  if (entry.pool[0] != 0 || entry.pool[1] != 0) facts.pool = {entry.pool[0], entry.pool[1]};
  facts.label = Text(entry.label, sizeof(entry.label));
  facts.stack = Text(entry.stack, sizeof(entry.stack));
  return facts;
}

}  // namespace

GraphCensus ReadGraphs(const std::byte* table) {
  const auto* shared = reinterpret_cast<const GraphTable*>(table);
  GraphCensus census;
  const std::uint64_t count =
      std::min<std::uint64_t>(LoadAcquire(shared->entries), layout::kMaxGraphs);
  for (std::uint64_t i = 0; i < count; ++i) {
    GraphEntry entry;
    if (!ReadEntry(Entries(shared)[i], &entry)) continue;
    if (layout::GraphStateOf(entry.word) > GraphState::kFailed) continue;
    census.graphs.push_back(FactsOf(entry));
  }
  std::stable_sort(census.graphs.begin(), census.graphs.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  census.captures = LoadRelaxed(shared->captures);
  census.unlisted = LoadRelaxed(shared->unlisted);
  census.unlisted_replays = LoadRelaxed(shared->unlisted_replays);
  census.failed = LoadRelaxed(shared->failed);
  census.empty = LoadRelaxed(shared->empty);
  census.gone = LoadRelaxed(shared->gone);
  return census;
}

GraphCensusWriter::GraphCensusWriter(std::byte* table)
    : table_(reinterpret_cast<GraphTable*>(table)) {}

template <typename Change>
void GraphCensusWriter::Write(std::size_t index, Change change) {
  Own& own = own_[index];
  GraphEntry& shared = Entries(table_)[index];
  StoreRelaxed(shared.word, layout::GraphWord(++own.version, own.state));
  std::atomic_thread_fence(std::memory_order_release);  // W1, pairs with R2
  change(shared);
  StoreRelease(shared.word, layout::GraphWord(++own.version, own.state));  // W2, pairs with R1
}

std::optional<std::size_t> GraphCensusWriter::FindId(std::uint64_t graph_id) const {
  for (std::size_t i = own_.size(); i-- > 0;) {
    if (own_[i].graph_id == graph_id && own_[i].state != GraphState::kEmpty) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> GraphCensusWriter::FindOrder(std::uint64_t order) const {
  for (std::size_t i = own_.size(); i-- > 0;) {
    if (own_[i].order == order) return i;
  }
  return std::nullopt;
}

std::size_t GraphCensusWriter::counter(std::uint64_t order) const {
  const std::optional<std::size_t> index = FindOrder(order);
  if (!index) return 0;
  const auto* place = reinterpret_cast<const std::byte*>(&Entries(table_)[*index].replays);
  return static_cast<std::size_t>(place - table()) / sizeof(std::uint64_t);
}

// A new entry, or that of the graph that is gone and was captured first.
std::optional<std::size_t> GraphCensusWriter::FreeEntry() {
  if (own_.size() < layout::kMaxGraphs) {
    own_.emplace_back();
    return own_.size() - 1;
  }
  std::optional<std::size_t> oldest;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    if (own_[i].state != GraphState::kGone && own_[i].state != GraphState::kFailed) continue;
    if (!oldest || own_[i].order < own_[*oldest].order) oldest = i;
  }
  return oldest;
}

GraphCensusWriter::Alike* GraphCensusWriter::AlikeOf(const Own& own) {
  if (own.label.empty() && own.stack.empty()) return nullptr;
  if (alike_.size() >= kMaxAlike) alike_.clear();  // later counts of equal graphs are too low then
  return &alike_[own.label + '\n' + own.stack];
}

std::uint64_t GraphCensusWriter::Begin(std::uint64_t graph_id, const std::string& label,
                                       const std::string& stack, bool counted) {
  const std::uint64_t order = ++counts_.captures;
  StoreRelaxed(table_->captures, order);
  const std::optional<std::size_t> index = FreeEntry();
  if (!index) {
    unlisted_.insert(graph_id);
    StoreRelaxed(table_->unlisted, ++counts_.unlisted);
    return order;
  }
  Own& own = own_[*index];
  own = {.state = GraphState::kCapturing,
         .order = order,
         .graph_id = graph_id,
         .version = own.version,
         .label = label,
         .stack = stack};
  Alike none;
  Alike* alike = AlikeOf(own);
  if (alike == nullptr) {
    alike = &none;
  } else {
    ++alike->captured;
  }
  Write(*index, [&](GraphEntry& shared) {
    StoreRelaxed(shared.replays, counted ? 0 : layout::kUnknownCount);
    StoreRelaxed(shared.order, order);
    StoreRelaxed(shared.graph_id, graph_id);
    StoreRelaxed(shared.nodes, layout::kUnknownCount);
    StoreRelaxed(shared.probes, std::uint64_t{0});
    StoreRelaxed(shared.probe_bytes, std::uint64_t{0});
    StoreRelaxed(shared.alike, alike->captured);
    StoreRelaxed(shared.alike_gone, alike->gone);
    StoreRelaxed(shared.begun_ns, layout::RealtimeNs());
    StoreRelaxed(shared.ended_ns, std::int64_t{0});
    StoreRelaxed(shared.pool[0], std::uint64_t{0});
    StoreRelaxed(shared.pool[1], std::uint64_t{0});
    CopyText(shared.label, sizeof(shared.label), label);
    CopyText(shared.stack, sizeof(shared.stack), stack);
  });
  StoreRelease(table_->entries, std::uint64_t{own_.size()});
  return order;
}

void GraphCensusWriter::AddProbe(std::uint64_t graph_id, std::uint64_t bytes,
                                 const std::string& label) {
  const std::optional<std::size_t> index = FindId(graph_id);
  if (!index) return;
  Own& own = own_[*index];
  ++own.probes;
  own.probe_bytes += bytes;
  Write(*index, [&](GraphEntry& shared) {
    StoreRelaxed(shared.probes, own.probes);
    StoreRelaxed(shared.probe_bytes, own.probe_bytes);
    CopyText(shared.label, sizeof(shared.label), label);
  });
}

void GraphCensusWriter::End(std::uint64_t order, std::optional<std::uint64_t> nodes, bool failed,
                            const std::string& label) {
  const std::optional<std::size_t> index = FindOrder(order);
  if (failed) StoreRelaxed(table_->failed, ++counts_.failed);
  if (!failed && nodes == std::uint64_t{0}) StoreRelaxed(table_->empty, ++counts_.empty);
  if (!index || own_[*index].state != GraphState::kCapturing) return;
  own_[*index].state = failed ? GraphState::kFailed : GraphState::kLive;
  Write(*index, [&](GraphEntry& shared) {
    StoreRelaxed(shared.nodes, nodes.value_or(layout::kUnknownCount));
    StoreRelaxed(shared.ended_ns, layout::RealtimeNs());
    if (!label.empty()) CopyText(shared.label, sizeof(shared.label), label);
  });
}

void GraphCensusWriter::SetPool(std::uint64_t order, std::uint64_t first, std::uint64_t second) {
  const std::optional<std::size_t> index = FindOrder(order);
  if (!index) return;
  Write(*index, [&](GraphEntry& shared) {
    StoreRelaxed(shared.pool[0], first);
    StoreRelaxed(shared.pool[1], second);
  });
}

void GraphCensusWriter::Gone(std::uint64_t order) {
  const std::optional<std::size_t> index = FindOrder(order);
  if (!index) return;
  Own& own = own_[*index];
  if (own.state == GraphState::kGone || own.state == GraphState::kFailed) return;
  if (Alike* alike = AlikeOf(own)) ++alike->gone;
  StoreRelaxed(table_->gone, ++counts_.gone);
  own.state = GraphState::kGone;
  Write(*index, [](GraphEntry&) {});
}

void GraphCensusWriter::GoneById(std::uint64_t graph_id) {
  if (const std::optional<std::size_t> index = FindId(graph_id)) Gone(own_[*index].order);
}

}  // namespace cgdebug::ring
