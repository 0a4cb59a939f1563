#include "libprobe/capture/graph/root_graph.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "libprobe/capture/cuda_check.h"
#include "libprobe/capture/device_guard.h"
#include "libprobe/capture/graph/graph_capture.h"

namespace cgdebug::capture {
namespace {

constexpr std::size_t kKnownPlaces = 16;

struct Open {
  std::shared_ptr<RootGraph> root;
  std::thread::id thread;
  cudaStream_t stream;  // over when the stream's capture is; null: until CloseRoot()
};

struct OpenRoots {
  std::mutex mutex;
  std::vector<Open> list;  // the innermost last
};
OpenRoots& Roots() {
  static auto* roots = new OpenRoots;
  return *roots;
}

bool IsOver(const Open& open) {
  if (open.stream == nullptr) return false;
  const CaptureInfo info = GetCaptureInfo(open.stream);
  return info.status != cudaStreamCaptureStatusActive || info.id != open.root->id;
}

// The innermost one of this thread. Another thread's, if there is only one: a backward pass runs in
// a thread of its own.
std::shared_ptr<RootGraph> FindRoot() {
  OpenRoots& roots = Roots();
  const std::lock_guard lock(roots.mutex);
  std::erase_if(roots.list, IsOver);
  const auto mine = std::find_if(roots.list.rbegin(), roots.list.rend(), [](const Open& open) {
    return open.thread == std::this_thread::get_id();
  });
  if (mine != roots.list.rend()) return mine->root;
  return roots.list.size() == 1 ? roots.list.front().root : nullptr;
}

bool IsOpen(std::uint64_t capture_id) {
  OpenRoots& roots = Roots();
  const std::lock_guard lock(roots.mutex);
  return std::any_of(roots.list.begin(), roots.list.end(), [&](const Open& open) {
    return open.stream != nullptr && open.root->id == capture_id;
  });
}

CapturePlace FindPlace(void* stream, std::uint64_t capture_id, int device) {
  CapturePlace place = {.graph_id = capture_id};
  if (IsOpen(capture_id)) return place;
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  if (!IsConditionalBody(GetCaptureInfo(static_cast<cudaStream_t>(stream)).graph)) return place;
  place.in_body = true;
  place.root = FindRoot();
  if (place.root == nullptr) return place;
  if (place.root->id == 0) place.root->id = capture_id;
  place.graph_id = place.root->id;
  return place;
}

}  // namespace

// Found once per capture: ids are never reused. Several captures may be under way.
CapturePlace PlaceOf(void* stream, std::uint64_t capture_id, int device) {
  static auto* known = new std::deque<std::pair<std::uint64_t, CapturePlace>>;
  const auto found = std::find_if(known->begin(), known->end(),
                                  [&](const auto& one) { return one.first == capture_id; });
  if (found != known->end()) return found->second;
  CapturePlace place = FindPlace(stream, capture_id, device);
  if (place.in_body && place.root == nullptr) return place;  // it may be said before the next call
  known->emplace_back(capture_id, place);
  if (known->size() > kKnownPlaces) known->pop_front();
  return place;
}

void NoteRootCapture(void* stream_handle) noexcept {
  try {
    auto* stream = static_cast<cudaStream_t>(stream_handle);
    const CaptureInfo info = GetCaptureInfo(stream);
    if (info.status != cudaStreamCaptureStatusActive) return;
    auto root = std::make_shared<RootGraph>(RootGraph{.graph = info.graph, .id = info.id});
    OpenRoots& roots = Roots();
    const std::lock_guard lock(roots.mutex);
    std::erase_if(roots.list, IsOver);
    roots.list.push_back({std::move(root), std::this_thread::get_id(), stream});
  } catch (const ProbeError&) {  // a probe in a body of this graph will say what it lacks
  }
}

std::shared_ptr<RootGraph> OpenRoot(void* graph, void* stream_handle) {
  auto root = std::make_shared<RootGraph>(RootGraph{.graph = graph});
  if (stream_handle != nullptr) {
    const CaptureInfo info = GetCaptureInfo(static_cast<cudaStream_t>(stream_handle));
    if (info.status != cudaStreamCaptureStatusActive || info.graph != graph) {
      throw ProbeError(ErrorKind::kBadArgument,
                       "ScopedRootGraph: the stream is not capturing this graph. Leave the stream "
                       "away for a graph that is made by hand");
    }
    root->id = info.id;
  }
  OpenRoots& roots = Roots();
  const std::lock_guard lock(roots.mutex);
  roots.list.push_back({root, std::this_thread::get_id(), nullptr});
  return root;
}

void CloseRoot(const std::shared_ptr<RootGraph>& root) noexcept {
  OpenRoots& roots = Roots();
  const std::lock_guard lock(roots.mutex);
  std::erase_if(roots.list, [&](const Open& open) { return open.root == root; });
}

}  // namespace cgdebug::capture
