#include "client/cli/remote/job_questions.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/live/sessions.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/endpoint/runtime_dir.h"

namespace cgdebug::cli {
namespace {

constexpr std::size_t kMostAnswerBytes = std::size_t{256} << 20;

Result<std::filesystem::path> DirectoryOf(const Context& context) {
  const Result<std::string> daemon =
      SocketPath(RuntimeEnvironment::OfThisProcess(), context.options.socket);
  if (!daemon.ok()) return daemon.error();
  return std::filesystem::path(*daemon).parent_path();
}

Error SystemError(const std::string& what) {
  return Error{what + ": " + std::generic_category().message(errno)};
}

Result<UniqueFd> ConnectTo(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return Error{path + " is too long for a socket"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return SystemError("socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return SystemError(path);
  }
  return socket;
}

bool IsSocketOf(const std::string& path) { return ConnectTo(path).ok(); }

// The processes that take questions: their numbers, by the sockets beside the daemon's.
std::set<std::int64_t> Listening(const std::filesystem::path& directory) {
  std::set<std::int64_t> found;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failed)) {
    const std::string name = entry.path().filename();
    long long pid = 0;
    if (std::sscanf(name.c_str(), "ask-%lld.sock", &pid) == 1 && IsSocketOf(entry.path())) {
      found.insert(pid);
    }
  }
  return found;
}

Result<void> Send(int socket, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t part = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return SystemError("the question did not reach the job");
    sent += static_cast<std::size_t>(part);
  }
  return {};
}

// All that comes until the job closes.
Result<std::string> Receive(int socket) {
  std::string all;
  std::array<char, 1 << 16> part = {};
  while (all.size() < kMostAnswerBytes) {
    const ssize_t got = ::recv(socket, part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("the answer of the job");
    if (got == 0) return all;
    all.append(part.data(), static_cast<std::size_t>(got));
  }
  return Error{"the answer of the job is too long"};
}

// "EXIT TEXT JSON\n", and the two parts.
Result<JobAnswer> ParseAnswer(const std::string& all) {
  const std::size_t line = all.find('\n');
  unsigned code = 0;
  std::size_t text = 0, json = 0;
  if (line == std::string::npos ||
      std::sscanf(all.c_str(), "%u %zu %zu", &code, &text, &json) != 3 ||
      all.size() != line + 1 + text + json || code > kExitTimeout) {
    return Error{"the job ended, or closed the connection, before it had answered"};
  }
  JobAnswer answer{.code = static_cast<int>(code), .text = all.substr(line + 1, text)};
  answer.json = Json::parse(all.substr(line + 1 + text), nullptr, /*allow_exceptions=*/false);
  if (answer.json.is_discarded()) return Error{"this version cannot read what the job answers"};
  return answer;
}

// What the process says of its graphs; nothing: it takes no questions, or hangs.
std::optional<Json> AskForGraphs(const Context& context, std::int64_t pid) {
  const Result<JobAnswer> answer = AskJob(context, pid, {{"list", true}}, std::chrono::seconds(1));
  if (!answer.ok() || !answer->json.contains("graphs")) return std::nullopt;
  return answer->json["graphs"];
}

// Whether `selector` is a number, and that of no process.
bool IsNoPid(const std::string& selector) {
  std::error_code failed;
  return !selector.empty() && selector.find_first_not_of("0123456789") == std::string::npos &&
         !std::filesystem::exists("/proc/" + selector, failed);
}

}  // namespace

int FindJobToAsk(Context& context, const std::string& selector, std::int64_t* pid) {
  const Result<std::filesystem::path> directory = DirectoryOf(context);
  if (!directory.ok()) return context.Fail(kExitTrouble, directory.error().message);
  const std::set<std::int64_t> listening = Listening(*directory);
  const Result<std::vector<live::Session>> sessions = live::ListSessions(context.client());
  if (!sessions.ok()) return context.Fail(sessions.error());
  std::map<std::int64_t, std::string> meant;
  std::string silent;
  std::string ended;
  for (const live::Session& one : *sessions) {
    if (!live::MatchesSession(one, selector) || !context.ranks.Contains(one.rank)) continue;
    const std::int64_t process = one.pid;
    if (one.state != live::SessionState::kAlive) {
      ended = one.key;
    } else if (listening.contains(process)) {
      meant[process] = one.key;
    } else {
      silent = one.key;
    }
  }
  if (meant.empty()) {
    for (const std::int64_t one : listening) {
      if (selector.empty() || selector == std::to_string(one)) meant[one] = std::to_string(one);
    }
  }
  if (meant.empty() && !silent.empty()) {
    return context.Fail(
        kExitNoMatch,
        fmt::format("job {} takes no questions: it was not started to, or has captured no graph. "
                    "Type: cgdebug-cli run --rewind 64 -- COMMAND",
                    silent));
  }
  const std::string gone = !ended.empty()      ? fmt::format("job {} has ended", ended)
                           : IsNoPid(selector) ? fmt::format("there is no process {}", selector)
                                               : "";
  if (meant.empty() && !selector.empty() && !gone.empty()) {
    return context.FailNoJob(
        fmt::format("{}, and a job answers by itself, while it replays. Start it again: "
                    "cgdebug-cli run --rewind 64 -- COMMAND",
                    gone));
  }
  if (meant.empty()) {
    return context.FailNoJob(
        "no job takes questions. Type: cgdebug-cli run --rewind 64 -- COMMAND");
  }
  if (meant.size() > 1) {
    std::string keys;
    for (const auto& [process, key] : meant) keys += " " + key;
    return context.Fail(kExitNoMatch,
                        fmt::format("{} processes are meant, and one answers:{}. Type: cgdebug-cli "
                                    "ask {}",
                                    meant.size(), keys, meant.begin()->second));
  }
  *pid = meant.begin()->first;
  return kExitOk;
}

Result<JobAnswer> AskJob(const Context& context, std::int64_t pid, const Json& question,
                         std::chrono::seconds most) {
  const Result<std::filesystem::path> directory = DirectoryOf(context);
  if (!directory.ok()) return directory.error();
  const Result<UniqueFd> socket = ConnectTo(*directory / fmt::format("ask-{}.sock", pid));
  if (!socket.ok()) return socket.error();
  const timeval limit = {.tv_sec = most.count(), .tv_usec = 0};
  if (::setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) {
    return SystemError("setsockopt");
  }
  if (const Result<void> sent = Send(socket->get(), question.dump() + "\n"); !sent.ok()) {
    return sent.error();
  }
  const Result<std::string> all = Receive(socket->get());
  if (!all.ok()) return all.error();
  return ParseAnswer(*all);
}

std::optional<std::map<std::uint64_t, std::string>> GraphsApartOf(const Context& context,
                                                                  std::int64_t pid) {
  const std::optional<Json> graphs = AskForGraphs(context, pid);
  if (!graphs) return std::nullopt;
  std::map<std::uint64_t, std::string> found;
  for (const Json& graph : *graphs) {
    found[graph.value("capture", std::uint64_t{0})] = graph.value("why_not_apart", "");
  }
  return found;
}

KeptReplays KeptReplaysOf(const Context& context, std::int64_t pid) {
  KeptReplays kept;
  for (const Json& graph : AskForGraphs(context, pid).value_or(Json::array())) {
    const auto bytes = graph.value("bytes", std::uint64_t{0});
    if (bytes > 0) ++kept.graphs;
    kept.bytes += bytes;
    const auto frozen_at = graph.value("frozen_at", std::uint64_t{0});
    if (frozen_at > 0 && (kept.frozen_at == 0 || frozen_at < kept.frozen_at)) {
      kept.frozen_at = frozen_at;
    }
  }
  return kept;
}

}  // namespace cgdebug::cli
