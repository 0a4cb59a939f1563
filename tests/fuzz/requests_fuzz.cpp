// Any requests to a small daemon: two jobs, one of them dead, with values, losses and events.
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/wire/frame.h"
#include "daemon/log/log.h"
#include "daemon/serve/handlers.h"
#include "daemon/serve/tail_stream.h"
#include "tests/fuzz/patches.h"
#include "tests/support/daemon/model_fixture.h"

namespace {

using namespace cgdebug;

struct World {
  World() {
    reads.End();  // no ingest thread answers here
    for (const char* label : {"alive", "dead"}) {
      auto session = registry.AddSession(test::MakeIdentity(label[0] == 'd' ? "dead" : "abcd"));
      for (std::uint32_t index = 0; index < 3; ++index) {
        auto slot = test::MakeSlot(session, "blk" + std::to_string(index), index + 1);
        registry.SetSlot(slot, {}, 1, index == 2);
        for (std::uint64_t replay = 1; replay <= 4; ++replay) {
          const auto delivery = test::MakeDelivery(slot, replay, {1, 2});
          store.Put(delivery.snapshot, delivery.payload);
          registry.SetLast(delivery.snapshot);
          events.Add(session, delivery.snapshot);
        }
        events.Add(session, pipeline::Loss{slot, 3, 5, "overwritten before it was read"});
      }
      if (label[0] == 'd') {
        registry.EndSession(session, pipeline::SessionState::kDied, 7);
        events.Add(session, pipeline::SessionChange{true});
      }
    }
  }
  pipeline::Registry registry;
  pipeline::EventLog events;
  pipeline::SnapshotStore store{1 << 20};
  pipeline::ControlQueue controls;
  pipeline::RingReads reads;
  pipeline::Recorder recorder{{}, [](const auto&, const std::string&) {}};
  serve::Model model{&registry, &events, &store, &controls, &reads, &recorder};
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // a line for each string that is not UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World* world = new World;
  static serve::Handlers* handlers = new serve::Handlers(world->model, {});
  v1::Request request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  // Nothing is written to this machine's disk.
  if (request.has_record_start())
    request.mutable_record_start()->set_directory("/dev/null/a.cgrec");
  if (request.has_freeze()) request.mutable_freeze()->set_directory("/dev/null/a.cgrec");
  if (request.has_tail()) {
    v1::Error error;
    auto tail = serve::TailStream::Open(world->model, request.tail(), &error);
    if (!tail) {
      if (error.message().empty()) std::abort();
      return 0;
    }
    tail->Collect();
    for (int i = 0; i < 100 && !tail->finished(); ++i) {
      if (!tail->Next()) break;
    }
    return 0;
  }
  pipeline::PayloadPtr payload;
  const auto fast = handlers->AnswerNow(request, &payload);
  const serve::Answer answer = fast ? *fast : handlers->AnswerSlowly(request, &payload);
  v1::Response response;
  if (!response.ParseFromString(answer.Body())) std::abort();
  if (response.has_error() && response.error().message().empty()) std::abort();
  if (!response.has_error() && response.kind_case() == v1::Response::KIND_NOT_SET) std::abort();
  if (payload != nullptr && response.get().payload_bytes() != payload->size()) std::abort();
  if (!wire::EncodeMessage(wire::FrameKind::kResponse, 0, 1, response).ok()) std::abort();
  (void)world->controls.Take();
  return 0;
}
