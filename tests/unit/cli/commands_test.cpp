// cgdebug-cli as a process, against a fake daemon that speaks the real protocol.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "daemon/core/base/realtime.h"
#include "tests/support/cli/commands_fixture.h"
#include "tests/support/daemon/fake_daemon.h"
#include "tests/support/recording/recording_fixture.h"
#include "tests/support/recording/safetensors_file.h"
#include "tests/support/run_process.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::ErrorAnswer;
using testing_support::FakeAnswer;
using testing_support::FakeDaemon;
using testing_support::MakeProbe;
using testing_support::MakeSession;
using testing_support::MakeSnapshot;
using testing_support::Process;
using testing_support::ProcessResult;
using testing_support::World;

TEST_F(CommandsTest, NoDaemonIsExitFourAndSaysWhatToType) {
  for (const char* verb : {"ps", "status", "probes", "tail"}) {
    const ProcessResult result = Cli({verb});
    EXPECT_EQ(result.code, 4) << verb;
    EXPECT_EQ(result.out, "") << verb;
    EXPECT_THAT(result.err, StartsWith("cgdebug: no daemon is running")) << verb;
    EXPECT_THAT(result.err, HasSubstr("cgdebug-cli daemon start")) << verb;
  }
}

TEST_F(CommandsTest, AWordThatAnOptionDoesNotHaveGetsTheNearest) {
  const ProcessResult result = Cli({"tail", "--only", "mismatches"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--only is nan, changed or mismatch, not 'mismatches'. Close: "
                                    "'mismatch'. Type: cgdebug-cli tail --help"));
}

TEST_F(CommandsTest, UnknownVerbsAndOptionsGetTheNearest) {
  const ProcessResult verb = Cli({"tial"});
  EXPECT_EQ(verb.code, 2);
  EXPECT_THAT(verb.err, HasSubstr("'tail'"));
  const ProcessResult option = Cli({"tail", "--folow"});
  EXPECT_EQ(option.code, 2);
  EXPECT_THAT(option.err, HasSubstr("'--follow'"));
  EXPECT_EQ(Cli({"tail", "--only", "sometimes"}).code, 2);
  EXPECT_EQ(Cli({"ps", "--ranks", "a"}).code, 2);
  EXPECT_THAT(Cli({"daemon", "strat"}).err, HasSubstr("no command 'daemon strat'. Close: 'start"));
  EXPECT_THAT(Cli({"record"}).err, HasSubstr("which of start, stop, list? Type: cgdebug-cli "));
  EXPECT_THAT(Cli({"set", "x", "--every", "10"}).err, HasSubstr("--mode full --every 10"));
  const std::vector<std::string> too_many = {"set",     "x", "--mode",  "full",
                                             "--every", "2", "--count", "9223372036854775809"};
  EXPECT_EQ(Cli(too_many).code, 2);
  EXPECT_THAT(Cli(too_many).err, HasSubstr("--count is too large"));
}

TEST_F(CommandsTest, ErrorsNameTheHelpOfTheWholeCommand) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"record", "start", "runs/a.cgrec"}, "Type: cgdebug-cli record start --help"},
      {{"record", "start", "--foo"}, "cgdebug-cli record start has no option '--foo'"},
      {{"record", "stop", "a", "b"}, "Type: cgdebug-cli record stop --help"},
      {{"daemon", "logs", "--lines", "foo"}, "Type: cgdebug-cli daemon logs --help"},
      {{"ops", "diff", "a"}, "Type: cgdebug-cli ops diff --help"},
      {{"help", "record", "foo"}, "no command 'foo'. Type: cgdebug-cli record --help"},
      {{"help", "foo"}, "no command 'foo'. Type: cgdebug-cli --help"},
  };
  for (const auto& [words, text] : wrong) {
    const ProcessResult result = Cli(words);
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_THAT(result.err, HasSubstr(text));
  }
}

TEST_F(CommandsTest, TooFewAndTooManyWordsAreNamed) {
  EXPECT_THAT(Cli({"tail", "-n"}).err, HasSubstr("--last needs a value: N. Type: "));
  EXPECT_THAT(Cli({"top", "--interval"}).err, HasSubstr("--interval needs a value: SECONDS. "));
  EXPECT_THAT(Cli({"top", "--interval", "0"}).err, HasSubstr("not a number from 1 to 3600. "));
  EXPECT_THAT(Cli({"query", "a", "b", "c"}).err,
              HasSubstr("3 words are too many for SOURCE, which takes 2. Type: "));
}

TEST_F(CommandsTest, HelpBeginsWithExamples) {
  for (const char* verb :
       {"run", "ps", "status", "probes", "tail", "show", "check", "diff", "doctor", "daemon"}) {
    const ProcessResult result = Cli({verb, "--help"});
    EXPECT_EQ(result.code, 0) << verb;
    EXPECT_LT(result.out.find("Examples:"), result.out.find("Usage:")) << verb;
  }
}

TEST_F(CommandsTest, NamesWithASlashAreNotPaths) {
  v1::Session& session = world_.sessions.emplace_back(MakeSession("99999999", 3));
  session.set_label("train-3f2a/r3");
  world_.probes.push_back(MakeProbe("99999999", "blk3/attn"));
  world_.probes.back().set_session_label(session.label());
  Serve();
  const ProcessResult info = Cli({"info", "train-3f2a/r3"});
  EXPECT_EQ(info.code, 3) << info.out;  // none of its snapshots is kept
  EXPECT_THAT(info.out, AllOf(HasSubstr("blk3/attn"), HasSubstr("not complete")));
  EXPECT_THAT(Cli({"info", "train-3f2b/r3"}).err,
              HasSubstr("no session 'train-3f2b/r3' and no file of this name"));
  EXPECT_THAT(Cli({"info", "runs/train"}).err, HasSubstr("runs/train does not exist"));
  const ProcessResult probes = Cli({"probes", "blk3/*"});
  EXPECT_EQ(probes.code, 0) << probes.err;
  const auto requests = daemon_->requests();
  const auto asked = std::ranges::find_if(
      requests, [](const auto& request) { return request.probes().probes_size() > 0; });
  ASSERT_NE(asked, requests.end());
  EXPECT_EQ(asked->probes().probes(0), "blk3/*");
}

TEST_F(CommandsTest, DiffComparesFilesAndLiveSessionsAlike) {
  using testing_support::WriteFloats;
  WriteFloats(dir_ / "a.safetensors", {{"x", {1, 2}}, {"y", {1, 2}}});
  WriteFloats(dir_ / "b.safetensors", {{"x", {1, 2}}, {"y", {1, 3}}});
  WriteFloats(dir_ / "c.safetensors", {{"x", {1, 2}}});
  EXPECT_EQ(Cli({"diff", dir_ / "a.safetensors", dir_ / "a.safetensors"}).code, 0);
  const ProcessResult different = Cli({"diff", dir_ / "a.safetensors", dir_ / "b.safetensors"});
  EXPECT_EQ(different.code, 1);
  EXPECT_THAT(different.out, HasSubstr("first difference: replay 1, y (probe 2 of 2)"));
  EXPECT_EQ(Cli({"diff", "--exit-zero", dir_ / "a.safetensors", dir_ / "b.safetensors"}).code, 0);
  EXPECT_EQ(Cli({"diff", "--name-only", dir_ / "a.safetensors", dir_ / "b.safetensors"}).out,
            "y\n");
  EXPECT_EQ(Cli({"diff", "--atol", "1", dir_ / "a.safetensors", dir_ / "b.safetensors"}).code, 0);
  EXPECT_EQ(Cli({"diff", dir_ / "a.safetensors", dir_ / "b.safetensors", "x"}).code, 0);
  const ProcessResult gap = Cli({"diff", dir_ / "a.safetensors", dir_ / "c.safetensors"});
  EXPECT_EQ(gap.code, 3);
  EXPECT_THAT(gap.out, HasSubstr("not compared: y is only in"));
  const json document =
      json::parse(Cli({"diff", "--json", dir_ / "a.safetensors", dir_ / "b.safetensors"}).out);
  EXPECT_EQ(document["verdict"], "different");
  EXPECT_EQ(Cli({"diff", dir_ / "a.safetensors", dir_ / "nowhere.cgrec"}).code, 2);
  EXPECT_EQ(Cli({"diff", dir_ / "a.safetensors", "live"}).code, 4);
  EXPECT_EQ(Cli({"diff", dir_ / "a.safetensors", dir_ / "a.safetensors", "--replays", "0"}).code,
            2);
}

TEST_F(CommandsTest, CheckNamesTheFirstNonfiniteOfARecording) {
  using testing_support::RecordingFixture;
  {
    RecordingFixture recording(dir_ / "a.cgrec");
    const std::uint32_t x = recording.AddSlot("x", {2}), y = recording.AddSlot("y", {2});
    for (const int replay : {1, 2, 3}) {
      const auto n = static_cast<float>(replay);
      recording.Add(x, replay, {n, 1});
      recording.Add(y, replay, {replay == 3 ? INFINITY : n * n, 1});
    }
    recording.Close();
  }
  const ProcessResult result = Cli({"check", dir_ / "a.cgrec"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("first non-finite: replay 3 (step 1003), y (probe 2 of 2"));
  EXPECT_THAT(result.out, HasSubstr("complete: 2 of 2 probes in replay 3"));
  EXPECT_THAT(result.err, HasSubstr("a.cgrec:y@3"));
  EXPECT_EQ(Cli({"check", dir_ / "a.cgrec", "--replays", "1..2"}).code, 0);
  EXPECT_EQ(Cli({"check", dir_ / "a.cgrec", "x"}).code, 0);
  EXPECT_EQ(json::parse(Cli({"check", "--json", dir_ / "a.cgrec"}).out)["found"], true);
  const ProcessResult nothing = Cli({"check", dir_ / "a.cgrec", "xx"});
  EXPECT_EQ(nothing.code, 4);
  EXPECT_THAT(nothing.err, HasSubstr("'x'"));
}

TEST_F(CommandsTest, JsonHasASchemaAndAFailureIsADocumentToo) {
  const ProcessResult failed = Cli({"ps", "--json"});
  EXPECT_EQ(failed.code, 4);
  const json failure = json::parse(failed.out);
  EXPECT_EQ(failure["schema"], 1);
  EXPECT_EQ(failure["exit_code"], 4);
  EXPECT_THAT(failure["error"].get<std::string>(), StartsWith("no daemon is running"));
  EXPECT_THAT(failed.err, StartsWith("cgdebug: no daemon is running")) << "for people, as ever";
  Serve();
  EXPECT_EQ(json::parse(Cli({"ps", "--json"}).out)["schema"], 1);
}

TEST_F(CommandsTest, AJobOfWhichNothingCameForLongIsStalled) {
  world_.sessions[0].set_moved_ns(RealtimeNs() - 75'000'000'000);
  Serve();
  EXPECT_THAT(Cli({"ps"}).out, HasSubstr("stalled 1m15s"));
  EXPECT_THAT(Cli({"status"}).out, HasSubstr("stalled 1m15s (pid 4710)"));
  EXPECT_THAT(Cli({"why"}).out, HasSubstr("is stalled for 1m15s (pid 4710)"));
}

TEST_F(CommandsTest, AJobThatMovesOrHasNothingYetIsAlive) {
  Serve();
  EXPECT_THAT(Cli({"ps"}).out, HasSubstr("alive"));
  world_.sessions[0].set_moved_ns(RealtimeNs());
  EXPECT_THAT(Cli({"ps"}).out, HasSubstr("alive"));
}

TEST_F(CommandsTest, PsListsSessionsForPeopleAndAsJson) {
  world_.sessions.push_back(MakeSession("99999999", 3));
  world_.sessions.back().set_state(v1::Session::DIED);
  Serve();
  EXPECT_THAT(Cli({"ps"}).out, HasSubstr("3f2a91c0  train.py-4710"));
  EXPECT_THAT(Cli({"ps"}).out, Not(HasSubstr("99999999")));
  EXPECT_THAT(Cli({"ps"}).err, HasSubstr("1 more dead but readable"));
  EXPECT_THAT(Cli({"ps", "-a"}).out, HasSubstr("\n99999999  train.py-4714"));
  const json document = json::parse(Cli({"ps", "-a", "--json"}).out);
  ASSERT_EQ(document["sessions"].size(), 2u);
  EXPECT_EQ(document["sessions"][1]["state"], "died");
  EXPECT_EQ(json::parse(Cli({"ps", "-a", "--json", "--ranks", "3"}).out)["sessions"].size(), 1u);
}

TEST_F(CommandsTest, EmptyPsSaysWhyAndIsExitFour) {
  world_.sessions[0].set_state(v1::Session::EXITED);
  Serve();
  EXPECT_EQ(Cli({"ps"}).code, 4);
  EXPECT_THAT(Cli({"ps"}).err, HasSubstr("1 dead but readable. Type: cgdebug-cli "));
  EXPECT_THAT(Cli({"ps", "-s", "train.py-4710"}).err, HasSubstr(" ps -s train.py-4710 -a\n"));
}

TEST_F(CommandsTest, StatusShowsLossesAndSkippedSegments) {
  world_.sessions = {MakeSession("aaaaaaaa", 0), MakeSession("bbbbbbbb", 1)};
  for (v1::Session& session : world_.sessions) session.set_run_id("run-3f2a");
  world_.sessions[1].set_replay(1203);
  world_.sessions[1].mutable_counters()->set_lost_overwritten(2);
  Serve();
  const ProcessResult result = Cli({"status"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out,
              HasSubstr("session  run-3f2a  ranks 0..1 of 2 alive  replay 1204 (rank 1: 1203)"));
  EXPECT_THAT(result.out,
              HasSubstr("lost 2 (2 overwritten unread, 0 half written at death; rank 1)"));
  EXPECT_THAT(result.out, HasSubstr("none saw NaN or Inf, in what was read"));
  EXPECT_THAT(result.out, HasSubstr("skipped  /dev/shm/cgdebug-0-old: ABI 7"));
  const json document = json::parse(Cli({"status", "--json"}).out);
  EXPECT_EQ(document["sessions"][1]["counters"]["lost_overwritten"], 2);
  EXPECT_EQ(document["skipped"].size(), 1u);
}

TEST_F(CommandsTest, StatusCallsNoRankSilentThatWasLeftOutOrHasEnded) {
  world_.sessions.clear();
  for (int rank = 0; rank < 3; ++rank) {
    world_.sessions.push_back(MakeSession(std::string(8, static_cast<char>('a' + rank)), rank));
    world_.sessions.back().set_run_id("run-3f2a");
    world_.sessions.back().set_world_size(4);
    world_.sessions.back().set_local_rank(rank);
    world_.sessions.back().set_local_world_size(4);
  }
  world_.sessions[2].set_state(v1::Session::EXITED);
  Serve();
  EXPECT_THAT(Cli({"status", "--ranks", "0"}).out, HasSubstr("alive; rank 3 has used no probe "));
  EXPECT_THAT(Cli({"status"}).out, HasSubstr("alive; rank 3 has used no probe "));
  EXPECT_THAT(Cli({"status", "bbbbbbbb"}).out, HasSubstr("alive; rank 3 has used no probe "));
}

TEST_F(CommandsTest, StatusSaysWhereAFindingThatAnotherDaemonReadMayStillBe) {
  v1::FirstNonfinite& first = *world_.sessions[0].mutable_first_nan();
  first.set_probe("blk3.attn");
  first.set_replay(7);
  first.set_kept(v1::FirstNonfinite::NOTHING);
  Serve();
  EXPECT_THAT(Cli({"status"}).out,
              HasSubstr("(another daemon read it; if the job's ring still has it: "
                        "cgdebug-cli show -s 3f2a91c0 'blk3.attn@7')"));
}

TEST_F(CommandsTest, StatusNamesARecordingThatStoppedByItself) {
  v1::Recording recording;
  recording.set_directory("/runs/a.cgrec");
  recording.set_state("disk full");
  recording.set_error("less than 64 MiB of the disk are free");
  recording.set_refused(5);
  world_.recordings = {recording};
  Serve();
  EXPECT_THAT(Cli({"status"}).out,
              AllOf(HasSubstr("recording /runs/a.cgrec: 0 snapshots"),
                    HasSubstr("5 missing\n         disk full: less than 64 MiB")));
}

TEST_F(CommandsTest, ProbesKeepGraphOrderAndSortBySize) {
  world_.probes[0].set_slot(1);
  world_.probes[1].set_slot(0);
  world_.probes[0].set_payload_bytes(1 << 20);
  world_.probes[0].mutable_verdict()->set_state(v1::Verdict::FAIL);
  world_.probes[0].mutable_verdict()->set_first_failed_replay(17);
  Serve();
  const std::string out = Cli({"probes"}).out;
  EXPECT_LT(out.find("blk3.mlp"), out.find("blk3.attn"));
  EXPECT_THAT(out, HasSubstr("FAIL @17"));
  EXPECT_THAT(out, HasSubstr("no snapshot yet"));
  const std::string by_bytes = Cli({"probes", "--sort", "bytes"}).out;
  EXPECT_LT(by_bytes.find("blk3.attn"), by_bytes.find("blk3.mlp"));
}

TEST_F(CommandsTest, TheFirstOfAProbesGraphsIsTheOneThatCameFirst) {
  world_.probes.clear();
  for (int graph = 1; graph <= 4; ++graph) {
    v1::ProbeInfo& probe = world_.probes.emplace_back(MakeProbe("3f2a91c0", "blk3.attn"));
    probe.set_graph_id(graph);
    if (graph % 2 == 0) continue;
    v1::FirstNonfinite& first = *probe.mutable_first_nan();
    first.set_qualifier(graph == 1 ? "@g:rare" : "@g:often");
    first.set_replay(graph == 1 ? 2 : 50);
    first.set_serial(graph == 1 ? 900 : 100);
  }
  Serve();
  EXPECT_THAT(Cli({"probes"}).out, HasSubstr("2 saw NaN or Inf, first often @50"));
}

TEST_F(CommandsTest, SnapshotsThatTheDaemonNoLongerHasAreMissing) {
  world_.probes.resize(1);
  for (v1::Counters* counters :
       {world_.probes[0].mutable_counters(), world_.sessions[0].mutable_counters()}) {
    counters->set_produced(20);
    counters->set_consumed(20);
  }
  for (std::uint64_t replay = 17; replay <= 20; ++replay) {
    v1::HistoryReply::Entry& entry = world_.history.emplace_back();
    entry.set_replay(replay);
    entry.set_ordinal(replay);
    entry.set_serial(replay);
    entry.mutable_stats();
  }
  Serve();
  const json account = json::parse(Cli({"--json", "info", "live"}).out)["account"];
  EXPECT_EQ(account["kept"], 4);
  EXPECT_EQ(account["lost"], json({{"no longer kept", 16}})) << account;
  EXPECT_EQ(account["unread"], 0);
  EXPECT_THAT(Cli({"info", "live"}).out, Not(HasSubstr("of graphs that are gone")));
  const std::string looked_at = "the daemon read 16 of the missing before it let them go";
  EXPECT_THAT(Cli({"check", "live"}).out, HasSubstr(looked_at));
  EXPECT_THAT(Cli({"check", "live", "--replays", "2.."}).out, Not(HasSubstr(looked_at)));
  world_.probes[0].mutable_first_inf()->set_replay(3);
  EXPECT_THAT(Cli({"check", "live"}).out, Not(HasSubstr(looked_at)));
  world_.probes[0].clear_first_inf();

  world_.sessions[0].mutable_counters()->set_produced(25);
  const ProcessResult gone = Cli({"check", "live"});
  EXPECT_EQ(gone.code, 3);
  EXPECT_THAT(gone.out + gone.err,
              HasSubstr("5 snapshots of job train.py-4710, of graphs that are gone"));
}

TEST_F(CommandsTest, LiveIsTheNewestJob) {
  world_.sessions.clear();
  world_.probes.clear();
  for (const char* key : {"11111111", "22222222", "33333333"}) {
    v1::Session& session = world_.sessions.emplace_back(MakeSession(key));
    session.set_label(std::string("job-") + key[0]);
    session.set_created_ns(key[0] == '2' ? 30 : 10);
    world_.probes.push_back(MakeProbe(key, "blk3.attn"));
  }
  Serve();
  EXPECT_THAT(Cli({"check", "live"}).out,
              AllOf(StartsWith("job job-2"), Not(HasSubstr("job-1")), Not(HasSubstr("job-3"))));
}

TEST_F(CommandsTest, LiveIsEveryRankOfTheNewestStartOfAJob) {
  world_.sessions.clear();
  world_.probes.clear();
  for (const int start : {0, 1}) {
    for (const int rank : {0, 1}) {
      const std::string key = fmt::format("{}{}000000", start, rank);
      v1::Session& session = world_.sessions.emplace_back(MakeSession(key, rank));
      session.set_run_id("train-3f2a");
      session.set_restart_count(start);
      session.set_created_ns(10 * start + rank);
      session.set_state(start == 0 ? v1::Session::DIED : v1::Session::ALIVE);
      world_.probes.push_back(MakeProbe(key, "blk3.attn"));
    }
  }
  Serve();
  EXPECT_THAT(Cli({"check", "live"}).out,
              AllOf(HasSubstr("(10000000) is alive"), HasSubstr("(11000000) is alive"),
                    Not(HasSubstr("(00000000)")), Not(HasSubstr("(01000000)"))));
}

TEST_F(CommandsTest, ProbeThatIsNotThereIsExitFourWithNearNames) {
  Serve();
  for (const char* verb : {"probes", "tail"}) {
    const ProcessResult result = Cli({verb, "x"});
    EXPECT_EQ(result.code, 4) << verb;
    EXPECT_THAT(result.err, HasSubstr("no probe matches 'x' (2 probes). Close: 'blk3.x'")) << verb;
  }
}

TEST_F(CommandsTest, TailPrintsALineAnEventAndAsksForWhatWasTyped) {
  world_.events = {Event(MakeSnapshot("blk3.attn", 1203, {1, 2})),
                   Event(MakeSnapshot("blk3.attn", 1204, {1, NAN}))};
  world_.probes[0].set_rank(2);
  Serve();
  const ProcessResult result = Cli({"tail", "-n", "7", "--only", "nan", "--ranks", "2", "blk*"});
  EXPECT_EQ(result.code, 0);
  const v1::TailRequest request = daemon_->requests().back().tail();
  EXPECT_EQ(request.last(), 7u);
  EXPECT_EQ(request.only(), v1::TailRequest::NONFINITE);
  ASSERT_EQ(request.ranks_size(), 1);
  EXPECT_EQ(request.ranks(0).first(), 2);
  EXPECT_EQ(request.ranks(0).last(), 2);
  EXPECT_EQ(request.probes(0), "blk*");
  EXPECT_FALSE(request.follow());

  const std::string out = Cli({"tail"}).out;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
  EXPECT_THAT(out, HasSubstr("@1204 blk3.attn  f32[2]"));
}

TEST_F(CommandsTest, TailSinceShowsWhatIsAsRecentAndWhatCameAfterIt) {
  v1::Snapshot old = MakeSnapshot("blk3.attn", 1, {1}), recent = MakeSnapshot("blk3.attn", 2, {2});
  old.set_timestamp_ns(RealtimeNs() - 3'600'000'000'000);
  recent.set_timestamp_ns(RealtimeNs() - 1'000'000'000);
  world_.events = {Event(old), Event(recent)};
  Serve();
  const ProcessResult result = Cli({"tail", "--since", "5m"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("@2 "), Not(HasSubstr("@1 "))));
  EXPECT_EQ(daemon_->requests().back().tail().last(), UINT32_MAX) << "all that are kept";
  EXPECT_THAT(Cli({"tail", "--since", "2h"}).out, AllOf(HasSubstr("@1 "), HasSubstr("@2 ")));
  world_.events = {Event(old)};
  EXPECT_THAT(Cli({"tail", "--since", "5m"}).err, HasSubstr("nothing has come in that time"));
  EXPECT_EQ(Cli({"tail", "--since", "yesterday"}).code, 2);
}

TEST_F(CommandsTest, TailOfNoLinesSaysNothing) {
  Serve();
  EXPECT_THAT(Cli({"tail"}).err, HasSubstr("no snapshot has come yet"));
  EXPECT_EQ(Cli({"tail", "-n", "0"}).err, "");
}

TEST_F(CommandsTest, TailAsJsonIsOneDocumentALine) {
  world_.events = {Event(MakeSnapshot("x1", 1, {NAN})), Event(MakeSnapshot("x2", 2, {1}))};
  Serve();
  std::istringstream lines(Cli({"tail", "--json"}).out);
  std::vector<json> documents;
  for (std::string line; std::getline(lines, line);) documents.push_back(json::parse(line));
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0]["stats"]["min"], "NaN");
  EXPECT_EQ(documents[1]["probe"], "x2");
}

TEST_F(CommandsTest, FirstCtrlCEndsTheViewWithItsSummary) {
  world_.events = {Event(MakeSnapshot("blk3.attn", 1, {1}))};
  world_.keep_open = true;
  Serve();
  Process process(Command({"tail", "-f"}));
  while (process.out().find("@1 ") == std::string::npos) std::this_thread::yield();
  ::kill(process.pid(), SIGINT);
  const ProcessResult result = process.Wait();
  EXPECT_EQ(result.code, 130);
  EXPECT_THAT(result.err, HasSubstr("1 snapshot of 1 probe, 0 lost"));
}

TEST_F(CommandsTest, ATailSaysThatItsDaemonEnded) {
  world_.hang_up = true;
  Serve();
  const ProcessResult result = Cli({"tail", "-f"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("the daemon ended"));
}

TEST_F(CommandsTest, ClosedPipeEndsItSilently) {
  for (std::uint64_t replay = 1; replay <= 2000; ++replay) {
    world_.events.push_back(Event(MakeSnapshot("blk3.attn", replay, {1, 2, 3, 4})));
  }
  Serve();
  std::string line;
  for (const std::string& word : Command({"tail"})) line += "'" + word + "' ";
  const ProcessResult result =
      Process({"bash", "-c", line + "| head -1 >/dev/null; exit ${PIPESTATUS[0]}"}).Wait();
  EXPECT_EQ(result.code, 141);
  EXPECT_EQ(result.err, "");
}

TEST_F(CommandsTest, ShowFindsAProbeWithAndWithoutItsSession) {
  Serve();
  EXPECT_THAT(Cli({"show", "blk3.attn"}).out, HasSubstr("[0, 1, 2, 3]"));
  EXPECT_THAT(Cli({"show", "train.py-4711:blk3.attn@-1"}).out, HasSubstr("[0, 1, 2, 3]"));
  EXPECT_THAT(Cli({"show", "live:blk3.attn"}).out, HasSubstr("[0, 1, 2, 3]"));
  EXPECT_EQ(Cli({"show", "nobody:blk3.attn"}).code, 4);
  EXPECT_EQ(Cli({"show", "blk9"}).code, 4);
  EXPECT_EQ(Cli({"show", "blk3.attn@zero"}).code, 2);
}

TEST_F(CommandsTest, ShowSaysWhichOfSeveralSessionsTheTensorIsOf) {
  world_.sessions = {MakeSession("11111111", 1), MakeSession("22222222", 2),
                     MakeSession("33333333", 3), MakeSession("3f2a91c0", 0)};
  world_.sessions[2].set_state(v1::Session::DIED);
  for (const char* key : {"11111111", "22222222", "33333333"}) {
    world_.probes.push_back(MakeProbe(key, "blk3.attn"));
  }
  Serve();
  const ProcessResult shown = Cli({"show", "live:blk3.attn@-1"});
  EXPECT_EQ(shown.code, 0);
  EXPECT_EQ(shown.err,
            "3 sessions have a probe 'blk3.attn'; this is of pid 4711, rank 0. Another one: "
            "cgdebug-cli show -s 22222222 'blk3.attn@-1'\n");
  EXPECT_THAT(Cli({"show", "blk3.attn", "--graph", "eager", "--shape", "4"}).err,
              HasSubstr("show -s 22222222 blk3.attn --graph eager --shape 4\n"));
  EXPECT_EQ(Cli({"show", "blk3.attn", "--json"}).out.find("sessions"), std::string::npos);
  EXPECT_EQ(Cli({"show", "blk3.attn", "-q"}).err, "");
  EXPECT_EQ(Cli({"show", "train.py-4711:blk3.attn"}).err, "") << "only that one was meant";
}

TEST_F(CommandsTest, ShowOfARankIsOfItsNewestJob) {
  world_.sessions.clear();
  for (const char* key : {"11111111", "22222222", "33333333"}) {
    world_.sessions.push_back(MakeSession(key, 0));
    world_.sessions.back().set_created_ns(key[0] == '2' ? 30 : 10);
  }
  Serve();
  Cli({"show", "blk3.attn", "--ranks", "0"});
  EXPECT_EQ(daemon_->requests().back().get().session(), "22222222");
}

TEST_F(CommandsTest, SetAsksForAsManySnapshotsAsWereCounted) {
  Serve();
  const auto until = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"set", "blk*", "--mode", "full", "--count", "3"});
    Cli(options);
    return daemon_->requests().back().set().control().until();
  };
  EXPECT_EQ(until({}), 3u);
  EXPECT_EQ(until({"--every", "2"}), 5u);
  EXPECT_EQ(until({"--every", "2", "--from", "5"}), 9u);
}

TEST_F(CommandsTest, SetChangesOneJobUnlessItIsToldToChangeAll) {
  world_.sessions = {MakeSession("11111111"), MakeSession("22222222")};
  world_.sessions[0].set_label("train-1");
  world_.sessions[1].set_label("eval-2");
  Serve();
  const ProcessResult refused = Cli({"set", "blk*", "--mode", "off"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("2 jobs are alive: "), HasSubstr("train-1"),
                                 HasSubstr("with -s JOB, or --all-jobs")));
  const ProcessResult one = Cli({"set", "blk*", "--mode", "off", "-s", "eval-2"});
  EXPECT_THAT(one.err, AllOf(HasSubstr("eval-2: "), Not(HasSubstr("train-1"))));
  EXPECT_EQ(daemon_->requests().back().set().session(), "eval-2");
  EXPECT_THAT(Cli({"set", "blk*", "--mode", "off", "--all-jobs"}).err,
              AllOf(HasSubstr("train-1"), HasSubstr("eval-2")));
}

TEST_F(CommandsTest, TheHelpBeginsWithTheCommandsOneNeedsFirst) {
  const std::string first = Cli({"--help"}).out;
  for (const char* text : {"Start here", "\n  run", "\n  doctor", "cgdebug-cli help --all\n"}) {
    EXPECT_THAT(first, HasSubstr(text));
  }
  for (const char* text : {"Jobs that run", "\n  ps", "\n  verify", "__complete"}) {
    EXPECT_THAT(first, Not(HasSubstr(text))) << "one screen";
  }
  // A terminal of 80x24 shows the end of the list without paging.
  EXPECT_LT(std::ranges::count(first.substr(0, first.find("help --all")), '\n'), 23);
}

TEST_F(CommandsTest, HelpAllHasEveryCommandUnderTheHeadingOfItsGroup) {
  const std::string help = "\n" + Cli({"help", "--all"}).out;
  const std::vector<std::string> order = {"Start here", "  run",      "  doctor", "Jobs that run",
                                          "  ps",       "Recordings", "Set up"};
  EXPECT_THAT(help, Not(HasSubstr("__complete")));
  std::size_t at = 0;
  for (const std::string& text : order) {
    const std::size_t found = help.find("\n" + text, at);
    ASSERT_NE(found, std::string::npos) << text << "\n" << help;
    at = found;
  }
}

TEST_F(CommandsTest, SetTakesNoConditionThatItDoesNotUnderstandToTheEnd) {
  Serve();
  Cli({"set", "blk*", "--on", "abs_max>1e4"});
  EXPECT_EQ(daemon_->requests().back().set().control().threshold(), 1e4);
  Cli({"set", "blk*", "--on", "absmax>2"});
  EXPECT_EQ(daemon_->requests().back().set().control().threshold(), 2);
  for (const char* condition : {"abs_max>1e4x", "abs_max>", "abs_max>-1", "abs_max>inf", "max>1"}) {
    const ProcessResult refused = Cli({"set", "blk*", "--on", condition});
    EXPECT_EQ(refused.code, 2) << condition;
    EXPECT_THAT(refused.err, HasSubstr("'absmax>")) << condition;
  }
}

TEST_F(CommandsTest, ShowWritesNpyAndNeverOverOneWithoutForce) {
  Serve();
  const std::string path = dir_ / "attn.npy";
  EXPECT_EQ(Cli({"show", "blk3.attn", "-o", path}).code, 0);
  const std::string file = testing_support::ReadText(path);
  ASSERT_EQ(file.size(), 128u + 16u);
  float value = 0;
  std::memcpy(&value, file.data() + file.size() - sizeof(float), sizeof(float));
  EXPECT_EQ(value, 3.0f);
  const ProcessResult again = Cli({"show", "blk3.attn", "-o", path});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("add: -f"));
  EXPECT_EQ(Cli({"show", "blk3.attn", "-f", "-o", path}).code, 0);
}

TEST_F(CommandsTest, ShowToStdoutIsTheElementsAndNothingElse) {
  Serve();
  EXPECT_EQ(Cli({"show", "blk3.attn", "-o", "-"}).out.size(), 16u);
}

TEST_F(CommandsTest, QuietHasNoNotes) {
  world_.sessions.push_back(MakeSession("99999999", 3));
  world_.sessions.back().set_state(v1::Session::DIED);
  Serve();
  EXPECT_EQ(Cli({"ps", "-q"}).err, "");
}

TEST_F(CommandsTest, CompletionNamesLiveProbesAndIsSilentWithoutADaemon) {
  const ProcessResult nobody = Cli({"__complete", "probes"});
  EXPECT_EQ(nobody.code, 0);
  EXPECT_EQ(nobody.err + nobody.out, "");
  Serve();
  EXPECT_EQ(Cli({"__complete", "probes"}).out, "blk3.attn\nblk3.mlp\n");
  EXPECT_EQ(Cli({"__complete", "sessions"}).out, "train.py-4710\n");
}

TEST_F(CommandsTest, BashCompletesVerbsOptionsChoicesAndHostileProbeNames) {
  world_.probes[1].set_name("$(touch " + (dir_ / "pwned") + ")");
  Serve();
  const std::string function = "function cgdebug-cli() { '" CGDEBUG_CLI "' --socket '" +
                               (dir_ / "daemon.sock") + "' --no-spawn \"$@\"; }; " +
                               "source <(cgdebug-cli completion bash); ";
  const auto complete = [&](const std::string& words) {
    return Process({"bash", "-c",
                    function + "COMP_WORDS=(" + words +
                        "); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _cgdebug_cli; "
                        "printf '%s\\n' \"${COMPREPLY[@]}\""})
        .Wait()
        .out;
  };
  EXPECT_EQ(complete("cgdebug-cli ta"), "tail\n");
  EXPECT_EQ(complete("cgdebug-cli daemon sto"), "stop\n");
  EXPECT_EQ(complete("cgdebug-cli tail --fol"), "--follow\n");
  EXPECT_EQ(complete("cgdebug-cli tail --only ''"), "nan\nchanged\nmismatch\n");
  EXPECT_EQ(complete("cgdebug-cli help che"), "check\n");
  EXPECT_EQ(complete("cgdebug-cli help varia"), "variables\n");
  EXPECT_THAT(complete("cgdebug-cli run -- mkdi"), HasSubstr("mkdir\n"));
  EXPECT_THAT(complete("cgdebug-cli run -- mkdir --fol"), Not(HasSubstr("follow")));
  testing_support::WriteText(dir_ / "other.txt", "");
  testing_support::WriteText(dir_ / "one.safetensors", "");
  std::filesystem::create_directory(dir_ / "one.cgrec");
  EXPECT_EQ(complete("cgdebug-cli check " + (dir_ / "o")),
            (dir_ / "one.cgrec") + "\n" + (dir_ / "one.safetensors") + "\n");
  EXPECT_EQ(complete("cgdebug-cli show blk"), "blk3.attn\n");
  testing_support::RecordingFixture recording(dir_ / "run.cgrec");
  for (const char* probe : {"fwd/0", "fwd/1", "loss"}) recording.AddSlot(probe, {2});
  recording.Close();
  const std::string run = dir_ / "run.cgrec";
  EXPECT_EQ(complete("cgdebug-cli show " + run + " :"), "fwd/0\nfwd/1\nloss\n");
  EXPECT_EQ(complete("cgdebug-cli show " + run + " : lo"), "loss\n");
  EXPECT_EQ(complete("cgdebug-cli show " + run + ":lo"), run + ":loss\n");
  EXPECT_EQ(complete("cgdebug-cli tail -s tr"), "train.py-4710\n");
  EXPECT_EQ(complete("cgdebug-cli check tr"), "train.py-4710\n");
  EXPECT_THAT(complete("cgdebug-cli tail ''"), HasSubstr("blk3.attn\n"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "pwned"));
}

TEST_F(CommandsTest, DaemonStatusSaysWhetherOneRuns) {
  EXPECT_EQ(Cli({"daemon", "status"}).code, 4);
  Serve();
  const ProcessResult result = Cli({"daemon", "status"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("9.8.7"));
  EXPECT_EQ(Cli({"daemon", "socket"}).out, (dir_ / "daemon.sock") + "\n");
}

}  // namespace
}  // namespace cgdebug::cli
