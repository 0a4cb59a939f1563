// source.h: one interface for everything that tensors come from: a recording, a folder of
// recordings (one per rank), a .safetensors file or a folder of them, and the daemon's memory of a
// live job.
//
//   Result<std::unique_ptr<Source>> source = source::Open("runs/a.cgrec");
//   for (std::size_t slot = 0; slot < (*source)->slots().size(); ++slot) {
//     for (const Key& key : *(*source)->Keys(slot)) Use(*(*source)->Get(slot, key));
//   }
//
// No protobuf and no daemon behind this header: the Python extension links it beside torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/answers/slot.h"
#include "daemon/core/base/graph_labels.h"
#include "daemon/core/base/result.h"
#include "daemon/core/numerics/stats.h"
#include "daemon/core/recording/account.h"
#include "daemon/core/recording/types.h"
#include "proto/layout/graph_facts.h"
#include "proto/layout/not_seen.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::recording {
class RecordingReader;
}

namespace cgdebug::source {

// A slot, and what it is called.
using answers::FullShapeText;
using answers::Matches;
using answers::OfPart;
using answers::OfThread;
using answers::ReplayMark;
using answers::ReplayText;
using answers::ReplayWord;
using answers::Slot;
using answers::SlotName;
using answers::SlotText;
using answers::TypeText;

// Tells the processes of a source apart. Several may have one label, as when a launcher starts a
// rank again.
struct Process {
  int rank = -1;
  std::string session;
  std::string uuid;  // empty: unknown
  auto operator<=>(const Process&) const = default;
};
inline Process ProcessOf(const Slot& slot) { return {slot.rank, slot.session, slot.uuid}; }

// Names one snapshot of a slot.
struct Key {
  std::uint64_t replay = 0;     // from 1
  std::uint64_t id = 0;         // the source's own
  std::uint32_t iteration = 0;  // of a conditional body in that replay, from 0
};

struct Snapshot {
  std::size_t slot = 0;
  Key key;
  std::uint64_t serial = 0;  // when its replay began, ns since the epoch; 0: unknown
  std::int64_t step = -1;    // the user's own, -1: none
  std::int64_t timestamp_ns = 0;
  bool has_values = false;
  std::uint64_t payload_bytes = 0;
  std::optional<numerics::Stats> stats = {};             // as recorded; see StatsOf
  std::optional<recording::Comparison> comparison = {};  // as recorded
  std::optional<std::uint64_t> hash = {};  // of the bytes: equal hashes of one source or two mean
                                           // equal bytes, XXH3-64
  // Key::id of an earlier snapshot of the slot with the same bytes, where the source knows one.
  std::optional<std::uint64_t> same_as = {};
};

// One snapshot with everything that is known about it.
struct Tensor {
  std::string session_key;  // of the daemon; empty in a file
  Slot slot;
  Snapshot snapshot;
  numerics::Stats stats;
  std::string payload;  // contiguous elements, little-endian; empty where no
                        // values are kept
};

// Lifetime: `bytes` live as long as `owner`.
struct Values {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// Missing snapshots of one slot.
struct Gap {
  std::size_t slot = 0;
  std::uint64_t count = 0;
  std::uint64_t after_replay = 0;   // as recording::Loss
  std::uint64_t before_replay = 0;  // likewise
  std::string cause;
};

// The first of its kind that the daemon found in a slot, while it read every snapshot it could get.
// The snapshot itself may not be here any more.
struct Finding {
  std::size_t slot = 0;
  layout::FindingKind kind = layout::FindingKind::kNan;
  std::uint64_t replay = 0;
  std::uint64_t serial = 0;  // as Snapshot::serial
  std::int64_t step = -1;
  std::int64_t timestamp_ns = 0;  // 0: not known
  std::uint64_t count = 0;        // elements; 0: not known
  std::string text = {};          // of a mismatch
};

// What a process wanted to be seen and nobody saw: of one kind.
struct NotSeen {
  Slot of;  // tells its process; without a probe
  layout::NotSeen what;
};

// The CUDA graphs of one process.
struct ProcessGraphs {
  Slot of;  // tells its process; without a probe
  layout::GraphCensus census;
};

// What a source is, for `info`.
struct Description {
  std::string path;
  std::string kind;  // "recording", "safetensors", "live"
  std::vector<std::string> sessions = {};
  std::uint64_t bytes = 0;  // on disk
  std::string ending = {};  // how it ended, in words; may be empty
  std::string head = {};    // of live jobs: which they are and how they are, one a line
  std::vector<std::string> damage = {};  // what was found while reading, in sentences
  std::vector<std::string> unread = {};  // what cannot be read or fetched: why
  std::vector<NotSeen> not_seen = {};    // what its processes wanted to be seen and nobody saw
  // Which ranks of a live run are in it, and which are not; empty: no ranks.
  std::string ranks = {};
  bool is_growing = false;  // a writer is at work
  // Processes, by uuid, whose end it does not have: what they did last may not be in it.
  std::set<std::string> running = {};
  // Of live jobs: for how long none of them has moved, if that is long; else 0.
  double stalled_seconds = 0;
  bool is_cut_off = false;  // its end is missing: what came after is unknown
  // Of live jobs, by uuid: how often a row of an op log was not finite in a replay or call of which
  // the daemon keeps no rows.
  std::map<std::string, std::uint64_t> not_finite_let_go = {};
};

// Thread: one at a time; Values are independent. Lifetime: slots() until the end of the source.
class Source {
 public:
  Source() = default;
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  virtual Description Describe() const = 0;
  virtual const std::vector<Slot>& slots() const = 0;
  // By replay and iteration, ascending, each once.
  virtual Result<std::vector<Key>> Keys(std::size_t slot) = 0;
  // The key of one replay, nothing when it is not there. If a replay has several iterations: of
  // that one, and without one of the last.
  virtual Result<std::optional<Key>> Find(std::size_t slot, std::uint64_t replay,
                                          std::optional<std::uint32_t> iteration = std::nullopt);
  // The key of its newest snapshot of an earlier replay; nothing without one. A live job answers
  // without its other keys.
  virtual Result<std::optional<Key>> FindBefore(std::size_t slot, std::uint64_t replay);
  // The replay of the slot's newest snapshot; 0 without one. Likewise.
  virtual Result<std::uint64_t> NewestReplay(std::size_t slot);
  virtual Result<Snapshot> Get(std::size_t slot, const Key& key) = 0;
  // Fails: no values are kept of it, or they are damaged.
  virtual Result<Values> Load(const Snapshot& snapshot) = 0;
  // Loads values that the caller may change: changes reach neither the file nor what Load()
  // returns.
  virtual Result<Values> LoadWritable(const Snapshot& snapshot);
  // The places of everything that the accounts count as lost, as far as they are known.
  virtual std::vector<Gap> Gaps() = 0;
  // Those of `slots` of which a snapshot of that replay may be lost. A live job answers without the
  // other gaps.
  virtual std::vector<std::size_t> MayLack(const std::vector<std::size_t>& slots,
                                           std::uint64_t replay);
  // How much it has of what the job produced. Fails: as Keys().
  virtual Result<recording::Account> AccountOf(std::size_t slot);
  virtual std::vector<Finding> Findings() { return {}; }
  // As they are now. Nothing: it does not know, as recordings do not.
  virtual std::optional<std::vector<ProcessGraphs>> Graphs() { return std::nullopt; }
  // Reads the values of a snapshot and checks them against Snapshot::hash; succeeds without values
  // or hash. Thread: any, several at a time. Fails: they are damaged.
  virtual Result<void> Verify(std::size_t slot, const Key& key) const;
  // The recordings it is made of, none for another kind. Lifetime: of the source.
  virtual std::vector<const recording::RecordingReader*> Recordings() const { return {}; }
};

// How many snapshots this process has got from its sources: what a command shows while it works.
// Thread: any.
std::uint64_t SnapshotsRead();
void CountSnapshotRead();
// How many the recordings have that were opened.
std::uint64_t SnapshotsKnown();
void CountSnapshotsKnown(std::uint64_t count);

// A distributed run of which a source lacks ranks.
struct AbsentRanks {
  std::string run;  // empty if the source has one run alone
  std::set<std::uint64_t> present;
  std::set<std::uint64_t> absent;
  std::uint64_t world_size = 0;
};
std::vector<AbsentRanks> AbsentRanksOf(const Source& source);

// A recording, a safetensors file, or a folder of either; behind a URL, a recording or a folder of
// them. Fails: anything else; the message says what was looked for.
Result<std::unique_ptr<Source>> Open(const std::string& path);

// The recordings in a folder, in the order of their names; none if it has none, or is one itself.
std::vector<std::string> RecordingsIn(const std::string& folder);

// The same behind a URL: the recordings in a folder, or the URL itself if it is a recording.
// Fails: there is neither, or it cannot be told what is there.
Result<std::vector<std::string>> RemoteRecordingsIn(const std::string& url);

// Whether `text` has the ending of a source, or a '/' that is not the one of a session's label,
// such as "train-3f2a91/r3".
bool IsWrittenAsPath(const std::string& text);

// Whether `text` means a path rather than the name of a session: it exists, or looks like a path.
bool LooksLikePath(const std::string& text);

// The same if `text` may also be a probe's name, which may contain a '/': it must have the ending
// of a source, or be a folder that is one.
bool LooksLikeSource(const std::string& text);

// As recorded, else computed from the values. Fails: neither is there.
Result<numerics::Stats> StatsOf(Source& source, const Snapshot& snapshot);

// Where the slot lies in its graph or call: the number of its row in an eager call, else its order.
// Rows that an earlier call had are registered before others of this one, and ranks register rows
// as these come.
std::uint64_t PlaceInCall(const Slot& slot);

// Sorts snapshots of several slots in the order in which they came. Each slot counts its own
// replays, so these decide only if serials are unknown.
struct Moment {
  std::uint64_t serial = 0;
  std::uint64_t replay = 0;
  std::uint64_t order = 0;
  std::uint32_t iteration = 0;  // each has a serial of its own, if serials are known
  int rank = -1;
  auto operator<=>(const Moment&) const = default;
};
inline Moment MomentOf(const Slot& slot, const Snapshot& snapshot) {
  return {snapshot.serial, snapshot.key.replay, PlaceInCall(slot), snapshot.key.iteration,
          slot.rank};
}

// "12", "12.3": what follows @ in a selector.
inline std::string ReplayText(const Slot& slot, const Key& key) {
  return ReplayText(key.replay, key.iteration,
                    slot.in_body && (!slot.counts_calls() || key.iteration > 0));
}

// Whether it is recordings, and each was ended by the end of its job.
bool HaveJobsEnded(const Source& source);

// What processes say, each sentence once: "train-47: ...", "train-47 and 2 more: ...". `told`: who,
// empty if that is clear, and the sentence.
std::vector<std::string> SaidOnce(const std::vector<std::pair<std::string, std::string>>& told);

// What the wanted processes wanted to be seen and nobody saw, in sentences; empty if nothing. Every
// answer about completeness is made of these and of the accounts of the slots. A place that is gone
// counts if the answer looks at a slot that was there before it went.
// What gap rows of op logs tell counts if the answer is about a call that has one of them, and
// wherever they are missing.
// wants_process: given a slot without a probe. looks_at: given a slot of the source.
// lacks: given the slot of such a gap row; empty: the answer is about every call.
// is_whole: the answer is about a call that had ended when the job died: rows that never left the
// job are not missing from it.
std::vector<std::string> NotSeenTexts(const Source& source,
                                      const std::function<bool(const Slot&)>& wants_process,
                                      const std::function<bool(const Slot&)>& looks_at,
                                      const std::function<bool(std::size_t)>& lacks = {},
                                      bool is_whole = false);

}  // namespace cgdebug::source
