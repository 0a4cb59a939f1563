// server.h: the socket and its clients, and when the daemon ends.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <list>
#include <memory>

#include "daemon/core/base/unique_fd.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/handlers.h"

namespace cgdebug::serve {

// Thread: the serve thread, the one that calls Run().
class Server {
 public:
  // `listener` is bound and listening; the model outlives the server.
  Server(UniqueFd listener, const Model& model, const ServeOptions& options);
  ~Server();

  // Serves until a signal, a Shutdown request, the end of `exit_with`, or idle_timeout without a
  // client and a live job. Then closes every connection.
  void Run();

 private:
  void Accept();
  void OnAccept(Connection::Socket socket);
  void OnChange();
  void WatchIdle();
  void WatchProcess(pid_t pid);
  void Stop(const std::string& why);
  std::size_t ClientCount() const;

  boost::asio::io_context io_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer idle_timer_;
  boost::asio::steady_timer retry_timer_;
  boost::asio::posix::stream_descriptor process_;
  Handlers handlers_;
  ServeOptions options_;
  std::list<std::shared_ptr<Connection>> connections_;
  std::chrono::steady_clock::time_point busy_at_ = std::chrono::steady_clock::now();
  bool stopping_ = false;
  boost::asio::thread_pool slow_{
      4};  // last member, so that it is destroyed before what its threads use
};

}  // namespace cgdebug::serve
