// page.h: what the daemon knows, as one page in Prometheus' text format. Names, units and labels
// follow Prometheus' conventions (`promtool check metrics`); README.md lists them.
#pragma once

#include <cstddef>
#include <string>

#include "daemon/model/registry.h"
#include "daemon/model/snapshot_store.h"
#include "daemon/record/recorder.h"

namespace cgdebug::metrics {

// What is exported; outlives the exporter.
struct Model {
  const pipeline::Registry* registry = nullptr;
  const pipeline::SnapshotStore* store = nullptr;
  const pipeline::Recorder* recorder = nullptr;
};

// A label has one value per probe and per job, and a server keeps every combination it ever saw.
// The page says how many probes and jobs have no series because of these limits.
struct Limits {
  std::size_t sessions = 64;  // jobs alive first, then those that ended last
  std::size_t probes = 50;    // of each job alive, the first that were registered
};

// False if cgdebug was built without prometheus-cpp: there are no pages then.
bool CanMakePages();
// Thread: any.
std::string MakePage(const Model& model, const Limits& limits);

}  // namespace cgdebug::metrics
