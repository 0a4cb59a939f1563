// `run`: the child process, the exit code and the summary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "client/cli/exit_codes.h"
#include "client/cli/run/job.h"
#include "client/cli/run/run_summary.h"
#include "client/cli/views/live/finding_filter.h"
#include "client/live/messages.h"
#include "daemon/core/wire/message_fields.h"
#include "tests/support/daemon/fake_daemon.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::MakeSession;

RunSummary HealthyRun() {
  RunSummary summary;
  summary.sessions = {wire::FieldsOf<live::Session>(MakeSession("3f2a91c0", 0)),
                      wire::FieldsOf<live::Session>(MakeSession("99999999", 1))};
  summary.complete = true;
  return summary;
}

live::FirstNonfinite First(const std::string& probe, std::uint64_t replay) {
  live::FirstNonfinite first;
  first.slot.probe = probe;
  first.replay = replay;
  first.serial = replay;
  first.count = 3;
  return first;
}

TEST(RunExitCode, IsTheJobsOwn) {
  RunSummary summary = HealthyRun();
  EXPECT_EQ(ExitCodeOf(summary, {}), 0);
  summary.job_exit_code = 137;
  EXPECT_EQ(ExitCodeOf(summary, {}), 137);
}

TEST(RunExitCode, FailOnMakesAFindingOneAndOnlyWhatWasAskedFor) {
  RunSummary summary = HealthyRun();
  summary.sessions[1].first_nan = First("x", 3);
  summary.sessions[1].nonfinite_probes = 1;
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitOk);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitFound);
  EXPECT_EQ(ExitCodeOf(summary, {.inf = true}), kExitOk);
  summary.sessions[0].failed_probes = 1;
  EXPECT_EQ(ExitCodeOf(summary, {.mismatch = true}), kExitFound);
}

TEST(RunExitCode, NothingFoundOverAGapIsInconclusive) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].counters.lost_overwritten = 1;
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitOk);
  summary = HealthyRun();
  summary.complete = false;
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
  summary = HealthyRun();
  summary.sessions[1].counters.suppressed = 1;
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
  EXPECT_THAT(SummaryText(summary, {.nan = true}, Style()),
              HasSubstr("but snapshots were left out: a probe was turned off"));
}

TEST(RunSummary, OfAnOpLogThatLacksRowsSaysThatAndNothingOfProbes) {
  for (const std::string_view name : {layout::kToldByGapRows, layout::kOfOpLogs}) {
    RunSummary summary = HealthyRun();
    summary.sessions.resize(1);
    summary.sessions[0].not_seen = {{.count = 1,
                                     .of = 2,
                                     .calls = 2,
                                     .name = std::string(name),
                                     .reason = "tensors of torch.qint8 are not shown"}};
    EXPECT_THAT(SummaryText(summary, {}, Style()),
                HasSubstr("not all ops are logged: tensors of torch.qint8 are not shown."));
    EXPECT_THAT(SummaryText(summary, {}, Style()), Not(HasSubstr("not watched")));
  }
}

TEST(RunExitCode, WhatNobodySawIsNoSuccessWhateverWasAskedFor) {
  RunSummary summary = HealthyRun();
  summary.sessions[1].not_seen = {
      {.count = 2, .of = 3, .calls = 8, .name = "fwd/bad", .reason = "/dev/shm is too small"}};
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
  const std::string text = SummaryText(summary, {.nan = true}, Style());
  EXPECT_THAT(text, HasSubstr("rank 1: 2 of 3 probes are not watched, the first fwd/bad (8 calls): "
                              "/dev/shm is too small."));
  EXPECT_THAT(text, HasSubstr("snapshots of probes were not looked at: exit 3"));
  EXPECT_THAT(SummaryText(summary, {}, Style()),
              HasSubstr("Not all that was to be seen was seen: exit 3"));
  summary.sessions[0].first_nan = First("x", 3);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitFound);
}

TEST(RunExitCode, ADaemonThatDoesNotAnswerIsNoSuccess) {
  RunSummary summary;
  summary.is_unreachable = true;
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
}

TEST(RunExitCode, AProcessThatGoesOnAfterTheJobIsNoSuccessAndIsNamed) {
  RunSummary summary = HealthyRun();
  summary.outliving = {4711};
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitInconclusive);
  EXPECT_THAT(SummaryText(summary, {}, Style()),
              HasSubstr("1 process of the job goes on after it (pid 4711)"));
  summary.outliving.push_back(4712);
  EXPECT_THAT(SummaryText(summary, {}, Style()),
              HasSubstr("2 processes of the job go on after it (pid 4711, 4712)"));
}

TEST(RunExitCode, ARingInDeviceMemoryThatNobodyHasLookedAtIsNotAPass) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].unseen_probes = 5;
  summary.sessions[0].unseen = {"a", "b", "c", "d"};
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.inf = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.mismatch = true, .replica = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.mismatch = true}), kExitOk);
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitOk);
  const std::string text = SummaryText(summary, {.nan = true}, Style());
  EXPECT_THAT(text, HasSubstr("Nobody has looked at the values of 5 probes in device memory: a, b, "
                              "c, d and others."));
  EXPECT_THAT(text, HasSubstr("cgdebug-cli run --on nan --fail-on nan -- ..."));
  EXPECT_THAT(text, HasSubstr("but snapshots were not looked at: exit 3."));
  EXPECT_THAT(SummaryText(summary, {}, Style()), Not(HasSubstr("looked at")));
  EXPECT_EQ(SummaryJson(summary)["unseen_probes"], 5);
  summary.sessions[1].unseen_probes = 1;
  summary.sessions[1].unseen = {"a"};
  summary.sessions[0].unseen_probes = 1;
  summary.sessions[0].unseen = {"a"};
  EXPECT_THAT(SummaryText(summary, {.nan = true}, Style()),
              HasSubstr("of 2 probes in device memory: a."))
      << "of two ranks";
  summary.sessions[1].first_nan = First("x", 3);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitFound);
}

TEST(RunExitCode, ReplicasThatDifferAreAFindingAndThoseThatWereNotComparedNoPass) {
  RunSummary summary = HealthyRun();
  EXPECT_EQ(ExitCodeOf(summary, {.replica = true}), kExitInconclusive) << "nothing was compared";
  EXPECT_THAT(SummaryText(summary, {.replica = true}, Style()),
              HasSubstr("of replicas were not compared: no two ranks of this machine have one"));
  summary.sessions[0].replicas = {.compared = 10};
  EXPECT_EQ(ExitCodeOf(summary, {.replica = true}), kExitOk);
  summary.sessions[1].replicas = {.compared = 9, .incomplete = 1};
  EXPECT_EQ(ExitCodeOf(summary, {.replica = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitOk);
  summary.sessions[1].replicas = {.compared = 9, .waiting = 1};
  EXPECT_EQ(ExitCodeOf(summary, {.replica = true}), kExitInconclusive);
  summary.sessions[1].replicas.different = 2;
  EXPECT_EQ(ExitCodeOf(summary, {.replica = true}), kExitFound);
  EXPECT_THAT(SummaryText(summary, {.replica = true}, Style()),
              HasSubstr("2 snapshots of replicas differed from those of other ranks"));
  summary.sessions[1].replicas = {.compared = 9};
  summary.sessions[1].found_replica = "first replica that differs: w @3";
  EXPECT_EQ(ExitCodeOf(summary, {.replica = true}), kExitFound) << "an earlier daemon counted it";
}

TEST(RunExitCode, ASnapshotThatWasNotComparedIsNotAPass) {
  RunSummary summary = HealthyRun();
  summary.not_compared_probes = 1;
  EXPECT_EQ(ExitCodeOf(summary, {.mismatch = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitOk);
  const std::string text = SummaryText(summary, {.mismatch = true}, Style());
  EXPECT_THAT(text, HasSubstr("1 probe had snapshots that were not compared."));
  EXPECT_THAT(text, HasSubstr("but snapshots were not compared: exit 3."));
  EXPECT_EQ(SummaryJson(summary)["not_compared_probes"], 1);
}

TEST(RunExitCode, NoProbeAtAllIsNotAPass) {
  RunSummary summary;
  summary.complete = true;
  EXPECT_EQ(ExitCodeOf(summary, {.mismatch = true}), kExitNoMatch);
  EXPECT_THAT(SummaryText(summary, {}, Style()), HasSubstr("No probe was seen: it created"));
}

TEST(RunSummary, OfAWatchSaysNoOtherReasonForNoProbeThanTheJob) {
  RunSummary summary;
  summary.complete = summary.is_watched = true;
  const std::string text = SummaryText(summary, {}, Style());
  EXPECT_THAT(text, HasSubstr("No probe was seen: the job called no module"));
  EXPECT_THAT(text, Not(HasSubstr("mode='always'")));
}

TEST(RunExitCode, AProbeThatWasNeverReachedIsNotAPass) {
  RunSummary summary = HealthyRun();
  summary.sessions.resize(1);
  summary.sessions[0].replay = 0;
  summary.sessions[0].counters = {};
  EXPECT_EQ(ExitCodeOf(summary, {.nan = true}), kExitInconclusive);
  EXPECT_EQ(ExitCodeOf(summary, {}), kExitOk) << "nothing was asked for";
  EXPECT_THAT(SummaryText(summary, {.nan = true}, Style()),
              HasSubstr("but snapshots never came: exit 3."));
}

TEST(RunSummary, LeadsFromAJobThatFailedToWhereItWasAndToALogOfItsOps) {
  RunSummary summary = HealthyRun();
  EXPECT_EQ(NextCommands(summary, {"log"}).front(), "cgdebug-cli probes -s 3f2a91c0");
  summary.job_exit_code = 1;
  EXPECT_THAT(NextCommands(summary, {"log"}),
              ::testing::ElementsAre("cgdebug-cli where 3f2a91c0", "log"));
}

TEST(RunSummary, SaysOfAJobThatFailedThatNoProbeSawNanOrInfOnlyIfAllWasSeen) {
  RunSummary summary = HealthyRun();
  EXPECT_THAT(SummaryText(summary, {}, Style()), Not(HasSubstr("No NaN or Inf")));
  summary.job_exit_code = 1;
  EXPECT_THAT(SummaryText(summary, {}, Style()), HasSubstr("No NaN or Inf in what "));
  summary.sessions[0].nonfinite_probes = 1;  // which have an excuse
  EXPECT_THAT(SummaryText(summary, {}, Style()), Not(HasSubstr("No NaN or Inf")));
  summary.sessions[0].nonfinite_probes = 0;
  summary.sessions[0].counters.lost_overwritten = 1;
  EXPECT_THAT(SummaryText(summary, {}, Style()), Not(HasSubstr("No NaN or Inf")));
}

TEST(RunSummary, LeadsFromNoProbeToAWatchOfAllIfThereIsOne) {
  RunSummary summary;
  EXPECT_EQ(NextCommands(summary, {}, "watch").front(), "cgdebug-cli doctor")
      << "whether it had one is not known";
  summary.complete = true;
  EXPECT_EQ(NextCommands(summary, {}, "watch").front(), "watch");
  EXPECT_EQ(NextCommands(summary, {}, "").front(), "cgdebug-cli doctor");
}

TEST(RunExitCode, ADaemonThatHasNotReadEverythingDoesNotSayThatThereWasNoProbe) {
  const RunSummary summary;
  EXPECT_EQ(ExitCodeOf(summary, {.mismatch = true}), kExitInconclusive);
  const std::string text = SummaryText(summary, {}, Style());
  EXPECT_THAT(text, HasSubstr("whether the job had a probe is not known"));
  EXPECT_THAT(text, Not(HasSubstr("No probe was seen")));
}

TEST(RunSummary, NamesTheEarliestNanOverTheRanksAndWhatToType) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].first_nan = First("late", 1204);
  summary.sessions[1].first_nan = First("early", 7);
  summary.sessions[0].nonfinite_probes = 1;
  summary.sessions[1].nonfinite_probes = 1;
  const std::string text = SummaryText(summary, {}, Style());
  EXPECT_THAT(text, HasSubstr("job exited 0 after 1 204 replays. 4 816 snapshots read, 0 lost."));
  EXPECT_THAT(text, HasSubstr("2 probes saw non-finite values."));
  EXPECT_THAT(text, HasSubstr("first NaN: early @7 on rank 1, 3 elements"));
  EXPECT_THAT(NextCommands(summary),
              ::testing::Contains("cgdebug-cli show -s 99999999 'early@7' --where nan"));
}

TEST(RunSummary, WhatFailedTheRunBeginsWithTheEarliestToo) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].first_nan = First("late", 1204);
  summary.sessions[1].first_nan = First("early", 7);
  summary.sessions[0].found_nan = "NaN in late";
  summary.sessions[1].found_nan = "NaN in early";
  const std::string text = SummaryText(summary, {.nan = true}, Style());
  EXPECT_LT(text.find("--fail-on: NaN in early"), text.find("--fail-on: NaN in late"));
  EXPECT_THAT(text, HasSubstr("--fail-on: NaN in late"));
}

// Each of them counts its own replays.
TEST(RunSummary, TheEarliestIsThatWhoseReplayBeganFirst) {
  RunSummary summary = HealthyRun();
  live::FirstNonfinite late = First("late", 3), early = First("early", 50);
  late.serial = 900;
  early.serial = 100;
  summary.sessions[0].first_nan = late;
  summary.sessions[1].first_nan = early;
  EXPECT_THAT(FirstFinding(summary), HasSubstr("first NaN: early @50 on rank 1"));
}

// Ranks register the rows of their calls as these come, so their orders tell nothing of each other.
TEST(RunSummary, TheEarliestRowOfACallIsThatWhosePlaceInTheProgramComesFirst) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].first_nan = First("grad/weight", 4);
  summary.sessions[1].first_nan = First("fwd/mul_0", 4);
  std::uint64_t order = 20;
  for (live::Session& session : summary.sessions) {
    session.first_nan->slot.in_body = true;  // it counts calls
    session.first_nan->slot.order = ++order;
  }
  summary.rows[{summary.sessions[0].key, 21}] = 26;
  summary.rows[{summary.sessions[1].key, 22}] = 5;
  EXPECT_THAT(FirstFinding(summary), HasSubstr("first NaN: fwd/mul_0 in call 4 on rank 1"));
}

TEST(RunSummary, TellsTheCauseBeforeTheSymptomOfAnotherRank) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].first_nan = First("grad.allreduced", 18);
  summary.sessions[1].first_inf = First("l1.out", 17);
  for (live::Session& session : summary.sessions) session.nonfinite_probes = 1;
  const std::string text = SummaryText(summary, {}, Style());
  EXPECT_LT(text.find("first Inf: l1.out @17 on rank 1"),
            text.find("first NaN: grad.allreduced @18 on rank 0"));
  EXPECT_THAT(FirstFinding(summary), HasSubstr("first Inf: l1.out @17 on rank 1"));
  EXPECT_THAT(NextCommands(summary).front(), HasSubstr("show -s 99999999 'l1.out@17'"));
}

TEST(RunSummary, LeadsFromARowOfAnOpLogToTheReplayOfTheNanAndNotToThatOfAnInf) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].first_inf = First("fwd/log_0", 1);
  summary.sessions[0].first_inf->slot.order = 10;
  summary.rows = {{{"3f2a91c0", 10}, 10}, {{"3f2a91c0", 13}, 13}};
  EXPECT_EQ(NextCommands(summary).front(), "cgdebug-cli ops '3f2a91c0@g:eager.10@1'");
  summary.sessions[0].first_nan = First("fwd/mul_0", 7);
  summary.sessions[0].first_nan->slot.order = 13;
  EXPECT_EQ(NextCommands(summary, {"never"}).front(), "cgdebug-cli ops '3f2a91c0@g:eager.13@7'");
  summary.sessions[0].first_nan->kept = live::FirstNonfinite::Kept::kNothing;
  EXPECT_EQ(NextCommands(summary).front(), "cgdebug-cli ops '3f2a91c0@g:eager.13'")
      << "that replay is no longer kept";
}

TEST(RunSummary, OfAJobAndItsRecordingOnlyTheRecordingIsAskedForTheLogOfItsOps) {
  RunSummary summary = HealthyRun();
  summary.sessions.resize(1);
  live::FirstNonfinite nan = First("fwd/mul_0", 7);
  nan.slot.in_body = true;  // it counts calls
  nan.slot.graph_id = 0;
  nan.slot.order = 13;
  summary.sessions[0].first_nan = nan;
  summary.rows = {{{"3f2a91c0", 13}, 13}};
  EXPECT_THAT(NextCommands(summary, {}, "", Recorded::kNothing),
              ::testing::ElementsAre("cgdebug-cli ops '3f2a91c0@call:7'"));
  EXPECT_THAT(NextCommands(summary, {}, "", Recorded::kSome), ::testing::SizeIs(1))
      << "the recording may lack the row";
  EXPECT_THAT(NextCommands(summary, {}, "", Recorded::kAll), ::testing::IsEmpty());
  EXPECT_EQ(LogCommand(summary, "a.cgrec"), "cgdebug-cli ops 'a.cgrec@call:7'");
}

TEST(RunSummary, CountsMasksAndCallsThemNoFinding) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].mask_probes = 2;
  summary.sessions[0].first_mask = "fwd/masked_fill_0";
  FailOn fail_on;
  fail_on.inf = true;
  EXPECT_EQ(ExitCodeOf(summary, fail_on), kExitOk);
  const std::string text = SummaryText(summary, fail_on, Style());
  EXPECT_THAT(text, HasSubstr("2 rows of op logs hold -Inf, no NaN and no +Inf, first "
                              "fwd/masked_fill_0: masks?"));
  EXPECT_THAT(text, Not(HasSubstr("non-finite")));
  summary.sessions[0].not_seen.push_back({.kind = layout::NotSeenKind::kGivenUp, .count = 1});
  EXPECT_EQ(ExitCodeOf(summary, fail_on), kExitInconclusive);
}

TEST(RunSummary, LeadsFromStatisticsToWhatCameBeforeAndToTheOp) {
  RunSummary summary = HealthyRun();
  summary.sessions[0].first_nan = First("fwd/layers.2", 7);
  summary.sessions[0].first_nan->kept = live::FirstNonfinite::Kept::kStatistics;
  EXPECT_THAT(NextCommands(summary, {"cgdebug-cli run --watch 'op:*' --eager -- python a.py"}),
              ::testing::ElementsAre("cgdebug-cli check 3f2a91c0",
                                     "cgdebug-cli run --watch 'op:*' --eager -- python a.py"));
}

live::Event SnapshotEvent(const std::string& probe, std::uint64_t replay, std::uint64_t nan) {
  v1::TailReply event;
  event.mutable_snapshot()->set_session("3f2a91c0");
  event.mutable_snapshot()->set_probe(probe);
  event.mutable_snapshot()->set_replay(replay);
  event.mutable_snapshot()->mutable_stats()->set_nan(nan);
  return live::EventOf(event);
}

TEST(FindingFilter, LetsTheFirstBadSnapshotOfEachProbeThrough) {
  FindingFilter filter;
  EXPECT_FALSE(filter.Wants(SnapshotEvent("a", 1, 0)));
  EXPECT_TRUE(filter.Wants(SnapshotEvent("a", 2, 3)));
  EXPECT_FALSE(filter.Wants(SnapshotEvent("a", 3, 3)));
  EXPECT_TRUE(filter.Wants(SnapshotEvent("b", 3, 3)));
  v1::TailReply loss;
  loss.mutable_loss()->set_session("3f2a91c0");
  EXPECT_FALSE(filter.Wants(live::EventOf(loss))) << "this client was slow: the daemon has them";
  loss.mutable_loss()->set_probe("a");
  EXPECT_TRUE(filter.Wants(live::EventOf(loss)));
  EXPECT_FALSE(filter.Wants(live::EventOf(loss)));
}

// A NaN that spread is one finding, one that hides behind a mask another.
TEST(FindingFilter, LetsTheFirstPageOfAReplayThroughIfItsFirstBadRowIsNewAndNoMask) {
  FindingFilter filter;
  const auto wants = [&](std::uint64_t graph, std::uint64_t replay, const char* first,
                         std::uint32_t bad, std::uint32_t masks = 0, std::uint32_t with_nan = 0,
                         const char* op = "3 aten.mm") {
    v1::TailReply event;
    v1::Page& page = *event.mutable_page();
    page.set_session("3f2a91c0");
    page.mutable_slot()->set_graph_id(graph);
    page.set_replay(replay);
    page.set_first_bad_op(op);
    page.set_rows(140);
    page.set_first_bad(first);
    page.set_nonfinite(bad);
    page.set_masks(masks);
    page.set_with_nan(with_nan);
    return filter.Wants(live::EventOf(event));
  };
  EXPECT_FALSE(wants(4, 1, "", 0));
  EXPECT_FALSE(wants(4, 1, "fwd/full_0", 2, 2)) << "masks alone";
  EXPECT_TRUE(wants(4, 1, "fwd/exp_0", 3, 2)) << "an Inf behind them";
  EXPECT_FALSE(wants(4, 1, "fwd/mm_2", 98)) << "it is behind that one";
  EXPECT_FALSE(wants(4, 2, "fwd/exp_0", 3, 2)) << "the same Inf";
  EXPECT_TRUE(wants(4, 3, "fwd/mm_2", 98));
  EXPECT_TRUE(wants(4, 3, "fwd/mm_3", 98, 0, 1)) << "a NaN behind the Inf";
  EXPECT_FALSE(wants(4, 4, "in/weight", 98, 0, 2, "1 input")) << "the NaN of the replay before";
  EXPECT_FALSE(wants(4, 4, "bwd/mm_0", 98, 0, 2)) << "what is behind it";
  EXPECT_TRUE(wants(4, 5, "fwd/log_0", 98, 0, 2)) << "a NaN of its own";
  EXPECT_FALSE(wants(4, 6, "in/bias", 98, 0, 2, "12 input +2 -1")) << "an input behind nodes";
  EXPECT_TRUE(wants(5, 1, "fwd/mm_2", 98)) << "another graph";
}

TEST(FindingLines, AreThreeForAReplayAndOneForAllBehindThem) {
  FindingLines lines;
  int shown = 0;
  for (int i = 0; i < 991; ++i) {
    const live::Event event = SnapshotEvent(std::to_string(i), 41, 1);
    shown += lines.Shows(event) ? 1 : 0;
    EXPECT_TRUE(lines.TakeBehind(&event).empty()) << "the replay may go on";
  }
  EXPECT_EQ(shown, 3);
  const live::Event next = SnapshotEvent("new", 42, 1);
  const auto behind = lines.TakeBehind(&next);
  ASSERT_EQ(behind.size(), 1u);
  EXPECT_EQ(behind[0].count, 988u);
  EXPECT_EQ(behind[0].last.tensor.slot.probe, "990");
  EXPECT_TRUE(lines.Shows(next)) << "another replay begins again";
  EXPECT_TRUE(lines.TakeBehind(nullptr).empty());
  EXPECT_EQ(lines.left_out(), 0u);
}

TEST(FindingLines, AreCountedOnceTheyAreAHundred) {
  FindingLines lines;
  int shown = 0;
  for (int replay = 0; replay < 1000; ++replay) {
    shown += lines.Shows(SnapshotEvent(std::to_string(replay), replay, 1)) ? 1 : 0;
  }
  EXPECT_EQ(shown, 100);
  EXPECT_EQ(lines.left_out(), 900u);
}

class JobTest : public ::testing::Test {
 protected:
  int Run(const std::string& script) {
    const Result<void> started = job_.Start(
        {"sh", "-c", script}, {{"CGDEBUG_RUN_ID", "run-1"}, {"OUT", dir_ / "out"}}, signals_);
    EXPECT_TRUE(started.ok());
    job_.Wait(signals_);
    return job_.exit_code();
  }

  testing_support::TempDir dir_;
  JobSignals signals_;
  Job job_;
};

TEST_F(JobTest, ExitCodeIsPassedOn) { EXPECT_EQ(Run("exit 7"), 7); }

TEST_F(JobTest, DeathBySignalIsItsNumberAbove128) {
  EXPECT_EQ(Run("kill -KILL $$"), 128 + SIGKILL);
  EXPECT_EQ(job_.signal(), SIGKILL);
}

TEST_F(JobTest, EnvironmentIsOursWithTheAdditions) {
  ::setenv("CGDEBUG_RUN_ID", "stale", 1);
  EXPECT_EQ(Run("echo \"$CGDEBUG_RUN_ID $HOME\" > \"$OUT\""), 0);
  ::unsetenv("CGDEBUG_RUN_ID");
  EXPECT_EQ(testing_support::ReadText(dir_ / "out"),
            "run-1 " + std::string(::getenv("HOME")) + "\n");
}

TEST_F(JobTest, CommandThatDoesNotExistIs127) {
  EXPECT_FALSE(job_.Start({"/nonexistent/cgdebug-job"}, {}, signals_).ok());
  EXPECT_EQ(job_.exit_code(), 127);
}

TEST_F(JobTest, SignalsReachTheJob) {
  const Result<void> started =
      job_.Start({"sh", "-c",
                  "trap 'exit 42' TERM; echo ready > \"$OUT.tmp\"; mv \"$OUT.tmp\" \"$OUT\"; "
                  "while :; do sleep 0.05; done"},
                 {{"OUT", dir_ / "out"}}, signals_);
  ASSERT_TRUE(started.ok());
  std::thread sender([&] {
    while (!std::filesystem::exists(dir_ / "out")) std::this_thread::yield();
    ::kill(::getpid(), SIGTERM);
  });
  job_.Wait(signals_);
  sender.join();
  EXPECT_EQ(job_.exit_code(), 42);
}

TEST_F(JobTest, JobStartsWithTheSignalMaskWeHadBefore) {
  EXPECT_EQ(Run("grep SigBlk /proc/self/status > \"$OUT\""), 0);
  EXPECT_THAT(testing_support::ReadText(dir_ / "out"), HasSubstr("0000000000000000"));
}

TEST_F(JobTest, JobDoesNotInheritThatWeIgnoreClosedPipes) {
  ::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(Run("kill -PIPE $$; exit 0"), 128 + SIGPIPE);
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace cgdebug::cli
