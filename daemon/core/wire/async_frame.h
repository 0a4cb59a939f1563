// async_frame.h: reads frames from a Boost.Asio stream, for the daemon.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/read.hpp>
#include <cstddef>
#include <string>
#include <utility>

#include "daemon/core/wire/frame.h"

namespace cgdebug::wire {

// Reads from one connection. Calls its handler once per Read, with
//   (true, "")      `frame` is complete
//   (false, "")     the peer closed between two frames
//   (false, why)    the peer is broken or hostile: close the connection
//
// Thread: the stream's executor; one Read at a time.
// Lifetime: the caller keeps the reader and the stream alive until the handler has run (a
//           shared_ptr in the handler does).
class AsyncFrameReader {
 public:
  // `max_body_bytes` is what this end accepts, below the limits of frame.h. It is checked before
  // the body is allocated.
  explicit AsyncFrameReader(std::uint32_t max_body_bytes = kMaxMessageBytes)
      : max_body_bytes_(max_body_bytes) {}

  template <typename Stream, typename Handler>
  void Read(Stream& stream, Handler handler) {
    boost::asio::async_read(stream, boost::asio::buffer(header_bytes_),
                            [this, &stream, handler = std::move(handler)](
                                boost::system::error_code failure, std::size_t got_bytes) mutable {
                              if (failure == boost::asio::error::eof && got_bytes == 0)
                                return handler(false, "");
                              if (failure) return handler(false, failure.message());
                              const Result<FrameHeader> header = ParseHeader(header_bytes_);
                              if (!header.ok()) return handler(false, header.error().message);
                              if (header->body_bytes > max_body_bytes_) {
                                return handler(
                                    false, "a frame of " + std::to_string(header->body_bytes) +
                                               " bytes, at most " +
                                               std::to_string(max_body_bytes_) + " are allowed");
                              }
                              frame_.header = *header;
                              frame_.body.resize(header->body_bytes);
                              ReadBody(stream, std::move(handler));
                            });
  }

  Frame& frame() { return frame_; }

 private:
  template <typename Stream, typename Handler>
  void ReadBody(Stream& stream, Handler handler) {
    boost::asio::async_read(
        stream, boost::asio::buffer(frame_.body),
        [handler = std::move(handler)](boost::system::error_code failure, std::size_t) mutable {
          handler(!failure, failure ? failure.message() : std::string());
        });
  }

  std::uint32_t max_body_bytes_;
  std::array<std::byte, kHeaderBytes> header_bytes_{};
  Frame frame_;
};

}  // namespace cgdebug::wire
