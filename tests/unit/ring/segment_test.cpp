// A producer's segment: what a reader refuses.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <thread>

#include "libprobe/ring/graph_census.h"
#include "libprobe/ring/shared_copy.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ring {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kPage = layout::kPageBytes;

// A profiler's timer interrupts system calls all the time.
TEST(SharedFile, IsReservedUnderAStormOfSignals) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
  const itimerval storm = {{0, 300}, {0, 300}};
  const itimerval calm = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &storm, nullptr), 0);
  std::string problem;
  try {
    SharedFile file = SharedFile::Create("cgdebug-test-storm", 300 << 20);
    file.Unlink();
  } catch (const SharedMemoryError& error) {
    problem = error.what();
  }
  setitimer(ITIMER_REAL, &calm, nullptr);
  EXPECT_EQ(problem, "");
}

TEST(SharedFile, ALimitOnFileSizesIsAnErrorAndNoSignal) {
  EXPECT_EQ(test::InChild([] {
              const rlimit limit = {1 << 20, 1 << 20};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              try {
                SharedFile::Create("cgdebug-test-limit", 2 << 20);
              } catch (const SharedMemoryError& error) {
                const bool says =
                    std::string(error.what()).find("ulimit -f unlimited") != std::string::npos;
                return says ? 0 : 2;
              }
              return 3;
            }),
            0);
}

// --- what a reader refuses ----------------------------------------------------------------------

// A dead producer's segment with one slot and one snapshot in it. Its producer is another process:
// a reader in this one would drop its lock.
class DeadSegment : public ::testing::Test {
 protected:
  DeadSegment() {
    test::ChildProcess child([](const test::Line& line) {
      SegmentWriter segment{Identity{}};
      const auto slot = test::PublishSlot(segment, test::MakeSlot("a", 8, 2));
      SlotRingWriter writer(slot.block.data, segment.producer(), segment.gate());
      test::WriteNumbers(writer, 1);
      line.Send(segment.name());
      line.Receive();
      return 0;
    });
    name_ = child.line().Receive();
  }
  ~DeadSegment() override { UnlinkSegment(name_); }

  std::string path() const { return ShmPath(name_); }
  template <typename T>
  void Poke(const std::string& path, std::uint64_t offset, T value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
    ASSERT_TRUE(file.good());
  }
  std::string AttachProblem() {
    std::string reason;
    return SegmentView::Attach(name_, &reason) == nullptr ? reason : "none";
  }
  std::string SlotProblem() {
    std::string reason;
    const auto view = SegmentView::Attach(name_, &reason);
    if (view == nullptr) return "cannot attach";
    return view->OpenSlot(0, &reason) ? "none" : reason;
  }

  std::string name_;
};

// The kernel's answer counts, because the segment may claim anything.
TEST(LiveSegment, ItsProducerIsKnownByTheLockThatItHolds) {
  test::ChildProcess child([](const test::Line& line) {
    SegmentWriter segment{Identity{}};
    line.Send(segment.name());
    line.Receive();
    segment.Close(/*unlink=*/true);
    return 0;
  });
  const std::string name = child.line().Receive();
  std::string reason;
  const auto view = SegmentView::Attach(name, &reason);
  ASSERT_NE(view, nullptr) << reason;
  EXPECT_EQ(view->ProducerPid(), child.pid());
  child.Kill();
  EXPECT_EQ(view->ProducerPid(), 0);
  UnlinkSegment(name);
}

TEST_F(DeadSegment, ATableOfGraphsThatLiesNowhereIsNotRead) {
  const std::uint64_t place = layout::kProducerLineOffset + offsetof(layout::ProducerLine, graphs);
  for (const std::uint64_t wrong :
       {layout::GraphTablePlace(7, kPage), layout::GraphTablePlace(1, 0),
        layout::GraphTablePlace(1, std::uint64_t{1} << 40), ~std::uint64_t{0}}) {
    Poke(path(), place, wrong);
    std::string reason;
    const auto view = SegmentView::Attach(name_, &reason);
    ASSERT_NE(view, nullptr) << reason;
    EXPECT_TRUE(view->Graphs().graphs.empty());
  }
  // Tensors instead of a table: whatever comes out of it, the reader stays within the extent.
  Poke(path(), place, layout::GraphTablePlace(1, kPage));
  std::string reason;
  EXPECT_LE(SegmentView::Attach(name_, &reason)->Graphs().graphs.size(), layout::kMaxGraphs);
}

// --- the census of graphs -----------------------------------------------------------------------

struct CensusTable {
  alignas(layout::kPageBytes) std::byte bytes[layout::kGraphTableBytes] = {};
};

TEST(GraphCensus, WhatIsUnknownIsNotZero) {
  const auto table = std::make_unique<CensusTable>();
  GraphCensusWriter writer(table->bytes);
  writer.Begin(7, "", "", /*counted=*/false);
  writer.AddProbe(7, 64, "late label");
  const std::uint64_t counted = writer.Begin(8, "bs=8", "a.py:1", /*counted=*/true);
  writer.End(counted, 3, /*failed=*/false, "");
  const GraphCensus census = ReadGraphs(table->bytes);
  ASSERT_EQ(census.graphs.size(), 2u);
  EXPECT_EQ(census.graphs[0].nodes, std::nullopt);
  EXPECT_EQ(census.graphs[0].replays, std::nullopt);
  EXPECT_EQ(census.graphs[0].probe_bytes, 64u);
  EXPECT_EQ(census.graphs[0].label, "late label");
  EXPECT_EQ(census.graphs[1].nodes, 3u);
  EXPECT_EQ(census.graphs[1].replays, 0u);
  EXPECT_EQ(census.graphs[1].label, "bs=8");
}

TEST(GraphCensus, AFullTableCountsWhatItDoesNotList) {
  const auto table = std::make_unique<CensusTable>();
  GraphCensusWriter writer(table->bytes);
  for (std::uint64_t i = 1; i <= layout::kMaxGraphs; ++i) writer.Begin(i, "", "a", true);
  const std::uint64_t unlisted = writer.Begin(9999, "", "a", true);
  EXPECT_EQ(writer.counter(unlisted), 0u) << "the word of all graphs without an entry";
  writer.Gone(unlisted);
  writer.Gone(5);
  const std::uint64_t listed = writer.Begin(10000, "", "b", true);
  EXPECT_NE(writer.counter(listed), 0u);
  const GraphCensus census = ReadGraphs(table->bytes);
  EXPECT_EQ(census.captures, layout::kMaxGraphs + 2u);
  EXPECT_EQ(census.unlisted, 1u);
  EXPECT_EQ(census.graphs.size(), layout::kMaxGraphs);
  EXPECT_EQ(census.graphs.back().graph_id, 10000u);
}

TEST(GraphCensus, WhatOthersWriteIntoTheTableIsNotCountedOn) {
  const auto table = std::make_unique<CensusTable>();
  GraphCensusWriter writer(table->bytes);
  const std::uint64_t first = writer.Begin(7, "", "a", true);
  writer.AddProbe(7, 64, "");
  std::memset(table->bytes, 0x5a, sizeof(table->bytes));
  writer.AddProbe(7, 64, "");
  const std::uint64_t second = writer.Begin(8, "", "a", true);
  EXPECT_EQ(second, first + 1);
  writer.End(first, 3, /*failed=*/true, "");
  writer.End(second, 0, /*failed=*/false, "");
  writer.Gone(second);
  const GraphCensus census = ReadGraphs(table->bytes);
  EXPECT_EQ(census.captures, 2u);
  EXPECT_EQ(census.failed, 1u);
  EXPECT_EQ(census.empty, 1u);
  EXPECT_EQ(census.gone, 1u);
  ASSERT_EQ(census.graphs.size(), 2u);
  EXPECT_EQ(census.graphs[0].order, second);
  EXPECT_EQ(census.graphs[1].probes, 2u);
  EXPECT_EQ(census.graphs[1].probe_bytes, 128u);
}

TEST(GraphCensus, AReaderNeverMixesTwoGraphsOfOneEntry) {
  const auto table = std::make_unique<CensusTable>();
  GraphCensusWriter writer(table->bytes);
  for (std::uint64_t i = 1; i < layout::kMaxGraphs; ++i) writer.Begin(i, "", "", true);
  std::atomic<bool> done{false};
  std::thread job([&] {
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const std::string name(20 + i % 30, static_cast<char>('a' + i % 26));
      writer.Gone(writer.Begin(100'000 + i, name, name, true));
    }
    done = true;
  });
  while (!done) {
    for (const GraphFacts& graph : ReadGraphs(table->bytes).graphs) {
      if (graph.graph_id < 100'000) continue;
      const std::uint64_t i = graph.graph_id - 100'000;
      EXPECT_EQ(graph.label, std::string(20 + i % 30, static_cast<char>('a' + i % 26)));
      EXPECT_EQ(graph.stack, graph.label);
    }
  }
  job.join();
}

TEST_F(DeadSegment, IsReadable) {
  EXPECT_EQ(AttachProblem(), "none");
  std::string reason;
  const auto view = SegmentView::Attach(name_, &reason);
  EXPECT_FALSE(view->ProducerAlive());
  auto slot = view->OpenSlot(0, &reason);
  ASSERT_TRUE(slot) << reason;
  Entry entry;
  ASSERT_EQ(slot->Read(1, &entry), ReadStatus::kOk);
  EXPECT_EQ(test::Numbers(entry)[7], 8);
}

TEST_F(DeadSegment, DamagedControlFilesAreRefusedWithAReason) {
  Poke(path(), offsetof(layout::SegmentHeader, abi_major), std::uint16_t{layout::kAbiMajor + 1});
  EXPECT_THAT(AttachProblem(),
              HasSubstr("layout version " + std::to_string(layout::kAbiMajor + 1)));
  Poke(path(), offsetof(layout::SegmentHeader, abi_major), layout::kAbiMajor);
  Poke(path(), offsetof(layout::SegmentHeader, abi_minor), std::uint16_t{9});
  EXPECT_EQ(AttachProblem(), "none") << "a later minor may be ignored";
  Poke(path(), offsetof(layout::SegmentHeader, max_slots), std::uint32_t{1} << 30);
  EXPECT_THAT(AttachProblem(), HasSubstr("impossible sizes"));
  Poke(path(), 0, std::uint64_t{42});
  EXPECT_THAT(AttachProblem(), HasSubstr("wrong magic"));
  fs::resize_file(path(), layout::kControlBytes - 1);
  EXPECT_THAT(AttachProblem(), HasSubstr("too short"));
  fs::resize_file(path(), 0);
  EXPECT_THAT(AttachProblem(), HasSubstr("empty"));
  fs::remove(path());
  EXPECT_THAT(AttachProblem(), HasSubstr("No such file"));
}

TEST_F(DeadSegment, ASegmentOfAnotherUserIsRefused) {
  if (geteuid() != 0 || chown(path().c_str(), 12345, 12345) != 0) GTEST_SKIP() << "needs root";
  EXPECT_THAT(AttachProblem(), HasSubstr("belongs to uid 12345"));
}

TEST_F(DeadSegment, OnlyNamesOfControlFilesAreOpened) {
  std::string reason;
  EXPECT_EQ(SegmentView::Attach("x", &reason), nullptr);
  EXPECT_THAT(reason, HasSubstr("not the name"));
  EXPECT_EQ(SegmentView::Attach(name_ + ".1", &reason), nullptr);
}

TEST_F(DeadSegment, ExtentsThatAreNotItsOwnOrCutOffAreRefused) {
  const std::string extent = path() + ".1";
  Poke(extent, offsetof(layout::ExtentHeader, uuid), std::uint64_t{1});
  EXPECT_THAT(SlotProblem(), HasSubstr("does not belong"));
  fs::resize_file(extent, fs::file_size(extent) - kPage);
  EXPECT_THAT(SlotProblem(), HasSubstr("does not belong"));
  fs::remove(extent);
  EXPECT_THAT(SlotProblem(), HasSubstr("No such file"));
}

TEST_F(DeadSegment, AnExtentThatWasCutOffIsRefusedAlsoWhereTheSlotIsWhole) {
  const std::string extent = path() + ".1";
  fs::resize_file(extent, fs::file_size(extent) - kPage);
  EXPECT_THAT(SlotProblem(), HasSubstr("was cut off"));
}

TEST_F(DeadSegment, DirectoryEntriesThatPointOutsideAreRefused) {
  const auto at = [](std::size_t field) { return layout::kDirectoryOffset + field; };
  const std::uint64_t good = layout::kExtentDataOffset;
  for (const std::uint64_t offset :
       {std::uint64_t{0}, good + 1, std::uint64_t{64} << 20, ~std::uint64_t{0} - kPage + 1}) {
    Poke(path(), at(offsetof(layout::DirectoryEntry, offset)), offset);
    EXPECT_THAT(SlotProblem(), HasSubstr("outside its extent")) << offset;
  }
  Poke(path(), at(offsetof(layout::DirectoryEntry, offset)), good);
  for (const std::uint64_t bytes : {~std::uint64_t{0}, std::uint64_t{64} << 20}) {
    Poke(path(), at(offsetof(layout::DirectoryEntry, bytes)), bytes);
    EXPECT_THAT(SlotProblem(), HasSubstr("outside its extent")) << bytes;
  }
  Poke(path(), at(offsetof(layout::DirectoryEntry, bytes)), std::uint64_t{64});
  EXPECT_THAT(SlotProblem(), HasSubstr("too small"));
  Poke(path(), at(offsetof(layout::DirectoryEntry, bytes)),
       layout::ComputeGeometry(/*payload_bytes=*/8, /*capacity=*/2).block_bytes);
  EXPECT_EQ(SlotProblem(), "none");
  for (const std::uint32_t extent : {0u, 2u, 4097u, ~0u}) {
    Poke(path(), at(offsetof(layout::DirectoryEntry, extent)), extent);
    EXPECT_NE(SlotProblem(), "none") << extent;
  }
}

TEST_F(DeadSegment, AnExpectedTensorOutsideItsExtentIsRefused) {
  std::string reason;
  const auto view = SegmentView::Attach(name_, &reason);
  auto registration = view->OpenSlot(0, &reason)->registration();
  registration.expected_extent = 1;
  registration.expected_offset = layout::kExtentDataOffset;
  EXPECT_TRUE(view->ReadExpected(registration, &reason));
  for (const std::uint64_t offset : {std::uint64_t{4} << 20, ~std::uint64_t{0} - 8}) {
    registration.expected_offset = offset;
    EXPECT_FALSE(view->ReadExpected(registration, &reason));
    EXPECT_THAT(reason, HasSubstr("outside its extent"));
  }
  registration.expected_extent = 9;
  EXPECT_FALSE(view->ReadExpected(registration, &reason));
}

TEST_F(DeadSegment, AListOfSegmentsNamesControlFilesOnly) {
  const std::string prefix = OwnPrefix();
  const std::vector<std::string> foreign = {prefix + "not-hex",
                                            prefix + std::string(32, 'g'),
                                            prefix + std::string(33, 'a'),
                                            prefix + std::string(32, 'A'),
                                            "cgdebug-99999-" + std::string(32, 'a'),
                                            "." + name_,
                                            name_ + ".77",
                                            name_ + "x"};
  for (const std::string& file : foreign) std::ofstream(ShmPath(file)) << "x";
  const auto names = ListSegments();
  EXPECT_THAT(names, Contains(name_));
  for (const std::string& file : foreign) EXPECT_THAT(names, Not(Contains(file)));
  for (const std::string& file : foreign) fs::remove(ShmPath(file));
}

TEST_F(DeadSegment, UnlinkRemovesAllOfItAndNothingElse) {
  const std::string other = name_.substr(0, name_.size() - 1) + (name_.back() == 'a' ? 'b' : 'a');
  for (const std::string& file : {name_ + ".2", name_ + ".4096", name_ + ".note", other}) {
    std::ofstream(ShmPath(file)) << "x";
  }
  UnlinkSegment(name_);
  for (const std::string& file : {name_, name_ + ".1", name_ + ".2", name_ + ".4096"}) {
    EXPECT_FALSE(fs::exists(ShmPath(file))) << file;
  }
  EXPECT_TRUE(fs::exists(ShmPath(name_ + ".note"))) << "not ours";
  EXPECT_TRUE(fs::exists(ShmPath(other)));
  fs::remove(ShmPath(name_ + ".note"));
  fs::remove(ShmPath(other));
}

// --- registrations ------------------------------------------------------------------------------

TEST(Registration, ARightOneIsAccepted) {
  const auto r = test::MakeSlot("a", 100, 4);
  EXPECT_EQ(CheckRegistration(r, layout::ComputeGeometry(400, 4).block_bytes), "");
}

TEST(Registration, WhatNoProducerWritesIsRefusedWithAReason) {
  const std::uint64_t block_bytes = layout::ComputeGeometry(400, 4).block_bytes;
  auto refused = [&](auto change) {
    auto r = test::MakeSlot("a", 100, 4);
    change(r);
    return CheckRegistration(r, block_bytes);
  };
  EXPECT_THAT(refused([](auto& r) { r.dtype = 99; }), HasSubstr("dtype"));
  EXPECT_THAT(refused([](auto& r) { r.dims = 17; }), HasSubstr("dimensions"));
  EXPECT_THAT(refused([](auto& r) { r.shape[0] = 101; }), HasSubstr("payload size"));
  EXPECT_THAT(refused([](auto& r) { r.payload_bytes = ~0ull; }), HasSubstr("payload size"));
  EXPECT_THAT(refused([](auto& r) {
                r.dims = 4;
                for (int i = 0; i < 4; ++i) r.shape[i] = std::uint64_t{1} << 62;
              }),
              HasSubstr("payload size"));
  EXPECT_THAT(refused([](auto& r) { r.capacity = 0; }), HasSubstr("capacity"));
  EXPECT_THAT(refused([](auto& r) { r.capacity = ~0u; }), HasSubstr("capacity"));
  EXPECT_THAT(refused([](auto& r) { r.capacity = 5; }), HasSubstr("geometry"));
  EXPECT_THAT(refused([](auto& r) { r.payload_offset += 64; }), HasSubstr("geometry"));
  EXPECT_THAT(refused([](auto& r) { r.headers_offset = 0; }), HasSubstr("geometry"));
  EXPECT_THAT(refused([](auto& r) { std::memset(r.name, 'x', sizeof(r.name)); }),
              HasSubstr("not terminated"));
  EXPECT_THAT(refused([](auto& r) { r.name[0] = 0; }), HasSubstr("name"));
  EXPECT_THAT(refused([](auto& r) { r.lane = 9; }), HasSubstr("lane"));
  EXPECT_THAT(refused([](auto& r) { r.policy = 9; }), HasSubstr("policy"));
  EXPECT_THAT(refused([](auto& r) { r.device_type = 9; }), HasSubstr("device"));
  EXPECT_THAT(refused([](auto& r) { r.compare_rtol = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("tolerances"));
  EXPECT_THAT(CheckRegistration(test::MakeSlot("a", 100, 4), block_bytes - layout::kPageBytes),
              HasSubstr("geometry"));
}

}  // namespace
}  // namespace cgdebug::ring
