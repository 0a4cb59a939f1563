#include "daemon/metrics/http_request.h"

#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <utility>

namespace cgdebug::metrics {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr auto kPatience = std::chrono::seconds(10);
constexpr std::uint32_t kMaxHeaderBytes = 8192;

constexpr const char* kIndex =
    "<!doctype html><html lang=\"en\"><title>cgdebug-daemon</title>"
    "<h1>cgdebug-daemon " CGDEBUG_VERSION
    "</h1><p><a href=\"/metrics\">Metrics</a> for Prometheus.</p></html>\n";

}  // namespace

HttpRequest::HttpRequest(boost::asio::ip::tcp::socket socket,
                         std::function<std::string()> make_page, std::function<void()> ended)
    : stream_(std::move(socket)),
      buffer_(kMaxHeaderBytes),
      make_page_(std::move(make_page)),
      ended_(std::move(ended)) {}

HttpRequest::~HttpRequest() { ended_(); }

void HttpRequest::Start() {
  parser_.header_limit(kMaxHeaderBytes);
  stream_.expires_after(kPatience);
  http::async_read_header(stream_, buffer_, parser_,
                          [self = shared_from_this()](beast::error_code failure, std::size_t) {
                            if (!failure) self->Answer();
                          });
}

void HttpRequest::Answer() {
  const auto& request = parser_.get();
  const beast::string_view path = request.target().substr(0, request.target().find('?'));
  const bool is_head = request.method() == http::verb::head;
  response_.version(11);
  response_.keep_alive(false);
  response_.set(http::field::server, "cgdebug-daemon/" CGDEBUG_VERSION);
  response_.set(http::field::content_type, "text/plain; charset=utf-8");
  if (request.method() != http::verb::get && !is_head) {
    response_.result(http::status::method_not_allowed);
    response_.set(http::field::allow, "GET, HEAD");
    response_.body() = "only GET and HEAD\n";
  } else if (path == "/metrics") {
    response_.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response_.body() = make_page_();
  } else if (path == "/") {
    response_.set(http::field::content_type, "text/html; charset=utf-8");
    response_.body() = kIndex;
  } else {
    response_.result(http::status::not_found);
    response_.body() = "not found; the metrics are at /metrics\n";
  }
  response_.prepare_payload();
  if (is_head) response_.body().clear();  // the header keeps the length
  http::async_write(
      stream_, response_, [self = shared_from_this()](beast::error_code failure, std::size_t) {
        if (failure) return;
        beast::error_code ignored;
        self->stream_.socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
      });
}

}  // namespace cgdebug::metrics
