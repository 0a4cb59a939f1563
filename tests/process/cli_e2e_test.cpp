// cgdebug-cli, the real daemon and a real producer: what is shown is what was written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/daemon/daemon_process.h"
#include "tests/support/daemon/producer_process.h"
#include "tests/support/run_process.h"
#include "tests/support/wait_until.h"

namespace cgdebug::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::Process;
using testing_support::ProcessResult;

class CliEndToEndTest : public ::testing::Test {
 protected:
  ProcessResult Cli(std::vector<std::string> arguments) {
    return Process(Command(std::move(arguments)), {"NO_COLOR=1"}).Wait();
  }
  std::vector<std::string> Command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {CGDEBUG_CLI, "--socket", directory_ / "d.sock"});
    return arguments;
  }

  testing_support::TempDir directory_;
};

TEST_F(CliEndToEndTest, ShowsTheValuesOfTheReplayThatWasAskedFor) {
  ProducerProcess job({{.name = "blk0.out", .elements = 4, .capacity = 8, .record_every = 1}});
  DaemonProcess daemon(directory_);
  job.Write(0, 3);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "blk0.out", 3));
  EXPECT_THAT(Cli({"show", "blk0.out@2"}).out, HasSubstr("[2, 3, 4, 5]"));
  EXPECT_THAT(Cli({"show", job.key() + ":blk0.out@-1"}).out, HasSubstr("[3, 4, 5, 6]"));
  const json shown = json::parse(Cli({"show", "blk0.out@-3", "--json"}).out);
  EXPECT_EQ(shown["replay"], 1);
  EXPECT_EQ(shown["values"], json({1.0, 2.0, 3.0, 4.0}));
  EXPECT_EQ(Cli({"show", "blk0.out@9"}).code, 4);
  const ProcessResult typo = Cli({"show", "blk0.ot"});
  EXPECT_EQ(typo.code, 4);
  EXPECT_THAT(typo.err, HasSubstr(". Close: 'blk0.out'. Type: cgdebug-cli probes"));
  const ProcessResult late = Cli({"show", "-s", job.key(), "blk0.out@9"});
  EXPECT_THAT(late.err, HasSubstr("Type: cgdebug-cli show -s '" + job.key() + "' 'blk0.out@-1'"));
}

TEST_F(CliEndToEndTest, ShowTakesAJobThatIsAliveBeforeANewerOneThatDied) {
  const std::vector<SlotSpec> probe = {
      {.name = "x", .elements = 4, .capacity = 8, .record_every = 1}};
  DaemonProcess daemon(directory_);
  ProducerProcess alive(probe), dead(probe);
  dead.WriteValue(0, NAN);
  for (const float value : {1.0f, NAN, 3.0f}) alive.WriteValue(0, value);
  ASSERT_TRUE(daemon.WaitForConsumed(alive.key(), "x", 3));
  ASSERT_TRUE(daemon.WaitForConsumed(dead.key(), "x", 1));
  const auto replay = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"show", "--json"});
    return json::parse(Cli(words).out)["replay"];
  };
  dead.Kill();
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = daemon.Session(dead.key());
    return session && session->state() == v1::Session::DIED;
  }));
  EXPECT_EQ(replay({"x"}), 3);
  EXPECT_EQ(replay({"x@first-nan"}), 2);
  EXPECT_EQ(replay({"-s", dead.key(), "x"}), 1);
  EXPECT_EQ(replay({"-s", dead.key(), "x@first-nan"}), 1);
}

TEST_F(CliEndToEndTest, OfARankThatWasStartedAgainShowTakesTheNewestProcess) {
  const std::vector<SlotSpec> probe = {
      {.name = "x", .elements = 4, .capacity = 8, .record_every = 1}};
  DaemonProcess daemon(directory_);
  ProducerProcess other(probe, -1, "run", 1), before(probe, -1, "run", 0);
  other.WriteValue(0, 1);
  before.WriteValue(0, NAN);
  before.Kill();
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = daemon.Session(before.key());
    return session && session->state() == v1::Session::DIED;
  }));
  ProducerProcess now(probe, -1, "run", 0);
  for (const float value : {1.0f, NAN, 3.0f}) now.WriteValue(0, value);
  ASSERT_TRUE(daemon.WaitForConsumed(now.key(), "x", 3));
  for (const char* job : {"", "run"}) {
    const ProcessResult shown = Cli({"show", "--json", "-s", job, "--ranks", "0", "x@first-nan"});
    ASSERT_EQ(shown.code, 0) << shown.err;
    EXPECT_EQ(json::parse(shown.out)["replay"], 2) << job;
  }
}

TEST_F(CliEndToEndTest, IterationsOfAConditionalBodyAreToldApartAndAReplayWithoutAnyIsNoLoss) {
  ProducerProcess job({{.name = "x",
                        .elements = 4,
                        .capacity = 32,
                        .record_every = 1,
                        .in_body = true,
                        .graph_id = 1}});
  DaemonProcess daemon(directory_);
  for (const std::uint32_t iterations : {7u, 0u, 1u, 0u}) job.Replay(0, iterations);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 8));
  EXPECT_THAT(Cli({"show", "x@1.3"}).out, HasSubstr("1.03"));
  EXPECT_EQ(json::parse(Cli({"show", "x@1", "--json"}).out)["iteration"], 6) << "the last one";
  EXPECT_EQ(json::parse(Cli({"show", "x@-2", "--json"}).out)["iteration"], 6);
  EXPECT_EQ(Cli({"show", "x@2"}).code, 4);
  EXPECT_EQ(Cli({"show", "x@1.7"}).code, 4);
  std::istringstream lines(Cli({"tail", "-n", "100", "--json", "x"}).out);
  std::vector<std::pair<int, int>> places;
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    if (event["event"] == "snapshot") places.emplace_back(event["replay"], event["iteration"]);
  }
  std::vector<std::pair<int, int>> expected;
  for (int i = 0; i < 7; ++i) expected.emplace_back(1, i);
  expected.emplace_back(3, 0);
  EXPECT_EQ(places, expected);
  EXPECT_THAT(Cli({"tail", "-n", "100", "x"}).out, HasSubstr("@1.4 x"));
  ASSERT_TRUE(WaitUntil(
      [&] { return Cli({"probes"}).out.find("taken in 2 of 4 replays") != std::string::npos; }));
  job.ExitCleanly();
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key())->state() == v1::Session::EXITED; }));
  const ProcessResult check = Cli({"check", "live"});
  EXPECT_EQ(check.code, 0) << check.out << check.err;
  EXPECT_THAT(check.out, HasSubstr("complete"));
}

TEST_F(CliEndToEndTest, TailHasEveryReplayOnceAndInOrder) {
  ProducerProcess job({{.name = "x", .elements = 4, .capacity = 32, .record_every = 1}});
  DaemonProcess daemon(directory_);
  job.Write(0, 20);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 20));
  std::istringstream lines(Cli({"tail", "-n", "100", "--json", "x"}).out);
  std::vector<int> replays;
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    if (event["event"] != "snapshot") continue;
    replays.push_back(event["replay"]);
    EXPECT_EQ(event["stats"]["min"], event["replay"]);
  }
  std::vector<int> expected(20);
  for (int i = 0; i < 20; ++i) expected[static_cast<std::size_t>(i)] = i + 1;
  EXPECT_EQ(replays, expected);
}

TEST_F(CliEndToEndTest, FollowShowsWhatComesAndTheDeathOfTheJob) {
  auto job = std::make_unique<ProducerProcess>(
      std::vector<SlotSpec>{{.name = "x", .elements = 4, .capacity = 8, .record_every = 1}});
  DaemonProcess daemon(directory_);
  Process tail(Command({"tail", "-f", "--color", "never"}));
  while (tail.out().find("joined") == std::string::npos) std::this_thread::yield();
  job->Write(0, 1);
  while (tail.out().find("@1 x") == std::string::npos) std::this_thread::yield();
  job->Kill();
  while (tail.out().find("died after 1 replay,") == std::string::npos) std::this_thread::yield();
  ::kill(tail.pid(), SIGINT);
  EXPECT_EQ(tail.Wait().code, 130);
}

TEST_F(CliEndToEndTest, AClientThatWaitsForARecordingIsToldWhatTheDeadDaemonLeft) {
  ProducerProcess job({Recording("x")});
  DaemonProcess daemon(directory_);
  const std::string path = directory_ / "a.cgrec";
  Process record(Command({"record", "start", "-o", path, "--wait"}));
  while (daemon.Status().recordings().empty()) std::this_thread::yield();
  daemon.Kill();
  const ProcessResult result = record.Wait();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("cgdebug-cli info " + path));
}

TEST_F(CliEndToEndTest, NanIsFoundByTailStatusAndShow) {
  ProducerProcess job({{.name = "x", .elements = 4, .capacity = 8, .record_every = 1}});
  DaemonProcess daemon(directory_);
  job.Write(0, 1);
  job.WriteValue(0, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 2));
  EXPECT_THAT(Cli({"status"}).out, HasSubstr("first NaN: x @2, 4 elements"));
  const ProcessResult tail = Cli({"tail", "--only", "nan"});
  EXPECT_THAT(tail.out, HasSubstr("@2 x"));
  EXPECT_THAT(tail.out, Not(HasSubstr("@1 x")));
  EXPECT_THAT(Cli({"show", "x@2", "--where", "nan"}).out, HasSubstr("[3]"));
  EXPECT_THAT(Cli({"probes"}).out, HasSubstr("NaN"));
}

TEST_F(CliEndToEndTest, LossesAreCountedWhereverTheyAreShown) {
  ProducerProcess job({{.name = "x", .elements = 4, .capacity = 2, .record_every = 1}});
  job.Write(0, 10);
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 2));
  job.Write(0, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 3));
  const json session = json::parse(Cli({"ps", "--json"}).out)["sessions"][0];
  const std::uint64_t produced = session["counters"]["produced"];
  const std::uint64_t consumed = session["counters"]["consumed"];
  const std::uint64_t lost = session["counters"]["lost_overwritten"];
  EXPECT_EQ(produced, 11u);
  EXPECT_EQ(consumed + lost, produced);
  EXPECT_THAT(Cli({"tail", "-n", "50"}).out,
              HasSubstr("-- x: " + std::to_string(lost) + " snapshots lost"));
  EXPECT_THAT(Cli({"status"}).out, HasSubstr("lost " + std::to_string(lost)));
}

TEST_F(CliEndToEndTest, WithoutAJobItSaysThatAnotherDaemonHasOne) {
  ProducerProcess job({{.name = "x", .elements = 4, .capacity = 8, .record_every = 1}});
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(job.key()).has_value(); }));
  const testing_support::TempDir elsewhere;
  DaemonProcess other(elsewhere);
  ASSERT_TRUE(WaitUntil([&] { return other.Status().skipped_size() == 1; }));
  const std::vector<std::vector<std::string>> commands = {
      {"ps"}, {"probes"}, {"tail"}, {"tail", "x"}, {"show", "x"}, {"check"}, {"freeze"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.begin(), {CGDEBUG_CLI, "--socket", other.socket()});
    const ProcessResult result = Process(command, {"NO_COLOR=1"}).Wait();
    EXPECT_EQ(result.code, 4) << command[3];
    EXPECT_THAT(result.err, HasSubstr("skipped by the daemon on " + other.socket())) << command[3];
    EXPECT_THAT(result.err, HasSubstr(job.segment() + ": another daemon reads it")) << command[3];
  }
}

TEST_F(CliEndToEndTest, WithoutAJobItCountsThoseOfAnotherDaemon) {
  ProducerProcess first({{.name = "x", .elements = 4, .capacity = 8, .record_every = 1}});
  ProducerProcess second({{.name = "y", .elements = 4, .capacity = 8, .record_every = 1}});
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(first.key()).has_value(); }));
  ASSERT_TRUE(WaitUntil([&] { return daemon.Session(second.key()).has_value(); }));
  const testing_support::TempDir elsewhere;
  DaemonProcess other(elsewhere);
  ASSERT_TRUE(WaitUntil([&] { return other.Status().skipped_size() == 2; }));
  const ProcessResult result =
      Process({CGDEBUG_CLI, "--socket", other.socket(), "ps"}, {"NO_COLOR=1"}).Wait();
  EXPECT_THAT(result.err, HasSubstr("2 jobs belong to other daemons"));
  EXPECT_THAT(result.err, Not(HasSubstr(first.segment())));
}

TEST_F(CliEndToEndTest, AJobThatIsTypedWhereAProbeBelongsIsCalledAJob) {
  ProducerProcess job({{.name = "x", .elements = 4, .capacity = 8, .record_every = 1}});
  job.Write(0, 1);
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
  for (const char* command : {"tail", "probes", "show"}) {
    const ProcessResult result = Cli({command, job.key()});
    EXPECT_EQ(result.code, 4) << command;
    EXPECT_THAT(result.err, HasSubstr("'" + job.key() + "' is a job, not a probe")) << command;
    EXPECT_THAT(result.err, HasSubstr("-s '" + job.key() + "'")) << command;
  }
}

TEST_F(CliEndToEndTest, StartsADaemonAndStopsIt) {
  const ProcessResult start = Cli({"daemon", "start"});
  ASSERT_EQ(start.code, 0) << start.err;
  EXPECT_EQ(Cli({"daemon", "status"}).code, 0);
  EXPECT_EQ(Cli({"daemon", "start"}).err.find("started"), std::string::npos);
  EXPECT_EQ(Cli({"daemon", "stop"}).code, 0);
  EXPECT_EQ(Cli({"daemon", "status"}).code, 4);
}

TEST_F(CliEndToEndTest, RunSaysThatAJobHadNoProbe) {
  DaemonProcess daemon(directory_);
  const ProcessResult result = Cli({"run", "--fail-on", "nan", "--", "true"});
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, HasSubstr("No probe was seen"));
}

TEST_F(CliEndToEndTest, AJobWithMoreRowsThanOneAnswerHoldsIsListedWhole) {
  std::vector<SlotSpec> pages;
  for (std::uint64_t i = 0; i < 5; ++i) {
    pages.push_back(
        {.name = "g" + std::to_string(i), .capacity = 2, .graph_id = i + 1, .rows = 1000});
  }
  ProducerProcess job(pages);
  DaemonProcess daemon(directory_);
  for (std::uint32_t i = 0; i < 5; ++i) job.Write(i);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "g4/row999", 1));
  const json probes = json::parse(Cli({"probes", "--json"}).out)["probes"];
  ASSERT_EQ(probes.size(), 5000u);
  EXPECT_EQ(probes[4999]["name"], "g4/row999");
  const json ops = json::parse(Cli({"ops", job.key() + "@g:3", "--json"}).out);
  EXPECT_EQ(ops["rows"].size(), 1000u);
  EXPECT_EQ(Cli({"check", job.key()}).code, 0);
}

TEST_F(CliEndToEndTest, OneRequestHasTheHistoryOfManyRowsAndSaysWhenThereIsMore) {
  ProducerProcess job({{.name = "a", .capacity = 4, .graph_id = 1, .graph = "bs=1", .rows = 1000},
                       {.name = "x", .record_every = 1, .graph_id = 1},
                       {.name = "b", .capacity = 4, .graph_id = 1, .graph = "bs=1", .rows = 1000},
                       {.name = "c", .capacity = 4, .graph_id = 2, .graph = "bs=2", .rows = 7}});
  DaemonProcess daemon(directory_);
  for (const std::uint32_t slot : {0u, 1u, 2u, 3u}) job.Write(slot, 3);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "c/row6", 3));
  client::Client client = daemon.Connect();
  const auto logs = client.Ask<v1::OpLogsReply>(v1::OpLogsRequest());
  ASSERT_TRUE(logs.ok());
  ASSERT_EQ(logs->logs_size(), 2);
  const v1::OpLog& log = logs->logs(0);
  EXPECT_EQ(log.graph(), "bs=1");
  EXPECT_EQ(log.rows(), 2000u);
  EXPECT_EQ(log.last_slot() - log.first_slot(), 2000u) << "x lies between";

  v1::HistoryRequest request;
  request.set_session(job.key());
  request.set_slot(log.first_slot());
  request.set_last_slot(log.last_slot());
  std::set<std::pair<std::uint32_t, std::uint64_t>> seen;  // slot, replay
  int answers = 0;
  for (bool has_more = true; has_more; ++answers) {
    const auto reply = client.Ask<v1::HistoryReply>(request);
    ASSERT_TRUE(reply.ok());
    for (const auto& entry : reply->entries()) {
      EXPECT_TRUE(seen.insert({entry.slot(), entry.replay()}).second) << entry.slot();
    }
    has_more = reply->more();
    const auto& last = *reply->entries().rbegin();
    request.set_slot(last.slot());
    request.set_first_ordinal(last.ordinal() + 1);
  }
  EXPECT_EQ(seen.size(), 2001u * 3);
  EXPECT_EQ(answers, 2);

  v1::HistoryRequest around;
  around.set_session(job.key());
  around.set_slot(logs->logs(1).first_slot());
  around.set_neighbours(true);
  const std::map<int, std::vector<int>> expected = {
      {1, {1, 2}}, {2, {1, 2, 3}}, {3, {2, 3}}, {9, {3}}};
  for (const auto& [replay, with_neighbours] : expected) {
    around.set_first(replay);
    around.set_last(replay);
    const auto reply = client.Ask<v1::HistoryReply>(around);
    ASSERT_TRUE(reply.ok());
    std::vector<int> replays;
    for (const auto& entry : reply->entries()) replays.push_back(static_cast<int>(entry.replay()));
    EXPECT_EQ(replays, with_neighbours) << replay;
  }

  v1::ProbesRequest rows;
  rows.set_session(job.key());
  rows.mutable_rows_of()->set_graph_id(1);
  const auto probes = client.Ask<v1::ProbesReply>(rows);
  ASSERT_TRUE(probes.ok());
  EXPECT_EQ(probes->probes_size(), 2000) << "x is no row, and c is of another graph";

  const json ops = json::parse(Cli({"ops", job.key() + "@g:bs=2@2", "--json"}).out);
  ASSERT_EQ(ops["rows"].size(), 7u);
  EXPECT_EQ(ops["replay"], 2);
  EXPECT_EQ(ops["lost"], 0);
  EXPECT_EQ(ops["rows"][6]["stats"]["count"], 7);
  EXPECT_EQ(ops["rows"][6]["changed"], false);
  EXPECT_EQ(ops["other_logs"], json::array({"bs=1"}));
  const ProcessResult none = Cli({"ops", job.key() + "@g:bs=3"});
  EXPECT_EQ(none.code, 4);
  EXPECT_THAT(none.err, HasSubstr("has no op log of graph 'bs=3'. It has: bs=1, bs=2"));
  const ProcessResult no_replay = Cli({"ops", job.key() + "@g:bs=1@9"});
  EXPECT_THAT(no_replay.err,
              HasSubstr("has no replay 9 of the op log of bs=1; it keeps 1..3. Type: "
                        "cgdebug-cli ops '"));
  const std::size_t typed = no_replay.err.find("ops '") + 5;
  const std::string proposed = no_replay.err.substr(typed, no_replay.err.find('\'', typed) - typed);
  EXPECT_TRUE(proposed.ends_with("@g:bs=1@3")) << proposed;
  EXPECT_EQ(Cli({"ops", proposed}).code, 0);
}

TEST_F(CliEndToEndTest, WhoeverAsksForTheValuesOfARowOfAGraphIsToldHowToAskTheJob) {
  ProducerProcess job({{.name = "a", .capacity = 4, .graph_id = 1, .graph = "bs=1", .rows = 3}});
  DaemonProcess daemon(directory_);
  job.Write(0);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a/row2", 1));
  const ProcessResult refused = Cli({"set", "a/row1", "--mode", "full"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("Of a job that runs with --ask or --rewind, type: cgdebug-cli ask " +
                        job.key() + " 'a/row1' --values FILE.safetensors"));
  EXPECT_THAT(refused.err, HasSubstr("cgdebug-cli run --watch 'op:*' --values 'a/row1'"));
}

TEST_F(CliEndToEndTest, TailHasOneLineForThePageOfAnOpLogAtAReplay) {
  ProducerProcess job({{.name = "a", .capacity = 4, .graph_id = 1, .graph = "bs=1", .rows = 300},
                       {.name = "x", .record_every = 1}});
  DaemonProcess daemon(directory_);
  job.Write(0);
  job.WriteValue(0, NAN);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a/row299", 2));
  job.Write(1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "x", 1));
  const std::string tail = Cli({"tail", "-n", "3"}).out;
  EXPECT_THAT(tail,
              HasSubstr("@1 graph bs=1: 300 rows  cgdebug-cli ops '" + job.key() + "@g:bs=1@1'\n"));
  EXPECT_THAT(tail, HasSubstr("@2 graph bs=1: 300 rows, 1 with NaN or Inf, first #2 a/row1: 1 NaN"
                              "  cgdebug-cli ops '" +
                              job.key() + "@g:bs=1@2'\n"));
  EXPECT_THAT(tail, HasSubstr("x  f32"));
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(tail), 3) << tail;
  EXPECT_EQ(lines(Cli({"tail", "-n", "1000", "--only", "nan"}).out), 2);
  // Each row, the newest ones where there are too many.
  const std::string rows = Cli({"tail", "-n", "1000", "--rows"}).out;
  EXPECT_EQ(lines(rows), 602);
  const std::string newest = Cli({"tail", "-n", "5", "--rows"}).out;
  EXPECT_THAT(newest, AllOf(HasSubstr("a/row296"), Not(HasSubstr("a/row295"))));
  EXPECT_EQ(lines(Cli({"tail", "-n", "1000", "--json"}).out), 602);
  EXPECT_EQ(lines(Cli({"tail", "-n", "1000", "a/row7"}).out), 3);
}

TEST_F(CliEndToEndTest, TailSaysWhatTheRowsOfAPageLost) {
  ProducerProcess job({{.name = "a", .capacity = 2, .graph_id = 1, .graph = "bs=1", .rows = 300}});
  job.Write(0, 5);
  DaemonProcess daemon(directory_);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "a/row299", 2));
  EXPECT_THAT(Cli({"tail", "-n", "10"}).out,
              HasSubstr("-- graph bs=1, 300 rows: 900 snapshots lost: "));
  const std::string rows = Cli({"tail", "-n", "1000", "--json"}).out;
  std::size_t losses = 0;
  for (std::size_t at = 0; (at = rows.find("\"loss\"", at)) != std::string::npos; ++at) ++losses;
  EXPECT_EQ(losses, 300u);
}

TEST_F(CliEndToEndTest, ARowThatSaysWhatALogDoesNotShowIsNoProbeOfAnyCommand) {
  ProducerProcess job({{.name = "x", .record_every = 1},
                       {.name = "ops", .rows = 1, .op = "gap job capture 3 has no log"}});
  DaemonProcess daemon(directory_);
  job.Write(0);
  job.Write(1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "ops/row0", 1));
  const std::string last = directory_ / "last.cgrec";
  ASSERT_EQ(Cli({"freeze", job.key(), "-o", last}).code, 0);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"where"}, {"where", last}, {"top", "--interval", "1"}, {"probes"}, {"tail"}}) {
    std::vector<std::string> with_json = command;
    with_json.push_back("--json");
    const ProcessResult result = Cli(with_json);
    EXPECT_EQ(result.code, 0) << command.front() << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("\"x\""), Not(HasSubstr("ops/row0"))))
        << command.front();
  }
  EXPECT_THAT(Cli({"tail"}).out, Not(HasSubstr("eager run")));
}

// --- where ---

std::vector<SlotSpec> GraphOf(const std::vector<std::string>& names, std::uint64_t graph_id,
                              const std::string& graph) {
  std::vector<SlotSpec> specs;
  for (const std::string& name : names) {
    specs.push_back(Recording(name));
    specs.back().graph_id = graph_id;
    specs.back().graph = graph;
  }
  return specs;
}

TEST_F(CliEndToEndTest, WhereNamesTheRowsAroundAnOpThatHangsAlsoAfterTheJobAndItsDaemonWereKilled) {
  auto daemon = std::make_unique<DaemonProcess>(directory_);
  ProducerProcess job({{.name = "fwd", .capacity = 4, .graph_id = 5, .graph = "bs=8", .rows = 7}});
  job.Launch(0);
  job.Write(0, 1);
  ASSERT_TRUE(daemon->WaitForConsumed(job.key(), "fwd/row6", 1));
  EXPECT_THAT(Cli({"where"}).out, HasSubstr("graph bs=8, replay 1: after the last of 7 rows, "
                                            "fwd/row6 (#7, model.py:6); no later replay"));
  job.Launch(0);
  EXPECT_THAT(Cli({"where"}).out,
              HasSubstr("replay 2: launched, before its first row, fwd/row0 (#1, model.py:0) .. "
                        "fwd/row1 (#2, model.py:1)"));
  job.Reach(0, 2);
  const std::string hangs =
      "graph bs=8, replay 2: after fwd/row3 (#4), before fwd/row4 (#5, model.py:4) .. fwd/row5 "
      "(#6, model.py:5) (4 of 7 rows)";
  const ProcessResult alive = Cli({"where"});
  EXPECT_EQ(alive.code, 0) << alive.err;
  EXPECT_THAT(alive.out, HasSubstr("  alive  " + hangs));
  EXPECT_THAT(alive.out, HasSubstr("-> cgdebug-cli ops '" + job.key() + "@g:bs=8@1'"));
  EXPECT_EQ(Cli({"ops", job.key() + "@g:bs=8@1"}).code, 0) << "what it says to type";
  job.Kill();
  daemon->Kill();
  daemon = nullptr;
  DaemonProcess late(directory_);
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = late.Session(job.key());
    return session && session->state() == v1::Session::DIED;
  }));
  const ProcessResult dead = Cli({"where", job.key()});
  EXPECT_EQ(dead.code, 0) << dead.err;
  EXPECT_THAT(dead.out, HasSubstr("died"));
  EXPECT_THAT(dead.out, HasSubstr(hangs));
}

TEST_F(CliEndToEndTest, WhereNamesTheProbesAroundTheOneThatHangsAndWhatASideBranchLeavesOpen) {
  DaemonProcess daemon(directory_);
  ProducerProcess job(GraphOf({"a", "b", "c"}, 5, "bs=8"));
  for (const std::uint32_t slot : {0u, 1u}) job.Write(slot, 2);
  job.Write(2, 1);
  ASSERT_TRUE(daemon.WaitForConsumed(job.key(), "b", 2));
  const ProcessResult where = Cli({"where"});
  EXPECT_THAT(where.out, HasSubstr("replay 2: after b, before c (2 of 3 probes)"));
  EXPECT_THAT(where.out, HasSubstr("-> cgdebug-cli show -s " + job.key()));
  EXPECT_THAT(where.err, HasSubstr("the next probe's included"));
  EXPECT_EQ(Cli({"show", "-s", job.key(), "b@g:bs=8@2"}).code, 0) << "what it says to type";
  const json told = json::parse(Cli({"where", "--json"}).out)["jobs"][0]["ranks"][0];
  EXPECT_EQ(told["place"], "inside");
  EXPECT_EQ(told["after"]["name"], "b");
  EXPECT_EQ(told["before"]["name"], "c");
  EXPECT_EQ(told["replay"], 2);
  const std::string last = directory_ / "last.cgrec";
  ASSERT_EQ(Cli({"freeze", job.key(), "-o", last}).code, 0);
  const ProcessResult recorded = Cli({"where", last});
  EXPECT_EQ(recorded.code, 0) << recorded.err;
  EXPECT_THAT(recorded.out, HasSubstr("replay 2: after b, before c"));
  EXPECT_EQ(Cli({"where", "nobody"}).code, 4);
}

TEST_F(CliEndToEndTest, WherePutsRanksSideBySideAndMarksTheOneThatDiffers) {
  DaemonProcess daemon(directory_);
  const std::vector<SlotSpec> both = {GraphOf({"a"}, 1, "small")[0], GraphOf({"b"}, 2, "large")[0]};
  ProducerProcess first(both, -1, "run", 0), second(both, -1, "run", 1), third(both, -1, "run", 2);
  for (ProducerProcess* job : {&first, &second, &third}) job->Launch(job == &second ? 0 : 1);
  ASSERT_TRUE(WaitUntil([&] { return daemon.Status().sessions_size() == 3; }));
  const ProcessResult where = Cli({"where", "run"});
  std::istringstream lines(where.out);
  std::vector<std::string> ranks;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("rank ")) ranks.push_back(line);
  }
  ASSERT_EQ(ranks.size(), 3u) << where.out;
  EXPECT_THAT(ranks[0], HasSubstr("graph large, replay 1: launched, before its first probe, b"));
  EXPECT_THAT(ranks[1], HasSubstr("graph small, replay 1: launched, before its first probe, a"));
  EXPECT_THAT(ranks[0], Not(HasSubstr("differs")));
  EXPECT_THAT(ranks[1], HasSubstr("<-- differs"));
  EXPECT_THAT(ranks[2], Not(HasSubstr("differs")));

  // A rank that ended is told of, and is not one that used no probe.
  third.Kill();
  ASSERT_TRUE(WaitUntil([&] {
    const auto session = daemon.Session(third.key());
    return session && session->state() == v1::Session::DIED;
  }));
  const ProcessResult alive = Cli({"where"});
  EXPECT_THAT(alive.out, HasSubstr("rank 2 ended, type: cgdebug-cli where run\n"));
  EXPECT_THAT(Cli({"where", "--ranks", "0,2"}).out,
              HasSubstr("rank 2 ended, type: cgdebug-cli where run --ranks 0,2\n"));
  EXPECT_THAT(Cli({"where", "run"}).out, HasSubstr("rank 2  died"));
  EXPECT_THAT(Cli({"--ranks", "0", "where"}).out, Not(HasSubstr("rank 2")));
}

}  // namespace
}  // namespace cgdebug::test
