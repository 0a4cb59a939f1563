#include "daemon/log/log.h"

#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/base/suggest.h"

// The spdlog library contains the sink for its own mutexes only.
#ifndef SPDLOG_HEADER_ONLY
#include <spdlog/sinks/base_sink-inl.h>
#endif

namespace cgdebug {
namespace {

using spdlog::level::level_enum;

struct Levels {
  level_enum fallback = spdlog::level::info;
  std::map<std::string, level_enum, std::less<>> of_component;

  level_enum Of(std::string_view component) const {
    const auto it = of_component.find(component);
    return it == of_component.end() ? fallback : it->second;
  }
};

std::optional<level_enum> ParseLevel(std::string_view name) {
  static constexpr std::pair<std::string_view, level_enum> kLevels[] = {
      {"trace", spdlog::level::trace},       {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},         {"warn", spdlog::level::warn},
      {"warning", spdlog::level::warn},      {"error", spdlog::level::err},
      {"critical", spdlog::level::critical}, {"off", spdlog::level::off}};
  for (const auto& [known, level] : kLevels) {
    if (known == name) return level;
  }
  return std::nullopt;
}

Error UnknownWord(std::string_view word) {
  std::vector<std::string> names = {"trace", "debug", "info", "warn", "error", "critical", "off"};
  names.insert(names.end(), kLogComponents.begin(), kLogComponents.end());
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  return Error{"log filter: '" + std::string(word) + "' is neither a level nor a component." +
               DidYouMean(word, names) + " Known: " + known +
               ". Type for example: CGDEBUG_LOG=+ingest,rpc"};
}

Result<Levels> ParseFilter(std::string_view filter) {
  Levels levels;
  while (!filter.empty()) {
    const std::size_t comma = std::min(filter.find(','), filter.size());
    std::string_view item = filter.substr(0, comma);
    filter.remove_prefix(std::min(comma + 1, filter.size()));
    if (item.empty()) continue;
    if (const auto level = ParseLevel(item)) {
      levels.fallback = *level;
      continue;
    }
    level_enum level = spdlog::level::info;
    if (item.front() == '+') level = spdlog::level::debug;
    if (item.front() == '-') level = spdlog::level::err;
    if (item.front() == '+' || item.front() == '-') item.remove_prefix(1);
    if (item.empty() || item == "all") {
      levels.fallback = level;
    } else if (std::find(kLogComponents.begin(), kLogComponents.end(), item) !=
               kLogComponents.end()) {
      levels.of_component[std::string(item)] = level;
    } else {
      return UnknownWord(item);
    }
  }
  return levels;
}

thread_local bool holds_log = false;

// Tells whether the calling thread holds it.
class LogMutex {
 public:
  void lock() {
    mutex_.lock();
    holds_log = true;
  }
  void unlock() {
    holds_log = false;
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
};

// Forwards what reaches its component's level, keeps the rest for the next error.
class BacktraceSink final : public spdlog::sinks::base_sink<LogMutex> {
 public:
  BacktraceSink(Levels levels, spdlog::sink_ptr target)
      : levels_(std::move(levels)), target_(std::move(target)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view component(message.logger_name.data(), message.logger_name.size());
    if (message.level < levels_.Of(component)) {
      if (kept_.size() == kLogBacktraceMessages) kept_.pop_front();
      kept_.emplace_back(message);
      return;
    }
    if (message.level >= spdlog::level::err && !kept_.empty()) DumpKept(message);
    target_->log(message);
    if (message.level >= spdlog::level::warn) target_->flush();
  }
  void flush_() override { target_->flush(); }
  void set_pattern_(const std::string& pattern) override { target_->set_pattern(pattern); }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    target_->set_formatter(std::move(formatter));
  }

 private:
  void DumpKept(const spdlog::details::log_msg& cause) {
    const auto mark = [&](const std::string& text) {
      target_->log(spdlog::details::log_msg(cause.logger_name, spdlog::level::info, text));
    };
    mark("-- what led to the next error, " + std::to_string(kept_.size()) + " messages --");
    for (const spdlog::details::log_msg_buffer& kept : kept_) target_->log(kept);
    mark("-- end --");
    kept_.clear();
  }

  Levels levels_;
  spdlog::sink_ptr target_;
  std::deque<spdlog::details::log_msg_buffer> kept_;
};

spdlog::sink_ptr MakeTarget(const LogOptions& options) {
  if (options.file.empty()) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  return std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
      options.file, options.max_file_bytes, std::max<std::size_t>(options.max_files, 1) - 1);
}

}  // namespace

Result<void> InitLog(const LogOptions& options) {
  std::string filter = options.filter;
  if (const char* from_env = std::getenv("CGDEBUG_LOG"); filter.empty() && from_env != nullptr) {
    filter = from_env;
  }
  Result<Levels> levels = ParseFilter(filter);
  if (!levels.ok()) return std::move(levels).error();
  try {
    const auto sink = std::make_shared<BacktraceSink>(*levels, MakeTarget(options));
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %n: %v");
    spdlog::drop_all();
    for (const std::string_view component : kLogComponents) {
      auto logger = std::make_shared<spdlog::logger>(std::string(component), sink);
      logger->set_level(std::min(levels->Of(component), spdlog::level::debug));
      if (component == kLogComponents.front()) {
        spdlog::set_default_logger(std::move(logger));
      } else {
        spdlog::register_logger(std::move(logger));
      }
    }
  } catch (const spdlog::spdlog_ex& failure) {
    return Error{"cannot open the log file '" + options.file + "': " + failure.what() +
                 ". Give another path, or none to log to stderr."};
  }
  return {};
}

bool IsLogging() { return holds_log; }

std::shared_ptr<spdlog::logger> Log(LogComponent component) {
  std::shared_ptr<spdlog::logger> logger = spdlog::get(std::string(component.name()));
  return logger == nullptr ? spdlog::default_logger() : logger;
}

}  // namespace cgdebug
