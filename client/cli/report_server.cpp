#include "client/cli/report_server.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

namespace cgdebug::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr auto kPatience = std::chrono::seconds(10);
constexpr std::uint32_t kMaxHeaderBytes = 8192;

struct Page {
  const std::string& html;
  std::string path;  // "/3f2a.../report.html"
};

// One request and its answer. Lifetime: owned by what it waits for, kPatience at most.
class Visit : public std::enable_shared_from_this<Visit> {
 public:
  Visit(tcp::socket socket, const Page& page)
      : stream_(std::move(socket)), buffer_(kMaxHeaderBytes), page_(page) {}

  void Start() {
    parser_.header_limit(kMaxHeaderBytes);
    stream_.expires_after(kPatience);
    http::async_read_header(stream_, buffer_, parser_,
                            [self = shared_from_this()](beast::error_code failure, std::size_t) {
                              if (!failure) self->Answer();
                            });
  }

 private:
  void Answer() {
    const auto& request = parser_.get();
    const bool is_head = request.method() == http::verb::head;
    const bool is_read = request.method() == http::verb::get || is_head;
    const bool is_found = is_read && std::string_view(request.target()) == page_.path;
    answer_.version(11);
    answer_.keep_alive(false);
    answer_.result(is_found ? http::status::ok : http::status::not_found);
    answer_.set(http::field::content_type,
                is_found ? "text/html; charset=utf-8" : "text/plain; charset=utf-8");
    answer_.set(http::field::cache_control, "no-store");
    answer_.set("Referrer-Policy", "no-referrer");
    answer_.body() = is_found ? page_.html : "not found; cgdebug-cli printed the address\n";
    answer_.prepare_payload();
    if (is_head) answer_.body().clear();  // the header keeps the length
    http::async_write(stream_, answer_,
                      [self = shared_from_this()](beast::error_code failure, std::size_t) {
                        if (failure) return;
                        beast::error_code ignored;
                        self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
                      });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> answer_;
  const Page& page_;
};

void Accept(tcp::acceptor* acceptor, const Page& page) {
  acceptor->async_accept([acceptor, &page](beast::error_code failure, tcp::socket socket) {
    if (!failure) std::make_shared<Visit>(std::move(socket), page)->Start();
    if (acceptor->is_open()) Accept(acceptor, page);
  });
}

std::string RandomWord() {
  std::uint64_t numbers[2] = {};
  // Fails only where the kernel has no such call, or before it has gathered any randomness.
  if (::getrandom(numbers, sizeof(numbers), 0) != sizeof(numbers)) return {};
  return fmt::format("{:016x}{:016x}", numbers[0], numbers[1]);
}

bool HasScreen() {
  const auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  return is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
}

}  // namespace

Result<int> ServePage(
    const std::string& html, std::uint16_t port,
    const std::function<void(std::uint16_t port, const std::string& path)>& ready) {
  const std::string word = RandomWord();
  if (word.empty()) return ErrnoError("cannot make a random address");
  const Page page{html, "/" + word + "/report.html"};
  asio::io_context io(1);
  tcp::acceptor acceptor(io);
  const tcp::endpoint here(asio::ip::address_v4::loopback(), port);
  beast::error_code failure;
  acceptor.open(here.protocol(), failure);
  if (!failure) acceptor.set_option(tcp::acceptor::reuse_address(true), failure);
  if (!failure) acceptor.bind(here, failure);
  if (!failure) acceptor.listen(tcp::acceptor::max_listen_connections, failure);
  if (failure) {
    return Error{fmt::format("cannot listen on 127.0.0.1:{}: {}. Leave --port out for a free one",
                             port, failure.message())};
  }
  int signal = 0;
  asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&](beast::error_code, int number) {
    signal = number;
    io.stop();
  });
  Accept(&acceptor, page);
  ready(acceptor.local_endpoint().port(), page.path);
  io.run();
  return signal;
}

Result<void> OpenInBrowser(const std::string& path) {
  const char* chosen = std::getenv("BROWSER");
  const bool is_chosen = chosen != nullptr && *chosen != '\0';
  if (!is_chosen && !HasScreen()) {
    return Error{"there is no screen here to open a browser on. Type the command with --serve"};
  }
  const std::string program = is_chosen ? chosen : "xdg-open";
  const std::string file = std::filesystem::absolute(path);
  std::string words[] = {program, file};
  char* const argv[] = {words[0].data(), words[1].data(), nullptr};
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, program.c_str(), nullptr, nullptr, argv, environ);
  if (failed != 0) {
    return ErrnoError(fmt::format("cannot start {} (BROWSER names another)", program), failed);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return Error{fmt::format("{} could not open {}. Type the command with --serve", program, file)};
}

}  // namespace cgdebug::cli
