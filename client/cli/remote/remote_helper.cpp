#include "client/cli/remote/remote_helper.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "client/cli/remote/package.h"
#include "client/cli/remote/passwords.h"
#include "proto/layout/url_password.h"

namespace cgdebug::cli {
namespace {

constexpr std::uint32_t kMaxAnswerBytes = 64 << 20;

}  // namespace

RemoteHelper::~RemoteHelper() {
  socket_ = UniqueFd();  // it ends when it sees that
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

Result<void> RemoteHelper::Start(const std::string& url) {
  if (socket_) return {};
  // It imports nothing of the package, so it runs as a program as well.
  const std::filesystem::path module = PackageModule("_remote.py");
  if (module.empty()) {
    return Error{fmt::format(
        "reading {} needs cgdebug's Python package, which is not beside cgdebug-cli. Type: "
        "pip install cgdebug",
        url)};
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError("cannot make a socket pair");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  const std::string python = PythonProgram();
  std::string arguments[] = {python, module.string()};
  char* const argv[] = {arguments[0].data(), arguments[1].data(), nullptr};
  const int failed = posix_spawnp(&pid_, python.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    pid_ = -1;
    return ErrnoError(fmt::format("reading {} needs Python: cannot start {}", url, python), failed);
  }
  socket_ = std::move(ours);
  return {};
}

Error RemoteHelper::Ended() {
  socket_ = UniqueFd();
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  pid_ = -1;
  return Error{"the Python that reads URLs has ended"};
}

bool RemoteHelper::Receive(std::span<std::byte> buffer) {
  while (!buffer.empty()) {
    const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    buffer = buffer.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

Result<Json> RemoteHelper::Ask(const Json& request, std::span<std::byte> buffer) {
  const std::scoped_lock lock(mutex_);
  if (auto started = Start(request.at("url")); !started.ok()) return started.error();
  Json sent_request = request;
  sent_request["url"] = WithPassword(request.at("url"));
  const std::string line = sent_request.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t sent = send(socket_.get(), line.data() + done, line.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return Ended();
    done += static_cast<std::size_t>(sent);
  }
  std::uint32_t bytes = 0;
  if (!Receive(std::as_writable_bytes(std::span(&bytes, 1)))) return Ended();
  std::string text(std::min(bytes, kMaxAnswerBytes), '\0');
  if (bytes > kMaxAnswerBytes || !Receive(std::as_writable_bytes(std::span(text)))) return Ended();
  Json answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return Ended();
  if (answer.contains("error")) return Error{layout::HideUrlPasswords(answer.value("error", ""))};
  if (!buffer.empty() && !Receive(buffer)) return Ended();
  return answer;
}

Result<std::optional<std::vector<recording::RemoteEntry>>> RemoteHelper::List(
    const std::string& url) {
  const Result<Json> answer = Ask({{"do", "entries"}, {"url", url}});
  if (!answer.ok()) return answer.error();
  const Json& found = answer->at("result");
  if (found.is_null()) return std::optional<std::vector<recording::RemoteEntry>>();
  std::vector<recording::RemoteEntry> entries;
  for (const Json& entry : found) {
    entries.push_back({entry.at(0).get<std::string>(), entry.at(1).get<std::uint64_t>(),
                       entry.at(2).get<bool>()});
  }
  return std::optional(std::move(entries));
}

Result<std::uint64_t> RemoteHelper::Size(const std::string& url) {
  const Result<Json> answer = Ask({{"do", "size"}, {"url", url}});
  if (!answer.ok()) return answer.error();
  return answer->at("result").get<std::uint64_t>();
}

Result<void> RemoteHelper::Fetch(const std::string& url, std::uint64_t offset,
                                 std::span<std::byte> buffer) {
  const Result<Json> answer =
      Ask({{"do", "read"}, {"url", url}, {"offset", offset}, {"count", buffer.size()}}, buffer);
  if (!answer.ok()) return answer.error();
  return {};
}

}  // namespace cgdebug::cli
