// cli_world.h: what the fake daemon of the command line's tests knows.
#pragma once

#include <cstring>
#include <vector>

#include "tests/support/daemon/fake_daemon.h"

namespace cgdebug::testing_support {

// A daemon that knows one session with two probes; a test changes what it answers.
struct World {
  std::vector<v1::Session> sessions = {MakeSession("3f2a91c0")};
  std::vector<v1::ProbeInfo> probes = {MakeProbe("3f2a91c0", "blk3.attn"),
                                       MakeProbe("3f2a91c0", "blk3.mlp")};
  std::vector<v1::Recording> recordings;
  std::vector<v1::TailReply> events;
  std::vector<v1::HistoryReply::Entry> history;  // of every probe
  bool keep_open = false;
  bool hang_up = false;
  std::vector<float> values = {0, 1, 2, 3};

  FakeAnswer Answer(const v1::Request& request) const {
    if (request.has_probes() && request.probes().probes_size() > 0 &&
        request.probes().probes(0) == "x") {
      FakeAnswer answer =
          ErrorAnswer(v1::Error::NO_PROBE, "no probe matches 'x' (2 probes). Close: 'blk3.x'.");
      answer.responses[0].mutable_error()->add_close("blk3.x");
      return answer;
    }
    FakeAnswer answer;
    v1::Response response;
    if (request.has_sessions()) *response.mutable_sessions() = SessionsReply();
    if (request.has_probes()) *response.mutable_probes() = ProbesReply();
    if (request.has_status()) *response.mutable_status() = StatusReply(request.status().session());
    if (request.has_set()) response.mutable_set()->set_slots(1);
    if (request.has_record_start()) {
      *response.mutable_record_start()->mutable_recording() = recordings.at(0);
    }
    if (request.has_freeze()) *response.mutable_freeze()->mutable_recording() = recordings.at(0);
    if (request.has_record_stop()) {
      response.mutable_record_stop()->mutable_recordings()->Assign(recordings.begin(),
                                                                   recordings.end());
    }
    if (request.has_history()) {
      response.mutable_history()->mutable_entries()->Assign(history.begin(), history.end());
    }
    if (request.has_sync()) response.mutable_sync()->set_complete(true);
    if (request.has_get()) return Get(request.get());
    if (request.has_tail()) return Tail();
    answer.responses.push_back(response);
    return answer;
  }

 private:
  v1::SessionsReply SessionsReply() const {
    v1::SessionsReply reply;
    reply.mutable_sessions()->Assign(sessions.begin(), sessions.end());
    return reply;
  }
  v1::ProbesReply ProbesReply() const {
    v1::ProbesReply reply;
    reply.mutable_probes()->Assign(probes.begin(), probes.end());
    return reply;
  }
  // `session`: a key, or empty.
  v1::StatusReply StatusReply(const std::string& session) const {
    v1::StatusReply reply;
    reply.set_version("9.8.7");
    reply.set_pid(4000);
    reply.set_socket("/somewhere/daemon.sock");
    for (const v1::Session& one : sessions) {
      if (session.empty() || one.key() == session || one.label() == session) {
        *reply.add_sessions() = one;
      }
    }
    reply.mutable_recordings()->Assign(recordings.begin(), recordings.end());
    reply.add_skipped()->set_path("/dev/shm/cgdebug-0-old");
    reply.mutable_skipped(0)->set_reason("ABI 7, this daemon reads 1");
    return reply;
  }
  FakeAnswer Tail() const {
    FakeAnswer answer;
    for (const v1::TailReply& event : events) {
      *answer.responses.emplace_back().mutable_tail() = event;
    }
    answer.responses.emplace_back().mutable_tail()->set_caught_up(true);
    answer.keep_open = keep_open || hang_up;
    answer.hang_up = hang_up;
    return answer;
  }
  FakeAnswer Get(const v1::GetRequest& request) const {
    const bool names_session = request.session() == "train.py-4711" || request.session().empty();
    if (request.probe() != "blk3.attn" || !names_session) {
      return ErrorAnswer(v1::Error::NO_PROBE, "no probe '" + request.probe() + "'");
    }
    FakeAnswer answer;
    v1::GetReply& reply = *answer.responses.emplace_back().mutable_get();
    *reply.mutable_snapshot() = MakeSnapshot("blk3.attn", 1204, values);
    answer.payload.resize(values.size() * sizeof(float));
    std::memcpy(answer.payload.data(), values.data(), answer.payload.size());
    reply.set_payload_bytes(answer.payload.size());
    return answer;
  }
};

}  // namespace cgdebug::testing_support
