// _recording: recordings, safetensors files and folders of either for Python, and what Python asks
// C++ instead of implementing it twice: which probes a pattern selects, where the daemon is, how to
// start it. No torch, no CUDA, no protobuf; NumPy only for columns of statistics.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <variant>

#include "client/analysis/check/check.h"
#include "client/analysis/check/check_report.h"
#include "client/analysis/diff/diff.h"
#include "client/analysis/diff/diff_report.h"
#include "client/analysis/gaps.h"
#include "client/analysis/ops/masks.h"
#include "client/analysis/ops/op_diff.h"
#include "client/analysis/ops/op_log.h"
#include "client/analysis/why/why.h"
#include "client/analysis/why/why_report.h"
#include "client/report/report.h"
#include "client/source/database.h"
#include "client/source/merged_source.h"
#include "client/source/source.h"
#include "daemon/core/numerics/compare.h"
#include "daemon/core/numerics/format.h"
#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/verify_recording.h"
#include "proto/layout/dtype.h"
#include "proto/layout/segment_layout.h"
#include "python/src/daemon_place.h"
#include "python/src/gil.h"
#include "python/src/rank_fold.h"
#include "python/src/recording_columns.h"
#include "python/src/recording_error.h"
#include "python/src/recording_query.h"
#include "python/src/recording_stats.h"
#include "python/src/remote_files.h"
#include "python/src/words_module.h"

namespace py = pybind11;

namespace cgdebug::python {
namespace {

using namespace py::literals;

using numerics::Stats;
using source::Key;
using source::Slot;
using source::Snapshot;
using source::Source;

// Bytes of a tensor with the buffer protocol. They are writable, but changes stay in this process.
class ValueBuffer {
 public:
  explicit ValueBuffer(source::Values values) : values_(std::move(values)) {}
  py::buffer_info Info() {
    static std::byte nothing;  // NumPy wants an address also for no bytes
    auto* data = const_cast<std::byte*>(values_.bytes.data());
    return py::buffer_info(data == nullptr ? &nothing : data, 1, "B", 1,
                           {static_cast<py::ssize_t>(values_.bytes.size())}, {1});
  }
  std::size_t size() const { return values_.bytes.size(); }

 private:
  source::Values values_;
};

// A source and its lock: several Python threads may call at once, because the interpreter's lock is
// released while files are read.
class Reader {
 public:
  static std::unique_ptr<Reader> Open(const std::string& path, std::optional<int> rank) {
    Result<std::unique_ptr<Source>> source = [&] {
      const WithoutGil release;
      return source::Open(path);
    }();
    auto reader = std::make_unique<Reader>();
    reader->source_ = Checked(std::move(source));
    if (rank) {
      reader->source_ = source::Only(std::move(reader->source_),
                                     [&](const source::Slot& slot) { return slot.rank == *rank; });
    }
    return reader;
  }

  // Runs `read` with our lock and without the interpreter's.
  template <typename Read>
  auto Unlocked(const Read& read) {
    const WithoutGil release;
    const std::scoped_lock lock(mutex_);
    return read(*source_);
  }

  py::dict Describe() {
    const source::Description about = Unlocked([](Source& source) { return source.Describe(); });
    return py::dict("path"_a = about.path, "kind"_a = about.kind, "sessions"_a = about.sessions,
                    "bytes"_a = about.bytes, "ending"_a = about.ending, "damage"_a = about.damage,
                    "is_growing"_a = about.is_growing, "is_cut_off"_a = about.is_cut_off);
  }

  py::list Slots() {
    py::list list;
    for (const Slot& slot : source_->slots()) {
      list.append(py::dict(
          "probe"_a = slot.probe, "session"_a = slot.session, "uuid"_a = slot.uuid,
          "device"_a = slot.device, "site"_a = slot.site, "shard"_a = slot.shard,
          "part"_a = slot.part, "op"_a = slot.op.text(), "details"_a = slot.details,
          "in_body"_a = slot.in_body, "thread"_a = slot.thread, "dtype"_a = slot.dtype_name,
          "shape"_a = py::tuple(py::cast(slot.shape)), "rank"_a = slot.rank,
          "graph_id"_a = slot.graph_id, "graph"_a = slot.graph,
          "graph_is_given"_a = slot.graph_is_given, "invocation"_a = slot.invocation,
          "order"_a = slot.order, "payload_bytes"_a = slot.payload_bytes, "every"_a = slot.every));
    }
    return list;
  }

  // The slots whose probes these globs mean.
  std::vector<std::size_t> Select(const std::vector<std::string>& probes) {
    const Selector selector = Checked(Selector::Parse(probes));
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < source_->slots().size(); ++slot) {
      if (selector.Matches(source_->slots()[slot].probe)) slots.push_back(slot);
    }
    return slots;
  }

  // (replay, iteration) of each snapshot.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> Keys(std::size_t slot) {
    CheckSlot(slot);
    const auto keys = Checked(Unlocked([&](Source& source) { return source.Keys(slot); }));
    std::vector<std::pair<std::uint64_t, std::uint32_t>> places;
    for (const Key& key : keys) places.emplace_back(key.replay, key.iteration);
    return places;
  }

  bool Has(std::size_t slot, std::uint64_t replay, std::optional<std::uint32_t> iteration) {
    CheckSlot(slot);
    return Checked(Unlocked([&](Source& source) { return source.Find(slot, replay, iteration); }))
        .has_value();
  }

  py::dict Get(std::size_t slot, std::uint64_t replay, std::optional<std::uint32_t> iteration) {
    CheckSlot(slot);
    const Snapshot snapshot = Checked(
        Unlocked([&](Source& source) { return FindSnapshot(source, slot, replay, iteration); }));
    return py::dict(
        "replay"_a = snapshot.key.replay, "iteration"_a = snapshot.key.iteration,
        "serial"_a = snapshot.serial, "step"_a = snapshot.step,
        "timestamp_ns"_a = snapshot.timestamp_ns, "has_values"_a = snapshot.has_values,
        "payload_bytes"_a = snapshot.payload_bytes, "hash"_a = snapshot.hash,
        "stats"_a = snapshot.stats ? py::object(StatsDict(*snapshot.stats)) : py::none());
  }

  ValueBuffer Values(std::size_t slot, std::uint64_t replay,
                     std::optional<std::uint32_t> iteration) {
    CheckSlot(slot);
    return ValueBuffer(Checked(Unlocked([&](Source& source) -> Result<source::Values> {
      const Result<Snapshot> snapshot = FindSnapshot(source, slot, replay, iteration);
      if (!snapshot.ok()) return snapshot.error();
      return source.LoadWritable(*snapshot);
    })));
  }

  py::dict Statistics(std::size_t slot, std::uint64_t replay,
                      std::optional<std::uint32_t> iteration) {
    CheckSlot(slot);
    return StatsDict(Checked(Unlocked([&](Source& source) -> Result<Stats> {
      const Result<Snapshot> snapshot = FindSnapshot(source, slot, replay, iteration);
      if (!snapshot.ok()) return snapshot.error();
      return source::StatsOf(source, *snapshot);
    })));
  }

  // The columns of every snapshot of these slots (recording_columns.h).
  py::dict Columns(const std::vector<std::size_t>& slots, std::uint64_t first_replay,
                   std::uint64_t last_replay) {
    for (const std::size_t slot : slots) CheckSlot(slot);
    return ToDict(Checked(Unlocked(
        [&](Source& source) { return ReadColumns(source, slots, first_replay, last_replay); })));
  }

  py::list Gaps() {
    py::list list;
    for (const source::Gap& gap : Unlocked([](Source& source) { return source.Gaps(); })) {
      list.append(py::dict("slot"_a = gap.slot, "count"_a = gap.count,
                           "after_replay"_a = gap.after_replay,
                           "before_replay"_a = gap.before_replay, "cause"_a = gap.cause));
    }
    return list;
  }

  // (names of the columns, rows) of one SQL statement that reads.
  py::tuple Query(const std::string& sql, const py::sequence& given) {
    const std::vector<source::Value> parameters = ToValues(given);
    Result<source::QueryResult> result = Unlocked([&](Source& source) {
      const Result<sqlite3*> database = OpenDatabase(source);
      if (!database.ok()) return Result<source::QueryResult>(database.error());
      return source::Query(*database, sql, parameters);
    });
    if (!result.ok()) Raise({result.error().message + ". Type: cgdebug-cli query --schema"});
    return ToPython(*result);
  }

  // Everything that is known to be missing, in sentences.
  std::vector<std::string> Missing() { return Unlocked(analysis::WhyNotComplete); }

  // What is damaged, in sentences, after reading every byte.
  std::vector<std::string> Verify() {
    return Checked(Unlocked([](Source& source) -> Result<std::vector<std::string>> {
      std::vector<std::string> sentences = source.Describe().unread;
      for (const recording::RecordingReader* reader : source.Recordings()) {
        const Result<std::vector<recording::Damage>> damage =
            recording::VerifyRecording(reader->directory());
        if (!damage.ok()) return damage.error();
        for (const recording::Damage& one : *damage) {
          sentences.push_back(one.file + " at byte " + std::to_string(one.offset) + ": " +
                              one.what);
        }
      }
      return sentences;
    }));
  }

  static py::tuple Diff(Reader& a, Reader& b, const py::dict& options);
  static py::tuple Report(Reader& a, Reader* b, const std::vector<std::string>& probes,
                          std::uint64_t first, std::uint64_t last);
  static py::tuple Check(Reader& reader, const std::vector<std::string>& probes,
                         std::uint64_t first, std::uint64_t last, std::size_t frames,
                         bool trust_hashes);
  static py::tuple Why(Reader& reader);

 private:
  void CheckSlot(std::size_t slot) const {
    if (slot >= source_->slots().size()) throw py::index_error("no such slot");
  }
  static Result<Snapshot> FindSnapshot(Source& source, std::size_t slot, std::uint64_t replay,
                                       std::optional<std::uint32_t> iteration) {
    const Result<std::optional<Key>> key = source.Find(slot, replay, iteration);
    if (!key.ok()) return key.error();
    if (!*key) {
      return Error{"there is no replay " +
                   source::ReplayText(replay, iteration.value_or(0), iteration.has_value())};
    }
    return source.Get(slot, **key);
  }

  // The tables, made by the first query.
  Result<sqlite3*> OpenDatabase(Source& source) {
    // SQLite forbids a forked child to use its parent's connection, or to close it.
    if (database_pid_ != ::getpid()) static_cast<void>(database_.release());
    if (!database_) {
      Result<source::Database> made = source::MakeDatabase(source);
      if (made.ok() && !HasEverySnapshot(source, made->get())) made = source::FillDatabase(source);
      if (!made.ok()) return made.error();
      database_ = *std::move(made);
      database_pid_ = ::getpid();
    }
    return database_.get();
  }
  // A catalogue has no row for a damaged snapshot; here there is one, of NULLs.
  static bool HasEverySnapshot(Source& source, sqlite3* database) {
    std::int64_t wanted = 0;
    for (std::size_t slot = 0; slot < source.slots().size(); ++slot) {
      const auto keys = source.Keys(slot);
      if (keys.ok()) wanted += static_cast<std::int64_t>(keys->size());
    }
    const auto rows = source::Query(database, "SELECT count(*) FROM snapshot");
    if (!rows.ok()) return false;
    const auto* there = std::get_if<std::int64_t>(&rows->rows.at(0).at(0).value);
    return there != nullptr && *there >= wanted;
  }

  std::mutex mutex_;
  std::unique_ptr<Source> source_;
  source::Database database_;
  pid_t database_pid_ = 0;
};

analysis::Scope MakeScope(const std::vector<std::string>& probes, std::uint64_t first,
                          std::uint64_t last) {
  analysis::Scope scope;
  scope.probes = Checked(Selector::Parse(probes));
  scope.first_replay = first;
  scope.last_replay = last;
  return scope;
}

py::tuple Reader::Diff(Reader& a, Reader& b, const py::dict& given) {
  analysis::DiffOptions options;
  options.align.scope = MakeScope(given["probes"].cast<std::vector<std::string>>(),
                                  given["first_replay"].cast<std::uint64_t>(),
                                  given["last_replay"].cast<std::uint64_t>());
  options.align.by_order = given["by"].cast<std::string>() == "order";
  options.align.by_step = given["align"].cast<std::string>() == "step";
  options.align.names = given["names"].cast<std::map<std::string, std::string>>();
  options.rtol = given["rtol"].cast<std::optional<double>>();
  options.atol = given["atol"].cast<std::optional<double>>();
  options.equal_nan = given["equal_nan"].cast<bool>();
  options.bitwise = given["bitwise"].cast<bool>();
  options.stops_after_first = given["first"].cast<bool>();
  options.trusts_hashes = given["trust_hashes"].cast<bool>();
  std::string json, text;
  const Result<void> done = [&]() -> Result<void> {
    const WithoutGil release;
    // Lock both at once: diff(a, b) and diff(b, a) must not deadlock.
    std::unique_lock lock_a(a.mutex_, std::defer_lock), lock_b(b.mutex_, std::defer_lock);
    &a == &b ? lock_a.lock() : std::lock(lock_a, lock_b);
    const Result<analysis::Diff> diff = analysis::Compare(*a.source_, *b.source_, options);
    if (!diff.ok()) return diff.error();
    json = Dump(analysis::DiffJson(*a.source_, *b.source_, *diff), /*indented=*/false);
    text = analysis::DiffAnswer(*a.source_, *b.source_, *diff).Text();
    return {};
  }();
  Checked(done);
  return py::make_tuple(json, text);
}

// (HTML, verdict) of one source, or of two.
py::tuple Reader::Report(Reader& a, Reader* b, const std::vector<std::string>& probes,
                         std::uint64_t first, std::uint64_t last) {
  const report::ReportOptions options{.scope = MakeScope(probes, first, last)};
  report::Report made;
  const Result<void> done = [&]() -> Result<void> {
    const WithoutGil release;
    std::unique_lock lock_a(a.mutex_, std::defer_lock);
    std::unique_lock<std::mutex> lock_b;
    if (b != nullptr && b != &a) lock_b = std::unique_lock(b->mutex_, std::defer_lock);
    lock_b.mutex() == nullptr ? lock_a.lock() : std::lock(lock_a, lock_b);
    Result<report::Report> report =
        report::MakeReport(*a.source_, b == nullptr ? nullptr : b->source_.get(), options);
    if (!report.ok()) return report.error();
    made = *std::move(report);
    return {};
  }();
  Checked(done);
  return py::make_tuple(made.html, made.verdict);
}

// An op log as python/cgdebug/op_log.py has it.
analysis::OpLog OpLogOf(const py::dict& given) {
  analysis::OpLog log;
  log.gaps = given["gaps"].cast<std::vector<std::string>>();
  for (const py::handle item : given["unseen"]) {
    const auto [after, before, count, names] =
        item.cast<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::string>>();
    log.coverage.unseen.push_back(
        {.after = after, .before = before, .count = count, .names = names});
  }
  if (std::string gap = log.coverage.Gap(); !gap.empty()) log.gaps.push_back(std::move(gap));
  for (const py::handle item : given["rows"]) {
    const auto row = item.cast<py::dict>();
    analysis::OpRow& to = log.rows.emplace_back();
    to.number = row["number"].cast<std::uint32_t>();
    to.name = row["name"].cast<std::string>();
    to.op = row["op"].cast<std::string>();
    to.inputs = row["inputs"].cast<std::vector<std::uint32_t>>();
    to.is_covered = row["is_covered"].cast<bool>();
    to.site = row["site"].cast<std::string>();
    const layout::DtypeInfo* info = layout::FindDtype(row["dtype"].cast<std::string>());
    if (info == nullptr) throw py::value_error("an op log has a dtype that is not supported");
    to.dtype = info->dtype;
    to.shape = row["shape"].cast<std::vector<std::uint64_t>>();
    to.type = numerics::FormatTensorType(to.dtype, to.shape);
    if (!row["stats"].is_none()) to.stats = StatsOf(row["stats"].cast<py::dict>());
  }
  return log;
}

std::vector<std::uint32_t> MasksOfOps(const py::dict& given) {
  return analysis::MasksOf(OpLogOf(given));
}

// (verdict, name of the first row that differs though what it read agrees, text)
py::tuple DiffOps(const py::dict& given_a, const py::dict& given_b) {
  const analysis::OpLog a = OpLogOf(given_a), b = OpLogOf(given_b);
  analysis::OpDiff diff;
  std::string text;
  {
    const WithoutGil release;
    diff = analysis::DiffOpLogs(a, b);
    text = analysis::OpDiffAnswer(a, b, diff).Text();
  }
  const auto named = diff.first_suspect ? diff.first_suspect : diff.first_fault;
  const std::string first = named ? a.rows[diff.pairs[*named].a].name : "";
  return py::make_tuple(analysis::NameOf(diff.verdict()), first, text);
}

py::tuple Reader::Check(Reader& reader, const std::vector<std::string>& probes, std::uint64_t first,
                        std::uint64_t last, std::size_t frames, bool trust_hashes) {
  const analysis::CheckOptions options{
      .scope = MakeScope(probes, first, last), .frames = frames, .trusts_hashes = trust_hashes};
  std::string json, text;
  Checked(reader.Unlocked([&](Source& source) -> Result<void> {
    const Result<analysis::Check> check = analysis::RunCheck(source, options);
    if (!check.ok()) return check.error();
    json = Dump(analysis::CheckJson(source, *check), /*indented=*/false);
    text = analysis::CheckAnswer(source, *check).Text();
    return {};
  }));
  return py::make_tuple(json, text);
}

py::tuple Reader::Why(Reader& reader) {
  std::string json, text;
  Checked(reader.Unlocked([&](Source& source) -> Result<void> {
    const Result<analysis::why::Causes> causes = analysis::why::FindCauses(source);
    if (!causes.ok()) return causes.error();
    const auto command_of = analysis::why::CommandsOf(source.Describe().path);
    json = Dump(analysis::why::CausesJson(source, *causes, command_of), /*indented=*/false);
    text = analysis::why::CausesAnswer(source, *causes, command_of).Text();
    return {};
  }));
  return py::make_tuple(json, text);
}

// The words of numerics::FailureText. `failure` is that of NativeProbe.status().
std::string FailureText(const std::string& dtype, const std::vector<std::uint64_t>& shape,
                        const py::dict& failure) {
  const auto number = [&](const char* name) { return failure[name].cast<std::uint64_t>(); };
  layout::SlotFailure found = {};
  found.mismatched = number("mismatched");
  found.first = number("first");
  found.actual = number("actual");
  found.expected = number("expected");
  found.max_abs = number("max_abs");
  found.max_abs_index = number("max_abs_index");
  found.max_rel = number("max_rel");
  found.max_rel_index = number("max_rel_index");
  numerics::CompareOptions options;
  options.rtol = failure["rtol"].cast<double>();
  options.atol = failure["atol"].cast<double>();
  options.bitwise = failure["bitwise"].cast<bool>();
  const layout::DtypeInfo* info = layout::FindDtype(dtype);
  return Checked(numerics::FailureText(info == nullptr ? layout::Dtype::kInvalid : info->dtype,
                                       shape, options, found))
      .Whole();
}

// A row (name, short name, name in safetensors, the unsigned integer of its size for a type that
// NumPy lacks, the smallest normal number) per dtype.
py::list Dtypes() {
  py::list rows;
  for (const layout::DtypeInfo& info : layout::kDtypes) {
    const py::object bits = info.is_bits_in_npy()
                                ? py::object(py::str("uint" + std::to_string(8 * info.bytes)))
                                : py::object(py::none());
    rows.append(py::make_tuple(info.name, info.short_name, info.safetensors, bits, info.min_normal,
                               static_cast<int>(info.dtype)));
  }
  return rows;
}

}  // namespace

PYBIND11_MODULE(_recording, module) {
  py::class_<ValueBuffer>(module, "Values", py::buffer_protocol())
      .def_buffer(&ValueBuffer::Info)
      .def("__len__", &ValueBuffer::size);
  py::class_<Reader>(module, "Reader")
      .def(py::init(&Reader::Open), py::arg("path"), py::arg("rank") = py::none())
      .def("describe", &Reader::Describe)
      .def("slots", &Reader::Slots)
      .def("select", &Reader::Select, py::arg("probes"))
      .def("keys", &Reader::Keys, py::arg("slot"))
      .def("has", &Reader::Has, py::arg("slot"), py::arg("replay"),
           py::arg("iteration") = py::none())
      .def("get", &Reader::Get, py::arg("slot"), py::arg("replay"),
           py::arg("iteration") = py::none())
      .def("values", &Reader::Values, py::arg("slot"), py::arg("replay"),
           py::arg("iteration") = py::none())
      .def("statistics", &Reader::Statistics, py::arg("slot"), py::arg("replay"),
           py::arg("iteration") = py::none())
      .def("columns", &Reader::Columns, py::arg("slots"), py::arg("first") = 1,
           py::arg("last") = std::numeric_limits<std::uint64_t>::max())
      .def("gaps", &Reader::Gaps)
      .def("query", &Reader::Query, py::arg("sql"), py::arg("parameters"))
      .def("missing", &Reader::Missing)
      .def("verify", &Reader::Verify)
      .def("check", &Reader::Check, py::arg("probes"), py::arg("first"), py::arg("last"),
           py::arg("frames"), py::arg("trust_hashes"))
      .def("why", &Reader::Why);
  module.def("dtypes", &Dtypes);
  module.def("failure_text", &FailureText, py::arg("dtype"), py::arg("shape"), py::arg("failure"));
  module.def("diff_ops", &DiffOps, py::arg("a"), py::arg("b"));
  module.def("masks_of_ops", &MasksOfOps, py::arg("log"));
  module.def("report", &Reader::Report, py::arg("a"), py::arg("b").none(true), py::arg("probes"),
             py::arg("first"), py::arg("last"));
  module.def("diff", &Reader::Diff, py::arg("a"), py::arg("b"), py::arg("options"));
  // For tests, which look at the segments of processes that they killed, and write as a daemon
  // does.
  module.attr("SEGMENT_PID_OFFSET") = offsetof(layout::SegmentHeader, pid);
  module.attr("SLOT_CREDIT_OFFSET") = layout::kSlotCreditOffset;
  module.attr("DIRECTORY_OFFSET") = layout::kDirectoryOffset;
  RegisterRankFold(module);
  RegisterDaemonPlace(module);
  RegisterWords(module);
  RegisterRemoteFiles(module);
}

}  // namespace cgdebug::python
