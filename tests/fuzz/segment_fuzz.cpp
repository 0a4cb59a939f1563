// The daemon's ingest on a segment whose job writes anything into it, before it is found and while
// it is read: control file, directory, extent, registrations, rings, credits.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/ingest/attached_segment.h"
#include "daemon/ingest/sigbus_guard.h"
#include "daemon/pipeline/fan_out.h"
#include "daemon/sinks/compare_sink.h"
#include "daemon/sinks/memory_sink.h"
#include "daemon/sinks/model_sink.h"
#include "tests/fuzz/patches.h"
#include "tests/support/private_shm.h"
#include "tests/support/ring/op_log_fixture.h"
#include "tests/support/ring/ring_fixture.h"

namespace {

using namespace cgdebug;

// Checks that each delivery fits its slot's registration, and comes once and in order.
class CheckSink final : public pipeline::Sink {
 public:
  void Consume(const pipeline::Delivery& delivery, pipeline::SlotFeedback&) override {
    const pipeline::Snapshot& snapshot = *delivery.snapshot;
    if (delivery.payload != nullptr &&
        delivery.payload->size() != snapshot.slot->registration.payload_bytes) {
      std::abort();
    }
    if (snapshot.slot->probe.size() > layout::kMaxNameBytes) std::abort();
    if (delivery.seen_before) return;
    std::uint64_t& last = last_[snapshot.slot];
    if (snapshot.ordinal <= last) std::abort();
    last = snapshot.ordinal;
  }

 private:
  std::map<pipeline::SlotPtr, std::uint64_t> last_;
};

void KeepAnother(const std::string& path) {
  if (link(path.c_str(), (path + ".fuzz").c_str()) != 0) std::abort();
}

// A file of the segment: its original content, and the job's mapping of it.
class File {
 public:
  // Removes the copy it keeps, in case it lies in the machine's own /dev/shm.
  ~File() { unlink((path_ + ".fuzz").c_str()); }
  explicit File(std::string path) : path_(std::move(path)) {
    fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    struct stat info = {};
    if (fd_ < 0 || fstat(fd_, &info) != 0) std::abort();
    bytes_ = static_cast<std::size_t>(info.st_size);
    map_ =
        static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    if (map_ == MAP_FAILED) std::abort();
    whole_.assign(map_, map_ + std::min(bytes_, kChanged));
    KeepAnother(path_);
  }
  // Restores content and name: the daemon removes what jobs leave.
  void Restore() {
    if (cut_ && ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) std::abort();
    cut_ = false;
    std::memcpy(map_, whole_.data(), whole_.size());
    if (access(path_.c_str(), F_OK) != 0 && link((path_ + ".fuzz").c_str(), path_.c_str()) != 0) {
      std::abort();
    }
  }
  std::span<std::byte> changed() { return {map_, whole_.size()}; }
  void CutOff() {
    cut_ = true;
    if (ftruncate(fd_, 4096) != 0) std::abort();
  }
  bool cut() const { return cut_; }

 private:
  static constexpr std::size_t kChanged = 12 * 4096;
  std::string path_;
  int fd_ = -1;
  std::size_t bytes_ = 0;
  std::byte* map_ = nullptr;
  std::vector<std::byte> whole_;
  bool cut_ = false;
};

struct World {
  World() {
    ingest::SigbusGuard::Install();
    auto recorded = test::MakeSlot("recorded", 5, 3);
    auto compared = test::MakeSlot("compared", 4, 2, layout::Policy::kWait);
    compared.order = 2;
    compared.actions = layout::kActionCompare;
    compared.compare_every = 1;
    const ring::Block expected = segment.Allocate(16, 0);
    compared.expected_extent = expected.extent;
    compared.expected_offset = expected.offset;
    for (const auto& registration : {recorded, compared}) {
      const test::Slot slot = test::PublishSlot(segment, registration);
      ring::SlotRingWriter writer(slot.block.data, segment.producer(), segment.gate());
      for (std::int32_t replay = 1; replay <= 5; ++replay) test::WriteNumbers(writer, replay);
    }
    auto op_log = test::MakeOpLogSlot(segment, test::MakeRows(3), 2);
    op_log.order = 3;
    const test::Slot page = test::PublishSlot(segment, op_log);
    ring::SlotRingWriter writer(page.block.data, segment.producer(), segment.gate());
    for (std::size_t replay = 0; replay < 3; ++replay) test::WriteRows(writer, replay);
    control = std::make_unique<File>(ring::ShmPath(segment.name()));
    extent = std::make_unique<File>(ring::ShmPath(segment.name() + ".1"));
  }
  ~World() {
    control->Restore();  // it may be cut off
    segment.Close(/*unlink=*/true);
  }
  ring::SegmentWriter segment{ring::Identity{}};
  std::unique_ptr<File> control;
  std::unique_ptr<File> extent;
};

void Change(World* world, fuzz::Input* input) {
  const auto what = input->Take<std::uint8_t>();
  if (!world->control->cut()) fuzz::Patch(input, world->control->changed());
  if (!world->extent->cut()) fuzz::Patch(input, world->extent->changed());
  if (what == 0xf1) world->extent->CutOff();
  if (what == 0xf2) world->control->CutOff();
}

void Pass(ingest::AttachedSegment* segment) {
  std::vector<ingest::SlotConsumer*> ready;
  segment->BeginPass(true, &ready);
  for (ingest::SlotConsumer* slot : ready) {
    slot->Prepare();
    segment->Commit(slot);
  }
  segment->EndPass();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  test::UsePrivateShm();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  world.control->Restore();
  world.extent->Restore();
  fuzz::Input input(data, size);
  Change(&world, &input);

  pipeline::Registry registry;
  pipeline::EventLog events;
  pipeline::SnapshotStore store(1 << 20);
  pipeline::ControlQueue controls;
  pipeline::RingReads reads;
  pipeline::PayloadPool payloads(1 << 20);
  sinks::CompareSink compare(&events);
  sinks::MemorySink memory(&store);
  CheckSink check;
  pipeline::FanOut fan_out({&compare, &memory, &check});
  sinks::ModelSink sink(&registry, &events, &fan_out);

  std::string reason;
  std::unique_ptr<ring::SegmentView> view;
  {
    const ingest::SigbusGuard guard;
    view = ring::SegmentView::Attach(world.segment.name(), &reason);
    if (view == nullptr || ingest::SigbusGuard::Hit()) return 0;
  }
  std::unique_ptr<ingest::AttachedSegment> attached;
  {
    const ingest::SigbusGuard guard;
    auto adopted = ingest::AttachedSegment::Adopt(std::move(view), "",
                                                  {&registry, &controls, &reads, &payloads, &sink});
    if (!adopted.ok()) return 0;
    attached = *std::move(adopted);
  }
  for (int pass = 0; pass < 3; ++pass) {
    Pass(attached.get());
    for (const auto& session : registry.Sessions()) {
      for (const auto& slot : registry.Slots(session.session)) {
        pipeline::ControlChange change;
        change.slot = slot.slot;
        change.control.mode = layout::ControlMode::kStats;
        change.from_next = true;
        attached->SetControl(change);
        pipeline::RingContent content;
        attached->Read({slot.slot, 1, ~std::uint64_t{0}, 1 << 16}, &content);
      }
    }
    Change(&world, &input);
  }
  attached->Refresh();
  if (attached->broken()) {
    attached->Abandon();
  } else {
    attached->CheckProducer();
    for (int pass = 0; pass < 8 && attached->alive(); ++pass) Pass(attached.get());
  }
  (void)attached->skipped_slots();
  attached->Remove();
  return 0;
}
