#include "client/cli/top/top_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "client/cli/views/live/top_view.h"
#include "client/live/probe.h"

namespace cgdebug::cli {
namespace {

constexpr std::uint64_t kSetTtlMs = 5 * 60 * 1000;  // as `set`

// A pattern that selects this name alone.
std::string Exactly(const std::string& name) {
  std::string pattern;
  for (const char byte : name) {
    const bool has_meaning = std::string_view("*?[\\").find(byte) != std::string_view::npos ||
                             (pattern.empty() && (byte == '!' || byte == 'r'));  // "re:"
    if (has_meaning) pattern += '\\';
    pattern += byte;
  }
  return pattern;
}

live::ControlRequest RequestTo(layout::ControlMode mode) {
  live::ControlRequest request;
  request.control.mode = mode;
  request.ttl_ms = kSetTtlMs;
  return request;
}

Said SetText(const std::string& what, layout::ControlMode mode) {
  const bool is_back = mode == layout::ControlMode::kAsRegistered;
  return {fmt::format("{}: {}", what,
                      is_back ? "as registered" : fmt::format("{}, for 5 minutes", NameOf(mode)))};
}

}  // namespace

Said SetOne(client::Client& client, const TopProbe* one, layout::ControlMode mode) {
  if (one == nullptr) return {"the probe is gone", true};
  live::ControlRequest request = RequestTo(mode);
  request.session = one->probe.session;
  request.probes = {Exactly(one->probe.slot.probe)};
  if (!one->probe.slot.qualifier.empty()) {
    request.which.graph =
        one->probe.slot.graph_id == 0 ? "eager" : std::to_string(one->probe.slot.graph_id);
    request.which.shape = one->probe.slot.shape;
  }
  const Result<live::Controlled> reply = live::SetControl(client, request);
  if (!reply.ok()) return {reply.error().message, true};
  return SetText(NameText(*one), mode);
}

Said SetAll(client::Client& client, const TopModel& model, const std::vector<const TopProbe*>& rows,
            layout::ControlMode mode) {
  std::map<std::string, std::vector<std::string>> names;
  for (const TopProbe* one : rows) {
    if (const TopSession* session = model.Find(one->probe.session);
        session == nullptr || session->session.state != live::SessionState::kAlive) {
      continue;
    }
    names[one->probe.session].push_back(Exactly(one->probe.slot.probe));
  }
  if (names.empty()) return {"these jobs have ended; nothing was set", true};
  std::uint32_t probes = 0;
  for (auto& [session, patterns] : names) {
    std::ranges::sort(patterns);
    patterns.erase(std::unique(patterns.begin(), patterns.end()), patterns.end());
    live::ControlRequest request = RequestTo(mode);
    request.session = session;
    request.probes = std::move(patterns);
    const Result<live::Controlled> reply = live::SetControl(client, request);
    if (!reply.ok()) {
      const std::string done = probes == 0 ? "" : fmt::format("only {} set: ", probes);
      return {done + reply.error().message, true};
    }
    probes += reply->probes;
  }
  return SetText(fmt::format("{} probe{}", probes, probes == 1 ? "" : "s"), mode);
}

}  // namespace cgdebug::cli
