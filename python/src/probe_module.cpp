// _probe: the probe library for Python. No torch, no NumPy: tensors go through the torch op.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "cgdebug/probe.h"
#include "python/src/gil.h"

namespace py = pybind11;

namespace cgdebug {
namespace {

using python::WithoutGil;

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

ProbeOptions ParseOptions(const std::string& mode, bool copy_non_contiguous,
                          const std::string& site, const py::object& print,
                          const py::object& record, const py::object& compare,
                          const py::object& stats, const std::string& lane, bool prefer_link,
                          const std::string& op) {
  ProbeOptions options;
  options.mode = mode == "always" ? ProbeMode::kAlways : ProbeMode::kCapture;
  options.copy_non_contiguous = copy_non_contiguous;
  options.site = site;
  options.op = op;
  if (!print.is_none()) {
    options.print =
        PrintAction{print["max_items"].cast<std::uint32_t>(), print["every"].cast<std::uint32_t>(),
                    print["summary"].cast<bool>()};
  }
  options.lane = lane == "direct"     ? LaneChoice::kDirect
                 : lane == "callback" ? LaneChoice::kCallback
                                      : LaneChoice::kAuto;
  options.prefer_link = prefer_link;
  if (!stats.is_none()) {
    options.stats = StatsAction{stats["every"].cast<std::uint32_t>(), stats["hash"].cast<bool>()};
  }
  if (!record.is_none()) {
    options.record = RecordAction{record["capacity"].cast<std::uint32_t>(),
                                  record["every"].cast<std::uint32_t>(),
                                  record["to"].cast<std::string>() == "disk"};
  }
  if (!compare.is_none()) {
    CompareAction action;
    for (const py::handle item : compare["expected"])
      action.expected.push_back(ParseExpected(item));
    action.per_invocation = compare["per_invocation"].cast<bool>();
    action.rtol = compare["rtol"].cast<double>();
    action.atol = compare["atol"].cast<double>();
    action.equal_nan = compare["equal_nan"].cast<bool>();
    action.bitwise = compare["bitwise"].cast<bool>();
    action.every = compare["every"].cast<std::uint32_t>();
    options.compare = std::move(action);
  }
  return options;
}

// Without the payload.
py::dict ToDict(const Record& record) {
  py::dict item;
  item["replay_index"] = record.replay_index;
  item["invocation_index"] = record.invocation_index;
  item["graph_id"] = record.graph_id;
  item["graph_label"] = record.graph_label;
  item["serial"] = record.serial;
  item["slot"] = record.slot;
  item["ordinal"] = record.ordinal;
  item["dtype"] = std::string(DtypeName(record.dtype));
  item["shape"] = py::tuple(py::cast(record.shape));
  item["device"] = DeviceText(record.device_type, record.device_index);
  item["timestamp_ns"] = record.timestamp_ns;
  item["shard"] = record.shard;
  item["step"] = record.step < 0 ? py::object(py::none()) : py::object(py::int_(record.step));
  return item;
}

py::dict ToDict(const SlotStatus& slot) {
  py::dict item;
  item["slot"] = slot.slot;
  item["site"] = py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(slot.site.data(), static_cast<Py_ssize_t>(slot.site.size()), "replace"));
  item["graph_id"] = slot.graph_id;
  item["graph_label"] = slot.graph_label;
  item["invocation"] = slot.invocation;
  item["dtype"] = std::string(DtypeName(slot.dtype));
  item["shape"] = py::tuple(py::cast(slot.shape));
  item["device"] = DeviceText(slot.device_type, slot.device_index);
  item["lane"] = std::string(layout::NameOf(slot.lane));
  item["policy"] = std::string(layout::NameOf(slot.policy));
  item["capacity"] = slot.capacity;
  item["payload_bytes"] = slot.payload_bytes;
  item["replays"] = slot.replays;
  item["accepted"] = slot.accepted;
  item["consumed"] = slot.consumed;
  item["lost"] = slot.lost;
  item["overwrote_unread"] = slot.overwrote_unread;
  item["waits"] = slot.waits;
  item["wait_ns"] = slot.wait_ns;
  item["suppressed"] = slot.suppressed;
  item["retired"] = slot.retired;
  item["compares"] = slot.compares;
  py::dict verdict;
  verdict["state"] = std::string(layout::NameOf(slot.verdict.state));
  verdict["compared"] = slot.verdict.compared;
  verdict["mismatched"] = slot.verdict.mismatched;
  verdict["lost"] = slot.verdict.lost;
  verdict["first_failed_replay"] = slot.verdict.first_failed_replay;
  verdict["text"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
      slot.verdict.text.data(), static_cast<Py_ssize_t>(slot.verdict.text.size()), "replace"));
  item["verdict"] = verdict;
  return item;
}

// Calls into the probe library never hold the interpreter's lock: a capture in another thread may
// hold the probe table's lock and wait in the driver for a callback in Python.
class NativeProbe {
 public:
  NativeProbe(const std::string& name, const std::string& mode, bool copy_non_contiguous,
              const std::string& site, const py::object& print, const py::object& record,
              const py::object& compare, const py::object& stats, const std::string& lane,
              bool prefer_link, const std::string& op) {
    ProbeOptions options = ParseOptions(mode, copy_non_contiguous, site, print, record, compare,
                                        stats, lane, prefer_link, op);
    const WithoutGil unlocked;
    probe_ = std::make_unique<Probe>(name, std::move(options));
  }
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
    py::dict item;
    item["closed"] = status.closed;
    item["error"] =
        status.last_error.empty() ? py::object(py::none()) : py::object(py::str(status.last_error));
    item["lane_note"] =
        status.lane_note.empty() ? py::object(py::none()) : py::object(py::str(status.lane_note));
    item["daemon_alive"] = status.daemon_alive;
    py::list slots;
    for (const SlotStatus& slot : status.slots) slots.append(ToDict(slot));
    item["slots"] = slots;
    return item;
  }

  void Close() {
    const WithoutGil unlocked;
    probe_->Close();
  }

 private:
  std::unique_ptr<Probe> probe_;
};

PyObject* site_function = nullptr;  // never released: probes may be called until the very end

std::string CallSite() {
  if (Py_IsInitialized() == 0 || python::IsInterpreterEnding()) return {};
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
  py::dict item;
  item["name"] = info->name;
  item["uuid"] = info->name.substr(info->name.rfind('-') + 1);
  item["shm_bytes"] = info->shm_bytes;
  item["slots"] = info->slots;
  item["released_unread"] = info->released_unread;
  return item;
}

void Translate(std::exception_ptr raised) {
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const ProbeError& error) {
    const bool value =
        error.kind() == ErrorKind::kBadArgument || error.kind() == ErrorKind::kUnsupported;
    PyErr_SetString(value ? PyExc_ValueError : PyExc_RuntimeError, error.what());
  }
}

}  // namespace

PYBIND11_MODULE(_probe, module) {
  module.doc() = "The native half of cgdebug's probes. Use cgdebug.CudaGraphTensorProbe.";
  py::register_exception_translator(&Translate);
  py::class_<NativeProbe>(module, "NativeProbe")
      .def(py::init<const std::string&, const std::string&, bool, const std::string&,
                    const py::object&, const py::object&, const py::object&, const py::object&,
                    const std::string&, bool, const std::string&>(),
           py::arg("name"), py::kw_only(), py::arg("mode"), py::arg("copy_non_contiguous"),
           py::arg("site"), py::arg("print"), py::arg("record"), py::arg("compare"),
           py::arg("stats") = py::none(), py::arg("lane") = "auto", py::arg("prefer_link") = false,
           py::arg("op") = "")
      .def_property_readonly("id", &NativeProbe::Id)
      .def_property_readonly("site_key", &NativeProbe::SiteKey)
      .def("records", &NativeProbe::Records, py::arg("last") = -1)
      .def("clear_records", &NativeProbe::ClearRecords, py::arg("upto") = py::none())
      .def("wait_consumed", &NativeProbe::WaitConsumed, py::arg("timeout_s"))
      .def("status", &NativeProbe::Status)
      .def("close", &NativeProbe::Close);
  module.def(
      "set_step",
      [](std::optional<std::int64_t> step, std::optional<std::uintptr_t> stream) {
        SetStep(step.value_or(-1));
        if (stream) SetStepInStreamOrder(step.value_or(-1), reinterpret_cast<void*>(*stream));
      },
      py::arg("step"), py::arg("stream"), py::call_guard<WithoutGil>());
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
      "graph_begin",
      [](std::uint64_t capture, const std::string& stack) {
        const KnownGraph graph = BeginGraph(capture, stack);
        return std::pair(graph.order, graph.counter);
      },
      py::arg("capture"), py::arg("stack"), py::call_guard<WithoutGil>());
  module.def(
      "graph_nodes",
      [](std::uintptr_t stream, std::uintptr_t graph) {
        return graph != 0 ? CountNodes(reinterpret_cast<void*>(graph))
                          : CountNodesOfCapture(reinterpret_cast<void*>(stream));
      },
      py::arg("stream") = 0, py::arg("graph") = 0, py::call_guard<WithoutGil>());
  module.def("graph_end", &EndGraph, py::arg("order"), py::arg("nodes"), py::arg("failed"),
             py::call_guard<WithoutGil>());
  module.def("graph_pool", &SetGraphPool, py::arg("order"), py::arg("first"), py::arg("second"),
             py::call_guard<WithoutGil>());
  module.def("graph_gone", &ForgetGraph, py::arg("order"), py::call_guard<WithoutGil>());
  // Never freed, like the segment that they lie in.
  module.def("graph_counters", []() -> py::object {
    GraphCounterWords counters;
    {
      const WithoutGil unlocked;
      counters = GraphCounters();
    }
    if (counters.words == nullptr) return py::none();
    return py::memoryview::from_buffer(counters.words, {counters.count}, {sizeof(std::uint64_t)});
  });
  module.def("session", &SessionDict);
  module.def(
      "set_site_provider",
      [](const py::object& function) {
        site_function = function.inc_ref().ptr();
        SetSiteProvider(&CallSite);
      },
      py::arg("function"));
  module.def("start_daemon", &StartDaemon, py::call_guard<WithoutGil>());
  module.def(
      "finish", [](double timeout_s) { return Finish(Seconds(timeout_s)); }, py::arg("timeout_s"),
      py::call_guard<WithoutGil>());
  module.def("version", &Version);
}

}  // namespace cgdebug
