#include "daemon/serve/server.h"

#include <google/protobuf/stubs/logging.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <utility>

#include "daemon/core/endpoint/endpoint.h"
#include "daemon/log/log.h"

namespace cgdebug::serve {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr auto kAcceptRetry = std::chrono::milliseconds(200);
constexpr std::chrono::duration<double> kLongestIdleCheck(5);

}  // namespace

Server::Server(UniqueFd listener, const Model& model, const ServeOptions& options)
    : acceptor_(io_, asio::local::stream_protocol(), listener.release()),
      signals_(io_, SIGTERM, SIGINT),
      idle_timer_(io_),
      retry_timer_(io_),
      process_(io_),
      handlers_(model, options),
      options_(options) {}

Server::~Server() { handlers_.model().events->SetListener(nullptr); }

void Server::Run() {
  pthread_setname_np(pthread_self(), "cgdebug-serve");
  // What a client sends is logged once; protobuf would write a line for each bad string.
  google::protobuf::SetLogHandler(nullptr);
  handlers_.model().events->SetListener([this] {
    asio::post(io_, [this] {
      for (const auto& connection : connections_) connection->Pump();
    });
  });
  signals_.async_wait([this](boost::system::error_code failure, int signal) {
    if (!failure) Stop(signal == SIGINT ? "interrupted" : "asked to end by a signal");
  });
  if (options_.exit_with != 0) WatchProcess(options_.exit_with);
  WatchIdle();
  Accept();
  io_.run();
  slow_.stop();  // requests that have not begun have no client any more
  slow_.join();
  handlers_.model().events->SetListener(nullptr);
}

void Server::Accept() {
  acceptor_.async_accept([this](boost::system::error_code failure, Connection::Socket socket) {
    if (stopping_) return;
    if (!failure) {
      OnAccept(std::move(socket));
      return Accept();
    }
    // Most likely out of descriptors. Existing clients go on meanwhile.
    Log("rpc")->warn("cannot accept a client: {}", failure.message());
    retry_timer_.expires_after(kAcceptRetry);
    retry_timer_.async_wait([this](boost::system::error_code cancelled) {
      if (!cancelled && !stopping_) Accept();
    });
  });
}

void Server::OnAccept(Connection::Socket socket) {
  const Result<wire::Peer> peer = wire::CheckPeer(socket.native_handle());
  if (!peer.ok()) {
    Log("rpc")->warn("a client is refused: {}", peer.error().message);
    return;
  }
  const bool full = ClientCount() >= options_.max_clients;
  if (full && connections_.size() >= 2 * options_.max_clients) return;
  auto connection = std::make_shared<Connection>(std::move(socket), &handlers_, &slow_, options_,
                                                 full, [this] { OnChange(); });
  connections_.push_back(connection);
  handlers_.set_clients(ClientCount());
  connection->Start();
}

std::size_t Server::ClientCount() const {
  return static_cast<std::size_t>(std::count_if(
      connections_.begin(), connections_.end(),
      [](const auto& connection) { return connection->open() && !connection->full(); }));
}

// Posted, because the caller is a connection that must outlive its own removal.
void Server::OnChange() {
  asio::post(io_, [this] {
    busy_at_ = Clock::now();
    connections_.remove_if([](const auto& connection) { return !connection->open(); });
    handlers_.set_clients(ClientCount());
    const bool writing = std::any_of(connections_.begin(), connections_.end(),
                                     [](const auto& connection) { return connection->writing(); });
    if (handlers_.shutdown_requested() && !writing) Stop("asked to end by a client");
  });
}

void Server::WatchIdle() {
  if (options_.idle_timeout_s <= 0) return;
  const std::chrono::duration<double> timeout(options_.idle_timeout_s);
  const auto check = std::min(kLongestIdleCheck, timeout / 4);
  idle_timer_.expires_after(std::chrono::duration_cast<Clock::duration>(check));
  idle_timer_.async_wait([this, timeout](boost::system::error_code cancelled) {
    if (cancelled || stopping_) return;
    const Model& model = handlers_.model();
    if (!connections_.empty() || model.registry->AliveCount() > 0 || model.recorder->busy()) {
      busy_at_ = Clock::now();
    }
    if (Clock::now() - busy_at_ > timeout) return Stop("idle");
    WatchIdle();
  });
}

void Server::WatchProcess(pid_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) {
    asio::post(io_, [this, pid] { Stop("process " + std::to_string(pid) + " is gone"); });
    return;
  }
  process_.assign(fd);
  process_.async_wait(asio::posix::stream_descriptor::wait_read,
                      [this, pid](boost::system::error_code cancelled) {
                        if (!cancelled) Stop("process " + std::to_string(pid) + " is gone");
                      });
}

void Server::Stop(const std::string& why) {
  if (std::exchange(stopping_, true)) return;
  Log("daemon")->info("ending: {}", why);
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  signals_.cancel(ignored);
  idle_timer_.cancel();
  retry_timer_.cancel();
  process_.close(ignored);
  for (const auto& connection : connections_) connection->Close();
}

}  // namespace cgdebug::serve
