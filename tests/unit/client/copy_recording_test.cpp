// Recordings made from recordings: what one lost and another has, and what the copy lacks.
#include "client/source/copy_recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <tuple>

#include "daemon/core/recording/files/recording_files.h"
#include "daemon/core/recording/segments/segment_file.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::source {
namespace {

using layout::LossCause;
using recording::Loss;
using recording::RecordingReader;
using recording::RecordingWriter;
using recording::StopReason;
using testing::ElementsAre;
using testing_support::AppendAt;
using testing_support::FloatSlot;
using testing_support::SessionOf;

// Recordings of one slot whose ordinals are its replays.
class Copies : public testing::Test {
 protected:
  // The losses lie between the replays.
  const RecordingReader* Record(const std::vector<std::uint64_t>& replays,
                                const std::vector<Loss>& losses = {}, std::uint32_t every = 1,
                                StopReason reason = StopReason::kJobEnded) {
    const std::string path = dir_ / (std::to_string(readers_.size()) + ".cgrec");
    {
      auto writer = *RecordingWriter::Open(path, {});
      recording::Slot slot = FloatSlot(*writer->AddSession(SessionOf()), "x", 2, 0);
      slot.every = every;
      slot.from_ordinal = replays.front() - 1;
      const std::uint32_t id = *writer->AddSlot(slot);
      auto loss = losses.begin();
      const auto lose_before = [&](std::uint64_t replay) {
        for (; loss != losses.end() && loss->first_ordinal < replay; ++loss) {
          EXPECT_TRUE(writer->AddLoss(*loss).ok());
        }
      };
      for (const std::uint64_t replay : replays) {
        lose_before(replay);
        AppendAt(writer.get(), id, replay, 2);
      }
      lose_before(~std::uint64_t{0});
      recording::Mark mark;
      mark.kind = recording::MarkKind::kSlotClosed;
      mark.slot = id;
      mark.replay = 99;
      EXPECT_TRUE(writer->AddMark(mark).ok());
      EXPECT_TRUE(writer->Close(reason).ok());
    }
    readers_.push_back(*RecordingReader::Open(path));
    return readers_.back().get();
  }
  static Loss LossOf(std::uint64_t first, std::uint64_t last, std::uint64_t count) {
    return {.cause = LossCause::kReleased,
            .count = count,
            .first_ordinal = first,
            .last_ordinal = last,
            .after_replay = first - 1,
            .before_replay = last + 1};
  }
  std::unique_ptr<RecordingReader> Copy(const std::vector<const RecordingReader*>& from,
                                        const CopyOptions& options = {}) {
    const std::string path = dir_ / ("copy-" + std::to_string(++copies_) + ".cgrec");
    const auto result = CopyRecordings(from, path, options);
    EXPECT_TRUE(result.ok()) << result.error().message;
    auto copy = *RecordingReader::Open(path);
    EXPECT_EQ(result->snapshots, copy->snapshot_count());
    std::uint64_t lost = 0;
    for (const Loss& loss : copy->losses()) lost += loss.count;
    EXPECT_EQ(result->lost + result->damaged, lost);
    return copy;
  }
  static std::vector<std::uint64_t> Replays(const RecordingReader& reader) {
    std::vector<std::uint64_t> replays;
    for (const auto& ref : reader.Snapshots(0)) {
      EXPECT_EQ(ref.ordinal, ref.replay);
      replays.push_back(ref.replay);
    }
    return replays;
  }
  // Count, ordinals, replays around.
  using Told =
      std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  static std::vector<Told> Losses(const RecordingReader& reader) {
    std::vector<Told> told;
    for (const Loss& loss : reader.losses()) {
      EXPECT_EQ(loss.cause, LossCause::kReleased);
      told.emplace_back(loss.count, loss.first_ordinal, loss.last_ordinal, loss.after_replay,
                        loss.before_replay);
    }
    return told;
  }

  testing_support::TempDir dir_;
  std::vector<std::unique_ptr<RecordingReader>> readers_;
  int copies_ = 0;
};

TEST_F(Copies, OneThatIsEndedSaysSo) {
  int asked = 0;
  CopyOptions options;
  options.goes_on = [&] { return ++asked < 3; };
  const auto result = CopyRecordings({Record({1, 2, 3, 4, 5})}, dir_ / "ended.cgrec", options);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, testing::HasSubstr("it was stopped"));
  EXPECT_EQ(asked, 3);
}

TEST_F(Copies, ALossIsReducedToWhatNoSourceHas) {
  const auto copy = Copy({Record({1, 8}, {LossOf(2, 7, 6)}), Record({1, 4, 5, 8})});
  EXPECT_THAT(Replays(*copy), ElementsAre(1, 4, 5, 8));
  EXPECT_THAT(Losses(*copy), ElementsAre(Told{2, 2, 3, 1, 4}, Told{2, 6, 7, 5, 8}));
  EXPECT_FALSE(copy->complete());
}

TEST_F(Copies, ASlotOfEveryTenthReplayLosesOnlyThose) {
  const auto copy = Copy({Record({1, 51}, {LossOf(2, 50, 4)}, 10), Record({1, 21, 51}, {}, 10)});
  EXPECT_THAT(Losses(*copy), ElementsAre(Told{1, 2, 20, 1, 21}, Told{2, 22, 50, 21, 51}));
  EXPECT_TRUE(
      Copy({Record({1, 21}, {LossOf(2, 20, 1)}, 10), Record({1, 11, 21}, {}, 10)})->complete());
}

TEST_F(Copies, ASnapshotThatAllSourcesLostIsLostOnce) {
  const std::vector<Loss> losses = {LossOf(2, 4, 3)};
  const auto copy = Copy({Record({1, 5, 6}, losses), Record({1, 5, 6}, losses)});
  EXPECT_THAT(Replays(*copy), ElementsAre(1, 5, 6));
  EXPECT_THAT(Losses(*copy), ElementsAre(Told{3, 2, 4, 1, 5}));
  const auto longer = Copy({Record({1, 5, 6}, losses), Record({1, 8}, {LossOf(2, 7, 6)})});
  EXPECT_THAT(Losses(*longer), ElementsAre(Told{3, 2, 4, 1, 5}, Told{1, 7, 7, 6, 8}));
  const auto later = Copy({Record({1}, {LossOf(2, 4, 3)}), Record({1, 7}, {LossOf(2, 6, 5)})});
  EXPECT_THAT(Losses(*later), ElementsAre(Told{3, 2, 4, 1, 5}, Told{2, 5, 6, 1, 7}));
}

TEST_F(Copies, ARangeHasTheLossesThatReachIntoIt) {
  const RecordingReader* from =
      Record({1, 3, 5, 7, 9}, {LossOf(2, 2, 1), LossOf(4, 4, 1), LossOf(6, 6, 1), LossOf(8, 8, 1)});
  const auto copy = Copy({from}, {.wants = {}, .first_replay = 3, .last_replay = 7});
  EXPECT_THAT(Replays(*copy), ElementsAre(3, 5, 7));
  EXPECT_THAT(Losses(*copy), ElementsAre(Told{1, 4, 4, 3, 5}, Told{1, 6, 6, 5, 7}));
  const auto wider = Copy({from}, {.wants = {}, .first_replay = 2, .last_replay = 8});
  EXPECT_THAT(Losses(*wider), testing::SizeIs(4));
  EXPECT_EQ(wider->slots()[0].from_ordinal, 1u) << "it begins with what is lost";
}

TEST_F(Copies, IsAsWholeAsWhatItWasMadeFrom) {
  const RecordingReader* cut = Record({1, 2, 3, 4}, {}, 1, StopReason::kDiskFull);
  EXPECT_FALSE(Copy({cut})->complete());
  EXPECT_FALSE(Copy({cut}, {.wants = {}, .first_replay = 2, .last_replay = 4})->complete());
  EXPECT_TRUE(Copy({cut}, {.wants = {}, .first_replay = 2, .last_replay = 3})->complete())
      << "all of the range is there";
  EXPECT_FALSE(Copy({Record({1, 2, 3, 4}), cut})->complete());
}

TEST_F(Copies, BeginsWithTheEarlierOfTwoFirstReplays) {
  const auto copy = Copy({Record({3, 4}), Record({1, 2, 3})});
  EXPECT_THAT(Replays(*copy), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(copy->slots()[0].from_ordinal, 0u);
  EXPECT_TRUE(copy->complete());
}

TEST_F(Copies, ASnapshotDamagedInOneSourceIsTakenFromAnother) {
  const RecordingReader* whole = Record({1, 2, 3});
  const RecordingReader* damaged = Record({2, 3});
  const std::string segment = recording::ListSegments(damaged->directory())->at(0);
  for (const auto& ref : damaged->Snapshots(0)) {
    recording::Record record;
    ASSERT_EQ((*recording::SegmentFile::Open(segment))->Read(ref.offset, &record),
              recording::ReadStatus::kRecord);
    std::fstream file(segment, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(record.payload_offset()));
    file.put('x');
  }
  const auto copy = Copy({damaged, whole});
  EXPECT_THAT(Replays(*copy), ElementsAre(1, 2, 3));
  EXPECT_TRUE(copy->losses().empty());
  for (const auto& ref : copy->Snapshots(0)) EXPECT_TRUE(copy->ReadPayload(ref).ok());
  EXPECT_EQ(Copy({damaged, damaged})->losses().size(), 2u) << "each once";
}

TEST_F(Copies, ASingleReplayBetweenTwoRecordingsIsLost) {
  const auto copy = Copy({Record({1, 2}), Record({4, 5})});
  EXPECT_THAT(Replays(*copy), ElementsAre(1, 2, 4, 5));
  ASSERT_EQ(copy->losses().size(), 1u);
  EXPECT_EQ(copy->losses()[0].cause, LossCause::kDaemonGone);
  EXPECT_EQ(copy->losses()[0].count, 1u);
  EXPECT_EQ(copy->losses()[0].first_ordinal, 3u);
}

TEST_F(Copies, ARangeHasTheFindingsOfItsReplaysAlone) {
  const std::string path = dir_ / "found.cgrec";
  {
    auto writer = *RecordingWriter::Open(path, {});
    recording::Mark mark;
    mark.slot = *writer->AddSlot(FloatSlot(*writer->AddSession(SessionOf()), "x", 2, 0));
    for (const std::uint64_t replay : {1, 2, 3, 4}) AppendAt(writer.get(), 0, replay, 2);
    mark.kind = recording::MarkKind::kFirstNan;
    mark.replay = 3;
    ASSERT_TRUE(writer->AddMark(mark).ok());
    ASSERT_TRUE(writer->Close(StopReason::kJobEnded).ok());
  }
  const auto from = *RecordingReader::Open(path);
  const auto findings = [&](std::uint64_t first, std::uint64_t last) {
    return Copy({from.get()}, {.wants = {}, .first_replay = first, .last_replay = last})
        ->marks()
        .size();
  };
  EXPECT_EQ(findings(1, 2), 0u);
  EXPECT_EQ(findings(2, 3), 1u);
  EXPECT_EQ(findings(3, 4), 1u);
  EXPECT_EQ(findings(4, 4), 0u);
}

TEST_F(Copies, LossesAfterTheLastSnapshotAreTakenOver) {
  EXPECT_THAT(Losses(*Copy({Record({1}, {LossOf(2, 4, 3)})})), ElementsAre(Told{3, 2, 4, 1, 5}));
}

TEST_F(Copies, ARangeIsClosedBehindItsLastLoss) {
  const auto copy = Copy({Record({1, 2, 3}, {LossOf(4, 6, 3)})},
                         {.wants = {}, .first_replay = 2, .last_replay = 6});
  EXPECT_THAT(Losses(*copy), ElementsAre(Told{3, 4, 6, 3, 7}));
  ASSERT_EQ(copy->marks().size(), 1u);
  EXPECT_EQ(copy->marks()[0].ordinal, 6u);
}

}  // namespace
}  // namespace cgdebug::source
