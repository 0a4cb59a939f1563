#include "tests/support/daemon/fake_daemon.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "daemon/core/endpoint/endpoint.h"

namespace cgdebug::testing_support {
namespace {

bool ReadAll(int fd, int stop_fd, char* out, std::size_t bytes) {
  while (bytes > 0) {
    pollfd waits[2] = {{fd, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    if (::poll(waits, 2, -1) <= 0 || waits[1].revents != 0) return false;
    const ssize_t got = ::recv(fd, out, bytes, 0);
    if (got <= 0) return false;
    out += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace

FakeDaemon::FakeDaemon(std::string socket_path, Handler handler)
    : socket_path_(std::move(socket_path)),
      handler_(std::move(handler)),
      protocol_(wire::kProtocol),
      listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path_.c_str(), sizeof(address.sun_path) - 1);
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), 16) != 0) {
    throw std::runtime_error("fake daemon: cannot listen on " + socket_path_);
  }
  thread_ = std::thread([this] { Serve(); });
}

FakeDaemon::~FakeDaemon() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
  ::unlink(socket_path_.c_str());
}

std::vector<v1::Request> FakeDaemon::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void FakeDaemon::Serve() {
  std::vector<std::thread> connections;
  while (true) {
    pollfd waits[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(waits, 2, -1) <= 0) continue;
    if (waits[1].revents != 0) break;
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    connections.emplace_back(
        [this, connection = std::move(fd)]() mutable { ServeConnection(std::move(connection)); });
  }
  for (std::thread& connection : connections) connection.join();
}

void FakeDaemon::ServeConnection(UniqueFd fd) {
  while (true) {
    std::array<std::byte, wire::kHeaderBytes> header_bytes;
    if (!ReadAll(fd.get(), stop_.get(), reinterpret_cast<char*>(header_bytes.data()),
                 header_bytes.size())) {
      return;
    }
    const Result<wire::FrameHeader> header = wire::ParseHeader(header_bytes);
    if (!header.ok()) return;
    wire::Frame frame{*header, std::string(header->body_bytes, '\0')};
    if (!ReadAll(fd.get(), stop_.get(), frame.body.data(), frame.body.size())) return;
    if (!Answer(fd.get(), frame)) return;
  }
}

bool FakeDaemon::Answer(int fd, const wire::Frame& frame) {
  v1::Request request;
  if (!wire::DecodeMessage(frame, wire::FrameKind::kRequest, &request).ok()) return false;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  FakeAnswer answer;
  if (request.has_hello()) {
    v1::HelloReply& hello = *answer.responses.emplace_back().mutable_hello();
    hello.set_protocol(protocol_);
    hello.set_version("9.8.7");
    hello.set_pid(::getpid());
  } else {
    answer = handler_(request);
  }
  const std::uint64_t id = frame.header.request_id;
  for (std::size_t i = 0; i < answer.responses.size(); ++i) {
    const bool last = i + 1 == answer.responses.size();
    const bool more = !last || answer.keep_open || !answer.payload.empty();
    const auto bytes = wire::EncodeMessage(wire::FrameKind::kResponse, more ? wire::kFlagMore : 0,
                                           id, answer.responses[i]);
    if (!WriteAll(fd, *bytes)) return false;
  }
  wire::PayloadHeaders headers(id, answer.payload.size());
  wire::FrameHeader header;
  std::size_t offset_bytes = 0;
  while (headers.Next(&header)) {
    const auto bytes = wire::EncodeHeader(header);
    if (!WriteAll(fd, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}) ||
        !WriteAll(fd, std::string_view(answer.payload).substr(offset_bytes, header.body_bytes))) {
      return false;
    }
    offset_bytes += header.body_bytes;
  }
  return !answer.hang_up;
}

v1::Session MakeSession(const std::string& key, int rank) {
  v1::Session session;
  session.set_key(key);
  session.set_label("train.py-" + std::to_string(4711 + rank));
  session.set_uuid(key + "-0000-4000-8000-000000000000");
  session.set_pid(4711 + rank);
  session.set_rank(rank);
  session.set_world_size(rank < 0 ? 0 : 2);
  session.set_command("python train.py");
  session.set_state(v1::Session::ALIVE);
  session.set_probe_count(2);
  session.set_replay(1204);
  session.set_step(-1);
  session.mutable_counters()->set_produced(2408);
  session.mutable_counters()->set_consumed(2408);
  return session;
}

v1::ProbeInfo MakeProbe(const std::string& session_key, const std::string& name) {
  v1::ProbeInfo probe;
  probe.set_session(session_key);
  probe.set_session_label("train.py-4711");
  probe.set_name(name);
  probe.set_dtype("float32");
  probe.add_shape(4);
  probe.set_device("cuda:0");
  probe.set_lane(v1::ProbeInfo::DIRECT);
  probe.set_policy(v1::ProbeInfo::OVERWRITE);
  probe.add_actions(v1::ProbeInfo::PRINT);
  probe.set_capacity(16);
  probe.set_payload_bytes(16);
  probe.set_replay(1204);
  probe.set_rank(-1);
  probe.mutable_counters()->set_produced(1204);
  probe.mutable_counters()->set_consumed(1204);
  return probe;
}

v1::Snapshot MakeSnapshot(const std::string& probe, std::uint64_t replay,
                          const std::vector<float>& values) {
  v1::Snapshot snapshot;
  snapshot.set_session("3f2a91c0");
  snapshot.set_session_label("train.py-4711");
  snapshot.set_rank(-1);
  snapshot.set_probe(probe);
  snapshot.set_replay(replay);
  snapshot.set_dtype("float32");
  snapshot.add_shape(values.size());
  snapshot.set_device("cuda:0");
  snapshot.set_step(-1);
  snapshot.set_timestamp_ns(1'700'000'000'000'000'000);
  snapshot.set_payload_bytes(values.size() * sizeof(float));
  v1::Stats& stats = *snapshot.mutable_stats();
  stats.set_count(values.size());
  double min = std::numeric_limits<double>::infinity(), max = -min, sum = 0, squares = 0;
  std::uint64_t finite = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    if (!std::isfinite(value)) {
      if (!stats.has_first_nonfinite()) {
        stats.set_first_nonfinite(i);
        stats.set_first_nonfinite_value(value);
      }
      if (std::isnan(value)) stats.set_nan(stats.nan() + 1);
      if (std::isinf(value) && value > 0) stats.set_pos_inf(stats.pos_inf() + 1);
      if (std::isinf(value) && value < 0) stats.set_neg_inf(stats.neg_inf() + 1);
      continue;
    }
    if (value == 0) stats.set_zero(stats.zero() + 1);
    min = std::min(min, value);
    max = std::max(max, value);
    sum += value;
    squares += value * value;
    ++finite;
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double n = static_cast<double>(finite);
  stats.set_min(finite == 0 ? nan : min);
  stats.set_max(finite == 0 ? nan : max);
  stats.set_mean(finite == 0 ? nan : sum / n);
  stats.set_std(finite == 0 ? nan : std::sqrt(squares / n - sum / n * sum / n));
  stats.set_abs_max(finite == 0 ? nan : std::max(std::abs(min), std::abs(max)));
  stats.set_l1(sum);
  stats.set_l2(std::sqrt(squares));
  for (int bin = 0; bin < 8; ++bin) stats.add_histogram(0);
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    const double place = max > min ? (value - min) / (max - min) * 8 : 0;
    const int bin = std::min(7, static_cast<int>(place));
    stats.set_histogram(bin, stats.histogram(bin) + 1);
  }
  return snapshot;
}

FakeAnswer ErrorAnswer(v1::Error::Code code, const std::string& message) {
  FakeAnswer answer;
  v1::Error& error = *answer.responses.emplace_back().mutable_error();
  error.set_code(code);
  error.set_message(message);
  return answer;
}

}  // namespace cgdebug::testing_support
