// Commands that copy, repair and remove recordings: cgdebug-cli as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/cli/cli_sources_fixture.h"
#include "tests/support/recording/known_recording.h"
#include "tests/support/recording/recording_fixture.h"
#include "tests/support/recording/safetensors_file.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::ProcessResult;
using testing_support::ReadText;
using testing_support::RecordingFixture;
using testing_support::WriteRecording;
using testing_support::WriteText;

TEST_F(CliSourcesTest, VerifySaysWhenAnyOfThemIsNotComplete) {
  {
    RecordingFixture recording(dir_ / "cut.cgrec");
    recording.Add(recording.AddSlot("x", {1}), 1, {1});
    recording.Close(recording::StopReason::kDiskFull);
  }
  WriteRecording(dir_ / "whole.cgrec", 2, 3);
  EXPECT_EQ(Cli({"verify", dir_ / "whole.cgrec"}).code, 0);
  EXPECT_EQ(Cli({"verify", dir_ / "cut.cgrec", dir_ / "whole.cgrec"}).code, 3);
  EXPECT_EQ(Cli({"verify", dir_ / "whole.cgrec", dir_ / "cut.cgrec"}).code, 3);
  EXPECT_THAT(Cli({"verify", dir_ / "cut.cgrec"}).err,
              HasSubstr("next:  cgdebug-cli info " + (dir_ / "cut.cgrec")));
}

TEST_F(CliSourcesTest, WhatIsNoRecordingIsRefusedWithWhatToType) {
  EXPECT_THAT(Cli({"repair", dir_ / "nosuch"}).err,
              HasSubstr("nosuch does not exist. A source is a recording NAME.cgrec"));
  RecordingFixture(dir_ / "empty.cgrec").Close(recording::StopReason::kDiskFull);
  EXPECT_THAT(Cli({"check", dir_ / "empty.cgrec"}).err,
              HasSubstr("Type: cgdebug-cli verify " + (dir_ / "empty.cgrec")));
  EXPECT_EQ(Cli({"verify", dir_ / "empty.cgrec"}).code, 3);
}

TEST_F(CliSourcesTest, VerifyFindsDamageAndRepairKeepsTheRest) {
  WriteRecording(dir_ / "a.cgrec", 5, 3);
  EXPECT_EQ(Cli({"verify", dir_ / "a.cgrec"}).code, 0);
  std::string bytes = ReadText(Segment("a.cgrec"));
  const float values[] = {3, 4, 5, 6};
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  WriteText(Segment("a.cgrec"), bytes);
  const ProcessResult found = Cli({"verify", dir_ / "a.cgrec"});
  EXPECT_EQ(found.code, 1);
  EXPECT_THAT(found.err, HasSubstr("next:  cgdebug-cli repair"));
  EXPECT_EQ(Cli({"repair", dir_ / "a.cgrec", "--dry-run"}).code, 0);
  EXPECT_FALSE(fs::exists(dir_ / "a.repaired.cgrec"));
  const ProcessResult repaired = Cli({"repair", dir_ / "a.cgrec"});
  EXPECT_EQ(repaired.code, 3) << repaired.err;  // something is not in it
  EXPECT_THAT(repaired.out, HasSubstr("9 snapshots of 2 probe calls, 1 damaged and left out"));
  // The copy is undamaged, but still says that something is missing.
  const ProcessResult again = Cli({"verify", dir_ / "a.repaired.cgrec"});
  EXPECT_EQ(again.code, 3);
  EXPECT_THAT(again.out, HasSubstr("every byte is as it was written"));
  EXPECT_EQ(CliJson({"show", (dir_ / "a.repaired.cgrec") + ":y@3"})["values"][1], 9.0);
  EXPECT_EQ(Cli({"diff", dir_ / "a.repaired.cgrec", dir_ / "a.repaired.cgrec"}).code, 3);
  EXPECT_THAT(Cli({"repair", dir_ / "a.cgrec"}).err, HasSubstr("add: -f"));
  EXPECT_EQ(Cli({"repair", dir_ / "a.cgrec", "-f"}).code, 3);
}

TEST_F(CliSourcesTest, RepairOfACutOffRecordingIsNotCalledComplete) {
  WriteRecording(dir_ / "a.cgrec", 5);
  const std::string bytes = ReadText(Segment("a.cgrec"));
  WriteText(Segment("a.cgrec"), bytes.substr(0, bytes.size() * 3 / 4));
  EXPECT_EQ(Cli({"check", dir_ / "a.cgrec"}).code, 3);
  const ProcessResult repaired = Cli({"repair", dir_ / "a.cgrec"});
  EXPECT_EQ(repaired.code, 3);
  EXPECT_THAT(repaired.out, HasSubstr("; it is not complete"));
  EXPECT_EQ(Cli({"check", dir_ / "a.repaired.cgrec"}).code, 3);
}

TEST_F(CliSourcesTest, ExtractKeepsWhatWasAskedForAndNothingElse) {
  WriteRecording(dir_ / "a.cgrec", 6);
  const std::vector<std::string> extract = {
      "extract", dir_ / "a.cgrec", "--probes", "y", "--replays", "2..4", "-o", dir_ / "s.cgrec"};
  EXPECT_EQ(Cli(extract).code, 0);
  const json info = CliJson({"info", dir_ / "s.cgrec"});
  EXPECT_EQ(info["complete"], true) << info;
  ASSERT_EQ(info["probes"].size(), 1u);
  EXPECT_EQ(info["probes"][0]["first_replay"], 2);
  EXPECT_EQ(info["probes"][0]["last_replay"], 4);
  EXPECT_EQ(Cli({"diff", dir_ / "s.cgrec", dir_ / "a.cgrec", "y", "--replays", "2..4"}).code, 0);
  EXPECT_EQ(Cli(extract).code, 2);  // it exists
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", "--probes", "z", "-o", dir_ / "t.cgrec"}).code, 4);
  EXPECT_FALSE(fs::exists(dir_ / "t.cgrec"));
  const ProcessResult later =
      Cli({"extract", dir_ / "a.cgrec", "--replays", "7..9", "-o", dir_ / "t.cgrec"});
  EXPECT_EQ(later.code, 4);
  EXPECT_THAT(later.err, HasSubstr("there is no snapshot in replays 7..9: nothing to write"));
  EXPECT_FALSE(fs::exists(dir_ / "t.cgrec"));
}

TEST_F(CliSourcesTest, TheOverwrittenRecordingStaysUntilItsCopyIsComplete) {
  WriteRecording(dir_ / "a.cgrec", 6);
  const std::string copy = dir_ / "s.cgrec";
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", "--probes", "y", "-o", copy}).code, 0);
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", "--probes", "z", "-o", copy, "-f"}).code, 4);
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", "--replays", "7..9", "-o", copy, "-f"}).code, 4);
  EXPECT_EQ(CliJson({"info", copy})["probes"][0]["last_replay"], 6);
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", "--replays", "1..2", "-o", copy, "-f"}).code, 0);
  EXPECT_EQ(CliJson({"info", copy})["probes"][0]["last_replay"], 2);
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_ / "")) {
    EXPECT_THAT(entry.path().filename(), Not(HasSubstr("new-")));
  }
}

TEST_F(CliSourcesTest, ACopyHasEveryLossOfItsSources) {
  RecordingFixture recording(dir_ / "a.cgrec");
  const std::uint32_t x = recording.AddSlot("x", {1});
  for (std::uint64_t replay = 1; replay <= 5; ++replay) {
    if (replay == 2) {
      recording.Lose(x, replay);
    } else {
      recording.Add(x, replay, {static_cast<float>(replay)});
    }
  }
  recording.Close();
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", "-o", dir_ / "b.cgrec"}).code, 3);
  const json copy = CliJson({"info", dir_ / "b.cgrec"});
  EXPECT_EQ(copy["probes"][0]["snapshots"], 4);
  EXPECT_EQ(copy["complete"], false) << copy;
}

TEST_F(CliSourcesTest, ACopyThatCannotBeWrittenLeavesNothingBehind) {
  WriteRecording(dir_ / "a.cgrec", 200);
  // Larger than the first segment's head, smaller than the copy.
  const ProcessResult failed =
      testing_support::Process({"/bin/sh", "-c",
                                std::string("trap '' XFSZ; ulimit -f 16; exec ") + CGDEBUG_CLI +
                                    " extract '" + (dir_ / "a.cgrec") + "' -o '" +
                                    (dir_ / "b.cgrec") + "'"})
          .Wait();
  EXPECT_EQ(failed.code, 2) << failed.out << failed.err;
  EXPECT_FALSE(fs::exists(dir_ / "b.cgrec"));
}

TEST_F(CliSourcesTest, ACopiedSegmentIsFoundByEveryCommand) {
  WriteRecording(dir_ / "a.cgrec", 5);
  WriteRecording(dir_ / "b.cgrec", 5);
  fs::copy(Segment("a.cgrec"), (dir_ / "a.cgrec") + "/segment-000007.cgd");
  EXPECT_EQ(Cli({"check", dir_ / "a.cgrec"}).code, 3);
  EXPECT_EQ(Cli({"verify", dir_ / "a.cgrec"}).code, 1);
  EXPECT_EQ(Cli({"diff", dir_ / "a.cgrec", dir_ / "b.cgrec"}).code, 3);
  EXPECT_THAT(Cli({"info", dir_ / "a.cgrec"}).out, HasSubstr("is a copy of segment 1"));
  EXPECT_EQ(CliJson({"check", dir_ / "a.cgrec"})["snapshots"], 10);
}

TEST_F(CliSourcesTest, MergeMakesOneOfTheRanksAndFillsLosses) {
  WriteRecording(dir_ / "r0.cgrec", 2, 1, 0);
  WriteRecording(dir_ / "r1.cgrec", 2, 5, 1);
  EXPECT_EQ(Cli({"extract", dir_ / "r0.cgrec", dir_ / "r1.cgrec", "-o", dir_ / "all.cgrec"}).code,
            0);
  const json merged = CliJson({"info", dir_ / "all.cgrec"});
  EXPECT_EQ(merged["probes"].size(), 4u);
  EXPECT_EQ(merged["complete"], true);
  // The same job recorded twice: each recording has what the other lost.
  const auto record = [&](const std::string& name, std::uint64_t lost) {
    RecordingFixture recording(dir_ / name);
    const std::uint32_t x = recording.AddSlot("x", {1});
    for (std::uint64_t replay = 1; replay <= 5; ++replay) {
      if (replay == lost) {
        recording.Lose(x, replay);
      } else {
        recording.Add(x, replay, {static_cast<float>(replay)});
      }
    }
    recording.Close();
  };
  record("a.cgrec", 2);
  record("b.cgrec", 4);
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", dir_ / "b.cgrec", "-o", dir_ / "ab.cgrec"}).code, 0);
  const json filled = CliJson({"info", dir_ / "ab.cgrec"});
  EXPECT_EQ(filled["probes"][0]["snapshots"], 5);
  EXPECT_EQ(filled["complete"], true) << filled;
}

TEST_F(CliSourcesTest, RmRemovesRecordingsOnlyAndOnlyWithForce) {
  WriteRecording(dir_ / "a.cgrec", 1);
  EXPECT_EQ(Cli({"rm", dir_ / "a.cgrec"}).code, 2);
  EXPECT_EQ(Cli({"rm", "-f", "--dry-run", dir_ / "a.cgrec"}).code, 0);
  EXPECT_TRUE(fs::exists(dir_ / "a.cgrec"));
  WriteText(dir_ / "notes.txt", "mine");
  EXPECT_EQ(Cli({"rm", "-f", dir_ / "notes.txt"}).code, 2);
  WriteText((dir_ / "a.cgrec") + "/notes.txt", "mine");
  EXPECT_THAT(Cli({"rm", "-f", dir_ / "a.cgrec"}).err, HasSubstr("not part of a recording"));
  EXPECT_EQ(ReadText((dir_ / "a.cgrec") + "/notes.txt"), "mine");
  WriteRecording(dir_ / "b.cgrec", 1);
  EXPECT_EQ(Cli({"rm", "-f", dir_ / "b.cgrec"}).code, 0);
  EXPECT_FALSE(fs::exists(dir_ / "b.cgrec"));
}

TEST_F(CliSourcesTest, RmAndVerifyRefuseToActOnAPart) {
  WriteRecording(dir_ / "a.cgrec", 1);
  for (const std::vector<std::string>& part :
       {std::vector<std::string>{"-s", "train.py-7"}, {"--ranks", "0"}}) {
    for (const char* verb : {"rm", "verify"}) {
      std::vector<std::string> command = {verb, dir_ / "a.cgrec"};
      if (command.front() == "rm") command.emplace_back("-f");
      command.insert(command.end(), part.begin(), part.end());
      const ProcessResult refused = Cli(command);
      EXPECT_EQ(refused.code, 2);
      EXPECT_THAT(refused.err, HasSubstr("leave out --session and --ranks"));
    }
  }
  EXPECT_TRUE(fs::exists(dir_ / "a.cgrec"));
}

TEST_F(CliSourcesTest, NothingTouchesARecordingThatIsBeingWritten) {
  RecordingFixture recording(dir_ / "a.cgrec");
  recording.Add(recording.AddSlot("x", {1}), 1, {1});
  EXPECT_EQ(Cli({"rm", "-f", dir_ / "a.cgrec"}).code, 2);
  EXPECT_EQ(Cli({"repair", dir_ / "a.cgrec"}).code, 2);
  EXPECT_TRUE(fs::exists(dir_ / "a.cgrec"));
}

// A probe with one value per replay; with `has_gap`, one replay is lost.
void WriteWithGap(const std::string& path, float last, bool has_gap) {
  auto writer = *recording::RecordingWriter::Open(path, {});
  const auto session = writer->AddSession(testing_support::SessionOf());
  ASSERT_TRUE(writer->AddSlot(testing_support::FloatSlot(*session, "x", 1, 0)).ok());
  for (const std::uint64_t replay : {1, 2, 4}) {
    const std::vector<float> values = {replay == 4 ? last : 1};
    if (replay == 4 && has_gap) {
      recording::Loss loss;
      loss.count = 1;
      loss.first_ordinal = loss.last_ordinal = 3;
      loss.after_replay = 2;
      loss.before_replay = 4;
      ASSERT_TRUE(writer->AddLoss(loss).ok());
    }
    auto snapshot = testing_support::SnapshotAt(0, replay, values);
    if (replay == 4 && !has_gap) snapshot.ordinal = 3;
    ASSERT_TRUE(writer->Append(snapshot, std::as_bytes(std::span(values))).ok());
  }
  ASSERT_TRUE(writer->Close(recording::StopReason::kRequested).ok());
}

TEST_F(CliSourcesTest, AFindingOutweighsAGapAndAGapOutweighsNothing) {
  const std::string whole = dir_ / "whole.cgrec", gap = dir_ / "gap.cgrec",
                    nan = dir_ / "nan.cgrec";
  WriteWithGap(whole, 1, false);
  WriteWithGap(gap, 1, true);
  WriteWithGap(nan, NAN, true);
  EXPECT_EQ(Cli({"check", whole}).code, 0);
  EXPECT_EQ(Cli({"check", gap}).code, 3);
  EXPECT_EQ(Cli({"check", nan}).code, 1);
  EXPECT_EQ(Cli({"diff", whole, whole}).code, 0);
  EXPECT_EQ(Cli({"diff", gap, nan}).code, 1);
  EXPECT_EQ(Cli({"diff", gap, nan, "--exit-zero"}).code, 0);
  EXPECT_EQ(Cli({"diff", gap, gap, "--exit-zero"}).code, 3);
}

TEST_F(CliSourcesTest, ARangeOfReplaysThatEndsBeforeItBeginsIsRefused) {
  WriteRecording(dir_ / "a.cgrec", 5);
  EXPECT_EQ(Cli({"check", dir_ / "a.cgrec", "--replays", "2..5"}).code, 0);
  for (const char* range : {"5..2", "0..2", "2..1", ".."}) {
    const ProcessResult result = Cli({"check", dir_ / "a.cgrec", "--replays", range});
    EXPECT_EQ(result.code, 2) << range;
    EXPECT_THAT(result.err, HasSubstr("is not a range of replays")) << range;
  }
}

}  // namespace
}  // namespace cgdebug::cli
