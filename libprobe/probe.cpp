// The public face: every call goes to the process's table.
#include "cgdebug/probe.h"

#include "libprobe/capture/cuda_lane.h"
#include "libprobe/capture/step_word.h"
#include "libprobe/probe_table.h"
#include "libprobe/registration.h"

namespace cgdebug {

Probe::Probe(std::string name, ProbeOptions options) : state_(std::make_shared<ProbeState>()) {
  CheckProbe(name, options);
  state_->name = std::move(name);
  state_->options = std::move(options);
  ProbeTable::Instance().Register(state_);
}

Probe::~Probe() { Close(); }
void Probe::Close() { ProbeTable::Instance().Close(*state_); }

const std::string& Probe::name() const { return state_->name; }
std::uint64_t Probe::id() const { return state_->id; }
const std::string& Probe::site() const { return state_->site; }
const ProbeOptions& Probe::options() const { return state_->options; }

void Probe::Observe(const TensorRef& tensor, void* stream) {
  ProbeTable::Instance().Observe(*state_, tensor, stream);
}
void Probe::Prepare(const TensorRef& tensor) { ProbeTable::Instance().Prepare(*state_, tensor); }

std::vector<Record> Probe::Records(int last) const {
  return ProbeTable::Instance().Records(*state_, last);
}
void Probe::ClearRecords() { ProbeTable::Instance().ClearAllRecords(*state_); }
void Probe::ClearRecords(std::uint32_t slot, std::uint64_t ordinal) {
  ProbeTable::Instance().ClearRecords(*state_, slot, ordinal);
}
bool Probe::WaitConsumed(std::chrono::nanoseconds timeout) const {
  return ProbeTable::Instance().WaitConsumed(state_.get(), timeout);
}
ProbeStatus Probe::Status() const { return ProbeTable::Instance().Status(*state_); }

std::shared_ptr<ProbeState> FindProbe(std::string_view site) {
  return ProbeTable::Instance().Find(site);
}
void Observe(ProbeState& probe, const TensorRef& tensor, void* stream) {
  ProbeTable::Instance().Observe(probe, tensor, stream);
}
void Prepare(ProbeState& probe, const TensorRef& tensor) {
  ProbeTable::Instance().Prepare(probe, tensor);
}
const ProbeOptions& OptionsOf(const ProbeState& probe) { return probe.options; }
const std::string& NameOf(const ProbeState& probe) { return probe.name; }
bool IsCapturing(void* stream) { return capture::QueryCapture(stream).capturing; }

void SetStep(std::int64_t step) { ProbeTable::Instance().SetStep(step); }
void SetStepInStreamOrder(std::int64_t step, void* stream) {
  capture::SetStepInStreamOrder(step, stream);
}
GraphLabel SetGraphLabel(GraphLabel label) {
  return ProbeTable::Instance().SetGraphLabel(std::move(label));
}
void SetSiteProvider(SiteProvider provider) { ProbeTable::Instance().SetSiteProvider(provider); }
void SetFallbackAllocator(const DeviceAllocator& allocator) {
  capture::SetFallbackAllocator(allocator);
}
std::optional<SessionInfo> CurrentSession() { return ProbeTable::Instance().Session(); }
std::string Finish(std::chrono::nanoseconds timeout) {
  return ProbeTable::Instance().Finish(timeout);
}
std::string Version() { return CGDEBUG_VERSION; }

}  // namespace cgdebug
