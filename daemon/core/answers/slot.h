// slot.h: what is known of one call of a probe, and what it is called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/core/base/graph_labels.h"
#include "daemon/core/ops/op_text.h"
#include "proto/layout/dtype.h"

namespace cgdebug::answers {

// One call of a probe in one captured graph, or one tensor name of a safetensors folder.
struct Slot {
  std::string probe;
  std::string session;     // label of the job, or the file it came from
  std::string device;      // empty when unknown
  std::string site;        // "file.py:12", empty when unknown
  std::string shard;       // part of a distributed tensor, else empty
  std::string part;        // the elements that it has, as recording::Slot::part; empty: all
  ops::OpEntry op;         // what a row of an op log is; empty of a probe
  std::string details;     // of a row of an op log: a JSON object, or empty
  std::string dtype_name;  // as the source spells it
  layout::Dtype dtype = layout::Dtype::kInvalid;  // kInvalid: a type that this version cannot read
  std::vector<std::uint64_t> shape;
  std::uint64_t payload_bytes = 0;
  int rank = -1;                // -1: not distributed
  std::uint64_t graph_id = 0;   // 0: eager
  std::string graph;            // the graph's name (graph_labels.h); empty: eager
  bool graph_is_given = false;  // whether the user named it
  // Distinguishes it from other slots of its probe (graph_labels.h); may be empty.
  std::string qualifier;
  std::uint32_t invocation = 0;  // which call of the probe in the capture, from 0
  std::uint64_t order = 0;       // in the graph, within the session
  std::uint32_t every = 1;       // only replays 1, 1 + every, ... were wanted
  // A replay has any number of snapshots, or none: it is in the body of a conditional node or, if
  // it is eager, it counts calls.
  bool in_body = false;
  // That began its calls, if it counts calls: a number in the process. 1 is the main one, 0:
  // unknown.
  std::uint32_t thread = 0;
  // What is known of its process.
  std::string uuid = {};  // empty: unknown
  std::string run = {};   // the launcher's id, the same on all ranks; may be empty
  std::string host = {};  // likewise
  int world_size = 1;
  int restart = 0;  // how often the launcher had started it before

  // Whether its replays are calls, with numbers that all eager slots of its process share.
  bool counts_calls() const { return in_body && graph_id == 0; }
};

// Whether `which` means this slot's graph and shape.
bool Matches(const WhichSlots& which, const Slot& slot);

// "blk3.attn", "blk3.attn#1" for its second call in one capture.
std::string SlotName(const Slot& slot);
// The same with what distinguishes it from other slots of its probe: "blk3.attn{8,512}",
// "blk3.attn@g:bs=8".
std::string SlotText(const Slot& slot);
// "12", "12.3" for an iteration of a conditional body, or of an eager slot that ran more than once
// in a call: what follows @ in a selector.
std::string ReplayText(std::uint64_t replay, std::uint32_t iteration, bool in_body);
// What its replays are called: "call" or "replay".
inline const char* ReplayWord(const Slot& slot) { return slot.counts_calls() ? "call" : "replay"; }
// ", thread 3"; empty for the main one, and where none is known.
std::string OfThread(const Slot& slot);
// What follows SlotText() in a selector: "@12", "@call:12".
inline std::string ReplayMark(const Slot& slot, std::uint64_t replay) {
  return (slot.counts_calls() ? "@call:" : "@") + std::to_string(replay);
}
// "bf16[8,512]", also for a dtype that this version does not know; "bf16[8,512] part rows:0:8 of
// [64,512]".
std::string TypeText(const Slot& slot);
// The shape of the whole tensor: "[64,512]".
std::string FullShapeText(const Slot& slot);
// For a place in its tensor: " of part rows:0:8 of [64,512]"; empty if it has all elements.
std::string OfPart(const Slot& slot);

}  // namespace cgdebug::answers
