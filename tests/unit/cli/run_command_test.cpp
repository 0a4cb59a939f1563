// cgdebug-cli run as a process, its messages about recordings, and which jobs and ranks the
// commands show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "tests/support/cli/commands_fixture.h"

namespace cgdebug::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::MakeProbe;
using testing_support::MakeSession;
using testing_support::MakeSnapshot;
using testing_support::Process;
using testing_support::ProcessResult;

TEST_F(CommandsTest, RunPassesTheExitCodeTheEnvironmentAndTheSummary) {
  Serve();
  const ProcessResult result =
      Cli({"run", "--", "sh", "-c", "echo $CGDEBUG $CGDEBUG_SOCKET ${CGDEBUG_RUN_ID%-*}; exit 7"});
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(result.out, "1 " + (dir_ / "daemon.sock") + " sh\n");
  EXPECT_THAT(result.err, HasSubstr("job exited 7. No probe was seen"));
  EXPECT_THAT(result.err, HasSubstr(" run --watch '*' -- sh -c 'echo "));
}

TEST_F(CommandsTest, RunSumsUpTheSessionsOfItsRunOnly) {
  world_.sessions.push_back(MakeSession("99999999"));
  v1::Session& session = world_.sessions.back();
  session.set_run_id("mine");
  session.set_state(v1::Session::EXITED);
  session.set_created_ns(INT64_MAX);
  session.set_nonfinite_probes(1);
  session.mutable_first_nan()->set_probe("blk3.attn");
  session.mutable_first_nan()->set_replay(5);
  world_.events.emplace_back();
  *world_.events[0].mutable_session_change()->mutable_session() = session;
  world_.events[0].mutable_session_change()->set_ended(true);
  world_.events.push_back(Event(MakeSnapshot("other", 1, {1})));
  world_.keep_open = true;
  Serve();
  const auto run = [&](std::vector<std::string> options) {
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"--", "true"});
    return Process(Command(options), {"NO_COLOR=1", "CGDEBUG_RUN_ID=mine"}).Wait();
  };
  const ProcessResult result = run({});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err,
              HasSubstr("job exited 0 after 1 204 replays. 2 408 snapshots read, 0 lost."));
  EXPECT_THAT(result.err, HasSubstr("first NaN: blk3.attn @5"));
  EXPECT_THAT(result.err, Not(HasSubstr("-- session"))) << "a job that ends well is not a finding";
  EXPECT_THAT(run({"--tail"}).err, HasSubstr("-- session train.py-4710 ended"));
  EXPECT_THAT(result.err, Not(HasSubstr("other")));
  EXPECT_EQ(run({"--fail-on", "nan,mismatch"}).code, 1);
  EXPECT_EQ(run({"--fail-on", "inf", "--no-live"}).code, 0);
  EXPECT_EQ(run({"--fail-on", "nan,sometimes"}).code, 2);
}

TEST_F(CommandsTest, AStreamedRunShowsSnapshotsInTheOrderOfTheirReplays) {
  v1::Session& session = world_.sessions.front();
  session.set_run_id("mine");
  session.set_state(v1::Session::EXITED);
  session.set_created_ns(INT64_MAX);
  // As the daemon reads: one slot after the other.
  for (const char* probe : {"blk3.attn", "blk3.mlp"}) {
    for (const std::uint64_t replay : {1, 2}) {
      v1::Snapshot snapshot = MakeSnapshot(probe, replay, {1});
      snapshot.set_slot(probe == std::string("blk3.mlp"));
      snapshot.set_serial(100 * replay);
      world_.events.push_back(Event(snapshot));
    }
  }
  v1::SessionChange& change = *world_.events.emplace_back().mutable_session_change();
  *change.mutable_session() = session;
  change.set_ended(true);
  world_.keep_open = true;
  Serve();
  const std::string shown =
      Process(Command({"run", "--tail", "--", "true"}), {"NO_COLOR=1", "CGDEBUG_RUN_ID=mine"})
          .Wait()
          .err;
  std::vector<std::size_t> places;
  for (const char* line : {"@1 blk3.attn", "@1 blk3.mlp", "@2 blk3.attn", "@2 blk3.mlp"}) {
    places.push_back(shown.find(line));
    ASSERT_NE(places.back(), std::string::npos) << line << " is not in:\n" << shown;
  }
  EXPECT_TRUE(std::is_sorted(places.begin(), places.end())) << shown;
}

TEST_F(CommandsTest, ARunHasOneLineForTheRowsOfAPageThatHoldNan) {
  v1::Session& session = world_.sessions.front();
  session.set_run_id("mine");
  session.set_state(v1::Session::EXITED);
  session.set_created_ns(INT64_MAX);
  v1::Page& page = *world_.events.emplace_back().mutable_page();
  page.set_session(session.key());
  page.set_replay(7);
  page.set_step(-1);
  page.mutable_slot()->set_graph("bs=8");
  page.mutable_slot()->set_graph_id(4);
  page.set_rows(140);
  page.set_nonfinite(98);
  page.set_first_bad("fwd/mul_0");
  page.set_first_bad_op("13 aten.mul.Tensor");
  page.set_nan(3);
  v1::SessionChange& change = *world_.events.emplace_back().mutable_session_change();
  *change.mutable_session() = session;
  change.set_ended(true);
  world_.keep_open = true;
  Serve();
  const auto run = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"run", "--", "true"});
    return Process(Command(options), {"NO_COLOR=1", "CGDEBUG_RUN_ID=mine"}).Wait().err;
  };
  const auto asked_for_pages = [&] {
    const std::vector<v1::Request> requests = daemon_->requests();
    const auto tail = std::ranges::find_if(requests.rbegin(), requests.rend(),
                                           [](const auto& one) { return one.has_tail(); });
    return tail->tail().pages();
  };
  EXPECT_THAT(run({}),
              HasSubstr("@7 graph bs=8: 140 rows, 98 with NaN or Inf, first #13 fwd/mul_0: 3 NaN  "
                        "cgdebug-cli ops '3f2a91c0@g:bs=8@7'\n"));
  v1::Page* found = nullptr;
  for (v1::TailReply& event : world_.events) {
    if (event.has_page()) found = event.mutable_page();
  }
  found->set_nan(0);
  found->set_pos_inf(3);
  found->set_with_nan(2);
  EXPECT_THAT(run({}), HasSubstr("first #13 fwd/mul_0: 3 +Inf; NaN in 2  cgdebug-cli ops "));
  EXPECT_TRUE(asked_for_pages());
  run({"--json"});
  EXPECT_FALSE(asked_for_pages()) << "a program takes the rows as they are";
}

TEST_F(CommandsTest, ARunCountsTheFindingsBehindItsLastLine) {
  v1::Session& session = world_.sessions.front();
  session.set_run_id("mine");
  session.set_state(v1::Session::EXITED);
  session.set_created_ns(INT64_MAX);
  for (const char* probe : {"a", "b", "c", "d", "e"}) {
    world_.events.push_back(Event(MakeSnapshot(probe, 7, {NAN})));
  }
  v1::SessionChange& change = *world_.events.emplace_back().mutable_session_change();
  *change.mutable_session() = session;
  change.set_ended(true);
  world_.keep_open = true;
  Serve();
  EXPECT_THAT(
      Process(Command({"run", "--", "true"}), {"NO_COLOR=1", "CGDEBUG_RUN_ID=mine"}).Wait().err,
      HasSubstr("and 2 more behind them, the last e\n"));
}

TEST_F(CommandsTest, ATypedWatchComesBeforeAllThatAFileSaysOfTheWatch) {
  Serve();
  const std::string path = dir_ / "a.toml";
  std::ofstream(path) << "watch = 'op:*'\nwatch_eager = true\n";
  const auto eager = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"run", "--no-live", "--config", path});
    options.insert(options.end(), {"--", "sh", "-c", "echo \"${CGDEBUG_WATCH_EAGER-none}\""});
    return Cli(options).out;
  };
  EXPECT_EQ(eager({}), "1\n");
  EXPECT_EQ(eager({"--watch", "op:*"}), "none\n");
}

TEST_F(CommandsTest, AComparisonThatWasNotMadeIsNotAPass) {
  v1::Session& session = world_.sessions.emplace_back(MakeSession("99999999"));
  session.set_run_id("mine");
  session.set_state(v1::Session::EXITED);
  session.set_created_ns(INT64_MAX);
  v1::ProbeInfo& probe = world_.probes.emplace_back(MakeProbe("99999999", "blk3.out"));
  v1::Verdict& verdict = *probe.mutable_verdict();
  verdict.set_state(v1::Verdict::ERROR);
  verdict.set_text("the expected tensor cannot be read");
  Serve();
  const auto run = [&](const char* fail_on) {
    return Process(Command({"run", "--no-live", "--fail-on", fail_on, "--", "true"}),
                   {"NO_COLOR=1", "CGDEBUG_RUN_ID=mine"})
        .Wait();
  };
  const ProcessResult result = run("mismatch");
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("1 probe had snapshots that were not compared"));
  EXPECT_EQ(run("nan").code, 0);
  EXPECT_THAT(Cli({"probes", "-a", "blk3.out"}).out,
              HasSubstr("ERROR: the expected tensor cannot be read"));
  world_.probes.back().mutable_verdict()->set_state(v1::Verdict::PASS);
  world_.probes.back().mutable_verdict()->set_lost(1);
  EXPECT_EQ(run("mismatch").code, 3);
  world_.probes.back().mutable_verdict()->set_lost(0);
  EXPECT_EQ(run("mismatch").code, 0);
  world_.probes.back().mutable_verdict()->set_state(v1::Verdict::ERROR);
  world_.probes.back().set_replay(0);  // in a graph that was never replayed
  EXPECT_EQ(run("mismatch").code, 0);
}

TEST_F(CommandsTest, ARingInDeviceMemoryThatNobodyHasLookedAtIsNotAPass) {
  v1::Session& session = world_.sessions.emplace_back(MakeSession("99999999"));
  session.set_run_id("mine");
  session.set_state(v1::Session::EXITED);
  session.set_created_ns(INT64_MAX);
  session.set_unseen_probes(1);
  session.add_unseen("blk3.out");
  Serve();
  const ProcessResult result =
      Process(Command({"run", "--no-live", "--fail-on", "nan", "--", "true"}),
              {"NO_COLOR=1", "CGDEBUG_RUN_ID=mine"})
          .Wait();
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("looked at the values of 1 probe in device memory: blk3.out."));
}

TEST_F(CommandsTest, LossesOfARecordingNameTheOptionOfTheCommand) {
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.set_id(1);
  recording.set_lost(2);
  world_.recordings = {recording};
  Serve();
  EXPECT_THAT(Cli({"record", "stop"}).err, HasSubstr("Record fewer probes (--probes)"));
  EXPECT_THAT(Cli({"run", "--no-live", "-o", "/runs/a.cgrec", "--", "true"}).err,
              HasSubstr("Record fewer probes (--record)"));
}

TEST_F(CommandsTest, AFreezeThatIsQuietDoesNotAnnounceTheCommandThatItLeavesOut) {
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.set_id(1);
  recording.set_snapshots(3);
  recording.set_lost(2);
  world_.recordings = {recording};
  Serve();
  EXPECT_THAT(Cli({"freeze"}).err, HasSubstr("Which ones, and why:\ncgdebug: next:  cgdebug-cli "));
  EXPECT_THAT(Cli({"-q", "freeze"}).err, HasSubstr("they are no longer kept, or have no room.\n"));
}

TEST_F(CommandsTest, ARecordingThatEndedInTroubleIsNotASuccess) {
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.set_id(1);
  recording.set_slot_count(3);
  recording.set_state("disk full");
  recording.set_error("the disk is full");
  world_.recordings = {recording};
  Serve();
  EXPECT_EQ(Cli({"run", "--no-live", "-o", "/runs/a.cgrec", "--", "true"}).code, 3);
  EXPECT_EQ(Cli({"run", "--no-live", "-o", "/runs/a.cgrec", "--", "sh", "-c", "exit 7"}).code, 7);
}

TEST_F(CommandsTest, ARecordingOfNoProbeSaysWhatTheJobHas) {
  v1::Session& session = world_.sessions.front();
  session.set_run_id("mine");
  session.set_state(v1::Session::EXITED);
  session.set_created_ns(INT64_MAX);
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.set_id(1);
  world_.recordings = {recording};
  Serve();
  const ProcessResult result =
      Process(
          Command({"run", "--no-live", "-o", "/runs/a.cgrec", "--record", "zzz*", "--", "true"}),
          {"NO_COLOR=1", "CGDEBUG_RUN_ID=mine"})
          .Wait();
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, HasSubstr("no probe matches --record 'zzz*'. The job has: blk3.attn, "
                                    "blk3.mlp."));
}

TEST_F(CommandsTest, ARecordingForAJobThatDoesNotStartIsEnded) {
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.set_id(7);
  world_.recordings = {recording};
  Serve();
  EXPECT_EQ(Cli({"run", "-o", "/runs/a.cgrec", "--", "/nonexistent/job"}).code, 127);
  const auto requests = daemon_->requests();
  const auto stop = std::find_if(requests.begin(), requests.end(),
                                 [](const auto& request) { return request.has_record_stop(); });
  ASSERT_NE(stop, requests.end());
  EXPECT_EQ(stop->record_stop().recording(), "7");
}

TEST_F(CommandsTest, ARecordingOfAJobWhoseProcessGoesOnDoesNotSayThatTheJobEnded) {
  v1::Session& session = world_.sessions.front();
  session.set_run_id("mine");
  session.set_created_ns(INT64_MAX);
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.set_id(7);
  recording.set_slot_count(1);
  world_.recordings = {recording};
  Serve();
  const auto job_ended = [&](v1::Session::State state) {
    world_.sessions.front().set_state(state);
    Process(Command({"run", "--no-live", "-o", "/runs/a.cgrec", "--", "true"}),
            {"CGDEBUG_RUN_ID=mine"})
        .Wait();
    const auto requests = daemon_->requests();
    const auto stop = std::find_if(requests.rbegin(), requests.rend(),
                                   [](const auto& request) { return request.has_record_stop(); });
    return stop != requests.rend() && stop->record_stop().job_ended();
  };
  EXPECT_TRUE(job_ended(v1::Session::EXITED));
  EXPECT_FALSE(job_ended(v1::Session::ALIVE));
}

TEST_F(CommandsTest, RanksOfOneRunAreShownTogetherAndTheMissingOnesByNumber) {
  world_.sessions = {MakeSession("aaaaaaaa", 0), MakeSession("bbbbbbbb", 1)};
  for (v1::Session& session : world_.sessions) {
    session.set_run_id("ddp-9c01ab");
    session.set_world_size(8);
  }
  world_.sessions[1].set_state(v1::Session::DIED);
  Serve();
  EXPECT_THAT(Cli({"status"}).out,
              HasSubstr("session  ddp-9c01ab  ranks 0 of 8 alive; ranks 2..7 not seen by"));
  EXPECT_THAT(Cli({"status", "-a"}).out,
              HasSubstr("ranks 0..1 of 8 (0 alive, 1 died); ranks 2..7 not seen by this daemon"));
  EXPECT_THAT(Cli({"ps", "-a"}).out, HasSubstr("-    ddp-9c01ab    -  0..1 of 8  1 alive, 1 died"));
  EXPECT_THAT(Cli({"ps", "-a", "-s", "ddp-9c01ab"}).out, HasSubstr("bbbbbbbb"));
}

TEST_F(CommandsTest, StatusSaysWhyARankIsMissingIfTheLauncherTells) {
  world_.sessions = {MakeSession("aaaaaaaa", 4), MakeSession("bbbbbbbb", 5)};
  for (v1::Session& session : world_.sessions) {
    session.set_run_id("ddp-9c01ab");
    session.set_world_size(8);
    session.set_local_rank(session.rank() - 4);
    session.set_local_world_size(3);
  }
  Serve();
  EXPECT_THAT(Cli({"status"}).out,
              HasSubstr("ranks 4..5 of 8 alive; rank 6 has used no probe; ranks 0..3, 7 run on "
                        "other machines"));
}

TEST_F(CommandsTest, EndedJobsAreShownOnRequestOrIfThereIsNothingElse) {
  world_.sessions.push_back(MakeSession("99999999"));
  world_.sessions[0].set_state(v1::Session::EXITED);
  world_.sessions[0].set_label("old-1");
  world_.sessions[1].set_label("new-2");
  world_.sessions[1].set_created_ns(1);
  world_.probes.push_back(MakeProbe("99999999", "head"));
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.add_sessions("new-2");
  world_.recordings = {recording};
  Serve();
  EXPECT_THAT(Cli({"status"}).out, AllOf(HasSubstr("new-2"), Not(HasSubstr("old-1"))));
  EXPECT_THAT(Cli({"status"}).err, HasSubstr(" status -a\n"));
  EXPECT_THAT(Cli({"probes", "*"}).err, HasSubstr(" probes '*' -a\n"));
  EXPECT_THAT(Cli({"status", "-a"}).out, HasSubstr("old-1"));
  EXPECT_THAT(Cli({"probes"}).out, AllOf(HasSubstr("head"), Not(HasSubstr("blk3.attn"))));
  const std::string all = Cli({"probes", "-a"}).out;
  EXPECT_LT(all.find("blk3.attn"), all.find("head")) << "the newest last";
  // The fake daemon does not select; the command leaves out what belongs to no session.
  EXPECT_THAT(Cli({"status", "new-2"}).out,
              AllOf(HasSubstr("/runs/a.cgrec"), Not(HasSubstr("skipped"))));
}

TEST_F(CommandsTest, WithoutALiveJobTheNewestEndedOneIsShown) {
  world_.sessions.push_back(MakeSession("99999999"));
  for (v1::Session& session : world_.sessions) session.set_state(v1::Session::DIED);
  world_.sessions[1].set_label("new-2");
  world_.sessions[1].set_created_ns(1);
  world_.probes.push_back(MakeProbe("99999999", "head"));
  Serve();
  EXPECT_THAT(Cli({"probes"}).out, AllOf(HasSubstr("head"), Not(HasSubstr("blk3.attn"))));
  EXPECT_THAT(Cli({"probes"}).err, HasSubstr("no job is alive; the newest that ended is new-2"));
}

TEST_F(CommandsTest, ALiveJobWithoutSuchAProbeIsNotTakenForNone) {
  world_.sessions.push_back(MakeSession("99999999"));
  world_.sessions[0].set_state(v1::Session::EXITED);
  world_.sessions[0].set_label("old-1");
  Serve();
  EXPECT_THAT(Cli({"probes", "blk3.*"}).err,
              HasSubstr("no job that is alive has such a probe; the newest that ended is old-1. "
                        "All jobs: cgdebug-cli ps -a\n"));
}

TEST_F(CommandsTest, AnOptionOfTheJobIsNotTakenForOneOfRun) {
  const ProcessResult result = Cli({"run", "python", "-c", "pass"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("put -- before the job. Type: cgdebug-cli run -- python"));
  const ProcessResult misspelt = Cli({"run", "--wach", "*", "python", "x.py"});
  EXPECT_EQ(misspelt.code, 2);
  EXPECT_THAT(misspelt.err, AllOf(HasSubstr("no option '--wach'. Close: '--watch'"),
                                  HasSubstr("put -- before the job"), Not(HasSubstr("-- * "))));
}

TEST_F(CommandsTest, RunNeedsACommand) {
  Serve();
  EXPECT_EQ(Cli({"run"}).code, 2);
  EXPECT_EQ(Cli({"run", "--", "/nonexistent/job"}).code, 127);
}

}  // namespace
}  // namespace cgdebug::cli
