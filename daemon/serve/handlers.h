// handlers.h: one request, one answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/model/control_queue.h"
#include "daemon/model/event_log.h"
#include "daemon/model/registry.h"
#include "daemon/model/snapshot_store.h"
#include "daemon/record/recorder.h"
#include "daemon/record/ring_reads.h"
#include "daemon/serve/answer.h"
#include "daemon/serve/candidates.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

// What clients are shown; outlives the server.
struct Model {
  pipeline::Registry* registry;
  pipeline::EventLog* events;
  pipeline::SnapshotStore* store;
  pipeline::ControlQueue* controls;
  pipeline::RingReads* reads;
  pipeline::Recorder* recorder;
};

struct ServeOptions {
  std::string socket_path;
  std::size_t max_clients = 64;
  std::uint32_t max_message_bytes = 16u << 20;
  double idle_timeout_s = 600;  // 0 = never
  pid_t exit_with = 0;          // end when this process does; 0 = none
};

// Thread: the serve thread.
class Handlers {
 public:
  Handlers(const Model& model, const ServeOptions& options);

  // Answers everything except Tail. Sets `payload` if raw frames follow the answer. Empty for a
  // request that must wait for the ingest thread or for a recording to be written: AnswerSlowly()
  // answers that.
  std::optional<Answer> AnswerNow(const v1::Request& request, pipeline::PayloadPtr* payload);
  // Thread: any.
  Answer AnswerSlowly(const v1::Request& request, pipeline::PayloadPtr* payload) const;

  const Model& model() const { return model_; }
  bool shutdown_requested() const { return shutdown_requested_; }
  void set_clients(std::size_t clients) { clients_ = clients; }

 private:
  void Hello(const v1::Hello& request, Answer* answer);
  void Status(const v1::StatusRequest& request, Answer* answer);
  void Sessions(const v1::SessionsRequest& request, Answer* answer);
  void Probes(const v1::ProbesRequest& request, Answer* answer);
  // False, only without `may_wait`: a ring may hold the replay, so the ingest thread must be asked.
  bool Get(const v1::GetRequest& request, bool may_wait, Answer* answer,
           pipeline::PayloadPtr* payload) const;
  void FillGet(const v1::GetRequest& request, pipeline::SessionState state,
               std::vector<Candidate>* candidates, Answer* answer,
               pipeline::PayloadPtr* payload) const;
  void History(const v1::HistoryRequest& request, Answer* answer) const;
  void OpLogs(const v1::OpLogsRequest& request, Answer* answer) const;
  void Graphs(const v1::GraphsRequest& request, Answer* answer) const;
  void Set(const v1::SetRequest& request, Answer* answer);
  // With what memory keeps of them and of their findings.
  answers::Session SessionNow(const pipeline::SessionRecord& record) const;
  answers::Probe ProbeNow(const pipeline::SlotRecord& record, bool with_last_stats = true) const;
  void Shutdown(const v1::ShutdownRequest& request, Answer* answer);
  void Prune(Answer* answer);
  // record_handlers.cpp
  void RecordStart(const v1::RecordStartRequest& request, Answer* answer) const;
  void RecordStop(const v1::RecordStopRequest& request, Answer* answer) const;
  void Sync(Answer* answer) const;
  void RecordList(Answer* answer);
  void Freeze(const v1::FreezeRequest& request, Answer* answer) const;

  Model model_;
  ServeOptions options_;
  std::int64_t started_ns_;
  std::size_t clients_ = 0;
  bool shutdown_requested_ = false;
};

}  // namespace cgdebug::serve
