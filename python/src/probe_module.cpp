// _probe: the probe library for Python. No torch, no NumPy: tensors go through the torch op.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "cgdebug/probe.h"
#include "libprobe/capture/cuda_error.h"
#include "libprobe/op_log.h"
#include "libprobe/settings.h"
#include "libprobe/slots/tensor_part.h"
#include "proto/layout/not_seen.h"
#include "python/src/apart_module.h"
#include "python/src/gil.h"
#include "python/src/words_module.h"

namespace py = pybind11;

namespace cgdebug::python {
namespace {

using namespace py::literals;

std::chrono::nanoseconds Seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) seconds = 0;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, 1e6) * 1e9));
}

Dtype ParseDtype(const std::string& name) {
  const layout::DtypeInfo* info = layout::FindDtype(name);
  if (info == nullptr) throw py::value_error("dtype " + name + " is not supported");
  return info->dtype;
}

std::string DeviceText(DeviceType type, int index) {
  return type == DeviceType::kCuda ? "cuda:" + std::to_string(index) : "cpu";
}

ExpectedTensor ParseExpected(const py::handle& item) {
  const auto parts = item.cast<py::tuple>();
  ExpectedTensor expected;
  expected.dtype = ParseDtype(parts[0].cast<std::string>());
  expected.shape = parts[1].cast<std::vector<std::int64_t>>();
  const py::buffer_info buffer = parts[2].cast<py::buffer>().request();
  std::uint64_t bytes = DtypeBytes(expected.dtype);
  for (const std::int64_t size : expected.shape) bytes *= static_cast<std::uint64_t>(size);
  if (static_cast<std::uint64_t>(buffer.size * buffer.itemsize) != bytes) {
    throw py::value_error("expected tensor: payload and shape differ in size");
  }
  const auto* data = static_cast<const std::byte*>(buffer.ptr);
  expected.bytes.assign(data, data + bytes);
  return expected;
}

// What the user wrote, which need not be UTF-8.
py::str Text(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

py::object TextOrNone(const std::string& text) {
  return text.empty() ? py::object(py::none()) : py::object(py::str(text));
}

py::dict ToDict(const ObservedSlot& slot) {
  return py::dict("slot"_a = slot.slot, "invocation_index"_a = slot.invocation_index,
                  "graph_id"_a = slot.graph_id, "graph_label"_a = slot.graph_label,
                  "dtype"_a = DtypeName(slot.dtype), "shape"_a = py::tuple(py::cast(slot.shape)),
                  "device"_a = DeviceText(slot.device_type, slot.device_index),
                  "part"_a = slot.part);
}

// Without the payload.
py::dict ToDict(const Record& record) {
  return py::dict(
      **ToDict(static_cast<const ObservedSlot&>(record)), "replay_index"_a = record.replay_index,
      "iteration"_a = record.iteration, "serial"_a = record.serial, "ordinal"_a = record.ordinal,
      "timestamp_ns"_a = record.timestamp_ns, "thread"_a = record.thread, "shard"_a = record.shard,
      "step"_a = record.step < 0 ? py::object(py::none()) : py::object(py::int_(record.step)));
}

py::object FailureOf(const SlotStatus& slot) {
  if (!slot.failure) return py::none();
  const layout::SlotFailure& failure = *slot.failure;
  return py::dict("mismatched"_a = failure.mismatched, "first"_a = failure.first,
                  "actual"_a = failure.actual, "expected"_a = failure.expected,
                  "max_abs"_a = failure.max_abs, "max_abs_index"_a = failure.max_abs_index,
                  "max_rel"_a = failure.max_rel, "max_rel_index"_a = failure.max_rel_index,
                  "rtol"_a = slot.rtol, "atol"_a = slot.atol, "bitwise"_a = slot.bitwise);
}

py::dict ToDict(const SlotStatus& slot) {
  const layout::Verdict& verdict = slot.verdict;
  return py::dict(
      **ToDict(static_cast<const ObservedSlot&>(slot)), "site"_a = Text(slot.site),
      "lane"_a = layout::NameOf(slot.lane), "policy"_a = layout::NameOf(slot.policy),
      "capacity"_a = slot.capacity, "payload_bytes"_a = slot.payload_bytes,
      "device_bytes"_a = slot.device_bytes, "device_capacity"_a = slot.device_capacity,
      "replays"_a = slot.replays, "in_body"_a = slot.in_body, "taken"_a = slot.taken,
      "graph_replays"_a = slot.graph_replays, "accepted"_a = slot.accepted,
      "consumed"_a = slot.consumed, "lost"_a = slot.lost,
      "overwrote_unread"_a = slot.overwrote_unread, "waits"_a = slot.waits,
      "wait_ns"_a = slot.wait_ns, "suppressed"_a = slot.suppressed, "retired"_a = slot.retired,
      "skips_unchanged"_a = slot.skips_unchanged, "unchanged"_a = slot.unchanged,
      "unstaged"_a = slot.unstaged, "compares"_a = slot.compares, "failure"_a = FailureOf(slot),
      "compared_with"_a = !slot.compares        ? ""
                          : slot.compares_first ? "first"
                          : slot.compares_probe ? "probe"
                                                : "expected",
      "compared_on"_a = !slot.compares            ? ""
                        : slot.compares_on_device ? "device"
                                                  : "daemon",
      "verdict"_a = py::dict(
          "state"_a = layout::NameOf(verdict.state), "compared"_a = verdict.compared,
          "mismatched"_a = verdict.mismatched, "lost"_a = verdict.lost,
          "first_failed_replay"_a = verdict.first_failed_replay, "text"_a = Text(verdict.text)));
}

// Calls into the probe library never hold the interpreter's lock: a capture in another thread may
// hold the probe table's lock and wait in the driver for a callback in Python.
class NativeProbe {
 public:
  explicit NativeProbe(std::unique_ptr<Probe> probe) : probe_(std::move(probe)) {}
  ~NativeProbe() {
    const WithoutGil unlocked;
    probe_.reset();
  }

  std::uint64_t Id() const { return probe_->id(); }
  std::string SiteKey() const { return probe_->site(); }

  py::list Records(int last) const {
    std::vector<Record> records;
    {
      const WithoutGil unlocked;
      records = probe_->Records(last);
    }
    py::list list;
    for (Record& record : records) {
      // Writable, so that torch and NumPy can share it without a copy and without a warning.
      py::object payload = py::reinterpret_steal<py::object>(
          PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(record.payload.size())));
      if (!payload) throw py::error_already_set();
      char* to = PyByteArray_AS_STRING(payload.ptr());
      {
        const WithoutGil unlocked;  // nobody else knows the array
        if (!record.payload.empty()) {
          std::memcpy(to, record.payload.data(), record.payload.size());
        }
        record.payload = {};
      }
      py::dict item = ToDict(record);
      item["payload"] = std::move(payload);
      list.append(std::move(item));
    }
    return list;
  }

  void ClearRecords(const py::object& upto) {
    if (upto.is_none()) {
      const WithoutGil unlocked;
      probe_->ClearRecords();
      return;
    }
    const auto ordinals = upto.cast<std::map<std::uint32_t, std::uint64_t>>();
    const WithoutGil unlocked;
    for (const auto& [slot, ordinal] : ordinals) probe_->ClearRecords(slot, ordinal);
  }

  bool WaitConsumed(double timeout_s) const {
    const WithoutGil unlocked;
    return probe_->WaitConsumed(Seconds(timeout_s));
  }

  py::dict Status() const {
    ProbeStatus status;
    {
      const WithoutGil unlocked;
      status = probe_->Status();
    }
    py::list slots;
    for (const SlotStatus& slot : status.slots) slots.append(ToDict(slot));
    return py::dict("closed"_a = status.closed, "error"_a = TextOrNone(status.last_error),
                    "lane_note"_a = TextOrNone(status.lane_note),
                    "trigger_note"_a = TextOrNone(status.trigger_note),
                    "daemon_alive"_a = status.daemon_alive, "slots"_a = slots);
  }

  void FollowCalls(bool sees_modules) { probe_->FollowCalls(sees_modules); }

  void Close() {
    const WithoutGil unlocked;
    probe_->Close();
  }

 private:
  std::unique_ptr<Probe> probe_;
};

std::unique_ptr<NativeProbe> MakeProbe(const std::string& name, const std::string& mode,
                                       bool copy_non_contiguous, const std::string& site,
                                       const py::object& print, const py::object& record,
                                       const py::object& compare, const py::object& stats,
                                       const std::string& lane, bool stable, const std::string& op,
                                       const std::string& part) {
  ProbeOptions options;
  options.stable = stable;
  options.mode = mode == "always" ? ProbeMode::kAlways : ProbeMode::kCapture;
  options.copy_non_contiguous = copy_non_contiguous;
  options.site = site;
  options.op = op;
  options.part = part;
  if (!print.is_none()) {
    options.print =
        PrintAction{print["max_items"].cast<std::uint32_t>(), print["every"].cast<std::uint32_t>(),
                    print["summary"].cast<bool>()};
  }
  options.lane = lane == "direct"     ? LaneChoice::kDirect
                 : lane == "callback" ? LaneChoice::kCallback
                                      : LaneChoice::kAuto;
  if (!stats.is_none()) {
    options.stats = StatsAction{stats["every"].cast<std::uint32_t>(), stats["hash"].cast<bool>()};
  }
  if (!record.is_none()) {
    const auto where = record["where"].cast<std::string>();
    options.record =
        RecordAction{record["capacity"].cast<std::uint32_t>(),
                     record["every"].cast<std::uint32_t>(),
                     record["to"].cast<std::string>() == "disk",
                     where != "host",
                     where == "auto",
                     static_cast<layout::ControlTrigger>(record["trigger"].cast<int>()),
                     record["threshold"].cast<double>(),
                     record["times"].cast<std::uint16_t>(),
                     record["unchanged"].cast<std::string>() == "skip"};
  }
  if (!compare.is_none()) {
    CompareAction action;
    if (compare["with_first"].cast<bool>()) action.with = CompareAction::With::kFirst;
    if (!compare["probe"].is_none()) {
      action.with = CompareAction::With::kProbe;
      action.probe = compare["probe"].cast<std::uint64_t>();
    }
    for (const py::handle item : compare["expected"])
      action.expected.push_back(ParseExpected(item));
    action.per_invocation = compare["per_invocation"].cast<bool>();
    action.rtol = compare["rtol"].cast<double>();
    action.atol = compare["atol"].cast<double>();
    action.equal_nan = compare["equal_nan"].cast<bool>();
    action.bitwise = compare["bitwise"].cast<bool>();
    action.every = compare["every"].cast<std::uint32_t>();
    action.on_device = compare["on_device"].cast<bool>();
    options.compare = std::move(action);
  }
  const WithoutGil unlocked;
  return std::make_unique<NativeProbe>(std::make_unique<Probe>(name, std::move(options)));
}

// The tensors stay the caller's: it keeps them, unchanged, until flush().
class NativeOpLog {
 public:
  explicit NativeOpLog(std::uint32_t every) : log_(std::make_unique<OpLog>(every)) {}
  ~NativeOpLog() {
    const WithoutGil unlocked;
    log_.reset();
  }

  std::size_t Add(const std::string& name, const std::string& op, const std::string& site,
                  std::uintptr_t data, const std::string& dtype, std::vector<std::int64_t> shape,
                  std::optional<int> cuda, std::uintptr_t stream,
                  const std::vector<std::pair<std::uint64_t, std::uint64_t>>& order,
                  const std::string& details, std::uintptr_t tail_start, std::uint64_t tail_rows) {
    TensorRef tensor;
    tensor.data = reinterpret_cast<const void*>(data);
    tensor.dtype = ParseDtype(dtype);
    tensor.shape = std::move(shape);
    tensor.device_type = cuda ? DeviceType::kCuda : DeviceType::kCpu;
    tensor.device_index = cuda.value_or(0);
    std::vector<OpLogDimension> dimensions;
    for (const auto& [size, stride] : order) dimensions.push_back({size, stride});
    const OpLogTail tail = {reinterpret_cast<const std::int64_t*>(tail_start), tail_rows};
    const WithoutGil unlocked;
    return log_->Add({name, site, op, details}, tensor, reinterpret_cast<void*>(stream), dimensions,
                     tail);
  }
  py::dict Counters() const {
    OpLogCounters counters;
    {
      const WithoutGil unlocked;
      counters = log_->Counters();
    }
    return py::dict("launches"_a = counters.launches, "rows"_a = counters.rows,
                    "bytes"_a = counters.bytes, "device_bytes"_a = counters.device_bytes);
  }
  void Flush() {
    const WithoutGil unlocked;
    log_->Flush();
  }
  std::size_t Pending() const {
    const WithoutGil unlocked;
    return log_->Pending();
  }
  std::size_t TakeNodes(std::uintptr_t stream) {
    const WithoutGil unlocked;
    return log_->TakeNodes(reinterpret_cast<void*>(stream));
  }
  std::vector<std::string> TakeUnseen(std::uintptr_t stream) {
    const WithoutGil unlocked;
    return log_->TakeUnseen(reinterpret_cast<void*>(stream));
  }
  std::vector<std::string> TakeRest(std::uintptr_t stream) {
    const WithoutGil unlocked;
    return log_->TakeRest(reinterpret_cast<void*>(stream));
  }
  void AmendNewest(const std::string& op, const std::string& details) {
    const WithoutGil unlocked;
    log_->AmendNewest(op, details);
  }
  std::uint64_t End() {
    const WithoutGil unlocked;
    return log_->End();
  }
  bool AwaitRows(double timeout_s) {
    const WithoutGil unlocked;
    return log_->AwaitRows(Seconds(timeout_s));
  }
  std::size_t DropAwaited() {
    const WithoutGil unlocked;
    return log_->DropAwaited();
  }
  bool WaitConsumed(double timeout_s) const {
    const WithoutGil unlocked;
    return log_->WaitConsumed(Seconds(timeout_s));
  }
  void Close() {
    const WithoutGil unlocked;
    log_->Close();
  }

 private:
  std::unique_ptr<OpLog> log_;
};

PyObject* site_function = nullptr;  // never released: probes may be called until the very end

std::string CallSite() {
  if (Py_IsInitialized() == 0 || IsInterpreterEnding()) return {};
  const py::gil_scoped_acquire locked;
  try {
    return py::reinterpret_borrow<py::object>(site_function)().cast<std::string>();
  } catch (const py::error_already_set&) {
    return {};  // a probe that cannot tell where it is called still looks at its tensor
  }
}

py::object SessionDict() {
  std::optional<SessionInfo> info;
  {
    const WithoutGil unlocked;
    info = CurrentSession();
  }
  if (!info) return py::none();
  return py::dict("name"_a = info->name, "uuid"_a = info->name.substr(info->name.rfind('-') + 1),
                  "shm_bytes"_a = info->shm_bytes, "slots"_a = info->slots,
                  "released_unread"_a = info->released_unread,
                  "device_bytes"_a = info->device_bytes);
}

void Translate(std::exception_ptr raised) {
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const capture::CudaError& error) {
    const py::object exception = py::handle(PyExc_RuntimeError)(error.what());
    exception.attr("cause_in_cuda") = error.cause();
    PyErr_SetObject(PyExc_RuntimeError, exception.ptr());
  } catch (const ProbeError& error) {
    const bool value =
        error.kind() == ErrorKind::kBadArgument || error.kind() == ErrorKind::kUnsupported;
    PyErr_SetString(value ? PyExc_ValueError : PyExc_RuntimeError, error.what());
  }
}

struct Graph {
  std::shared_ptr<CountedGraph> counted;
};

// A function of no arguments that counts a replay. Called before each one, so it goes to CPython
// directly, which takes a tenth of the time.
using CountedPointer = std::shared_ptr<CountedGraph>;

PyObject* CountOne(PyObject* self, PyObject*) {
  CountReplay(static_cast<CountedPointer*>(PyCapsule_GetPointer(self, nullptr))->get());
  Py_RETURN_NONE;
}
PyMethodDef count_replay = {"count_replay", &CountOne, METH_NOARGS, "Counts one replay."};

py::object MakeCounter(CountedPointer graph) {
  const py::capsule self(new CountedPointer(std::move(graph)),
                         [](void* pointer) { delete static_cast<CountedPointer*>(pointer); });
  auto counter = py::reinterpret_steal<py::object>(PyCFunction_New(&count_replay, self.ptr()));
  if (!counter) throw py::error_already_set();
  return counter;
}

void RegisterProbe(py::module_& module) {
  py::class_<NativeProbe>(module, "NativeProbe")
      .def(py::init(&MakeProbe), py::arg("name"), py::kw_only(), py::arg("mode"),
           py::arg("copy_non_contiguous"), py::arg("site"), py::arg("print"), py::arg("record"),
           py::arg("compare"), py::arg("stats") = py::none(), py::arg("lane") = "auto",
           py::arg("stable") = false, py::arg("op") = "", py::arg("part") = "")
      .def_property_readonly("id", &NativeProbe::Id)
      .def_property_readonly("site_key", &NativeProbe::SiteKey)
      .def("records", &NativeProbe::Records, py::arg("last") = -1)
      .def("clear_records", &NativeProbe::ClearRecords, py::arg("upto") = py::none())
      .def("wait_consumed", &NativeProbe::WaitConsumed, py::arg("timeout_s"))
      .def("status", &NativeProbe::Status)
      .def("follow_calls", &NativeProbe::FollowCalls, py::arg("sees_modules"))
      .def("close", &NativeProbe::Close);
  module.def(
      "check_part",
      [](const std::string& who, const std::string& part) { (void)ParsePart(who, part); },
      py::arg("who"), py::arg("part"));
}

void RegisterOpLog(py::module_& module) {
  py::class_<NativeOpLog>(module, "NativeOpLog")
      .def(py::init<std::uint32_t>(), py::arg("every") = 1)
      .def("add", &NativeOpLog::Add, py::arg("name"), py::arg("op"), py::arg("site"),
           py::arg("data"), py::arg("dtype"), py::arg("shape"), py::arg("cuda") = py::none(),
           py::arg("stream") = 0,
           py::arg("order") = std::vector<std::pair<std::uint64_t, std::uint64_t>>(),
           py::arg("details") = "", py::arg("tail_start") = 0, py::arg("tail_rows") = 0)
      .def("counters", &NativeOpLog::Counters)
      .def("flush", &NativeOpLog::Flush)
      .def("pending", &NativeOpLog::Pending)
      .def("take_nodes", &NativeOpLog::TakeNodes, py::arg("stream"))
      .def("take_unseen", &NativeOpLog::TakeUnseen, py::arg("stream"))
      .def("take_rest", &NativeOpLog::TakeRest, py::arg("stream"))
      .def("amend_newest", &NativeOpLog::AmendNewest, py::arg("op"), py::arg("details"))
      .def("end", &NativeOpLog::End)
      .def("await_rows", &NativeOpLog::AwaitRows, py::arg("timeout_s"))
      .def("drop_awaited", &NativeOpLog::DropAwaited)
      .def("wait_consumed", &NativeOpLog::WaitConsumed, py::arg("timeout_s"))
      .def("close", &NativeOpLog::Close);
}

// Where the program is: its step, its calls, its rank, its own places.
void RegisterProgress(py::module_& module) {
  module.def(
      "set_step",
      [](std::optional<std::int64_t> step, std::optional<std::uintptr_t> stream) {
        SetStep(step.value_or(-1));
        if (stream) SetStepInStreamOrder(step.value_or(-1), reinterpret_cast<void*>(*stream));
      },
      py::arg("step"), py::arg("stream"), py::call_guard<WithoutGil>());
  module.def("begin_call", &BeginCall);
  module.def("end_call", &EndCall);
  module.def("leave_calls", &LeaveCalls);
  module.def("set_calls_followed", &SetCallsFollowed, py::arg("are_followed"));
  module.def("set_sees_eager", &SetSeesEager, py::arg("sees"));
  module.def("set_rank", &SetRank, py::arg("rank"), py::arg("world_size"), py::arg("meeting"));
  module.def(
      "set_site_provider",
      [](const py::object& function) {
        site_function = function.inc_ref().ptr();
        SetSiteProvider(&CallSite);
      },
      py::arg("function"));
}

// What captures are called, and what is in them.
void RegisterCaptures(py::module_& module) {
  module.def(
      "set_graph_label",
      [](std::string label, bool scoped) {
        const GraphLabel before = SetGraphLabel({std::move(label), scoped});
        return std::pair(before.text, before.scoped);
      },
      py::arg("label"), py::arg("scoped"));
  module.def(
      "capture_of",
      [](std::uintptr_t stream) { return CaptureIdOf(reinterpret_cast<void*>(stream)); },
      py::arg("stream"), py::call_guard<WithoutGil>());
  module.def(
      "named_nodes",
      [](std::uintptr_t graph) {
        std::vector<std::tuple<std::uintptr_t, std::size_t, std::string>> nodes;
        const WithoutGil unlocked;
        for (const NamedNode& one : NamedNodesOf(reinterpret_cast<void*>(graph))) {
          nodes.emplace_back(reinterpret_cast<std::uintptr_t>(one.node), one.place, one.name);
        }
        return nodes;
      },
      py::arg("graph"));
  module.def(
      "graph_nodes",
      [](std::uintptr_t stream, std::uintptr_t graph) {
        return graph != 0 ? CountNodes(reinterpret_cast<void*>(graph))
                          : CountNodesOfCapture(reinterpret_cast<void*>(stream));
      },
      py::arg("stream") = 0, py::arg("graph") = 0, py::call_guard<WithoutGil>());
}

// Captured graphs, and how often each is replayed.
void RegisterGraphs(py::module_& module) {
  py::class_<Graph>(module, "Graph")
      .def(
          "end",
          [](const Graph& graph, std::optional<std::uint64_t> nodes, bool failed) {
            EndGraph(*graph.counted, nodes, failed);
          },
          py::arg("nodes"), py::arg("failed"), py::call_guard<WithoutGil>())
      .def(
          "pool",
          [](const Graph& graph, std::uint64_t first, std::uint64_t second) {
            SetGraphPool(*graph.counted, first, second);
          },
          py::arg("first"), py::arg("second"), py::call_guard<WithoutGil>())
      .def("share", [](const Graph& graph) { ShareGraph(*graph.counted); })
      .def(
          "gone", [](const Graph& graph) { ForgetGraph(graph.counted); },
          py::call_guard<WithoutGil>())
      .def("counter", [](const Graph& graph) { return MakeCounter(graph.counted); })
      .def_property_readonly("replays",
                             [](const Graph& graph) { return CountedReplays(*graph.counted); })
      .def_property_readonly("is_gone",
                             [](const Graph& graph) { return IsForgotten(*graph.counted); })
      .def("take_back", [](const Graph& graph) { TakeBackReplay(graph.counted.get()); });
  module.def(
      "note_root_capture",
      [](std::uintptr_t stream) { NoteRootCapture(reinterpret_cast<void*>(stream)); },
      py::arg("stream"), py::call_guard<WithoutGil>());
  module.def(
      "graph_begin",
      [](std::uint64_t capture, const std::string& stack) -> std::optional<Graph> {
        auto counted = BeginGraph(capture, stack);
        if (counted == nullptr) return std::nullopt;
        return Graph{std::move(counted)};
      },
      py::arg("capture"), py::arg("stack"), py::call_guard<WithoutGil>());
  module.attr("count_unlisted") = MakeCounter(nullptr);
}

// What nobody saw, what was found, and what the daemon has read.
void RegisterAccount(py::module_& module) {
  module.def("tell_malformed_settings", &TellMalformedSettings);
  module.def(
      "finding",
      [](int kind) {  // (sentence, whether it is in a row, the slot's order, serial)
        const auto found = FindFirst(static_cast<layout::FindingKind>(kind));
        return found ? std::optional(
                           std::tuple(found->text, found->is_of_row, found->order, found->serial))
                     : std::nullopt;
      },
      py::arg("kind"), py::call_guard<WithoutGil>());
  module.def("count_refused", &CountNotSeen, py::arg("name"), py::arg("reason"),
             py::arg("is_captured"), py::call_guard<WithoutGil>());
  module.def("not_wanted", &NotWanted, py::arg("name"), py::call_guard<WithoutGil>());
  module.def("count_held_row", &CountHeldRow, py::call_guard<WithoutGil>());
  module.def("let_go_of_held_rows", &LetGoOfHeldRows, py::arg("count"),
             py::call_guard<WithoutGil>());
  module.def("not_seen", [] {
    const std::string text = NotSeenText();
    return text.empty() ? py::object(py::none()) : Text(text);
  });
  module.def(
      "await_read",
      [](double timeout_s) {
        const ReadState state = AwaitRead(Seconds(timeout_s));
        return std::tuple(state.all, state.lost, state.left_out, state.not_compared, state.unseen);
      },
      py::arg("timeout_s"), py::call_guard<WithoutGil>());
}

}  // namespace

PYBIND11_MODULE(_probe, module) {
  module.doc() = "The native half of cgdebug's probes. Use cgdebug.CudaGraphTensorProbe.";
  py::register_exception_translator(&Translate);
  RegisterProbe(module);
  RegisterOpLog(module);
  RegisterProgress(module);
  RegisterCaptures(module);
  RegisterGraphs(module);
  RegisterAccount(module);
  RegisterWords(module);
  RegisterApart(module);
  module.def("session", &SessionDict);
  // (serial, replay, graph, probe, whether its comparison failed); None: no trigger has held on
  // this device.
  module.def(
      "trigger_that_held",
      [](int device) -> py::object {
        const std::optional<HeldTrigger> held = TriggerThatHeld(device);
        if (!held) return py::none();
        return py::make_tuple(held->serial, held->replay, held->graph_id, held->probe,
                              held->is_comparison);
      },
      py::arg("device"));
  module.def("start_daemon", &StartDaemon, py::call_guard<WithoutGil>());
  module.def(
      "finish", [](double timeout_s) { return Finish(Seconds(timeout_s)); }, py::arg("timeout_s"),
      py::call_guard<WithoutGil>());
  module.def("version", &Version);
}

}  // namespace cgdebug::python
