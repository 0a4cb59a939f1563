// exporter.h: keeps the text file new and answers HTTP, on a thread of its own.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "daemon/core/base/result.h"
#include "daemon/metrics/export_options.h"
#include "daemon/metrics/page.h"
#include "daemon/metrics/text_file.h"

namespace cgdebug::metrics {

// Thread: one.
class Exporter {
 public:
  // Takes the address and the directory, so that the daemon can say what is wrong before it serves.
  static Result<std::unique_ptr<Exporter>> Open(const ExportOptions& options);
  ~Exporter();  // ends the thread; the text file is gone then
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // Lifetime: `model` outlives the exporter, or Stop() is called before it ends.
  void Start(const Model& model);
  void Stop();

 private:
  explicit Exporter(const ExportOptions& options) : options_(options) {}
  Result<void> Listen();
  std::string Page() const;
  void Accept();
  void WriteFile();

  ExportOptions options_;
  Model model_;
  std::optional<TextFile> file_;
  bool could_write_ = true;
  bool could_accept_ = true;
  std::size_t requests_ = 0;  // that are not answered yet
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_{io_};
  boost::asio::steady_timer timer_{io_};  // of the text file
  boost::asio::steady_timer retry_{io_};  // of accept()
  std::thread thread_;
};

}  // namespace cgdebug::metrics
