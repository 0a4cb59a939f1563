// recording_writer: a module with which Python tests write recordings.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/numerics/stats.h"
#include "daemon/core/numerics/tensor_view.h"
#include "daemon/core/recording/recording_writer.h"
#include "python/src/gil.h"
#include "python/src/recording_error.h"

namespace py = pybind11;

namespace cgdebug::python {
namespace {

using recording::RecordingWriter;

// Writes tensors that are in this process's memory; a daemon records running jobs.
class Writer {
 public:
  explicit Writer(const std::string& path) : writer_(Checked(RecordingWriter::Open(path, {}))) {}

  std::uint32_t AddSession(const std::string& uuid, const std::string& label, int rank) {
    recording::Session session;
    session.uuid = uuid;
    session.label = label;
    session.rank = rank;
    return Checked(writer().AddSession(session));
  }

  std::uint32_t AddSlot(std::uint32_t session, const std::string& probe, const std::string& dtype,
                        const std::vector<std::uint64_t>& shape, std::uint64_t graph_id,
                        std::uint32_t invocation, const std::string& device,
                        const std::string& graph_label, bool in_body, const std::string& shard,
                        const std::string& part) {
    const layout::DtypeInfo* info = layout::FindDtype(std::string_view(dtype));
    if (info == nullptr) throw py::value_error("dtype " + dtype + " cannot be recorded");
    const auto bytes = numerics::PayloadBytes(info->dtype, shape);
    if (!bytes) throw py::value_error("the shape is too large");
    recording::Slot slot;
    slot.session = session;
    slot.probe = probe;
    slot.device = device;
    slot.dtype = info->dtype;
    slot.shape = shape;
    slot.payload_bytes = *bytes;
    slot.graph_id = graph_id;
    slot.graph_label = graph_label;
    slot.in_body = in_body;
    slot.shard = shard;
    slot.part = part;
    slot.invocation = invocation;
    slot.index = static_cast<std::uint32_t>(slots_.size());
    slot.order = slots_.size() + 1;
    slots_.push_back({slot, 0});
    return slots_.back().slot.id = Checked(writer().AddSlot(slot));
  }

  void Append(std::uint32_t id, std::uint64_t replay, const py::buffer& values, std::int64_t step,
              std::int64_t timestamp_ns, bool stats_only, bool xor_hash, std::uint64_t serial,
              std::optional<std::uint64_t> mismatched, double max_abs, double max_rel,
              std::uint32_t iteration) {
    OwnSlot& own = Find(id);
    const py::buffer_info buffer = values.request();
    if (PyBuffer_IsContiguous(buffer.view(), 'C') == 0) {
      throw py::value_error("the values are not contiguous");
    }
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(buffer.ptr),
                                           static_cast<std::size_t>(buffer.size * buffer.itemsize));
    const auto view = Checked(numerics::MakeTensorView(own.slot.dtype, own.slot.shape, bytes));
    recording::Snapshot snapshot;
    snapshot.slot = id;
    snapshot.ordinal = ++own.ordinal;
    snapshot.replay = replay;
    snapshot.iteration = iteration;
    snapshot.step = step;
    snapshot.timestamp_ns = timestamp_ns;
    snapshot.serial = serial;
    snapshot.compared = mismatched.has_value();
    snapshot.comparison = {mismatched.value_or(0), max_abs, max_rel};
    snapshot.stats_only = stats_only;
    snapshot.payload_bytes = stats_only ? 0 : bytes.size();
    Result<void> done;
    {
      const WithoutGil release;
      snapshot.stats = numerics::ComputeStats(view);
      if (!xor_hash) snapshot.stats.has_hash = snapshot.stats.has_ordered_hash = false;
      done = writer().Append(snapshot, stats_only ? std::span<const std::byte>() : bytes);
    }
    Checked(done);
  }

  void Lose(std::uint32_t id, std::uint64_t count, std::uint64_t after_replay) {
    OwnSlot& own = Find(id);
    recording::Loss loss;
    loss.slot = id;
    loss.count = count;
    loss.first_ordinal = own.ordinal + 1;
    loss.last_ordinal = own.ordinal += count;
    loss.after_replay = after_replay;
    loss.before_replay = after_replay + count + 1;
    Checked(writer().AddLoss(loss));
  }

  // Adds a mark, as a daemon does beside the snapshots: `kind` is a MarkKind; `slot` -1 means the
  // session.
  void Mark(std::uint32_t kind, std::int64_t slot, std::uint64_t replay, std::uint64_t count,
            const std::string& text) {
    recording::Mark mark;
    mark.kind = static_cast<recording::MarkKind>(kind);
    mark.slot = slot;
    mark.replay = replay;
    mark.ordinal = slot < 0 ? 0 : Find(static_cast<std::uint32_t>(slot)).ordinal;
    mark.count = count;
    mark.text = text;
    Checked(writer().AddMark(mark));
  }

  void Commit() { Checked(writer().Commit()); }
  void Close() {
    if (!writer_) return;
    Checked(writer_->Close(recording::StopReason::kRequested));
    writer_.reset();
  }

 private:
  struct OwnSlot {
    recording::Slot slot;
    std::uint64_t ordinal;
  };

  RecordingWriter& writer() {
    if (!writer_) throw py::value_error("the recording is closed");
    return *writer_;
  }
  OwnSlot& Find(std::uint32_t id) {
    for (OwnSlot& own : slots_) {
      if (own.slot.id == id) return own;
    }
    throw py::index_error("no such slot");
  }

  std::unique_ptr<RecordingWriter> writer_;
  std::vector<OwnSlot> slots_;
};

}  // namespace
}  // namespace cgdebug::python

PYBIND11_MODULE(recording_writer, module) {
  using cgdebug::python::Writer;
  py::class_<Writer>(module, "Writer")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def("add_session", &Writer::AddSession, py::arg("uuid"), py::arg("label"),
           py::arg("rank") = -1)
      .def("add_slot", &Writer::AddSlot, py::arg("session"), py::arg("probe"), py::arg("dtype"),
           py::arg("shape"), py::arg("graph_id") = 1, py::arg("invocation") = 0,
           py::arg("device") = "cpu", py::arg("graph_label") = "", py::arg("in_body") = false,
           py::arg("shard") = "", py::arg("part") = "")
      .def("append", &Writer::Append, py::arg("slot"), py::arg("replay"), py::arg("values"),
           py::arg("step") = -1, py::arg("timestamp_ns") = 0, py::arg("stats_only") = false,
           py::arg("xor_hash") = true, py::arg("serial") = 0, py::arg("mismatched") = py::none(),
           py::arg("max_abs") = 0.0, py::arg("max_rel") = 0.0, py::arg("iteration") = 0)
      .def("lose", &Writer::Lose, py::arg("slot"), py::arg("count"), py::arg("after_replay"))
      .def("mark", &Writer::Mark, py::arg("kind"), py::arg("slot") = -1, py::arg("replay") = 0,
           py::arg("count") = 0, py::arg("text") = "")
      .def("commit", &Writer::Commit)
      .def("close", &Writer::Close);
}
