// A writer process and a reader process, one of which is killed at a random moment, hundreds of
// times.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ring {
namespace {

#if defined(CGDEBUG_SANITIZED)
constexpr int kDeaths = 40;
#else
constexpr int kDeaths = 200;
#endif
constexpr std::uint64_t kElements = 2000;
constexpr std::uint32_t kCapacity = 4;

// Snapshot n holds n, n + 1, ...
bool Whole(const Entry& entry) {
  if (entry.replay != entry.ordinal || entry.payload.size() != kElements * 4) return false;
  const auto values = test::Numbers(entry);
  for (std::uint64_t i = 0; i < kElements; ++i) {
    if (values[i] != static_cast<std::int32_t>(entry.ordinal + i)) return false;
  }
  return true;
}

void WriteNext(SlotRingWriter& writer, std::vector<std::int32_t>* values, std::uint64_t n) {
  std::iota(values->begin(), values->end(), static_cast<std::int32_t>(n));
  if (!writer.Begin()) return;
  std::memcpy(writer.payload(), values->data(), writer.payload_bytes());
  writer.Commit(static_cast<std::int64_t>(n));
}

struct Counts {
  std::uint64_t next = 1;  // ordinal
  std::uint64_t read = 0;
  std::uint64_t lost = 0;
};

// One step of a reader; false when there is nothing new.
bool ReadNext(SlotRingReader& reader, Entry* entry, Counts* counts, bool* wrong) {
  const ReadStatus status = reader.Read(counts->next, entry);
  if (status == ReadStatus::kNone) return false;
  if (status == ReadStatus::kOverwritten) {
    const std::uint64_t first = std::max(reader.oldest(reader.accepted()), counts->next + 1);
    counts->lost += first - counts->next;
    counts->next = first;
    return true;
  }
  if (status != ReadStatus::kOk || entry->ordinal != counts->next || !Whole(*entry)) *wrong = true;
  ++counts->read;
  ++counts->next;
  return true;
}

void SleepUpTo(std::mt19937& random, long limit_ns) {
  const timespec nap = {0, std::uniform_int_distribution<long>(0, limit_ns)(random)};
  nanosleep(&nap, nullptr);
}

TEST(RingDeath, AKilledWriterLeavesWholeSnapshotsExactCountsAndAFreeLock) {
  std::mt19937 random(1);
  std::uint64_t half_written = 0;
  for (int death = 0; death < kDeaths; ++death) {
    test::ChildProcess writer([](const test::Line& line) {
      SegmentWriter segment{Identity{}};
      const auto slot = test::PublishSlot(segment, test::MakeSlot("a", kElements, kCapacity));
      SlotRingWriter ring(slot.block.data, segment.producer(), segment.gate());
      std::vector<std::int32_t> values(kElements);
      line.Send(segment.name());
      for (std::uint64_t n = 1;; ++n) WriteNext(ring, &values, n);
      return 0;
    });
    const std::string name = writer.line().Receive();
    std::string reason;
    const auto view = SegmentView::Attach(name, &reason);
    ASSERT_NE(view, nullptr) << reason;
    ASSERT_TRUE(view->BecomeReader());
    ASSERT_TRUE(view->ProducerAlive());
    auto reader = view->OpenSlot(0, &reason);
    ASSERT_TRUE(reader) << reason;
    Entry entry;
    Counts counts;
    bool wrong = false;
    const int reads = std::uniform_int_distribution<int>(0, 30)(random);
    for (int i = 0; i < reads; ++i) ReadNext(*reader, &entry, &counts, &wrong);
    SleepUpTo(random, 300'000);
    writer.Kill();
    EXPECT_FALSE(view->ProducerAlive());
    EXPECT_FALSE(view->ProducerExitedCleanly());
    while (ReadNext(*reader, &entry, &counts, &wrong)) {
    }
    ASSERT_FALSE(wrong) << "death " << death << ", snapshot " << counts.next;
    EXPECT_EQ(counts.read + counts.lost, reader->accepted());
    if (reader->accepted() >= kCapacity) {
      EXPECT_GE(counts.read, kCapacity - 1) << "all except the one that was being overwritten";
    }
    half_written += reader->HasUncommitted() ? 1 : 0;
    UnlinkSegment(name);
  }
  RecordProperty("half_written", static_cast<int>(half_written));
}

// What the readers saw, in memory that outlives them.
struct Seen {
  static constexpr std::uint64_t kLimit = 1 << 22;
  std::uint32_t times[kLimit];
  std::uint32_t wrong;
};

int ReadUntilKilled(const std::string& name, const test::Line& line, Seen* seen) {
  std::string reason;
  const auto view = SegmentView::Attach(name, &reason);
  if (view == nullptr || !view->BecomeReader()) {
    line.Send("cannot attach");
    return 1;
  }
  auto reader = view->OpenSlot(0, &reason);
  const Credit credit = reader->credit();
  Counts counts;
  counts.next = credit.consumed + 1;
  counts.lost = credit.lost;
  line.Send(std::to_string(credit.consumed));
  Entry entry;
  bool wrong = false;
  while (true) {
    const std::uint64_t read = counts.read;
    if (!ReadNext(*reader, &entry, &counts, &wrong)) continue;
    if (wrong) seen->wrong = 1;
    if (counts.read != read) ++seen->times[counts.next - 1];
    reader->SetConsumed(counts.next - 1, counts.lost);
    view->AddProgress(1);
  }
}

TEST(RingDeath, AKilledReadersSuccessorGoesOnWhereItsCreditEnds) {
  std::mt19937 random(2);
  auto* seen = static_cast<Seen*>(
      mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(seen, MAP_FAILED);
  SegmentWriter segment{Identity{}};
  auto registration = test::MakeSlot("a", kElements, kCapacity, layout::Policy::kWait);
  registration.wait_deadline_ms = 600'000;
  const auto slot = test::PublishSlot(segment, registration);
  SlotRingWriter writer(slot.block.data, segment.producer(), segment.gate());
  const SlotRingReader own = segment.OpenSlot(slot.index, slot.block);
  std::vector<std::int32_t> values(kElements);
  std::uint64_t n = 0;
  for (int death = 0; death < kDeaths; ++death) {
    const std::uint64_t consumed = own.consumed();
    test::ChildProcess reader(
        [&](const test::Line& line) { return ReadUntilKilled(segment.name(), line, seen); });
    ASSERT_EQ(reader.line().Receive(), std::to_string(consumed));
    const std::uint64_t overwrote = own.head().overwrote_unread;
    const int writes = std::uniform_int_distribution<int>(0, 40)(random);
    for (int i = 0; i < writes; ++i) WriteNext(writer, &values, ++n);
    EXPECT_EQ(own.head().overwrote_unread, overwrote) << "a live reader is waited for";
    SleepUpTo(random, 50'000);
    reader.Kill();
    ASSERT_FALSE(segment.gate()->ReaderAlive());
    for (int i = 0; i < 3; ++i) WriteNext(writer, &values, ++n);  // nobody reads
  }
  test::ChildProcess last(
      [&](const test::Line& line) { return ReadUntilKilled(segment.name(), line, seen); });
  last.line().Receive();
  while (own.consumed() < n) {
    ASSERT_TRUE(segment.gate()->ReaderAlive());
    std::this_thread::yield();
  }
  EXPECT_EQ(seen->wrong, 0u);
  std::uint64_t missing = 0;
  std::uint64_t twice = 0;
  for (std::uint64_t ordinal = 1; ordinal <= n; ++ordinal) {
    missing += seen->times[ordinal] == 0 ? 1 : 0;
    twice += seen->times[ordinal] > 1 ? seen->times[ordinal] - 1 : 0;
  }
  EXPECT_EQ(own.accepted(), n);
  // It is unknown whether the snapshot being read at a death was seen, so it may count as lost.
  EXPECT_GE(own.credit().lost, missing);
  EXPECT_LE(own.credit().lost, missing + kDeaths);
  EXPECT_LE(own.credit().lost, own.head().overwrote_unread);
  EXPECT_LE(twice, static_cast<std::uint64_t>(kDeaths)) << "the one being read, at each death";
  segment.Close(/*unlink=*/true);
  munmap(seen, sizeof(Seen));
}

}  // namespace
}  // namespace cgdebug::ring
