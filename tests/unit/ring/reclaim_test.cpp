// What ReclaimDeadSegments removes, and what it must leave alone.
#include "libprobe/ring/segment/reclaim.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "libprobe/ring/record_lock.h"
#include "proto/layout/realtime.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ring {
namespace {

namespace fs = std::filesystem;

bool Exists(const std::string& name) { return fs::exists(ShmPath(name)); }

// Makes a segment with one snapshot, committed at `timestamp_ns`, tells its name and waits.
int Produce(const test::Line& line, std::int64_t timestamp_ns) {
  SegmentWriter segment{Identity{}};
  const auto slot = test::PublishSlot(segment, test::MakeSlot("a", 1, 1));
  SlotRingWriter writer(slot.block.data, segment.producer(), segment.gate());
  writer.Begin();
  writer.Commit(timestamp_ns);
  line.Send(segment.name());
  line.Receive();
  return 0;
}

std::int64_t SecondsAgoNs(double seconds) {
  return layout::RealtimeNs() - static_cast<std::int64_t>(seconds * 1e9);
}

// Makes the file look as if it was created `seconds` ago.
void MakeOld(const std::string& name, double seconds) {
  std::fstream file(ShmPath(name), std::ios::in | std::ios::out | std::ios::binary);
  const std::int64_t created_ns = SecondsAgoNs(seconds);
  file.seekp(offsetof(layout::SegmentHeader, created_ns));
  file.write(reinterpret_cast<const char*>(&created_ns), sizeof(created_ns));
}

// As another process: a test that opened its own segment would drop its lock.
void Reclaim(double age_s) {
  ASSERT_EQ(test::InChild([&] {
              ReclaimDeadSegments(age_s);
              return 0;
            }),
            0);
}

TEST(Reclaim, RemovesDeadSegmentsAndKeepsLiveOnes) {
  test::ChildProcess live([](const test::Line& line) { return Produce(line, 1); });
  const std::string live_name = live.line().Receive();
  std::string dead_name;
  {
    test::ChildProcess dead([](const test::Line& line) { return Produce(line, 1); });
    dead_name = dead.line().Receive();
  }
  MakeOld(live_name, 100);
  MakeOld(dead_name, 100);
  Reclaim(10);
  EXPECT_TRUE(Exists(live_name));
  EXPECT_TRUE(Exists(live_name + ".1"));
  EXPECT_FALSE(Exists(dead_name));
  EXPECT_FALSE(Exists(dead_name + ".1"));
  UnlinkSegment(live_name);
}

TEST(Reclaim, KeepsWhatDiedRecently) {
  std::string name;
  {
    test::ChildProcess dead([](const test::Line& line) { return Produce(line, SecondsAgoNs(5)); });
    name = dead.line().Receive();
  }
  MakeOld(name, 100);
  Reclaim(10);
  EXPECT_TRUE(Exists(name)) << "its last snapshot is young";
  Reclaim(2);
  EXPECT_FALSE(Exists(name));
}

TEST(Reclaim, KeepsWhatADaemonReads) {
  std::string name;
  {
    test::ChildProcess dead([](const test::Line& line) { return Produce(line, 1); });
    name = dead.line().Receive();
  }
  MakeOld(name, 100);
  test::ChildProcess daemon([&](const test::Line& line) {
    std::string reason;
    const auto view = SegmentView::Attach(name, &reason);
    line.Send(view != nullptr && view->BecomeReader() ? "yes" : "no");
    line.Receive();
    return 0;
  });
  ASSERT_EQ(daemon.line().Receive(), "yes");
  Reclaim(10);
  EXPECT_TRUE(Exists(name));
  daemon.Kill();
  Reclaim(10);
  EXPECT_FALSE(Exists(name));
}

TEST(Reclaim, RemovesControlFilesWhoseMakerDied) {
  const std::string temporary = "." + OwnPrefix() + std::string(32, 'e');
  std::ofstream(ShmPath(temporary)) << "half";
  Reclaim(3600);
  EXPECT_TRUE(Exists(temporary)) << "it may be in the making";
  Reclaim(0);
  EXPECT_FALSE(Exists(temporary));
}

TEST(Reclaim, KeepsAControlFileThatIsBeingMade) {
  const std::string temporary = "." + OwnPrefix() + std::string(32, 'e');
  SharedFile file = SharedFile::Create(temporary, 4096);
  ASSERT_TRUE(TryLockByte(file.fd(), layout::kProducerLockByte));
  Reclaim(0);
  EXPECT_TRUE(Exists(temporary));
  file.Unlink();
}

TEST(Reclaim, RemovesExtentsWhoseControlFileIsGoneOnly) {
  test::ChildProcess live([](const test::Line& line) { return Produce(line, 1); });
  const std::string live_name = live.line().Receive();
  const std::string gone = OwnPrefix() + std::string(32, 'd');
  for (const char* suffix : {".1", ".17", ".4294967295", ".note", ".12345678901"}) {
    std::ofstream(ShmPath(gone + suffix)) << "x";
  }
  Reclaim(3600);
  EXPECT_FALSE(Exists(gone + ".1"));
  EXPECT_FALSE(Exists(gone + ".17"));
  EXPECT_FALSE(Exists(gone + ".4294967295"));
  EXPECT_TRUE(Exists(gone + ".note")) << "nothing of cgdebug's";
  EXPECT_TRUE(Exists(gone + ".12345678901"));
  EXPECT_TRUE(Exists(live_name + ".1"));
  fs::remove(ShmPath(gone + ".note"));
  fs::remove(ShmPath(gone + ".12345678901"));
  UnlinkSegment(live_name);
}

TEST(Reclaim, UnderPressureTheOldestGoFirstAndNoMoreThanAreNeeded) {
  std::vector<std::string> dead;
  for (int i = 1; i <= 3; ++i) {  // its last snapshot is at i ns
    test::ChildProcess child([i](const test::Line& line) { return Produce(line, i); });
    dead.push_back(child.line().Receive());
    child.Kill();
  }
  const auto evict = [](std::uint64_t more, const std::string& open_here) {
    const auto bytes = static_cast<std::uint64_t>(GetShmSpace().free_bytes) + more;
    return test::InChild([&] {
      EvictDeadSegments(bytes, [&](const std::string& name) { return name == open_here; });
      return 0;
    });
  };
  ASSERT_EQ(evict(0, ""), 0);
  EXPECT_TRUE(Exists(dead[0])) << "there was enough";
  ASSERT_EQ(evict(4096, dead[0]), 0);
  EXPECT_TRUE(Exists(dead[0])) << "the caller has it open";
  EXPECT_FALSE(Exists(dead[1]));
  EXPECT_TRUE(Exists(dead[2]));
  ASSERT_EQ(evict(4096, ""), 0);
  EXPECT_FALSE(Exists(dead[0]));
  EXPECT_TRUE(Exists(dead[2])) << "one was enough";
  UnlinkSegment(dead[2]);
}

TEST(Reclaim, LeavesAloneWhatItDoesNotUnderstand) {
  const std::string name = OwnPrefix() + std::string(32, 'c');
  std::ofstream(ShmPath(name)) << "short";
  Reclaim(0);
  EXPECT_TRUE(Exists(name));
  fs::remove(ShmPath(name));
  fs::create_directory(ShmPath(name));
  Reclaim(0);
  EXPECT_TRUE(Exists(name));
  fs::remove(ShmPath(name));
  ASSERT_EQ(mkfifo(ShmPath(name).c_str(), 0600), 0);
  Reclaim(0);
  EXPECT_TRUE(Exists(name));
  fs::remove(ShmPath(name));
}

// The segment's directory points nowhere and its extents are cut off: a job that starts must
// survive that.
TEST(Reclaim, SurvivesADamagedSegment) {
  std::string name;
  {
    test::ChildProcess dead([](const test::Line& line) { return Produce(line, 1); });
    name = dead.line().Receive();
  }
  MakeOld(name, 100);
  {
    std::fstream file(ShmPath(name), std::ios::in | std::ios::out | std::ios::binary);
    const std::uint64_t slots = ~std::uint64_t{0};
    file.seekp(layout::kProducerLineOffset + offsetof(layout::ProducerLine, slot_count));
    file.write(reinterpret_cast<const char*>(&slots), sizeof(slots));
    layout::DirectoryEntry entry = {};
    entry.word = layout::DirectoryWord(1, layout::SlotState::kLive);
    entry.extent = 1;
    entry.offset = ~std::uint64_t{0} - 4096;
    file.seekp(layout::kDirectoryOffset + sizeof(entry));
    file.write(reinterpret_cast<const char*>(&entry), sizeof(entry));
  }
  fs::resize_file(ShmPath(name + ".1"), 100);
  fs::resize_file(ShmPath(name), layout::kDirectoryOffset + 100);
  Reclaim(10);
  EXPECT_FALSE(Exists(name));
}

TEST(Segment, AfterItsFilesAreRemovedItLeavesNoNewOnesBehind) {
  SegmentWriter segment{Identity{}};
  segment.Allocate(1);
  segment.Close(/*unlink=*/true);
  const Block block = segment.Allocate(10 << 20);
  std::memset(block.data, 1, block.bytes);
  for (const std::string& file : ListShm()) {
    EXPECT_NE(ControlNameOfExtent(file), segment.name()) << file;
  }
}

}  // namespace
}  // namespace cgdebug::ring
