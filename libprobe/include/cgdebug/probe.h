// cgdebug/probe.h: the C++ API of the probe library. Needs no torch and no CUDA header.
//
//   cgdebug::ProbeOptions options;
//   options.record = cgdebug::RecordAction{.capacity = 16};
//   cgdebug::Probe probe("blk3.attn", options);
//   probe.Observe(tensor, stream);          // while `stream` is capturing: adds nodes to the graph
//   ... cudaGraphLaunch ...
//   for (const cgdebug::Record& record : probe.Records()) ...
//
// A probe writes snapshots into shared memory and does nothing else. cgdebug-daemon prints,
// compares and serves them. With CGDEBUG=1 the first probe that needs the daemon starts it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/layout/ring_layout.h"
#include "proto/layout/segment_layout.h"
#include "proto/layout/slot_control.h"
#include "proto/layout/verdict.h"

namespace cgdebug {

using layout::DeviceType;
using layout::Dtype;

enum class ErrorKind {
  kBadArgument,  // the caller's mistake: name, shape, tolerance
  kUnsupported,  // this tensor or this place in a graph cannot be probed
  kNoSpace,      // /dev/shm is full
  kSystem,       // CUDA or the operating system refused
  kClosed,       // the probe was closed
};

// Everything the library throws. The text names the probe and says what to type next.
class ProbeError : public std::runtime_error {
 public:
  ProbeError(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// A dense, contiguous tensor. Borrowed for the call.
struct TensorRef {
  const void* data = nullptr;
  Dtype dtype = Dtype::kInvalid;
  std::vector<std::int64_t> shape;  // at most 16 dimensions; empty = scalar
  DeviceType device_type = DeviceType::kCuda;
  int device_index = 0;
  bool packed_from_strided = false;  // shown with the probe
  bool from_compiled_code = false;   // likewise
  // Which part of a distributed tensor it is, shown with the probe; may be empty.
  std::string shard;
  // Set by the library if the probe sees a part of the tensor; the rest of it is then the part's.
  std::string part = {};                      // as layout::SlotRegistration::part
  std::vector<std::int64_t> full_shape = {};  // of the whole tensor
  // Distance between consecutive elements, in elements. 1 except for parts "stride:K", which are
  // 1-D.
  std::uint64_t element_stride = 1;
};

struct PrintAction {
  std::uint32_t max_items = 16;  // values printed after the summary
  std::uint32_t every = 1;       // replays 1, 1 + every, ...
  bool summary = true;
};

struct RecordAction {
  std::uint32_t capacity = 16;  // newest snapshots kept, per slot
  std::uint32_t every = 1;
  bool to_disk = false;  // the daemon writes each into a recording; the probe waits for it
  // In graphs of the direct lane: keeps the values in device memory, where no replay waits for the
  // link to the host. They travel when somebody asks for them.
  bool on_device = false;
  // With on_device: if all such rings of the process take more of a device than they may (a quarter
  // of its memory, or CGDEBUG_DEVICE_MIB), this one keeps fewer values, or statistics alone.
  bool bounded = false;
  // With on_device: when it holds, the rings of the process in device memory keep what they have,
  // up to this replay, until the daemon has read it.
  layout::ControlTrigger trigger = layout::ControlTrigger::kNone;
  double threshold = 0;  // of kAbsMax
  // The trigger stops the rings of a device only while triggers have stopped them fewer times than
  // this.
  std::uint16_t times = 1;
  // In graphs of the direct lane, from 64 KiB: a tensor with the 128-bit hash of the one before it
  // is not sent again. Each replay has its snapshot all the same.
  bool skip_unchanged = false;
};

struct ExpectedTensor {
  Dtype dtype = Dtype::kInvalid;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  // contiguous
};

// With ProbeOptions::part, `expected` may be of the whole tensor, of which the part is taken, or of
// the part.
struct CompareAction {
  std::vector<ExpectedTensor> expected;  // with kTensors
  bool per_invocation = false;  // expected[i] belongs to invocation i; else expected[0] to all
  double rtol = 1e-5;           // |actual - expected| <= atol + rtol * |expected|
  double atol = 1e-8;
  bool equal_nan = false;
  bool bitwise = false;
  std::uint32_t every = 1;
  // In a graph of the direct lane the GPU compares, if the probe does nothing else and is not in
  // the body of a conditional node. Values leave it only if they may not match.
  bool on_device = false;
  enum class With : std::uint8_t {
    kTensors,  // `expected`
    kFirst,    // the first snapshot of the same call and graph; that snapshot is not compared
    kProbe,    // what `probe` saw in the same replay, in its call of the same number
  };
  With with = With::kTensors;
  std::uint64_t probe = 0;  // with kProbe: Probe::id(); captures that begin from now on know of it
};

// Statistics without the values. In a graph of the direct lane the GPU computes them, elsewhere the
// daemon does, from the values.
struct StatsAction {
  std::uint32_t every = 1;
  bool hash = true;
};

// How snapshots leave a graph.
enum class LaneChoice {
  kAuto,      // direct where the device and the limits allow it, else callback
  kCallback,  // copy engine and a host callback: works everywhere
  kDirect,    // a kernel writes into the ring: no host node; Observe() throws if it cannot
};

enum class ProbeMode {
  kCapture,  // only inside a capture; elsewhere Observe() touches nothing
  // Eager calls too, on CPU and CUDA. On CUDA the first one, and those for which more pinned memory
  // must be allocated, may wait until the device is idle.
  kAlways,
};

// Whether Observe() looks at eager calls at all: with false, every probe is as with kCapture.
// Returns what was set before; it begins with true.
// Thread: any; for the whole process.
bool SetSeesEager(bool sees) noexcept;

// Who this process is among others, for a launcher that sets no variables; those it sets have
// priority. `meeting`: the same text on all ranks of one launch, such as the address they meet at.
// Without effect once a probe has seen something.
// Thread: any.
void SetRank(int rank, int world_size, const std::string& meeting);

struct ProbeOptions {
  ProbeMode mode = ProbeMode::kCapture;
  bool copy_non_contiguous = false;  // for bindings that see strides: pack instead of refusing
  std::optional<PrintAction> print;
  std::optional<RecordAction> record;
  std::optional<CompareAction> compare;
  std::optional<StatsAction> stats;
  // Which elements of a tensor print, record and compare see; empty: all of them. Only these are
  // copied.
  //   "rows:A:B"  indices A to B-1 of dimension 0, as x[A:B]: B may be beyond its end
  //   "first:N"   the first N elements in row-major order, in one dimension
  //   "stride:K"  the elements 0, K, 2K ... in row-major order, in one dimension
  // Not together with `stats`, which are those of the whole tensor: use a second probe.
  std::string part = {};
  LaneChoice lane = LaneChoice::kAuto;
  // The caller promises that from the call on nothing writes the tensor's memory until the replay
  // of the graph ends, as holds for parameters, buffers and inputs. In graphs of the direct lane
  // nothing is copied on the compute path then. If the promise is broken, wrong values are shown.
  bool stable = false;
  std::string site;  // "train.py:12 in forward", shown where a binding cannot tell the call
  std::string op;    // of a row of an op log: as layout::SlotRegistration::op
};

// One call of a probe in one captured graph, or its eager calls with one shape.
struct ObservedSlot {
  std::uint32_t slot = 0;
  std::uint32_t invocation_index = 0;
  std::uint64_t graph_id = 0;  // 0 = eager
  std::string graph_label;     // as it was when the graph was captured
  Dtype dtype = Dtype::kInvalid;
  std::vector<std::int64_t> shape;
  DeviceType device_type = DeviceType::kCpu;
  int device_index = 0;
  std::string part = {};  // as layout::SlotRegistration::part: `shape` is the part's
};

// One snapshot of the probe's own ring.
struct Record : ObservedSlot {
  std::uint64_t replay_index = 0;  // from 1; of the root graph for a probe in a conditional body
  std::uint32_t iteration = 0;     // of the body of a conditional node in that replay, from 0
  std::uint64_t serial = 0;        // of the replay: sorts the records of all probes
  std::uint64_t ordinal = 0;
  std::int64_t timestamp_ns = 0;  // CLOCK_REALTIME
  std::int64_t step = -1;
  std::uint32_t thread = 0;  // as layout::SlotFacts::thread
  std::string shard;         // as TensorRef::shard
  std::vector<std::byte> payload;
};

struct SlotStatus : ObservedSlot {
  std::string site;  // where the probe was called when the slot was made
  layout::Lane lane = layout::Lane::kHost;
  layout::LaneReason lane_reason = layout::LaneReason::kNone;  // why it is not the direct one
  layout::Policy policy = layout::Policy::kOverwrite;
  std::uint32_t capacity = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t device_bytes = 0;  // of its ring in device memory; 0 = its values are in the host's
  std::uint32_t device_capacity = 0;  // entries of that ring
  std::uint64_t replays = 0;          // in a conditional body: the newest one in which it ran
  bool in_body = false;     // of a conditional node: it runs any number of times in a replay
  std::uint64_t taken = 0;  // with in_body: replays in which the body ran
  std::uint64_t graph_replays = 0;  // with in_body: all replays of the graph
  std::uint64_t accepted = 0;       // snapshots written
  std::uint64_t consumed = 0;       // of those, the ones that the daemon has consumed
  std::uint64_t lost = 0;  // of those consumed, the ones overwritten before the daemon read them
  std::uint64_t overwrote_unread = 0;
  std::uint64_t waits = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t suppressed = 0;  // replays that the live control kept back
  bool skips_unchanged = false;
  std::uint64_t unchanged = 0;  // snapshots whose values were not sent again
  bool unstaged = false;        // the leaf reads the tensor itself (ProbeOptions::stable)
  bool retired = false;         // its graph is gone
  bool compares = false;
  bool compares_on_device = false;  // the daemon gets only what may not match
  bool compares_first = false;      // the first snapshot is the expected tensor
  bool compares_probe = false;      // another probe's is
  layout::Verdict verdict;
  // With compares_on_device, once a replay has not matched: how. `verdict.text` may then be empty,
  // because it is the daemon's.
  std::optional<layout::SlotFailure> failure;
  double rtol = 0, atol = 0;  // of the comparison
  bool bitwise = false;
};

struct ProbeStatus {
  bool closed = false;
  bool daemon_alive = false;
  std::string last_error;  // of the last refused capture, empty when none
  std::string lane_note;   // why lane kAuto did not choose the direct lane, else empty
  // Why RecordAction::trigger does nothing in the newest capture in which it does not; else empty.
  std::string trigger_note;
  // The slots. After them one entry per verdict: the sum of the comparing slots that were freed to
  // make room.
  std::vector<SlotStatus> slots;
};

struct ProbeState;

// Thread:   every call from any thread; Observe() of one probe from one thread at a time.
// Lifetime: may be closed or destroyed before the graphs that contain it, and the other way round.
// Fails:    throws ProbeError.
class Probe {
 public:
  Probe(std::string name, ProbeOptions options);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  const std::string& name() const;
  std::uint64_t id() const;  // unique in the process
  // What compiled code calls the probe: "2:f" is the second probe of this process called "f". Equal
  // in every run that makes the same probes, so that a compiler may cache the code; never that of
  // another probe of this process, closed ones included.
  const std::string& site() const;
  const ProbeOptions& options() const;

  // `stream` is a cudaStream_t, ignored for CPU tensors. In a capture: copies the tensor into the
  // probe's own device buffer on the compute path and adds everything else as a leaf branch.
  void Observe(const TensorRef& tensor, void* stream = nullptr);

  // What it sees eagerly on the CPU belongs to the call that began last on its thread
  // (BeginCall()), and not only until that ends. sees_modules: as they are called, and not their
  // backward pass; then a module that is called by itself after another step was set belongs to
  // the next call.
  void FollowCalls(bool sees_modules);

  // Allocates now what a later capture of a tensor like this one needs, so that the capture does
  // not.
  void Prepare(const TensorRef& tensor);

  // The newest `last` snapshots (all if negative), oldest first, from the process's own ring.
  // Leaves out what is overwritten meanwhile. Of graphs that are gone, it has the snapshots of the
  // newest, and those of older ones up to 256 MiB. Does not hold up any other call.
  std::vector<Record> Records(int last = -1) const;
  // Hides what Records() returned: all, or up to `ordinal` in `slot`.
  void ClearRecords();
  void ClearRecords(std::uint32_t slot, std::uint64_t ordinal);

  // Waits until the daemon has consumed every snapshot; a probe that only records does not wait.
  // False after `timeout` or without a daemon. Requires: the caller has synchronized with the GPU.
  bool WaitConsumed(std::chrono::nanoseconds timeout) const;
  ProbeStatus Status() const;

  void Close();

 private:
  std::shared_ptr<ProbeState> state_;
};

// For bindings, which know only a probe's site(). Thread: any.
std::shared_ptr<ProbeState> FindProbe(std::string_view site);  // nullptr when closed
void Observe(ProbeState& probe, const TensorRef& tensor, void* stream);
void Prepare(ProbeState& probe, const TensorRef& tensor);
const ProbeOptions& OptionsOf(const ProbeState& probe);
// A range of a dimension that holds the part that the probe sees of a tensor of this shape, so that
// a binding need not pack all of a tensor that is not contiguous. `elements_before`: how many
// elements lie before the range in row-major order. nullopt: all of the tensor is needed.
struct NeededRange {
  std::size_t dimension = 0;
  std::int64_t start = 0;
  std::int64_t length = 0;
  std::uint64_t elements_before = 0;
};
std::optional<NeededRange> NeededFor(const ProbeState& probe,
                                     const std::vector<std::int64_t>& shape);
const std::string& NameOf(const ProbeState& probe);
// Whether `stream` (a cudaStream_t) is capturing. Fails: throws ProbeError.
bool IsCapturing(void* stream);

// The user's own step number, recorded with every later snapshot; -1 = none. Takes effect at once,
// as CPU tensors need it.
void SetStep(std::int64_t step);
// Sets the step number of replays and eager calls on the GPU. It takes effect when `stream` (a
// cudaStream_t) gets there, so replays that were launched earlier keep their number however far the
// CPU runs ahead.
// Does nothing while `stream` is capturing.
// Fails: throws ProbeError.
void SetStepInStreamOrder(std::int64_t step, void* stream);

// A call of a model begins on this thread, and ends the one before. What probes see eagerly on the
// CPU from now until EndCall() carries its number, which is returned: from 1 in the process. What
// probes see that follow calls carries it until the next one begins, as the backward pass does. The
// step is the one that is set now. Thread: any; takes no lock.
std::uint64_t BeginCall();
void EndCall();
// Whether somebody tells where the calls of models begin. Then, in a job that sets steps, what
// other probes see between two of them on a thread belongs to a call, too: another step ends the
// one before. Thread: any.
void SetCallsFollowed(bool are_followed);
// What this thread does from now on belongs to no call.
void LeaveCalls();

struct FirstFinding {
  std::string text;          // where it is, and what to type next
  bool is_of_row = false;    // in a row of an op log, where a NaN or Inf may have an excuse
  std::uint64_t order = 0;   // of the slot, from 1; 0: not known
  std::uint64_t serial = 0;  // of the replay
};
// What the daemon found first in this process: a NaN, an Inf, a failed comparison. What it found in
// a row of an op log gives way to what it found elsewhere. nullopt: nothing so far. Reads shared
// memory; waits at most 50 ms, for a daemon that is writing it. Thread: any.
std::optional<FirstFinding> FindFirst(layout::FindingKind kind);

// What was to be looked at and is not, such as a probe for which /dev/shm has no room. Daemon and
// recordings learn of it, so that nobody takes it for checked.
struct NotSeenCounts {
  std::uint64_t places = 0;      // probes, modules and the like that were refused at least once
  std::uint64_t calls = 0;       // of them, that left no snapshot
  std::uint64_t wanted = 0;      // those places, and the probes that have had a slot
  std::string name;              // of the first
  std::string reason;            // of the first
  std::uint64_t malformed = 0;   // variables of the environment
  std::string malformed_reason;  // of the first
};
// Counts a call of the place `name` that is not looked at. `is_captured`: a graph has the call, so
// it is not looked at for as long as the process lives. Makes the segment if there is none. Waits
// for a lock that a capture may hold. Thread: any that holds no lock of the library.
void CountNotSeen(std::string_view name, std::string_view reason,
                  bool is_captured = false) noexcept;
// Rows of op logs that the caller keeps, and how many of those it has given to a log or forgotten.
// If the process dies with others, they are counted as never sent. Makes the segment if there is
// none. Thread: as CountNotSeen().
void CountHeldRow() noexcept;
void LetGoOfHeldRows(std::uint64_t count) noexcept;
// Nobody wants to look at that place any longer: recordings that begin later are whole without it,
// unless a graph has it. Thread: any.
void NotWanted(std::string_view name) noexcept;
NotSeenCounts NotSeenSoFar();
// The same in words, as every answer has them; empty if everything was seen. Thread: any.
std::string NotSeenText();

// How much of what the probes of this process wrote the daemon has read. Requires: the caller has
// synchronized with the GPU.
struct ReadState {
  bool all = false;        // everything that there was
  std::uint64_t lost = 0;  // snapshots that were overwritten, or given up, before they were read
  // Runs of the probes that wrote nothing, because the live control turned a probe off or a trigger
  // had stopped its ring.
  std::uint64_t left_out = 0;
  std::uint64_t not_compared = 0;  // slots of which a snapshot failed or could not be compared
  // Slots in device memory of whose values nobody has made statistics.
  std::uint64_t unseen = 0;
};
// Waits until that is all, at most for `timeout`, and not without a daemon.
ReadState AwaitRead(std::chrono::nanoseconds timeout);

// The newest time that a trigger stopped the rings of a device: whatever became of them since.
struct HeldTrigger {
  std::uint64_t serial = 0;    // of the last replay that the rings keep; another one each time
  std::uint64_t replay = 0;    // in which it held
  std::uint64_t graph_id = 0;  // of its probe
  std::string probe;           // empty: it is gone
  bool is_comparison = false;  // that of the probe failed: the rings stopped some replays later
};
// Nothing: none has. Costs a look at the device's line in shared memory.
std::optional<HeldTrigger> TriggerThatHeld(int device) noexcept;

// What a graph is called wherever it is shown. Not scoped: names the graph that is being captured,
// from its next probe on, or else the next one captured. Scoped: names every graph until another
// label is set. Empty: the graph is called by the shapes of its tensors.
struct GraphLabel {
  std::string text;  // at most 63 bytes, without '@' and '#'
  bool scoped = false;
};
// Returns the label that was set before; an empty one if a graph has taken it. Holds for the whole
// process, because backward passes run in other threads. Fails: throws ProbeError kBadArgument.
GraphLabel SetGraphLabel(GraphLabel label);

// Names the graphs that are captured while it lives:
//   { const cgdebug::ScopedGraphLabel label("bs=8"); Capture(model, batch); }
class ScopedGraphLabel {
 public:
  explicit ScopedGraphLabel(std::string text)
      : before_(SetGraphLabel({std::move(text), /*scoped=*/true})) {}
  ~ScopedGraphLabel() { SetGraphLabel(std::move(before_)); }
  ScopedGraphLabel(const ScopedGraphLabel&) = delete;
  ScopedGraphLabel& operator=(const ScopedGraphLabel&) = delete;

 private:
  GraphLabel before_;
};

// Says which graph contains the conditional nodes (IF, WHILE, SWITCH) whose bodies this thread
// captures while it lives, so that probes in them know its replays:
//   { const cgdebug::ScopedRootGraph root(graph); CaptureBody(body_graph); }
// Only probes in the direct lane work in a body. The first one adds a kernel at the head of the
// graph. If a stream captures the graph itself, pass that stream too. A body in a body belongs to
// the outermost graph. Torch's captures need no such scope.
class ScopedRootGraph {
 public:
  // `graph` is a cudaGraph_t, `stream` a cudaStream_t. Fails: throws ProbeError.
  explicit ScopedRootGraph(void* graph, void* stream = nullptr);
  ~ScopedRootGraph();
  ScopedRootGraph(const ScopedRootGraph&) = delete;
  ScopedRootGraph& operator=(const ScopedRootGraph&) = delete;

 private:
  std::shared_ptr<void> root_;
};

// For bindings: does what ScopedRootGraph does, for the graph that `stream` is capturing, until
// that capture ends.
// Requires: the stream lives as long as the process.
void NoteRootCapture(void* stream) noexcept;

// For bindings: says where the calling thread calls a probe, such as "train.py:12 in forward", for
// each new slot; empty if it cannot tell. Called without holding any lock of the library.
using SiteProvider = std::string (*)();
void SetSiteProvider(SiteProvider provider);

// Provides device memory when cudaMalloc has none left, such as memory that the job's own allocator
// keeps. Work that is already enqueued must not use what `allocate` returns, and no graph's private
// pool may hold it. Called in a thread of its own, in relaxed capture mode.
struct DeviceAllocator {
  void* (*allocate)(std::uint64_t bytes, int device) noexcept;  // nullptr: there is none
  void (*free)(void* memory) noexcept;
};
// Once, before the first probe.
void SetFallbackAllocator(const DeviceAllocator& allocator);

// CUDA graphs, for bindings that see captures and launches from outside. `cgdebug-cli graphs` shows
// them. Graphs that nobody announces are in that census from their first probe on. None of these
// throws: a census that fails is left out and does not disturb the job. Thread: any.

// The number of the capture that `stream` (a cudaStream_t) takes part in; 0 = none.
std::uint64_t CaptureIdOf(void* stream) noexcept;
// A graph whose launches all go through one owner. The owner tells of each launch and of its own
// end, so no user object of CUDA is needed to know when the memory of the graph's probes may be
// freed, and launching costs less. If the owner leaves out a launch without calling ShareGraph(),
// that replay writes into memory that is used for something else.
class CountedGraph;
// Called when a capture has begun, before any probe in it. `stack`: the lines that capture it, the
// innermost first. nullptr: the graph could not be noted, and needs no further calls.
std::shared_ptr<CountedGraph> BeginGraph(std::uint64_t capture_id,
                                         const std::string& stack) noexcept;
// Nodes of a graph: of the one that `stream` captures, or of a cudaGraph_t; nullopt if unknown.
std::optional<std::uint64_t> CountNodesOfCapture(void* stream) noexcept;
std::optional<std::uint64_t> CountNodes(void* graph) noexcept;
// A kernel of ours in a graph: its handle (cudaGraphNode_t), its place among the graph's nodes, and
// whom it serves: "probe blk3.attn (Leaf)", "row fwd/mm_0 (OpLogParts)".
struct NamedNode {
  void* node = nullptr;
  std::size_t place = 0;
  std::string name;
};
// Those of a cudaGraph_t. Fails: throws ProbeError.
std::vector<NamedNode> NamedNodesOf(void* graph);
// `failed`: the capture ended with an error, and there is no graph.
void EndGraph(CountedGraph& graph, std::optional<std::uint64_t> nodes, bool failed) noexcept;
// The memory pool that the graph has, by torch's id: two numbers. Called as soon as it is known: at
// best before the first probe. Graphs of one pool must not run at the same time, which torch asks
// for as well.
void SetGraphPool(CountedGraph& graph, std::uint64_t first, std::uint64_t second) noexcept;
// Called before each launch, by any number of threads at once. nullptr: the graph was not
// announced.
void CountReplay(CountedGraph* graph) noexcept;
// The launch that was counted last did not take place.
void TakeBackReplay(CountedGraph* graph) noexcept;
std::uint64_t CountedReplays(const CountedGraph& graph) noexcept;
// From now on others may launch the graph as well: what its probes use is kept until the process
// ends.
void ShareGraph(CountedGraph& graph) noexcept;
// The owner launches the graph no more, and has no exec of it any longer. Launches may still be
// under way.
void ForgetGraph(const std::shared_ptr<CountedGraph>& graph) noexcept;
bool IsForgotten(const CountedGraph& graph) noexcept;

struct SessionInfo {
  std::string name;  // of the control file in /dev/shm
  std::uint64_t shm_bytes = 0;
  std::uint32_t slots = 0;
  std::uint64_t released_unread = 0;  // snapshots that were given up unread to make room for others
  std::uint64_t device_bytes = 0;     // that the probes take of all devices
};
std::optional<SessionInfo> CurrentSession();

// Starts cgdebug-daemon, detached, unless one reads this process: the program beside this library,
// else the one on PATH. CGDEBUG=0 forbids it.
// Fails: throws ProbeError if it cannot be started.
void StartDaemon();

// Ends the process cleanly: waits for the daemon to consume what it must, then marks the segment.
// Returns the last line for the user, empty if there is nothing to say. Called at exit.
std::string Finish(std::chrono::nanoseconds timeout);

std::string Version();

}  // namespace cgdebug
