#include "python/src/apart_module.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cgdebug/probe.h"
#include "libprobe/apart/apart_graph.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/lane/op_log_lane.h"
#include "proto/layout/device_stats.h"
#include "python/src/gil.h"

namespace cgdebug::python {
namespace {

namespace py = pybind11;
using namespace py::literals;
using apart::ApartGraph;

void* Pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

std::vector<std::uintptr_t> Addresses(const std::vector<void*>& nodes) {
  std::vector<std::uintptr_t> addresses;
  for (void* node : nodes) addresses.push_back(reinterpret_cast<std::uintptr_t>(node));
  return addresses;
}

py::list NodesOf(const ApartGraph& graph) {
  py::list nodes;
  for (const apart::NodeInfo& one : graph.nodes()) {
    nodes.append(py::dict("handle"_a = reinterpret_cast<std::uintptr_t>(one.handle),
                          "kind"_a = one.kind, "name"_a = one.name,
                          "grid"_a = py::make_tuple(one.grid[0], one.grid[1], one.grid[2]),
                          "block"_a = py::make_tuple(one.block[0], one.block[1], one.block[2]),
                          "may_write"_a = one.may_write, "is_own"_a = one.is_own));
  }
  return nodes;
}

py::object PointersOf(const ApartGraph& graph, std::size_t node) {
  const std::optional<std::vector<apart::MemoryPointer>> pointers = graph.Pointers(node);
  if (!pointers) return py::none();
  py::list list;
  for (const apart::MemoryPointer& one : *pointers) {
    list.append(py::make_tuple(one.address, one.begin, one.end, one.is_host));
  }
  return list;
}

struct RowBatch {
  static constexpr std::size_t kMost = capture::kMostOpLogTensors;  // of one launch
  std::vector<capture::OpLogTensor> tensors;
};

// What `stream` has captured: how many nodes, which of them are not in order with all others, and
// the pairs of `accesses` (node, first byte, behind the last, whether it writes) in conflict.
using Access = std::tuple<std::uintptr_t, std::uint64_t, std::uint64_t, bool>;
auto OrderOfCapture(std::uintptr_t stream, const std::vector<Access>& given) {
  apart::CaptureOrder order;
  {
    const WithoutGil unlocked;
    std::vector<apart::NodeAccess> accesses;
    for (const auto& [node, begin, end, writes] : given) {
      accesses.push_back({Pointer(node), begin, end, writes});
    }
    order = apart::OrderOf(Pointer(stream), accesses);
  }
  std::vector<std::uintptr_t> unordered;
  for (const void* node : order.unordered) {
    unordered.push_back(reinterpret_cast<std::uintptr_t>(node));
  }
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (const apart::Conflict& one : order.conflicts) pairs.emplace_back(one.first, one.second);
  return std::tuple(order.nodes, unordered, pairs);
}

// Of one capture: which nodes came since the last call.
void RegisterCaptureNodes(py::module_& module) {
  py::class_<capture::CaptureNodes>(module, "CaptureNodes")
      .def(py::init<std::uint64_t>(), py::arg("capture"))
      .def(
          "take",
          [](capture::CaptureNodes& nodes, std::uintptr_t stream) {
            return Addresses(nodes.Take(Pointer(stream)));
          },
          py::arg("stream"), py::call_guard<WithoutGil>())
      .def(
          "take_rest",
          [](capture::CaptureNodes& nodes, std::uintptr_t stream) {
            return Addresses(nodes.TakeRest(Pointer(stream)));
          },
          py::arg("stream"), py::call_guard<WithoutGil>());
}

void RegisterGraph(py::module_& module) {
  py::class_<ApartGraph>(module, "ApartGraph")
      .def(
          py::init([](std::uintptr_t graph, bool copies, const std::vector<std::uintptr_t>& plain) {
            const WithoutGil unlocked;
            std::unordered_set<const void*> nodes;
            for (const std::uintptr_t node : plain) nodes.insert(Pointer(node));
            return std::make_unique<ApartGraph>(Pointer(graph), copies, nodes);
          }),
          py::arg("graph"), py::arg("copies") = true,
          py::arg("plain") = std::vector<std::uintptr_t>())
      .def_property_readonly("nodes", &NodesOf)
      .def_property_readonly("pieces", [](const ApartGraph& graph) { return graph.pieces(); })
      .def_property_readonly("opaque", &ApartGraph::opaque)
      // By node: those that come directly after it.
      .def_property_readonly("after",
                             [](const ApartGraph& graph) {
                               std::vector<apart::Dag::Nodes> after;
                               for (std::uint32_t node = 0; node < graph.dag().count(); ++node) {
                                 after.push_back(graph.dag().after(node));
                               }
                               return after;
                             })
      .def("pointers", &PointersOf, py::arg("node"))
      .def(
          "launch",
          [](ApartGraph& graph, std::size_t piece, std::uintptr_t stream, bool with_own) {
            graph.Launch(piece, Pointer(stream), with_own);
          },
          py::arg("piece"), py::arg("stream"), py::arg("with_own") = true,
          py::call_guard<WithoutGil>())
      .def(
          "enable",
          [](ApartGraph& graph, std::uintptr_t exec, bool only_own, bool is_on) {
            graph.Enable(Pointer(exec), only_own, is_on);
          },
          py::arg("exec"), py::arg("only_own"), py::arg("is_on"), py::call_guard<WithoutGil>())
      .def("prepare", &ApartGraph::Prepare, py::arg("with_own"), py::call_guard<WithoutGil>())
      .def(
          "put_into",
          [](const ApartGraph& graph, std::uintptr_t other) { graph.PutInto(Pointer(other)); },
          py::arg("graph"), py::call_guard<WithoutGil>());
  // Of each node: its handle, its kind, and whether it is ours.
  module.def(
      "node_kinds",
      [](std::uintptr_t graph) {
        std::vector<std::tuple<std::uintptr_t, std::string, bool>> kinds;
        for (const apart::NodeInfo& one : apart::KindsOf(Pointer(graph))) {
          kinds.emplace_back(reinterpret_cast<std::uintptr_t>(one.handle), one.kind, one.is_own);
        }
        return kinds;
      },
      py::arg("graph"), py::call_guard<WithoutGil>());
  module.def(
      "remove_nodes", [](std::uintptr_t graph) { apart::RemoveNodes(Pointer(graph)); },
      py::arg("graph"), py::call_guard<WithoutGil>());
}

void RegisterRowBatch(py::module_& module) {
  module.attr("row_scratch_bytes") = capture::ScratchBytesOfRows();
  // The statistics of dense tensors: (address, number of the dtype, elements).
  py::class_<RowBatch>(module, "RowBatch")
      .def(py::init([](const std::vector<std::tuple<std::uintptr_t, int, std::uint64_t>>& tensors) {
             RowBatch batch;
             for (const auto& [address, dtype, count] : tensors) {
               capture::OpLogTensor& one = batch.tensors.emplace_back();
               one.data = Pointer(address);
               one.dtype = static_cast<Dtype>(dtype);
               one.count = count;
               one.row = static_cast<std::uint32_t>((batch.tensors.size() - 1) % RowBatch::kMost);
             }
             return batch;
           }),
           py::arg("tensors"))
      // As layout::DeviceStats at `rows`, one behind another.
      .def(
          "compute",
          [](const RowBatch& batch, std::uintptr_t rows, std::uintptr_t scratch, int device,
             std::uintptr_t stream) {
            const std::span<const capture::OpLogTensor> all(batch.tensors);
            for (std::size_t first = 0; first < all.size(); first += RowBatch::kMost) {
              capture::ComputeRowsNow(
                  Pointer(rows + first * sizeof(layout::DeviceStats)), Pointer(scratch),
                  all.subspan(first, std::min(RowBatch::kMost, all.size() - first)), device,
                  Pointer(stream));
            }
          },
          py::arg("rows"), py::arg("scratch"), py::arg("device"), py::arg("stream"),
          py::call_guard<WithoutGil>());
}

}  // namespace

void RegisterApart(py::module_& module) {
  RegisterCaptureNodes(module);
  RegisterGraph(module);
  RegisterRowBatch(module);
  module.def("order_of_capture", &OrderOfCapture, py::arg("stream"), py::arg("accesses"));
  module.def(
      "await_stream",
      [](std::uintptr_t stream, double most_s) {
        return apart::AwaitStream(
            Pointer(stream), std::chrono::nanoseconds(static_cast<std::int64_t>(most_s * 1e9)));
      },
      py::arg("stream"), py::arg("most_s"), py::call_guard<WithoutGil>());
}

}  // namespace cgdebug::python
