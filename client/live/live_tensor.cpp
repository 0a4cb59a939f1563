#include "client/live/live_tensor.h"

#include <fmt/format.h>

#include <charconv>

#include "client/live/messages.h"
#include "client/live/sessions.h"

namespace cgdebug::live {
namespace {

// The session of that rank that comes first.
Result<std::string> SessionOfRank(client::Client& client, const std::string& selector, int rank) {
  const Result<std::vector<Session>> sessions = ListSessions(client);
  if (!sessions.ok()) return sessions.error();
  const Session* first = nullptr;
  for (const Session& session : *sessions) {
    if (session.rank != rank || !MatchesSession(session, selector)) continue;
    if (first == nullptr || ComesFirst(session, *first)) first = &session;
  }
  if (first != nullptr) return first->key;
  return Error{fmt::format("no session{} has rank {}. Type: cgdebug-cli ps -a",
                           selector.empty() ? "" : " '" + selector + "'", rank)};
}

Result<source::Tensor> Get(client::Client& client, const v1::GetRequest& request) {
  Result<client::Tensor> tensor = client.Get(request);
  if (!tensor.ok()) return tensor.error();
  return TensorOf(*std::move(tensor));
}

}  // namespace

Result<source::Tensor> GetTensor(client::Client& client, const TensorName& name) {
  v1::GetRequest request;
  request.set_session(name.session);
  if (name.rank) {
    const Result<std::string> session = SessionOfRank(client, name.session, *name.rank);
    if (!session.ok()) return session.error();
    request.set_session(*session);
  }
  request.set_replay(name.replay);
  if (name.iteration) request.set_iteration(*name.iteration);
  FillWhich(name.which, request.mutable_which());
  request.set_probe(name.probe);
  request.set_invocation(0);
  Result<source::Tensor> tensor = Get(client, request);
  const std::size_t mark = name.probe.rfind('#');
  if (tensor.ok() || mark == std::string::npos ||
      client.last_failure() != client::Failure::kNothingMatched) {
    return tensor;
  }
  std::uint32_t invocation = 0;
  const char* end = name.probe.data() + name.probe.size();
  const auto parsed = std::from_chars(name.probe.data() + mark + 1, end, invocation);
  if (parsed.ec != std::errc() || parsed.ptr != end) return tensor;
  request.set_probe(name.probe.substr(0, mark));
  request.set_invocation(invocation);
  return Get(client, request);
}

}  // namespace cgdebug::live
