// A small job with six probes, for tests that harm it. Replay n of each probe holds n, except in
// "expected", which is compared and holds 7.
//
//   six_probes_job ROUNDS [MORE]...   runs so many rounds, prints what it did, waits for a line on
//                                     stdin, and goes on with so many more
//
// After each part, prints one line per probe, and what was thrown meanwhile:
//   probe NAME done DONE accepted N consumed N lost N verdict N compared N
//   error NAME TEXT
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cgdebug/probe.h"

namespace {

using cgdebug::Probe;
using cgdebug::ProbeOptions;

constexpr std::size_t kElements = 100;
constexpr auto kTimeout = std::chrono::seconds(1);

struct Observed {
  const char* name;
  ProbeOptions options;
  std::unique_ptr<Probe> probe;
  unsigned long done = 0;  // calls of Observe() that returned
};

void Tell(const char* name, const std::exception& error) {
  std::printf("error %s %s\n", name, error.what());
}

std::vector<Observed> MakeProbes() {
  std::vector<Observed> all;
  const auto add = [&](const char* name) -> ProbeOptions& {
    all.push_back({name, {}, nullptr});
    all.back().options.mode = cgdebug::ProbeMode::kAlways;
    return all.back().options;
  };
  add("disk").record = cgdebug::RecordAction{8, 1, /*to_disk=*/true};
  add("third").record = cgdebug::RecordAction{8, 3, /*to_disk=*/true};
  add("ring").record = cgdebug::RecordAction{4, 1};
  add("print").print = cgdebug::PrintAction{};
  add("stats").stats = cgdebug::StatsAction{};
  cgdebug::ExpectedTensor expected;
  expected.dtype = cgdebug::Dtype::kFloat32;
  expected.shape = {kElements};
  const std::vector<float> sevens(kElements, 7);
  expected.bytes.resize(kElements * sizeof(float));
  std::memcpy(expected.bytes.data(), sevens.data(), expected.bytes.size());
  add("expected").compare = cgdebug::CompareAction{.expected = {expected}};
  return all;
}

void Observe(Observed* one, float value) {
  try {
    if (one->probe == nullptr) one->probe = std::make_unique<Probe>(one->name, one->options);
    const std::vector<float> values(kElements, value);
    cgdebug::TensorRef tensor;
    tensor.data = values.data();
    tensor.dtype = cgdebug::Dtype::kFloat32;
    tensor.shape = {kElements};
    tensor.device_type = cgdebug::DeviceType::kCpu;
    one->probe->Observe(tensor);
    ++one->done;
  } catch (const std::exception& error) {
    Tell(one->name, error);
  }
}

// Aborts if a value is not that of its replay.
void ShowOne(Observed* one) {
  if (one->probe == nullptr) return;
  one->probe->WaitConsumed(kTimeout);
  for (const cgdebug::Record& record : one->probe->Records()) {
    float values[kElements];
    if (record.payload.size() != sizeof(values)) std::abort();
    std::memcpy(values, record.payload.data(), sizeof(values));
    for (const float value : values) {
      if (value != static_cast<float>(record.replay_index)) std::abort();
    }
  }
  for (const cgdebug::SlotStatus& slot : one->probe->Status().slots) {
    std::printf("probe %s done %lu accepted %lu consumed %lu lost %lu verdict %u compared %lu\n",
                one->name, one->done, static_cast<unsigned long>(slot.accepted),
                static_cast<unsigned long>(slot.consumed), static_cast<unsigned long>(slot.lost),
                static_cast<unsigned>(slot.verdict.state),
                static_cast<unsigned long>(slot.verdict.compared));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<Observed> all = MakeProbes();
    for (int part = 1; part < argc; ++part) {
      if (part > 1 && std::getchar() == EOF) break;
      for (int round = std::atoi(argv[part]); round > 0; --round) {
        for (Observed& one : all) {
          const bool compared = std::strcmp(one.name, "expected") == 0;
          // A refused call is not a replay.
          Observe(&one, compared ? 7 : static_cast<float>(one.done + 1));
        }
      }
      for (Observed& one : all) {
        try {
          ShowOne(&one);
        } catch (const std::exception& error) {
          Tell(one.name, error);
          ShowOne(&one);  // no second call fails
        }
      }
      std::printf("part\n");
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    Tell("job", error);
    return 2;
  }
  return 0;
}
