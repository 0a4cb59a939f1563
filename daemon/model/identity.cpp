#include "daemon/model/identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/model/text.h"

namespace cgdebug::pipeline {
namespace {

std::string Basename(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The script's name: "train" for "python -u train.py --lr 1", "pkg.main" for "python -m pkg.main",
// "bench" for "./bench 3".
std::string ScriptName(const std::string& command) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < command.size();) {
    const std::size_t end = std::min(command.find(' ', begin), command.size());
    if (end > begin) words.push_back(command.substr(begin, end - begin));
    begin = end + 1;
  }
  if (words.empty()) return "job";
  std::string script = Basename(words[0]);
  if (script.starts_with("python")) {
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (words[i] == "-m" && i + 1 < words.size()) return words[i + 1];
      if (words[i] == "-c") break;
      if (words[i].front() == '-') {
        if (words[i] == "-W" || words[i] == "-X") ++i;  // these options take the next word
        continue;
      }
      script = Basename(words[i]);
      break;
    }
  }
  if (script.ends_with(".py")) script.resize(script.size() - 3);
  return script.empty() ? "job" : script;
}

}  // namespace

SessionIdentity MakeSessionIdentity(const std::string& segment, const std::string& uuid,
                                    const layout::SegmentHeader& header, std::int32_t lock_holder) {
  SessionIdentity session;
  session.segment = segment;
  session.uuid = uuid;
  session.run_id = CleanText(header.run_id);
  session.command = CleanText(header.command);
  session.hostname = CleanText(header.hostname);
  session.version = CleanText(header.version);
  session.pid = header.pid;
  session.is_pid_true = lock_holder > 0 && lock_holder == header.pid;
  session.rank = header.rank;
  session.world_size = header.world_size;
  session.restart_count = header.restart_count;
  session.local_rank = header.local_rank;
  session.local_world_size = header.local_world_size;
  session.pid_namespace = header.pid_namespace;
  session.pid_start_ticks = header.pid_start_ticks;
  session.created_ns = header.created_ns;
  session.recordings = header.recordings;
  // "ddp-9c01ab", as `cgdebug-cli run` calls its jobs.
  if (session.run_id.empty() && session.rank >= 0 && header.launch != 0) {
    session.run_id =
        fmt::format("{}-{:06x}", ScriptName(session.command), header.launch & 0xffffff);
  }
  session.label = !session.run_id.empty()
                      ? session.run_id
                      : ScriptName(session.command) + "-" + std::to_string(session.pid);
  if (session.rank >= 0) session.label += "/r" + std::to_string(session.rank);
  return session;
}

SlotIdentity MakeSlotIdentity(SessionPtr session, std::uint32_t index, std::uint64_t generation,
                              const layout::SlotRegistration& registration) {
  SlotIdentity slot;
  slot.session = std::move(session);
  slot.index = index;
  slot.generation = generation;
  slot.registration = registration;
  slot.dtype = static_cast<layout::Dtype>(registration.dtype);
  slot.shape.assign(registration.shape, registration.shape + registration.dims);
  slot.probe = CleanText(registration.name);
  slot.site = CleanText(registration.site);
  slot.shard = CleanText(registration.shard);
  slot.part = CleanText(registration.part);
  slot.op = CleanText(registration.op);
  slot.graph_label = CleanText(registration.graph_label);
  slot.device =
      static_cast<layout::DeviceType>(registration.device_type) == layout::DeviceType::kCuda
          ? "cuda:" + std::to_string(registration.device_index)
          : "cpu";
  return slot;
}

SlotIdentity MakeRowIdentity(const SlotIdentity& page, std::size_t number,
                             const ring::OpLogRow& row) {
  SlotIdentity slot = page;
  slot.index =
      layout::kMaxSlots + page.index * layout::kMaxOpLogRows + static_cast<std::uint32_t>(number);
  slot.dtype = row.dtype;
  slot.shape = row.shape;
  slot.probe = CleanText(row.name);
  slot.site = CleanText(row.site);
  slot.op = CleanText(row.op);
  slot.details = CleanText(row.details);
  slot.launch = row.launch;
  layout::SlotFacts& r = slot.registration;
  r.probe_id = row.probe_id;
  r.invocation = row.invocation;
  r.order += number;
  r.dtype = static_cast<std::uint16_t>(row.dtype);
  r.dims = static_cast<std::uint8_t>(row.shape.size());
  std::copy(row.shape.begin(), row.shape.end(), r.shape);
  r.payload_bytes = sizeof(layout::DeviceStats);
  r.flags = layout::kSlotHoldsStats | (r.flags & (layout::kSlotLossless | layout::kSlotInBody));
  r.actions = layout::kActionStats;
  r.stats_every = std::exchange(r.record_every, 0);
  return slot;
}

}  // namespace cgdebug::pipeline
