// handlers.h: one request, one answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/serve/answer.h"
#include "daemon/serve/model.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

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
  void Status(const v1::StatusRequest& request, Answer* answer);
  void Shutdown(const v1::ShutdownRequest& request, Answer* answer);

  Model model_;
  ServeOptions options_;
  std::int64_t started_ns_;
  std::size_t clients_ = 0;
  bool shutdown_requested_ = false;
};

}  // namespace cgdebug::serve
