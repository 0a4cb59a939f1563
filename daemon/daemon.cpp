#include "daemon/daemon.h"

#include <unistd.h>

#include "daemon/ingest/ingest_loop.h"
#include "daemon/log/log.h"
#include "daemon/model/text.h"
#include "daemon/pipeline/fan_out.h"
#include "daemon/pipeline/payload_pool.h"
#include "daemon/record/freeze/frozen_rings.h"
#include "daemon/record/recorder.h"
#include "daemon/record/ring_reads.h"
#include "daemon/serve/server.h"
#include "daemon/sinks/compare_sink.h"
#include "daemon/sinks/job_terminal.h"
#include "daemon/sinks/memory_sink.h"
#include "daemon/sinks/model_sink.h"
#include "daemon/sinks/print_sink.h"
#include "daemon/sinks/replica_sink.h"

namespace cgdebug {
namespace {

constexpr std::size_t kSparePayloadBytes = 64u << 20;

}  // namespace

// If memory runs out, the daemon ends at once, as by SIGKILL: the credits have not moved, and the
// next daemon reads on from there. Unwinding would close recordings as if they were whole.
void RunDaemon(const DaemonOptions& options, const std::string& socket_path, Instance instance,
               std::unique_ptr<metrics::Exporter> exporter) noexcept {
  pipeline::Registry registry;
  pipeline::EventLog events;
  pipeline::SnapshotStore store(options.max_memory_bytes);
  pipeline::ControlQueue controls;
  pipeline::RingReads reads;
  pipeline::PayloadPool payloads(kSparePayloadBytes);
  const auto tell = [](const pipeline::SessionPtr& job, const std::string& text) {
    sinks::JobTerminal(*job).Write("[cgdebug] " + text + ". Type: cgdebug-cli status\n");
  };
  const auto tell_not_recorded = [&](const pipeline::SessionPtr& job, const std::string& text) {
    registry.SetNotSeen(job, {.kind = layout::NotSeenKind::kNotRecorded,
                              .count = 1,
                              .reason = pipeline::CleanText(text)});
    tell(job, text);
  };
  const auto set_lossless = [&](const pipeline::SlotPtr& slot, layout::Lossless lossless,
                                bool wants_values) {
    controls.Push(
        {{.slot = slot, .control = {}, .lossless = lossless, .wants_values = wants_values}});
  };
  pipeline::Recorder recorder(options.recording, tell_not_recorded, set_lossless, &reads);
  sinks::CompareSink compare(&events);
  sinks::PrintSink print(&events);
  sinks::MemorySink memory(&store);
  pipeline::FrozenRings frozen({&registry, &store, &reads, &controls, &events}, options.recording,
                               tell);
  pipeline::FanOut findings({&memory, &recorder});
  sinks::ReplicaSink replicas(&registry, &events, &controls, &findings);
  pipeline::FanOut fan_out({&compare, &print, &memory, &recorder, &frozen, &replicas});
  sinks::ModelSink sink(&registry, &events, &fan_out);

  serve::ServeOptions serving;
  serving.socket_path = socket_path;
  serving.max_clients = options.max_clients;
  serving.max_message_bytes = static_cast<std::uint32_t>(options.max_message_bytes);
  serving.idle_timeout_s = std::chrono::duration<double>(options.idle_timeout).count();
  serving.exit_with = options.exit_with;
  serve::Server server(instance.TakeListener(),
                       {&registry, &events, &store, &controls, &reads, &recorder}, serving);

  ingest::IngestLoop ingest({options.keep_dead, options.workers.value_or(DefaultWorkers()),
                             socket_path, options.is_private},
                            {&registry, &controls, &reads, &payloads, &sink});
  Log("daemon")->info("cgdebug-daemon {} (pid {}) listens on {}", CGDEBUG_VERSION, getpid(),
                      socket_path);
  ingest.Start();
  if (exporter != nullptr) exporter->Start({&registry, &store, &recorder});
  server.Run();
  exporter.reset();
  ingest.Stop();
  Log("daemon")->info("ended");
}

}  // namespace cgdebug
