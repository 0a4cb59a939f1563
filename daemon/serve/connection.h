// connection.h: one client.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/core/wire/async_frame.h"
#include "daemon/serve/handlers.h"
#include "daemon/serve/tail_stream.h"

namespace cgdebug::serve {

// Reads requests and writes answers in the order in which they are ready. Limits the bytes that
// wait to be written: above the limit it neither reads requests nor takes events from a tail.
//
// Thread: the serve thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;

  // `full`: there are too many clients; answers the first request with that and ends. `slow`
  // answers requests that take long. `on_change` is called after a request was answered and when
  // the connection ends.
  Connection(Socket socket, Handlers* handlers, boost::asio::thread_pool* slow,
             const ServeOptions& options, bool full, std::function<void()> on_change);

  void Start();
  // Sends what its tails have.
  void Pump();
  void Close();
  bool open() const { return open_; }
  bool full() const { return full_; }
  bool writing() const { return writing_; }

 private:
  struct Output {
    std::string bytes;             // a whole frame, or the header of a payload's frame
    pipeline::PayloadPtr payload;  // in the second case: the payload's bytes
    std::size_t offset = 0;
    std::size_t payload_bytes = 0;
  };

  void ReadNext();
  void OnFrame(bool ok, const std::string& why);
  void HandleFrame();
  void AnswerSlowly(std::uint64_t request_id, v1::Request request);
  void OpenTail(std::uint64_t request_id, const v1::TailRequest& request);
  void Send(std::uint64_t request_id, const Answer& answer, bool more);
  void SendAnswer(std::uint64_t request_id, const Answer& answer,
                  const pipeline::PayloadPtr& payload);
  void SendPayload(std::uint64_t request_id, const pipeline::PayloadPtr& payload);
  void Enqueue(Output output);
  void WriteNext();
  void PumpOne(std::uint64_t request_id, TailStream* tail, bool* done);
  bool IsFull() const;

  Socket socket_;
  Handlers* handlers_;
  boost::asio::thread_pool* slow_;
  wire::AsyncFrameReader reader_;
  std::function<void()> on_change_;
  std::map<std::uint64_t, TailStream> tails_;  // by request id
  std::deque<Output> outputs_;
  std::size_t queued_bytes_ = 0;
  boost::asio::steady_timer hello_timer_;
  bool full_;
  bool greeted_ = false;
  bool reading_ = false;
  bool answering_slowly_ = false;
  bool writing_ = false;
  bool close_when_written_ = false;
  bool open_ = true;
};

}  // namespace cgdebug::serve
