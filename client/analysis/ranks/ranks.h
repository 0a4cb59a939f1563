// ranks.h: what the ranks of a job have in common, and the first that differs: compares replicas,
// which must be equal over ranks, by their statistics and hashes alone.
//
//   RankFold fold(options);
//   for (const std::string& path : recordings) fold.Add(*OpenRecording(path), path);
//   RanksReport report = fold.Finish();
//
// It holds one entry for each replica and position, and a bit for each rank that has this value, so
// that thousands of recordings are read one after the other. Ranks are paired by the user's step,
// else by replay, and never by time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "client/analysis/answer.h"
#include "client/analysis/diff/align.h"
#include "client/source/source.h"
#include "daemon/core/base/glob.h"
#include "daemon/core/numerics/stats.h"
#include "daemon/core/replicas/judge.h"
#include "daemon/core/replicas/position.h"

namespace cgdebug::analysis {

struct RanksOptions {
  Scope scope;
  // These are replicas on all ranks, besides those that say so themselves; none without
  // `has_replicated`.
  Selector replicated = {};
  bool has_replicated = false;
  double tolerance = 1e-6;  // of each element, relative to the largest magnitude
  bool bitwise = false;     // every difference is a finding
  bool follows = false;     // sources are added again when they have grown
  // Opens what was added under this path, to compare values; null if it cannot. Without it, how far
  // replicas differ is known only as far as their statistics tell.
  std::function<source::Source*(const std::string& path)> open = {};
  // What opens the sources in a proposed command: "runs -s train --ranks 0,1".
  std::string typed = {};
};

using replicas::Position;
using replicas::PositionText;
using replicas::RankValues;

struct RankPlace {
  Position position;
  std::uint64_t order = 0;  // in its graph
  std::string probe;
  std::uint64_t replay = 0;
  std::int64_t timestamp_ns = 0;
  bool is_call = false;      // `replay` is the number of an eager call
  std::uint64_t serial = 0;  // as source::Snapshot::serial

  // Also over ranks, by their programs.
  bool operator<(const RankPlace& other) const {
    return std::tie(position, order, probe) < std::tie(other.position, other.order, other.probe);
  }
  // Of places of one process. A step may have calls that have not all of its rows, so the n-th
  // snapshot of two rows in a step need not be of one call.
  bool CameBefore(const RankPlace& other) const {
    if (serial == 0 || other.serial == 0) return *this < other;
    return std::tie(serial, replay, order) < std::tie(other.serial, other.replay, other.order);
  }
};

struct UnreadSnapshots {
  std::uint64_t count = 0;
  std::string why_first = {};
};

// Of replicas, at a step that came before: left out.
struct RepeatedSnapshots {
  std::uint64_t count = 0;
  std::uint64_t first = 0;  // its replay

  void Add(const RepeatedSnapshots& more) {
    if (more.count == 0) return;
    if (count == 0 || more.first < first) first = more.first;
    count += more.count;
  }
};

// One process of a rank: a rank that was restarted has several.
struct RankProcess {
  std::string uuid;  // or its label, where the source knows no uuid
  std::string session;
  std::string run;
  std::string host;
  int rank = -1;
  int world_size = 1;
  int restart = 0;
  bool is_growing = false;
  bool is_cut_off = false;
  std::uint64_t snapshots = 0;
  UnreadSnapshots unread = {};
  RepeatedSnapshots repeated = {};
  std::uint64_t replay = 0;                   // the last one
  std::int64_t step = -1;                     // likewise
  std::map<std::string, std::uint64_t> lost;  // snapshots, by the path of the recording
  std::optional<RankPlace> first;
  std::optional<RankPlace> last;
  std::optional<RankPlace> first_nonfinite;
  // The first replica that the daemon found different from those of other ranks, and how.
  std::optional<RankPlace> first_told;
  std::string told;
};

enum class ReplicaVerdict {
  kNotChecked,  // it has no replica
  kSame,        // bit for bit, as far as statistics and hashes tell
  kClose,       // not bit for bit, but within the tolerance, element by element
  kUnknown,     // not bit for bit, and by how much is not known
  kIncomplete,  // nothing found, but a snapshot of it, or of the rank it is compared with, is
                // missing
  kTie,         // it differs from as many ranks as it agrees with
  kDifferent,   // it differs from most ranks
};
constexpr std::string_view NameOf(ReplicaVerdict verdict) {
  constexpr std::string_view kNames[] = {"not checked", "same", "close",    "unknown",
                                         "incomplete",  "tie",  "different"};
  return kNames[static_cast<std::size_t>(verdict)];
}

// A replica that is not the same on all ranks. Its processes are places in RanksReport::rows.
struct ReplicaDifference : replicas::Difference {
  std::string probe;
  std::string type;
  std::uint64_t order = 0;
};

struct RankRow {
  RankProcess process;
  std::uint64_t lost = 0;
  ReplicaVerdict verdict = ReplicaVerdict::kNotChecked;
  std::uint64_t compared = 0;
  std::uint64_t missing = 0;  // snapshots of replicas that other ranks have
  std::uint64_t behind = 0;   // likewise, which it has not reached yet
  std::optional<RankPlace> first_missing;
  std::optional<RankPlace> first_unequal;  // from most ranks, or from some if there is no majority
  std::optional<RankPlace> first_different;  // likewise, of those that are findings
  bool is_superseded = false;                // its run was restarted after it
  double clock_offset_s = 0;                 // from most ranks, at the same position
};

struct RanksReport {
  std::vector<RankRow> rows;       // by run, restart and rank
  std::size_t replicas = 0;        // probes that were compared
  std::uint64_t compared = 0;      // positions of them
  std::uint64_t without_hash = 0;  // of these, by statistics that know no order alone
  std::uint64_t unequal = 0;
  std::uint64_t snapshots = 0;
  bool by_step = false;
  std::optional<ReplicaDifference> first;          // finding
  std::optional<ReplicaDifference> first_close;    // within the tolerance
  std::optional<ReplicaDifference> first_unknown;  // by how much is not known
  std::uint64_t unknown = 0;                       // such differences
  // The row that went wrong first, by a difference or by NaN or Inf; and those that did at the same
  // place.
  std::optional<std::size_t> first_bad;
  std::vector<std::size_t> bad_beside;
  std::vector<std::string> missing;  // sentences
  std::uint64_t missing_count = 0;
  std::vector<std::string> notes;  // likewise: what is odd, and changes no verdict
  bool goes_on = false;
  // Sentences: what the daemon saw while it ran and the snapshots that are here do not show.
  std::vector<std::string> told;

  bool found() const { return first.has_value() || first_bad.has_value() || !told.empty(); }
  // Whether "nothing found" may be said: replicas were compared, and nothing was missing.
  bool complete() const { return missing_count == 0 && unknown == 0 && compared > 0; }
  Outcome outcome() const { return OutcomeOf(found(), complete()); }
};

// Thread: one at a time.
class RankFold {
 public:
  explicit RankFold(RanksOptions options);
  ~RankFold();
  RankFold(RankFold&&) noexcept;
  RankFold& operator=(RankFold&&) noexcept;

  // Takes in what the source has; with `follows`, what was not taken in before under this path.
  // Fails: a source that cannot be read.
  Result<void> Add(source::Source& source, const std::string& path);
  // A recording that cannot be read: its ranks may be missing.
  void AddUnreadable(const std::string& why);
  // Takes in what another fold took in. Requires: of other recordings.
  void Merge(const RankFold& other);

  // The state as bytes, for another process.
  std::string Encode() const;
  // Fails: bytes that Encode() did not make.
  static Result<RankFold> Decode(const std::string& bytes, RanksOptions options);

  RanksReport Finish() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace cgdebug::analysis
