// http_request.h: one request for the page of metrics over HTTP, and its answer.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <string>

namespace cgdebug::metrics {

// Lifetime: owned by what it waits for; gone when it is answered, after 10 s at most.
// Thread: that of the socket's executor.
class HttpRequest : public std::enable_shared_from_this<HttpRequest> {
 public:
  // `make_page` is called for a request of /metrics; `ended` is called once.
  HttpRequest(boost::asio::ip::tcp::socket socket, std::function<std::string()> make_page,
              std::function<void()> ended);
  ~HttpRequest();
  HttpRequest(const HttpRequest&) = delete;
  HttpRequest& operator=(const HttpRequest&) = delete;

  void Start();

 private:
  void Answer();

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  boost::beast::http::request_parser<boost::beast::http::empty_body> parser_;
  boost::beast::http::response<boost::beast::http::string_body> response_;
  std::function<std::string()> make_page_;
  std::function<void()> ended_;
};

}  // namespace cgdebug::metrics
