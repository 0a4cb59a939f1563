// Recordings that are cut off at any byte, or have any bit flipped: what is read is right, and what
// is missing is reported.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "daemon/core/base/unique_fd.h"
#include "daemon/core/recording/meta.h"
#include "daemon/core/recording/segments/segment_writer.h"
#include "daemon/core/recording/segments/snapshot_index.h"
#include "daemon/core/recording/verify_recording.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::recording {
namespace {

using layout::RecordType;
using testing_support::AppendAt;
using testing_support::ValuesAt;
using testing_support::ValuesOf;

constexpr std::uint64_t kReplays = 4;

// From one damaged place of a large recording to the next: odd, so that each byte of a word has its
// turn. A sanitizer takes twenty times as long for each.
#if defined(CGDEBUG_SANITIZED)
constexpr std::uint64_t kBetweenPlaces = 13;
#else
constexpr std::uint64_t kBetweenPlaces = 1;
#endif

// A segment of records that no writer would write.
class HandMadeSegment {
 public:
  explicit HandMadeSegment(const std::string& directory) {
    std::filesystem::create_directories(directory);
    segment_ = *SegmentWriter::Create(directory, {}, 1, 1);
  }

  // Returns where the record lies.
  template <typename Meta>
  std::uint64_t Append(RecordType type, const Meta& meta) {
    const std::uint64_t offset = segment_->bytes();
    EXPECT_TRUE(segment_->Append(type, ++number_, EncodeFields(meta), {}, 0).ok());
    return offset;
  }

  // The next record has the number of the one before.
  void RepeatNumber() { --number_; }

  void Close(const Index& index) {
    End end;
    end.index_offset = Append(RecordType::kIndex, index);
    while (EncodeFields(end).size() < layout::kEndRecordBytes - sizeof(layout::RecordHeader)) {
      end.padding.push_back('\0');
    }
    Append(RecordType::kClose, end);
    EXPECT_TRUE(segment_->Trim().ok());
  }

 private:
  std::unique_ptr<SegmentWriter> segment_;
  std::uint64_t number_ = 0;
};

class DamagedRecording : public testing::Test {
 protected:
  // In memory: thousands of files are cut and opened.
  static void SetUpTestSuite() { setenv("TMPDIR", "/dev/shm", 1); }

  // Four replays of a probe.
  void Write(std::uint64_t elements) {
    elements_ = elements;
    auto writer = RecordingWriter::Open(path_, {});
    ASSERT_TRUE(writer.ok());
    const auto session = (*writer)->AddSession(testing_support::SessionOf());
    ASSERT_TRUE((*writer)->AddSlot(testing_support::FloatSlot(*session, "x", elements, 0)).ok());
    for (std::uint64_t replay = 1; replay <= kReplays; ++replay) {
      AppendAt(writer->get(), 0, replay, elements);
    }
    ASSERT_TRUE((*writer)->Close(StopReason::kRequested).ok());
    bytes_ = std::filesystem::file_size(file_);
  }

  // Returns how many replays are read, with `prefix` in order from the first. Checks that nothing
  // read is wrong. `said`: whether anything reports that something may be missing.
  std::uint64_t CountRight(const RecordingReader& reader, bool prefix, bool* said) {
    std::uint64_t right = 0;
    *said = !reader.complete();
    for (const Slot& slot : reader.slots()) {
      if (slot.probe.empty()) continue;
      EXPECT_EQ(slot.probe, "x");
      EXPECT_EQ(slot.payload_bytes, elements_ * sizeof(float));
    }
    for (const SnapshotRef& ref : reader.Snapshots(0)) {
      const auto snapshot = reader.Read(ref);
      const auto values = ValuesOf(reader, ref);
      if (!snapshot.ok() || !values.ok()) {
        *said = true;
        continue;
      }
      ++right;
      if (prefix) {
        EXPECT_EQ(ref.replay, right);
      }
      EXPECT_EQ(snapshot->replay, ref.replay);
      EXPECT_EQ(snapshot->ordinal, ref.replay);
      EXPECT_EQ(snapshot->step, static_cast<std::int64_t>(ref.replay / 2));
      const auto expected = ValuesAt(0, ref.replay, elements_);
      EXPECT_EQ(snapshot->stats.max, expected.back());
      EXPECT_EQ(*values, expected);
    }
    return right;
  }

  void FlipEveryBit(std::uint64_t first_byte, std::uint64_t last_byte, std::uint64_t stride = 1) {
    const UniqueFd fd(::open(file_.c_str(), O_RDWR));
    std::uint64_t opened = 0;
    for (std::uint64_t at = first_byte; at < last_byte && !HasFailure(); at += stride) {
      unsigned char byte = 0;
      ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
      for (int bit = 0; bit < 8; ++bit) {
        const unsigned char flipped = byte ^ static_cast<unsigned char>(1u << bit);
        ASSERT_EQ(pwrite(fd.get(), &flipped, 1, static_cast<off_t>(at)), 1);
        SCOPED_TRACE("byte " + std::to_string(at) + " bit " + std::to_string(bit));
        if (const auto reader = RecordingReader::Open(path_); reader.ok()) {
          ++opened;
          bool said = false;
          const std::uint64_t right = CountRight(**reader, false, &said);
          EXPECT_TRUE(said || right == kReplays);
        }
      }
      ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
    }
    if (first_byte >= layout::kFileHeaderBytes) {
      EXPECT_GT(opened, 0u);
    }
  }

  testing_support::TempDir dir_;
  std::string path_ = dir_ / "a.cgrec";
  std::string file_ = path_ + "/segment-000001.cgd";
  std::uint64_t elements_ = 0;
  std::uint64_t bytes_ = 0;
};

TEST_F(DamagedRecording, DamageOverTwoRecordsHidesNothingBehindThem) {
  Write(8);
  std::vector<Record> records;
  {
    const auto reader = *RecordingReader::Open(path_);
    for (const SnapshotRef& ref : reader->Snapshots(0)) {
      ASSERT_EQ(reader->segment(0).Read(ref.offset, &records.emplace_back()), ReadStatus::kRecord);
    }
  }
  const UniqueFd fd(::open(file_.c_str(), O_RDWR));
  // The values of one, the header of the next.
  for (const std::uint64_t at : {records[1].payload_offset(), records[2].offset}) {
    ASSERT_EQ(pwrite(fd.get(), "?", 1, static_cast<off_t>(at)), 1);
  }
  const auto reader = *RecordingReader::Open(path_, {.trust_index = false});
  bool said = false;
  EXPECT_EQ(CountRight(*reader, /*prefix=*/false, &said), 2u);
  EXPECT_TRUE(said);
  EXPECT_TRUE(reader->Find(0, 4).has_value());
  EXPECT_TRUE(reader->closed());
  ASSERT_EQ(reader->damage().size(), 1u);
  EXPECT_EQ(reader->damage()[0].missing_records, 1u);
}

// Every third replay is wanted, and all replays have ordinals: the others were not wanted,
// including those just before the damaged record.
TEST_F(DamagedRecording, OneDamagedRecordOfASlotWithAPeriodIsOneLoss) {
  elements_ = 8;
  auto writer = *RecordingWriter::Open(path_, {});
  const auto session = writer->AddSession(testing_support::SessionOf());
  Slot slot = testing_support::FloatSlot(*session, "x", elements_, 0);
  slot.every = 3;
  ASSERT_TRUE(writer->AddSlot(slot).ok());
  for (const std::uint64_t replay : {1, 4, 7, 10}) {
    const auto values = ValuesAt(0, replay, elements_);
    Snapshot snapshot = testing_support::SnapshotAt(0, replay, values);
    snapshot.skipped = replay == 1 ? 0 : 2;
    ASSERT_TRUE(writer->Append(snapshot, std::as_bytes(std::span(values))).ok());
  }
  ASSERT_TRUE(writer
                  ->AddMark({.kind = MarkKind::kSlotClosed,
                             .slot = 0,
                             .replay = 12,
                             .text = "",
                             .ordinal = 12,
                             .skipped = 2})
                  .ok());
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  std::vector<SnapshotRef> refs;
  {
    const auto whole = *RecordingReader::Open(path_);
    for (const SnapshotRef& ref : whole->Snapshots(0)) refs.push_back(ref);
  }
  ASSERT_EQ(refs.size(), 4u);
  for (const std::size_t damaged : {1, 2, 3}) {
    const UniqueFd fd(::open(file_.c_str(), O_RDWR));
    char byte = 0;
    const auto at = static_cast<off_t>(refs[damaged].offset);
    ASSERT_EQ(pread(fd.get(), &byte, 1, at), 1);
    ASSERT_EQ(pwrite(fd.get(), "?", 1, at), 1);
    const auto reader = *RecordingReader::Open(path_, {.trust_index = false});
    ASSERT_EQ(reader->losses().size(), 1u) << "record " << damaged;
    EXPECT_EQ(reader->losses()[0].cause, LossCause::kDamaged);
    EXPECT_EQ(reader->losses()[0].count, 1u) << "record " << damaged;
    EXPECT_EQ(reader->AccountOf(0).not_wanted, 8u);
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, at), 1);
  }
}

// The live control does not follow the period: it may have asked for each of them.
TEST_F(DamagedRecording, DamagedRecordsThatTheLiveControlAskedForAllCount) {
  elements_ = 8;
  auto writer = *RecordingWriter::Open(path_, {});
  const auto session = writer->AddSession(testing_support::SessionOf());
  Slot slot = testing_support::FloatSlot(*session, "x", elements_, 0);
  slot.every = 100;
  ASSERT_TRUE(writer->AddSlot(slot).ok());
  for (std::uint64_t replay = 1; replay <= 6; ++replay) {
    AppendAt(writer.get(), 0, replay, elements_);
  }
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  std::vector<SnapshotRef> refs;
  {
    const auto whole = *RecordingReader::Open(path_);
    for (const SnapshotRef& ref : whole->Snapshots(0)) refs.push_back(ref);
  }
  ASSERT_EQ(refs.size(), 6u);
  const UniqueFd fd(::open(file_.c_str(), O_RDWR));
  for (const std::size_t damaged : {2, 3}) {
    ASSERT_EQ(pwrite(fd.get(), "?", 1, static_cast<off_t>(refs[damaged].offset)), 1);
  }
  const auto reader = *RecordingReader::Open(path_, {.trust_index = false});
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].count, 2u);
}

TEST_F(DamagedRecording, TheLastRecordsThatTheLiveControlAskedForAllCount) {
  elements_ = 8;
  auto writer = *RecordingWriter::Open(path_, {});
  const auto session = writer->AddSession(testing_support::SessionOf());
  Slot slot = testing_support::FloatSlot(*session, "x", elements_, 0);
  slot.every = 100;
  ASSERT_TRUE(writer->AddSlot(slot).ok());
  for (std::uint64_t replay = 1; replay <= 6; ++replay) {
    AppendAt(writer.get(), 0, replay, elements_);
  }
  Mark mark;
  mark.kind = MarkKind::kSlotClosed;
  mark.slot = 0;
  mark.replay = mark.ordinal = 6;
  ASSERT_TRUE(writer->AddMark(mark).ok());
  ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  std::vector<std::uint64_t> offsets;
  {
    const auto whole = *RecordingReader::Open(path_);
    for (const SnapshotRef& ref : whole->Snapshots(0)) offsets.push_back(ref.offset);
  }
  ASSERT_EQ(offsets.size(), 6u);
  const UniqueFd fd(::open(file_.c_str(), O_RDWR));
  for (const std::size_t damaged : {4, 5}) {
    ASSERT_EQ(pwrite(fd.get(), "?", 1, static_cast<off_t>(offsets[damaged])), 1);
  }
  const auto reader = *RecordingReader::Open(path_, {.trust_index = false});
  ASSERT_EQ(reader->losses().size(), 1u);
  EXPECT_EQ(reader->losses()[0].count, 2u);
}

TEST_F(DamagedRecording, AFileThatCannotBeReadIsToldOnceHoweverOftenItIsLookedAt) {
  Write(8);
  std::ofstream(path_ + "/segment-000002.cgd") << "rubbish";
  const auto reader = RecordingReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  ASSERT_TRUE((*reader)->Refresh().ok());
  ASSERT_TRUE((*reader)->Refresh().ok());
  EXPECT_EQ((*reader)->damage().size(), 1u);
}

// Otherwise a small file could ask for any amount of memory.
TEST_F(DamagedRecording, AnIndexThatNamesARecordTwiceIsNotBelieved) {
  HandMadeSegment segment(path_);
  Index index;
  index.first_number = 1;
  index.others = {segment.Append(RecordType::kSession, testing_support::SessionOf()),
                  segment.Append(RecordType::kSlot, testing_support::FloatSlot(0, "x", 8, 0)),
                  segment.Append(RecordType::kLoss, Loss{.count = 1})};
  index.others.push_back(index.others.back());
  segment.Close(index);
  const auto reader = RecordingReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_TRUE((*reader)->closed());
  EXPECT_EQ((*reader)->losses().size(), 1u);
}

TEST_F(DamagedRecording, ARecordThatComesTwiceCountsOnce) {
  HandMadeSegment segment(path_);
  segment.Append(RecordType::kSession, testing_support::SessionOf());
  segment.Append(RecordType::kSlot, testing_support::FloatSlot(0, "x", 8, 0));
  segment.Append(RecordType::kLoss, Loss{.count = 1});
  segment.RepeatNumber();
  segment.Append(RecordType::kLoss, Loss{.count = 1});
  segment.Close({});
  const auto reader = RecordingReader::Open(path_, {.trust_index = false});
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->losses().size(), 1u);
  EXPECT_EQ((*reader)->damage().size(), 1u);
}

TEST_F(DamagedRecording, WhatAnIndexOfAnUnknownProbeNamesComesOnce) {
  HandMadeSegment segment(path_);
  Index index;
  index.first_number = 1;
  Mark mark;
  mark.kind = MarkKind::kSessionEnded;
  index.others = {segment.Append(RecordType::kSession, testing_support::SessionOf()),
                  segment.Append(RecordType::kSlot, testing_support::FloatSlot(0, "x", 8, 0)),
                  segment.Append(RecordType::kLoss, Loss{.count = 1}),
                  segment.Append(RecordType::kMark, mark)};
  SlotRun run;
  run.slot = 7;
  index.runs = {run};
  segment.Close(index);
  const auto reader = RecordingReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->losses().size(), 1u);
  EXPECT_EQ((*reader)->marks().size(), 1u);
}

// Records that the chain leaves out are found by walking through the file.
TEST_F(DamagedRecording, AChainOfIndexesThatBeginsTooLateIsNotBelieved) {
  HandMadeSegment segment(path_);
  segment.Append(RecordType::kSession, testing_support::SessionOf());
  segment.Append(RecordType::kSlot, testing_support::FloatSlot(0, "x", 8, 0));
  Index index;
  index.first_number = 3;
  index.others = {segment.Append(RecordType::kLoss, Loss{.count = 1})};
  segment.Close(index);
  const auto reader = RecordingReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->slots().size(), 1u);
}

// Its snapshots are found by walking through the records that it covers, and no others.
TEST_F(DamagedRecording, WithADamagedIndexEverySnapshotIsThereOnce) {
  constexpr std::uint64_t kAll = 10;
  {
    auto writer = *RecordingWriter::Open(path_, {.index_bytes = 20'000});
    const auto session = writer->AddSession(testing_support::SessionOf());
    ASSERT_TRUE(writer->AddSlot(testing_support::FloatSlot(*session, "x", 1024, 0)).ok());
    for (std::uint64_t replay = 1; replay <= kAll; ++replay) {
      AppendAt(writer.get(), 0, replay, 1024);
    }
    ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  }
  std::vector<std::uint64_t> rows_at;  // of the indexes that have some
  {
    const auto file = *SegmentFile::Open(file_);
    Record record;
    for (std::uint64_t at = layout::kFileHeaderBytes;
         file->Read(at, &record) == ReadStatus::kRecord; at = record.next()) {
      const bool is_index = record.type() == layout::RecordType::kIndex;
      if (is_index && record.header.payload_bytes != 0) rows_at.push_back(record.payload_offset());
    }
  }
  ASSERT_GE(rows_at.size(), 2u);
  const UniqueFd fd(::open(file_.c_str(), O_RDWR));
  ASSERT_EQ(pwrite(fd.get(), "?", 1, static_cast<off_t>(rows_at[1])), 1);
  const auto reader = RecordingReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<std::uint64_t> replays;
  for (const SnapshotRef& ref : (*reader)->Snapshots(0)) replays.push_back(ref.replay);
  EXPECT_THAT(replays, testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_FALSE((*reader)->damage().empty());
}

// Only one replay in ten is wanted: each snapshot says that the nine before it were not.
TEST_F(DamagedRecording, CutOffAnywhereGivesItsLongestWholePrefix) {
  for (const std::uint64_t elements : {8u, 1024u}) {
    std::filesystem::remove_all(path_);
    Write(elements);
    std::vector<std::uint64_t> ends;  // of each snapshot's values
    std::uint64_t slot_end = 0;
    {
      const auto reader = *RecordingReader::Open(path_);
      for (const SnapshotRef& ref : reader->Snapshots(0)) {
        Record record;
        ASSERT_EQ(reader->segment(0).Read(ref.offset, &record), ReadStatus::kRecord);
        ends.push_back(record.payload_offset() + record.header.payload_bytes);
        if (slot_end == 0) slot_end = ref.offset;
      }
    }
    const std::uint64_t step = elements == 8 ? 1 : kBetweenPlaces;
    for (std::uint64_t bytes = bytes_ - 1; bytes < bytes_ && !HasFailure(); bytes -= step) {
      std::filesystem::resize_file(file_, bytes);
      const auto reader = RecordingReader::Open(path_);
      ASSERT_EQ(reader.ok(), bytes >= layout::kFileHeaderBytes) << bytes;
      if (!reader.ok()) continue;
      const auto whole = static_cast<std::uint64_t>(
          std::count_if(ends.begin(), ends.end(), [&](std::uint64_t end) { return end <= bytes; }));
      bool said = false;
      EXPECT_EQ(CountRight(**reader, true, &said), whole) << bytes;
      EXPECT_TRUE(said) << bytes;
    }
  }
}

TEST_F(DamagedRecording, AWriterGoesOnAfterACutAnywhere) {
  Write(8);
  const std::string copy = dir_ / "copy";
  std::filesystem::copy_file(file_, copy);
  for (std::uint64_t bytes = layout::kFileHeaderBytes; bytes < bytes_ && !HasFailure();
       bytes += 7) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    std::filesystem::copy_file(copy, file_);
    std::filesystem::resize_file(file_, bytes);
    WriterOptions options;
    options.durability = Durability::kNone;
    auto writer = RecordingWriter::Open(path_, options);
    ASSERT_TRUE(writer.ok()) << writer.error().message << " at " << bytes;
    const auto session = (*writer)->AddSession(testing_support::SessionOf());
    ASSERT_TRUE((*writer)->AddSlot(testing_support::FloatSlot(*session, "x", 8, 0)).ok());
    for (std::uint64_t replay = 1; replay <= kReplays; ++replay) {
      AppendAt(writer->get(), 0, replay, 8);
    }
    ASSERT_TRUE((*writer)->Close(StopReason::kRequested).ok());
    bool said = false;
    const auto reader = RecordingReader::Open(path_);
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(CountRight(**reader, true, &said), kReplays) << bytes;
    EXPECT_FALSE(said) << bytes;
    EXPECT_THAT(recording::VerifyRecording((*reader)->directory()).value(), testing::IsEmpty());
  }
}

TEST_F(DamagedRecording, EveryFlippedBitOfTheFileHeaderIsSeen) {
  Write(8);
  FlipEveryBit(0, layout::kFileHeaderBytes);
}

TEST_F(DamagedRecording, EveryFlippedBitIsSeenOrDoesNotMatter) {
  Write(8);
  FlipEveryBit(layout::kFileHeaderBytes, bytes_);
}

TEST_F(DamagedRecording, EveryFlippedBitOfALargePayloadAndBeforeItIsSeen) {
  Write(1024);
  const auto ref = RecordingReader::Open(path_).value()->Find(0, 2);
  FlipEveryBit(ref->offset, ref->offset + 8192, kBetweenPlaces);
}

TEST_F(DamagedRecording, VerifySeesEveryFlippedByte) {
  Write(1024);
  const UniqueFd fd(::open(file_.c_str(), O_RDWR));
  for (std::uint64_t at = 0; at < bytes_ && !HasFailure(); at += 3) {
    unsigned char byte = 0;
    ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
    const unsigned char flipped = byte ^ 0x10;
    ASSERT_EQ(pwrite(fd.get(), &flipped, 1, static_cast<off_t>(at)), 1);
    const auto reader = RecordingReader::Open(path_);
    if (reader.ok()) {
      const auto found = recording::VerifyRecording((*reader)->directory());
      EXPECT_TRUE(!found.ok() || !found->empty() || !(*reader)->complete()) << at;
    }
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
  }
}

// What a sync tool, or a careless cp, leaves in the folder.
TEST_F(DamagedRecording, ACopyOfASegmentIsSaidAndItsRecordsComeOnce) {
  Write(4);
  for (const char* name : {"segment-000007.cgd", "segment-000001 (1).cgd", "segment-0000001.cgd",
                           "segment-000000.cgd", "segment-.cgd"}) {
    SCOPED_TRACE(name);
    const std::string copy = path_ + "/" + name;
    std::filesystem::copy(file_, copy);
    for (const bool trust_index : {true, false}) {
      const auto reader = *RecordingReader::Open(path_, {.trust_index = trust_index});
      bool said = false;
      EXPECT_EQ(CountRight(*reader, true, &said), kReplays);
      EXPECT_TRUE(said);
      EXPECT_EQ(reader->snapshot_count(), kReplays);
      ASSERT_EQ(reader->damage().size(), 1u);
      EXPECT_THAT(reader->damage()[0].what, testing::HasSubstr("is a copy of segment 1"));
      const auto damage = recording::VerifyRecording(reader->directory());
      ASSERT_TRUE(damage.ok());
      EXPECT_FALSE(damage->empty());
    }
    std::filesystem::remove(copy);
  }
}

TEST_F(DamagedRecording, ASegmentWithRecordsThatEarlierOnesHaveIsSaidAndNotRead) {
  Write(4);
  const auto go_on = [](const std::string& path, std::uint64_t first, std::uint64_t last) {
    auto writer = *RecordingWriter::Open(path, {});
    for (std::uint64_t replay = first; replay <= last; ++replay) {
      AppendAt(writer.get(), 0, replay, 4);
    }
    ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  };
  const std::string other = dir_ / "b.cgrec";
  std::filesystem::copy(path_, other);
  go_on(other, 5, 5);
  go_on(other, 6, 6);
  go_on(path_, 5, 9);
  std::filesystem::copy(other + "/segment-000003.cgd", path_);
  for (const bool trust_index : {true, false}) {
    const auto reader = *RecordingReader::Open(path_, {.trust_index = trust_index});
    bool said = false;
    EXPECT_EQ(CountRight(*reader, true, &said), 9u);
    EXPECT_TRUE(said);
    ASSERT_EQ(reader->damage().size(), 1u);
    EXPECT_THAT(reader->damage()[0].what, testing::HasSubstr("it begins with record"));
  }
}

TEST_F(DamagedRecording, ASegmentOfAnotherRecordingIsSaidAndNotRead) {
  Write(4);
  const std::string other = dir_ / "b.cgrec";
  for (int run = 0; run < 2; ++run) {  // the second one goes on in a segment of its own
    auto writer = *RecordingWriter::Open(other, {});
    if (run == 0) {
      const auto session = writer->AddSession(testing_support::SessionOf());
      ASSERT_TRUE(writer->AddSlot(testing_support::FloatSlot(*session, "x", 4, 0)).ok());
      for (std::uint64_t replay = 1; replay <= kReplays; ++replay) {
        AppendAt(writer.get(), 0, replay, 4);
      }
    } else {
      AppendAt(writer.get(), 0, kReplays + 1, 4);
    }
    ASSERT_TRUE(writer->Close(StopReason::kRequested).ok());
  }
  std::filesystem::copy(other + "/segment-000002.cgd", path_);
  for (const bool trust_index : {true, false}) {
    const auto reader = *RecordingReader::Open(path_, {.trust_index = trust_index});
    bool said = false;
    EXPECT_EQ(CountRight(*reader, true, &said), kReplays);
    EXPECT_TRUE(said);
    ASSERT_EQ(reader->damage().size(), 1u);
    EXPECT_THAT(reader->damage()[0].what, testing::HasSubstr("belongs to another recording"));
    EXPECT_FALSE(reader->complete());
  }
}

// Past a damaged record a walk finds fewer rows than the index counts.
TEST(SnapshotIndex, FindsRowsThatLieElsewhereThanItsRunsSay) {
  const std::vector<layout::IndexRow> all = {
      {0, 0, 1, 1, 64}, {1, 0, 1, 1, 128}, {1, 0, 2, 2, 192}, {2, 0, 1, 1, 256}, {3, 0, 1, 1, 320}};
  for (std::size_t damaged = 0; damaged < all.size(); ++damaged) {
    std::vector<layout::IndexRow> rows = all;
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(damaged));
    SnapshotIndex index;
    index.Add(std::make_shared<IndexBlock>(0, [rows] { return rows; }), SnapshotIndex::RunsOf(all));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto found = index.WithOrdinal(all[i].slot, all[i].ordinal);
      ASSERT_EQ(found.has_value(), i != damaged) << damaged << ", " << i;
      if (found) EXPECT_EQ(found->offset, all[i].offset);
    }
    const std::vector<std::uint64_t> last = {64, damaged == 2 ? 128u : 192u, 256, 320};
    for (std::uint32_t slot = 0; slot < last.size(); ++slot) {
      const auto found = index.Last(slot);
      EXPECT_EQ(found.has_value(), slot == 1 || all[damaged].slot != slot);
      if (found) EXPECT_EQ(found->offset, last[slot]);
    }
  }
}

}  // namespace
}  // namespace cgdebug::recording
