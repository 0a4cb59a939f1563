#include "daemon/metrics/exporter.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "daemon/log/log.h"
#include "daemon/metrics/http_request.h"

namespace cgdebug::metrics {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kMaxRequests = 32;
constexpr auto kAcceptRetry = std::chrono::milliseconds(200);

// The host without brackets, and the port. Requires: ParseListen took `text`.
std::pair<std::string, std::string> SplitListen(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return {std::move(host), text.substr(colon + 1)};
}

}  // namespace

Result<std::string> ParseListen(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string host = text.substr(0, colon);
  const bool has_brackets = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  const bool is_host =
      has_brackets || (!host.empty() && host.find_first_of(":[]") == std::string::npos);
  unsigned port = 0;
  const char* end = text.data() + text.size();
  const bool is_port =
      colon != std::string::npos &&
      std::from_chars(text.data() + colon + 1, end, port) == std::from_chars_result{end, {}} &&
      port <= UINT16_MAX;
  if (is_host && is_port) return text;
  return Error{"'" + text +
               "' is not HOST:PORT. Give localhost:9400, [::1]:9400, or 0.0.0.0:9400 for everyone "
               "who reaches this machine"};
}

Result<std::unique_ptr<Exporter>> Exporter::Open(const ExportOptions& options) {
  std::unique_ptr<Exporter> exporter(new Exporter(options));
  if (!options.textfile.empty()) {
    Result<TextFile> file = TextFile::Open(options.textfile);
    if (!file.ok()) return std::move(file).error();
    exporter->file_.emplace(*std::move(file));
  }
  if (!options.listen.empty()) {
    Result<void> listening = exporter->Listen();
    if (!listening.ok()) return std::move(listening).error();
  }
  return exporter;
}

Exporter::~Exporter() { Stop(); }

Result<void> Exporter::Listen() {
  const auto [host, port] = SplitListen(options_.listen);
  boost::system::error_code failure;
  const tcp::resolver::results_type found = tcp::resolver(io_).resolve(
      host, port, tcp::resolver::passive | tcp::resolver::numeric_service, failure);
  std::vector<tcp::endpoint> endpoints(found.begin(), found.end());
  // "localhost" is both, and most clients try 127.0.0.1.
  std::stable_partition(endpoints.begin(), endpoints.end(),
                        [](const tcp::endpoint& one) { return one.address().is_v4(); });
  for (const tcp::endpoint& endpoint : endpoints) {
    acceptor_.open(endpoint.protocol(), failure);
    if (!failure) acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
    if (!failure) acceptor_.bind(endpoint, failure);
    if (!failure) acceptor_.listen(tcp::acceptor::max_listen_connections, failure);
    if (!failure) return {};
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    // Else it would be "[::1]:9400" instead, while clients of localhost:9400 ask somebody else.
    if (failure == asio::error::address_in_use) break;
  }
  return Error{
      fmt::format("--metrics-listen: cannot listen on {}: {}", options_.listen, failure.message())};
}

void Exporter::Start(const Model& model) {
  model_ = model;
  if (acceptor_.is_open()) {
    const tcp::endpoint here = acceptor_.local_endpoint();
    const std::string host = here.address().to_string();
    Log("daemon")->info("metrics on http://{}:{}/metrics",
                        here.address().is_v6() ? "[" + host + "]" : host, here.port());
    Accept();
  }
  if (file_) {
    Log("daemon")->info("metrics in {}", file_->path());
    WriteFile();
  }
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "cgdebug-metrics");
    io_.run();
  });
}

void Exporter::Stop() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

std::string Exporter::Page() const { return MakePage(model_, {.probes = options_.probes}); }

void Exporter::Accept() {
  acceptor_.async_accept([this](boost::system::error_code failure, tcp::socket socket) {
    if (!failure) {
      could_accept_ = true;
      if (requests_ < kMaxRequests) {
        ++requests_;
        std::make_shared<HttpRequest>(
            std::move(socket), [this] { return Page(); }, [this] { --requests_; })
            ->Start();
      }
      return Accept();
    }
    // Most likely out of descriptors.
    if (std::exchange(could_accept_, false)) {
      Log("daemon")->warn("metrics: cannot accept a request: {}; tried again every {} ms",
                          failure.message(), kAcceptRetry.count());
    }
    retry_.expires_after(kAcceptRetry);
    retry_.async_wait([this](boost::system::error_code) { Accept(); });
  });
}

void Exporter::WriteFile() {
  const Result<void> written = file_->Replace(Page());
  if (!written.ok() && could_write_) {
    Log("daemon")->warn("metrics: {}; tried again every {} ms", written.error().message,
                        options_.interval.count());
  }
  could_write_ = written.ok();
  timer_.expires_after(options_.interval);
  timer_.async_wait([this](boost::system::error_code) { WriteFile(); });
}

}  // namespace cgdebug::metrics
