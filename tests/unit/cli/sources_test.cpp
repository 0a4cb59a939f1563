// The commands over files: recordings built with the real writer, cgdebug-cli as a process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/cli/cli_sources_fixture.h"
#include "tests/support/recording/recording_fixture.h"
#include "tests/support/recording/safetensors_file.h"
#include "tests/support/run_process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace cgdebug::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::Process;
using testing_support::ProcessResult;
using testing_support::ReadText;
using testing_support::RecordingFixture;
using testing_support::WriteFloats;
using testing_support::WriteRecording;
using testing_support::WriteText;

TEST_F(CliSourcesTest, InfoSaysWhatIsInItAndWhatIsMissing) {
  WriteRecording(dir_ / "a.cgrec", 3);
  const ProcessResult whole = Cli({"info", dir_ / "a.cgrec"});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, AllOf(HasSubstr("train.py-7"), HasSubstr("f32[2,2]"), HasSubstr("1..3"),
                               HasSubstr("\nnothing is known to be missing"),
                               HasSubstr("values were not read")));
  EXPECT_EQ(CliJson({"info", dir_ / "a.cgrec"})["values_read"], false);
  RecordingFixture lossy(dir_ / "b.cgrec");
  const std::uint32_t x = lossy.AddSlot("x", {1});
  lossy.Add(x, 1, {1});
  lossy.Lose(x, 2);
  lossy.Add(x, 3, {3});
  lossy.Close();
  EXPECT_THAT(Cli({"info", dir_ / "b.cgrec"}).out,
              AllOf(HasSubstr("not complete"), HasSubstr("lacks 1 snapshot of x")));
  EXPECT_EQ(CliJson({"info", dir_ / "b.cgrec"})["complete"], false);
  EXPECT_EQ(CliJson({"info", dir_ / "b.cgrec"})["probes"][0]["lost"], 1);
  EXPECT_EQ(Cli({"info", dir_ / "b.cgrec", "y"}).code, 4);
  RecordingFixture(dir_ / "c.cgrec").Close(recording::StopReason::kDiskFull);
  EXPECT_THAT(Cli({"info", dir_ / "c.cgrec"}).err, HasSubstr("c.cgrec has no probe: disk full"));
}

// A row with a NaN in replay 1, and the one that reads it: of values, or not there.
void WriteNanAndItsReader(const std::string& path, const std::vector<float>& reader) {
  RecordingFixture recording(path);
  const std::uint32_t made = recording.AddSlot("fwd/div_0", {2}, "", "", "1 aten.div.Tensor");
  const std::uint32_t read = recording.AddSlot("fwd/where_0", {2}, "", "", "2 aten.where.self 1");
  recording.Add(made, 1, {NAN, 2});
  reader.empty() ? recording.Lose(read, 1) : recording.Add(read, 1, reader);
  for (const int replay : {2, 3}) {
    for (const std::uint32_t row : {made, read})
      recording.Add(row, replay, {1, 2 * static_cast<float>(replay)});
  }
  recording.Close();
}

TEST_F(CliSourcesTest, CheckAndOpsHaveOneVerdictOfARowThatMayHaveAnExcuse) {
  const std::string path = dir_ / "a.cgrec", log = path + "@1";
  WriteNanAndItsReader(path, {1, 2});
  EXPECT_EQ(Cli({"check", path, "--replays", "1"}).code, 0);
  EXPECT_EQ(Cli({"ops", log}).code, 0) << "where() leaves it out";
  fs::remove_all(path);
  WriteNanAndItsReader(path, {NAN, 2});
  EXPECT_EQ(Cli({"check", path, "--replays", "1"}).code, 1);
  EXPECT_EQ(Cli({"ops", log}).code, 1) << "where() passes it on";
  fs::remove_all(path);
  WriteNanAndItsReader(path, {});
  EXPECT_EQ(Cli({"check", path, "--replays", "1"}).code, 3);
  const ProcessResult ops = Cli({"ops", log});
  EXPECT_EQ(ops.code, 3) << ops.out;
  EXPECT_THAT(ops.out,
              AllOf(HasSubstr("first non-finite: #1 fwd/div_0"),
                    HasSubstr("nobody knows whether a NaN or Inf that is shown is meant")));
  const json told = CliJson({"ops", log});
  EXPECT_EQ(told["verdict"], "inconclusive");
  EXPECT_EQ(told["first_nonfinite"]["name"], "fwd/div_0");
}

TEST_F(CliSourcesTest, ARowMayHaveBeenOnItsWayWhenTheRecordingOfAJobThatGoesOnWasStopped) {
  for (const auto& [reason, code] : {std::pair(recording::StopReason::kJobEnded, 1),
                                     std::pair(recording::StopReason::kRequested, 3)}) {
    const std::string path = dir_ / std::to_string(code);
    RecordingFixture recording(path);
    const std::uint32_t made = recording.AddSlot("fwd/div_0", {2}, "", "", "1 aten.div.Tensor");
    const std::uint32_t read = recording.AddSlot("fwd/where_0", {2}, "", "", "2 aten.where.self 1");
    recording.Add(made, 1, {1, 2});
    recording.Add(read, 1, {1, 2});
    recording.Add(made, 2, {NAN, 2});  // where() may leave it out
    recording.Close(reason);
    const ProcessResult check = Cli({"check", path});
    EXPECT_EQ(check.code, code) << check.out;
  }
}

TEST_F(CliSourcesTest, InfoSaysWhichRanksOfAJobAreInIt) {
  const std::string job = dir_ / "job";
  for (const int rank : {0, 2}) {
    WriteRecording(job + "/r" + std::to_string(rank) + ".cgrec", 1, 1, rank);
  }
  EXPECT_THAT(Cli({"info", job}).out, HasSubstr("ranks 0, 2 of 4: the others are not in here"));
  for (const int rank : {1, 3}) {
    WriteRecording(job + "/r" + std::to_string(rank) + ".cgrec", 1, 1, rank);
  }
  EXPECT_THAT(Cli({"info", job}).out, Not(HasSubstr("not in here")));
}

TEST_F(CliSourcesTest, WhereHasALineForEachOfTheProcessesOfOneLabel) {
  for (const int started : {1, 2}) {  // the launcher started the rank again
    const std::string digit = std::to_string(started);
    RecordingFixture recording(dir_ / ("job/" + digit + ".cgrec"), 0, "job",
                               std::string(32, digit[0]));
    const std::uint32_t x = recording.AddSlot("x", {1}), y = recording.AddSlot("y", {1});
    for (int replay = 1; replay <= 3 * started; ++replay) {
      recording.Add(x, replay, {1});
      recording.Add(y, replay, {1});
    }
    recording.Close();
  }
  const json ranks = CliJson({"where", dir_ / "job"})["jobs"][0]["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0]["replay"], 3);
  EXPECT_EQ(ranks[1]["replay"], 6);
  EXPECT_THAT(std::string(ranks[1]["next"]), HasSubstr("-s 22222222"));
  EXPECT_THAT(Cli({"where", dir_ / "job"}).out,
              AllOf(HasSubstr("rank 0 (11111111)  "), HasSubstr("rank 0 (22222222)  ")));
}

// A replica "w" of the four ranks of a job, of which `bad` has another value from replay 3 on.
void WriteReplicas(const std::string& folder, int rank, int bad) {
  RecordingFixture recording(folder + "/r" + std::to_string(rank) + ".cgrec", rank, "job");
  const std::uint32_t w = recording.AddSlot(
      "w", {2}, "R of [2] at (" + std::to_string(rank) + ") of dp=4, from [0], replicas 0..3");
  const std::uint32_t y = recording.AddSlot("y", {1});
  for (int replay = 1; replay <= 5; ++replay) {
    const auto n = static_cast<float>(replay);
    recording.Add(w, replay, {n, rank == bad && replay >= 3 ? 50 : 2 * n}, /*stats_only=*/true);
    recording.Add(y, replay, {static_cast<float>(rank)}, /*stats_only=*/true);
  }
  recording.Close();
}

TEST_F(CliSourcesTest, RanksNamesTheFirstBadRankAndFoldsTheOthersIntoOneLine) {
  const std::string job = dir_ / "job";
  for (int rank = 0; rank < 4; ++rank) WriteReplicas(job, rank, /*bad=*/2);
  const ProcessResult found = Cli({"ranks", job});
  EXPECT_EQ(found.code, 1) << found.err;
  EXPECT_THAT(found.out,
              AllOf(HasSubstr("0..1, 3"), HasSubstr("different from step 1003: w"),
                    HasSubstr("first bad: rank 2: w at step 1003: differs from the other ranks"),
                    HasSubstr("rank 2 does not have what 3 of 4 ranks have")));
  const json report = CliJson({"ranks", job});
  EXPECT_EQ(report["first_difference"]["minority"], json::parse("[2]"));
  EXPECT_EQ(report["ranks"].size(), 4u);
  EXPECT_EQ(Cli({"ranks", job, "--replays", "1..2"}).code, 0);
  EXPECT_EQ(Cli({"ranks", job, "--ranks", "0,1,3"}).code, 0);
  EXPECT_EQ(Cli({"ranks", job, "y"}).code, 3) << "nothing was compared";
  EXPECT_EQ(Cli({"ranks", job, "y", "--replicated", "y"}).code, 1);
  EXPECT_EQ(Cli({"ranks", job, "none"}).code, 4);
  EXPECT_EQ(Cli({"ranks", job, "--follow"}).code, 1) << "ends with the recordings";
  fs::remove_all(job + "/r1.cgrec");
  EXPECT_THAT(Cli({"ranks", job, "--replays", "1..2"}).out,
              AllOf(HasSubstr("inconclusive"), HasSubstr("rank 1 of 4 is not here")));
}

TEST_F(CliSourcesTest, CheckAndDiffSayWhichRanksAreConcerned) {
  const std::string a = dir_ / "a", b = dir_ / "b";
  for (int rank = 0; rank < 4; ++rank) {
    WriteRecording(a + "/r" + std::to_string(rank) + ".cgrec", 3, rank == 1 ? NAN : 1, rank);
    WriteRecording(b + "/r" + std::to_string(rank) + ".cgrec", 3, rank == 2 ? 7 : 1, rank);
  }
  EXPECT_THAT(Cli({"check", a}).out,
              HasSubstr("by rank: found on 1, no finding seen on 0, 2..3\n"));
  EXPECT_THAT(Cli({"diff", a, b, "--ranks", "0,2,3"}).out,
              HasSubstr("by rank: different on 2, no difference seen on 0, 3\n"));
  EXPECT_THAT(Cli({"diff", a, b, "--ranks", "2"}).out, Not(HasSubstr("by rank")));
}

TEST_F(CliSourcesTest, StatsAndReportSayWhatDiffersBetweenRanksAndBetweenRuns) {
  const std::string job = dir_ / "job", healthy = dir_ / "healthy", sick = dir_ / "sick";
  for (int rank = 0; rank < 4; ++rank) {
    WriteReplicas(job, rank, /*bad=*/2);
    WriteReplicas(healthy, rank, /*bad=*/-1);
    WriteRecording(sick + "/r" + std::to_string(rank) + ".cgrec", 3, rank == 1 ? NAN : 1, rank);
  }
  EXPECT_THAT(Cli({"stats", job}).out,
              AllOf(HasSubstr("first bad: rank 2: w at step 1003"), Not(HasSubstr("by rank"))));
  EXPECT_THAT(Cli({"stats", job, "--ranks", "0,1,3"}).out,
              AllOf(HasSubstr("same: 1 replica on 3 ranks"), Not(HasSubstr("rank 2"))));
  EXPECT_THAT(Cli({"stats", sick}).out,
              HasSubstr("by rank: NaN or Inf on 1, none seen on 0, 2..3\n"));
  const json stats = CliJson({"stats", job});
  EXPECT_EQ(stats["ranks"]["replicas"]["first_difference"]["minority"], json::parse("[2]"));
  EXPECT_EQ(CliJson({"stats", sick})["ranks"]["nonfinite"], json::parse("[1]"));
  EXPECT_EQ(CliJson({"stats", sick, "--ranks", "1"})["ranks"]["nonfinite"], json::parse("[1]"));
  EXPECT_EQ(CliJson({"stats", sick})["ranks"]["replicas"], nullptr) << "it has none";

  const std::string page = dir_ / "a.html";
  const ProcessResult one = Cli({"report", job, "-o", page});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("First bad: rank 2: w at step 1003"))
      << "what check does not look at is a finding too";
  EXPECT_THAT(testing_support::ReadText(page),
              HasSubstr("rank 2 does not have what 3 of 4 ranks have"));
  EXPECT_EQ(Cli({"report", healthy, job, "-f", "-o", page}).code, 0);
  EXPECT_THAT(testing_support::ReadText(page),
              AllOf(HasSubstr("by rank: different on 2, no difference seen on 0..1, 3"),
                    HasSubstr("between the ranks of " + healthy + ":"),
                    HasSubstr("same: 1 replica on 4 ranks")));
}

TEST_F(CliSourcesTest, RanksFollowsAFolderIntoWhichRecordingsGrow) {
  const std::string job = dir_ / "job";
  fs::create_directory(job);
  for (int rank = 0; rank < 3; ++rank) WriteReplicas(job, rank, /*bad=*/3);
  auto growing = std::make_unique<RecordingFixture>(job + "/r3.cgrec", 3, "job");
  const std::uint32_t w =
      growing->AddSlot("w", {2}, "R of [2] at (3) of dp=4, from [0], replicas 0..3");
  const auto add = [&](int replay, float second) {
    growing->Add(w, replay, {static_cast<float>(replay), second}, /*stats_only=*/true);
  };
  add(1, 2);
  Process follow({CGDEBUG_CLI, "--socket", dir_ / "none", "--no-spawn", "--json", "ranks", job,
                  "--follow", "--interval", "0.05"},
                 {});
  const auto newest = [&] {
    const std::string text = follow.out();
    const std::size_t end = text.rfind('\n');
    if (end == std::string::npos) return json();
    return json::parse(text.substr(0, end).substr(text.rfind('\n', end - 1) + 1));
  };
  ASSERT_TRUE(test::WaitUntil([&] { return newest().contains("verdict"); }));
  const json behind = newest();
  EXPECT_EQ(behind["verdict"], "same") << behind.dump(2);
  EXPECT_EQ(behind["growing"], true);
  add(2, 4);
  add(3, 50);
  EXPECT_TRUE(test::WaitUntil([&] { return newest()["verdict"] == "found"; }));
  EXPECT_EQ(newest()["first_difference"]["minority"], json::parse("[3]"));
  growing->Close();
  EXPECT_EQ(follow.Wait().code, 1);
}

TEST_F(CliSourcesTest, SessionChoosesAJobOfAFile) {
  WriteRecording(dir_ / "runs/a.cgrec", 3, 1, -1, "one");
  WriteRecording(dir_ / "runs/b.cgrec", 3, 5, -1, "two");
  const std::string runs = dir_ / "runs", y = runs + ":y@2";
  EXPECT_EQ(CliJson({"show", y, "-s", "one"})["values"], json::parse("[2.0, 2.0]"));
  EXPECT_EQ(CliJson({"show", y, "-s", "two"})["values"], json::parse("[2.0, 10.0]"));
  EXPECT_EQ(CliJson({"show", y, "-s", "tttt"})["values"], json::parse("[2.0, 10.0]"));
  EXPECT_EQ(CliJson({"info", runs})["probes"].size(), 4u);
  EXPECT_EQ(CliJson({"info", runs, "-s", "two"})["probes"].size(), 2u);
  EXPECT_EQ(CliJson({"stats", runs, "y", "-s", "two"})["probes"][0]["max"], 15.0);
  EXPECT_EQ(Cli({"diff", runs, runs, "-s", "two"}).code, 0);
  for (const char* verb : {"info", "stats", "check", "probes"}) {
    const ProcessResult nobody = Cli({verb, runs, "-s", "twoo"});
    EXPECT_EQ(nobody.code, 4) << verb;
    EXPECT_THAT(nobody.err, HasSubstr("runs has no session 'twoo'. Close: 'two'")) << verb;
  }
  WriteFloats(dir_ / "m.safetensors", {{"w", {1}}});
  EXPECT_EQ(Cli({"info", dir_ / "m.safetensors", "-s", "one"}).code, 2);
}

TEST_F(CliSourcesTest, SessionIsNeverLeftOutOfAnAnswerInSilence) {
  WriteRecording(dir_ / "a.cgrec", 2, 1, -1, "one");
  WriteRecording(dir_ / "b.cgrec", 2, 5, -1, "two");
  const std::string both = dir_ / "both.cgrec", two = dir_ / "two.cgrec";
  EXPECT_EQ(Cli({"extract", dir_ / "a.cgrec", dir_ / "b.cgrec", "-o", both}).code, 0);
  EXPECT_EQ(Cli({"extract", both, "-s", "two", "-o", two}).code, 0);
  EXPECT_EQ(CliJson({"info", two})["probes"].size(), 2u);
  EXPECT_EQ(CliJson({"show", two + ":y@2"})["values"], json::parse("[2.0, 10.0]"));
  EXPECT_EQ(Cli({"extract", both, "-s", "three", "-o", dir_ / "no.cgrec"}).code, 4);
  EXPECT_THAT(Cli({"query", both, "SELECT 1", "-s", "two"}).err, HasSubstr("select them in SQL"));
  EXPECT_THAT(Cli({"query", both, "SELECT 1", "--ranks", "0"}).err, HasSubstr("WHERE rank = 0"));
  EXPECT_THAT(Cli({"export", both, "--to", "csv", "-o", "-", "-s", "two"}).err,
              HasSubstr("cgdebug-cli -s two extract"));
}

TEST_F(CliSourcesTest, WhatIsProposedRepeatsTheOptionsThatChoseJobAndRank) {
  WriteRecording(dir_ / "runs/a.cgrec", 3, 1, 0, "one");
  WriteRecording(dir_ / "runs/b.cgrec", 2, 5, 1, "one");
  WriteRecording(dir_ / "runs/c.cgrec", 4, 5, 1, "two");
  const std::string runs = dir_ / "runs";
  const std::string chosen = "cgdebug-cli info " + runs + " -s one/r1 --ranks 1\n";
  for (const std::string name : {":z@1", ":x@9"}) {
    EXPECT_THAT(Cli({"show", runs + name, "-s", "one/r1", "--ranks", "1"}).err, EndsWith(chosen));
  }
  for (const char* verb : {"check", "stats", "info", "probes"}) {
    EXPECT_THAT(Cli({verb, runs, "z", "-s", "one/r1", "--ranks", "1"}).err, EndsWith(chosen))
        << verb;
  }
  const std::string where = Cli({"where", runs}).out;
  for (const char* of :
       {":y@3' --ranks 0\n", ":y@2' -s one/r1 --ranks 1\n", ":y@4' -s two/r1 --ranks 1\n"}) {
    EXPECT_THAT(where, HasSubstr("-> cgdebug-cli show '" + runs + of));
  }
}

TEST_F(CliSourcesTest, ADiffOfNothingInCommonSaysWhyAndProposesWhatWasNotGiven) {
  const auto write = [&](const char* name, const char* probe, const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      RecordingFixture recording(dir_ / fmt::format("{}/r{}.cgrec", name, rank), rank, "one");
      recording.Add(recording.AddSlot(probe, {1}), 1, {1});
      recording.Close();
    }
    return dir_ / name;
  };
  const std::string x01 = write("x01", "x", {0, 1}), x = write("x", "x", {-1}),
                    y = write("y", "y", {-1}), x2 = write("x2", "x", {2});
  EXPECT_THAT(Cli({"diff", x, y}).err, HasSubstr("in common. Align by place in the graph with: "));
  EXPECT_EQ(Cli({"diff", x, y, "--by", "order"}).err, "");
  EXPECT_THAT(Cli({"diff", x01, x, "--by", "order"}).err,
              HasSubstr("A has ranks 0..1, B has no ranks. Compare one rank with: --ranks 0\n"));
  EXPECT_EQ(Cli({"diff", x01, x, "--ranks", "0"}).err, "");
  EXPECT_THAT(Cli({"diff", x2, x01}).err,
              HasSubstr("extract " + x01 + " --ranks 0 -o rank0.cgrec\n"));
}

TEST_F(CliSourcesTest, JobsWithProbesOfOneNameAreToldApart) {
  WriteRecording(dir_ / "runs/a.cgrec", 3, 1, -1, "one");
  RecordingFixture two(dir_ / "runs/b.cgrec", -1, "two");
  two.Add(two.AddSlot("x", {1}), 1, {NAN});
  two.Close();
  const std::string runs = dir_ / "runs";
  for (const char* verb : {"info", "stats", "probes"}) {
    EXPECT_THAT(Cli({verb, runs}).out, AllOf(HasSubstr("SESSION  PROBE"), HasSubstr("two      x")))
        << verb;
    EXPECT_THAT(Cli({verb, dir_ / "runs/a.cgrec"}).out, Not(HasSubstr("SESSION  PROBE"))) << verb;
  }
  const ProcessResult which = Cli({"show", runs + ":x@1"});
  EXPECT_EQ(which.code, 4);
  EXPECT_THAT(which.err, HasSubstr("has 'x' of several jobs. Type for example: -s two"));
  for (const ProcessResult& checked : {Cli({"check", runs}), Cli({"check", runs, "-s", "two"})}) {
    EXPECT_THAT(checked.err, HasSubstr(":x@1' -s two --where nan"));
  }
}

TEST_F(CliSourcesTest, StatsTellNanFromInfinityAndNothingFromEither) {
  RecordingFixture recording(dir_ / "a.cgrec");
  const std::uint32_t x = recording.AddSlot("x", {2}), empty = recording.AddSlot("empty", {0});
  recording.AddSlot("unseen", {1});
  recording.Add(x, 1, {1, NAN});
  recording.Lose(x, 2);
  recording.Add(x, 3, {2, 3});
  recording.Add(empty, 1, {});
  recording.Close();
  const json probes = CliJson({"stats", dir_ / "a.cgrec"})["probes"];
  EXPECT_EQ(probes[0]["abs_max"], json::parse("[1.0, 3.0]"));
  EXPECT_EQ(probes[0]["nonfinite_snapshots"], 1);
  EXPECT_EQ(CliJson({"stats", dir_ / "a.cgrec", "--replays", "3.."})["probes"][0]["lost"], 0);
  std::istringstream table(Cli({"stats", dir_ / "a.cgrec"}).out);
  std::string line;
  std::getline(table, line);
  std::getline(table, line);
  EXPECT_THAT(line, AllOf(HasSubstr("1..3"), HasSubstr("!"), HasSubstr("  1 missing")));
  for (const char* name : {"empty", "unseen"}) {
    std::getline(table, line);
    EXPECT_THAT(line, AllOf(HasSubstr(name), Not(HasSubstr("!")), Not(HasSubstr("nan"))));
  }
}

TEST_F(CliSourcesTest, StatsComeInTheOrderThatSortNames) {
  RecordingFixture recording(dir_ / "a.cgrec");
  const std::uint32_t small = recording.AddSlot("small", {2}), bad = recording.AddSlot("bad", {2}),
                      large = recording.AddSlot("large", {2});
  recording.AddSlot("empty", {2});
  recording.Add(small, 1, {1, 0});
  recording.Lose(small, 2);
  recording.Lose(small, 3);
  recording.Add(bad, 1, {2, NAN});
  recording.Add(large, 1, {-9, 0});
  recording.Lose(large, 2);
  recording.Close();
  const std::string a = dir_ / "a.cgrec";
  const std::vector<std::pair<std::string, std::vector<std::string>>> orders = {
      {"order", {"small", "bad", "large", "empty"}},
      {"name", {"bad", "empty", "large", "small"}},
      {"abs_max", {"large", "bad", "small", "empty"}},
      {"nonfinite", {"bad", "small", "large", "empty"}},
      {"missing", {"small", "large", "bad", "empty"}}};
  for (const auto& [sort, names] : orders) {
    const json probes = CliJson({"stats", a, "--sort", sort})["probes"];
    std::istringstream table(Cli({"stats", a, "--sort", sort}).out);
    std::string line;
    std::getline(table, line);
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(probes[i]["probe"], names[i]) << sort;
      std::getline(table, line);
      EXPECT_THAT(line, HasSubstr(names[i])) << sort;
    }
  }
  EXPECT_EQ(Cli({"stats", a, "--sort", "size"}).code, 2);
}

TEST_F(CliSourcesTest, StatsNonfiniteShowsOnlyProbesThatSawNanOrInfInTheReplaysShown) {
  RecordingFixture recording(dir_ / "a.cgrec");
  const std::uint32_t nan = recording.AddSlot("nan", {2}), fine = recording.AddSlot("fine", {2}),
                      inf = recording.AddSlot("inf", {2});
  recording.AddSlot("unseen", {2});
  recording.Add(nan, 1, {1, NAN});
  recording.Add(nan, 2, {1, 2});
  recording.Add(fine, 1, {9, 0});
  recording.Add(inf, 1, {3, 0});
  recording.Add(inf, 2, {-INFINITY, 0});
  recording.Close();
  const std::string a = dir_ / "a.cgrec";
  EXPECT_THAT(
      Cli({"stats", a, "--only", "nan"}).out,
      AllOf(HasSubstr("nan"), HasSubstr("inf"), Not(HasSubstr("fine")), Not(HasSubstr("unseen"))));
  const json probes = CliJson({"stats", a, "--only", "nan", "--sort", "name"})["probes"];
  ASSERT_EQ(probes.size(), 2u);
  EXPECT_EQ(probes[0]["probe"], "inf");
  EXPECT_EQ(probes[1]["probe"], "nan");
  const json later = CliJson({"stats", a, "--only", "nan", "--replays", "2.."})["probes"];
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0]["probe"], "inf");
  const ProcessResult none = Cli({"stats", a, "fine", "--only", "nan"});
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("no probe saw NaN or Inf in what was read"));
  EXPECT_EQ(CliJson({"stats", a, "fine", "--only", "nan"})["probes"], json::array());
}

TEST_F(CliSourcesTest, StatsNonfiniteSaysWhatItCouldNotLookAt) {
  RecordingFixture recording(dir_ / "a.cgrec");
  const std::uint32_t x = recording.AddSlot("x", {1});
  recording.Add(x, 1, {1});
  recording.Lose(x, 2);
  recording.Close();
  const std::string a = dir_ / "a.cgrec";
  EXPECT_THAT(Cli({"stats", a, "--only", "nan"}).err,
              AllOf(HasSubstr("in what was read"), HasSubstr("not all of it: ")));
  EXPECT_EQ(CliJson({"stats", a, "--only", "nan"})["complete"], false);
}

TEST_F(CliSourcesTest, TheXorHashIsThatOfTheValuesAlsoWhereTheyWereNotRecorded) {
  RecordingFixture recording(dir_ / "a.cgrec");
  const std::uint32_t x = recording.AddSlot("x", {3});
  recording.Add(x, 1, {1, 2, 5});
  recording.Add(x, 2, {1, 2, 5}, /*stats_only=*/true);
  recording.Add(x, 3, {1, 2, 5}, /*stats_only=*/true, /*has_hash=*/false);
  recording.Close();
  const std::string a = dir_ / "a.cgrec";
  EXPECT_EQ(CliJson({"show", a + ":x@1"})["stats"]["xor_hash"], "3fe4000000000000");
  EXPECT_EQ(CliJson({"show", a + ":x@2"})["stats"]["xor_hash"], "3fe4000000000000");
  EXPECT_EQ(CliJson({"show", a + ":x@3"})["stats"]["xor_hash"], nullptr);
}

TEST_F(CliSourcesTest, ProbesAndStatsTakeFiles) {
  WriteRecording(dir_ / "a.cgrec", 4, 10);
  EXPECT_THAT(Cli({"probes", dir_ / "a.cgrec", "y"}).out,
              AllOf(HasSubstr("f32[2]"), Not(HasSubstr("f32[2,2]"))));
  EXPECT_THAT(Cli({"stats", dir_ / "a.cgrec"}).out, HasSubstr("▁▃▆█"));
  EXPECT_EQ(CliJson({"stats", dir_ / "a.cgrec", "y"})["probes"][0]["abs_max"],
            json::parse("[10.0, 20.0, 30.0, 40.0]"));
}

TEST_F(CliSourcesTest, ProbesTakesANameForAFolderOnlyWhenThatIsASourceAndSaysSo) {
  WriteRecording(dir_ / "runs/a.cgrec", 1);
  fs::create_directory(dir_ / "blk0");
  WriteText(dir_ / "blk1", "no tensors");
  const auto probes_of = [&](const std::string& name) {
    const std::string in_folder = "cd " + dir_.path().string() + " && exec \"$0\" \"$@\"";
    return Process({"sh", "-c", in_folder, CGDEBUG_CLI, "--socket", dir_ / "none", "--no-spawn",
                    "probes", name},
                   {"NO_COLOR=1"})
        .Wait();
  };
  const ProcessResult folder = probes_of("runs");
  EXPECT_EQ(folder.code, 0) << folder.err;
  EXPECT_THAT(folder.out, HasSubstr("x"));
  EXPECT_THAT(folder.err, HasSubstr("'runs' is read as the folder of that name. A live probe: "
                                    "'re:runs'"));
  for (const char* name : {"blk0", "blk1"}) {
    EXPECT_THAT(probes_of(name).err, HasSubstr("no daemon")) << name;
  }
}

TEST_F(CliSourcesTest, ShowFindsOneTensorOfAFile) {
  WriteRecording(dir_ / "a.cgrec", 3);
  const std::string a = dir_ / "a.cgrec";
  EXPECT_EQ(CliJson({"show", a + ":x@2"})["values"], json::parse("[2.0, 3.0, 4.0, 5.0]"));
  EXPECT_EQ(CliJson({"show", a + ":x"})["replay"], 3);
  EXPECT_EQ(CliJson({"show", a + ":x@-2"})["replay"], 2);
  EXPECT_EQ(CliJson({"show", a + ":x@step:1001"})["replay"], 1);
  EXPECT_EQ(CliJson({"show", a + ":x@2[1]"})["values"], json::parse("[4.0, 5.0]"));
  EXPECT_EQ(CliJson({"show", a + ":x@2[:, -1]"})["values"], json::parse("[3.0, 5.0]"));
  EXPECT_EQ(CliJson({"show", a + ":x@2[0:1, 0]"})["shape"], json::parse("[1]"));
  EXPECT_EQ(CliJson({"show", a + ":x@2[1]"})["stats"]["max"], 5.0);
  EXPECT_EQ(CliJson({"show", a + ":x@2[1:9, 0]"})["values"], json::parse("[4.0]"));
  EXPECT_EQ(Cli({"show", a + ":x@2[2]"}).code, 2);
  EXPECT_EQ(Cli({"show", a + ":x@2[0,0,0]"}).code, 2);
  const ProcessResult absent = Cli({"show", a + ":x@9"});
  EXPECT_EQ(absent.code, 4);
  EXPECT_THAT(absent.err, HasSubstr("it has replays 1..3"));
  EXPECT_THAT(Cli({"show", a + ":xx"}).err, HasSubstr("'x'"));
  WriteFloats(dir_ / "m.safetensors", {{"w", {1, NAN}}});
  EXPECT_EQ(CliJson({"show", (dir_ / "m.safetensors") + ":w@first-nan"})["stats"]["nan"], 1);
  WriteFloats(dir_ / "i.safetensors", {{"w", {1, INFINITY}}});
  EXPECT_EQ(CliJson({"show", (dir_ / "i.safetensors") + ":w@first-nan"})["stats"]["pos_inf"], 1);
}

TEST_F(CliSourcesTest, ADamagedSnapshotIsAnErrorAndNotAbsent) {
  WriteRecording(dir_ / "a.cgrec", 3, 3);
  std::string bytes = ReadText(Segment("a.cgrec"));
  const float values[] = {2, 3, 4, 5};  // of x@2
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  WriteText(Segment("a.cgrec"), bytes);
  const std::string x = (dir_ / "a.cgrec") + ":x";
  EXPECT_EQ(Cli({"show", x + "@2"}).code, 2);
  EXPECT_EQ(Cli({"show", x + "@3"}).code, 0);
  EXPECT_EQ(Cli({"show", x + "@9"}).code, 4);
}

TEST_F(CliSourcesTest, DamagedValuesAreCalledNeitherTheSameNorGood) {
  WriteRecording(dir_ / "a.cgrec", 3, 3);
  fs::copy(dir_ / "a.cgrec", dir_ / "b.cgrec", fs::copy_options::recursive);
  std::string bytes = ReadText(Segment("b.cgrec"));
  const float values[] = {2, 3, 4, 5};  // of x@2
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  WriteText(Segment("b.cgrec"), bytes);
  const std::string a = dir_ / "a.cgrec", b = dir_ / "b.cgrec";
  const auto names_it = AllOf(HasSubstr("x@2"),
                              HasSubstr(fmt::format("{} is damaged: the values of probe 'x' at "
                                                    "replay 2 (byte {})",
                                                    Segment("b.cgrec"), at)),
                              HasSubstr("cgdebug-cli verify " + b));
  for (const auto& [first, second] : {std::pair(a, b), {b, a}, {b, b}}) {
    for (const std::vector<std::string>& how : {std::vector<std::string>{}, {"--bitwise"}}) {
      std::vector<std::string> command = {"diff", first, second};
      command.insert(command.end(), how.begin(), how.end());
      const ProcessResult diff = Cli(command);
      EXPECT_EQ(diff.code, 3) << diff.out;
      EXPECT_THAT(diff.out,
                  AllOf(HasSubstr("inconclusive: no difference in 5 snapshots"), names_it));
    }
  }
  const ProcessResult trusting = Cli({"diff", "--trust-hashes", a, b});
  EXPECT_EQ(trusting.code, 0) << trusting.out;
  EXPECT_THAT(trusting.out, HasSubstr("same by recorded hash; values not read: 6 snapshots"));
  const ProcessResult check = Cli({"check", b});
  EXPECT_EQ(check.code, 3) << check.out;
  EXPECT_THAT(check.out, AllOf(HasSubstr("inconclusive: nothing found in 6 snapshots"), names_it));
  EXPECT_EQ(Cli({"check", "--trust-hashes", b}).code, 0);
  EXPECT_EQ(Cli({"check", b, "y"}).code, 0) << "of the others nothing is damaged";
  WriteRecording(dir_ / "c.cgrec", 3, 4);  // y differs
  const ProcessResult different = Cli({"diff", dir_ / "c.cgrec", b});
  EXPECT_EQ(different.code, 1) << different.out;
  EXPECT_THAT(different.out, names_it);
}

TEST_F(CliSourcesTest, RecordingsOfStatisticsAreCompared) {
  const auto record = [&](const std::string& name, float last, bool has_hash) {
    RecordingFixture recording(dir_ / name);
    const std::uint32_t x = recording.AddSlot("x", {3});
    recording.Add(x, 1, {1, 2, last}, /*stats_only=*/true, has_hash);
    recording.Close();
    return dir_ / name;
  };
  const std::string a = record("a.cgrec", 5, true), same = record("same.cgrec", 5, true),
                    other = record("other.cgrec", 6, true), none = record("none.cgrec", 5, false);
  EXPECT_EQ(Cli({"diff", a, a}).code, 0);
  const ProcessResult equal = Cli({"diff", a, same});
  EXPECT_EQ(equal.code, 0) << equal.out;
  EXPECT_THAT(equal.out,
              HasSubstr("same by hash and statistics; values were not recorded: 1 snap"));
  const ProcessResult different = Cli({"diff", a, other});
  EXPECT_EQ(different.code, 1);
  EXPECT_THAT(different.out, HasSubstr("the statistics differ: max 5 against 6"));
  EXPECT_EQ(CliJson({"diff", a, other})["first"]["statistics"][0], "max");
  const ProcessResult unknown = Cli({"diff", a, none});
  EXPECT_EQ(unknown.code, 3) << unknown.out;
  EXPECT_THAT(unknown.out, HasSubstr("none.cgrec has no xor_hash of it"));
}

TEST_F(CliSourcesTest, QueryAnswersAndEveryExampleRuns) {
  WriteRecording(dir_ / "a.cgrec", 3, 10);
  const std::string a = dir_ / "a.cgrec";
  const ProcessResult csv = Cli(
      {"query", a, "--format", "csv", "SELECT replay, abs_max FROM v_snapshots WHERE probe = 'y'"});
  EXPECT_EQ(csv.out, "replay,abs_max\n1,10.0\n2,20.0\n3,30.0\n") << csv.err;
  // What a job calls a probe acts on no terminal.
  EXPECT_EQ(
      Cli({"query", a, "--format", "csv", "SELECT char(27) || '[31m,' || char(10) AS \"\x1b[1m\""})
          .out,
      "\\x1b[1m\n\"\\x1b[31m,\n\"\n");
  EXPECT_EQ(CliJson({"query", a, "SELECT max(step) AS step FROM snapshot"})[0]["step"], 1003);
  const ProcessResult wrong = Cli({"query", a, "SELECT 1 FROM nowhere"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("no such table"), HasSubstr("query --schema")));
  EXPECT_THAT(Cli({"query", a, "DELETE FROM snapshot"}).err, HasSubstr("may only read"));
  EXPECT_EQ(Cli({"query", a, "SELECT 1; SELECT 2"}).code, 2);
  WriteFloats(dir_ / "m.safetensors", {{"loss", {1, NAN}}});
  for (const std::string& source : {a, dir_ / "m.safetensors"}) ExpectExamplesRun(source);
  EXPECT_THAT(Cli({"query", "--schema"}).out, HasSubstr("create view v_first_nonfinite"));
}

TEST_F(CliSourcesTest, QuerySaysThatADamagedSnapshotIsNotInTheTables) {
  WriteRecording(dir_ / "a.cgrec", 3);
  const std::vector<std::string> query = {"query", dir_ / "a.cgrec", "SELECT 1"};
  EXPECT_EQ(Cli(query).err, "");
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_ / "a.cgrec")) {
    if (entry.path().filename().string().starts_with("catalogue")) fs::remove(entry.path());
  }
  std::string bytes = ReadText(Segment("a.cgrec"));
  const float values[] = {2, 3, 4, 5};  // of x@2, behind the header of its record
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(values), sizeof(values)));
  ASSERT_NE(at, std::string::npos);
  bytes[at - 180] = static_cast<char>(bytes[at - 180] ^ 1);
  WriteText(Segment("a.cgrec"), bytes);
  const ProcessResult result = Cli(query);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("1 damaged snapshot is not in the tables. Type: cgdebug-cli "));
}

TEST_F(CliSourcesTest, JsonHasEveryColumnOfTheTable) {
  WriteRecording(dir_ / "a.cgrec", 1);
  const json row = CliJson({"query", dir_ / "a.cgrec", "SELECT 1 AS n, 2 AS n, 3 AS n"})[0];
  EXPECT_EQ(row, json::parse(R"({"n": 1, "n:1": 2, "n:2": 3})"));
}

TEST_F(CliSourcesTest, EveryCommandNamesTheRecordingsOfAFolderThatCannotBeRead) {
  WriteRecording(dir_ / "runs/a.cgrec", 2);
  fs::create_directory(dir_ / "runs/b.cgrec");
  const std::string runs = dir_ / "runs";
  const std::vector<std::vector<std::string>> commands = {
      {"stats", runs}, {"probes", runs}, {"query", runs, "SELECT 1"}, {"show", runs + ":x@1"}};
  for (const std::vector<std::string>& command : commands) {
    const ProcessResult result = Cli(command);
    EXPECT_EQ(result.code, command[0] == "stats" ? 3 : 0) << command[0];
    EXPECT_THAT(result.err, AllOf(HasSubstr("not read: "), HasSubstr("b.cgrec"))) << command[0];
  }
}

TEST_F(CliSourcesTest, ExportSaysWhenPythonIsMissing) {
  WriteRecording(dir_ / "a.cgrec", 1);
  const ProcessResult result =
      Process({CGDEBUG_CLI, "export", dir_ / "a.cgrec", "--to", "csv", "-o", "-"},
              {"CGDEBUG_PYTHON=/nowhere/python3"})
          .Wait();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot run /nowhere/python3"));
}

TEST_F(CliSourcesTest, ExportOfALiveJobSaysHowToMakeARecordingFirst) {
  const auto says = [&](const std::string& source) {
    return Cli({"export", source, "--to", "csv", "-o", "-"}).err;
  };
  EXPECT_THAT(says("live"), HasSubstr("cgdebug-cli freeze -o live.cgrec"));
  EXPECT_THAT(says("train-7"), HasSubstr("cgdebug-cli freeze train-7 -o train-7.cgrec"));
}

TEST_F(CliSourcesTest, DiffTakesNoToleranceWhereEveryBitCounts) {
  WriteRecording(dir_ / "a.cgrec", 2);
  const std::vector<std::string> same = {"diff", dir_ / "a.cgrec", dir_ / "a.cgrec", "--bitwise"};
  EXPECT_EQ(Cli(same).code, 0);
  std::vector<std::string> both = same;
  both.insert(both.end(), {"--rtol", "1"});
  const ProcessResult refused = Cli(both);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--bitwise"), HasSubstr("--rtol")));
}

TEST_F(CliSourcesTest, DiffOverRecordingsTakesMapsAndRanks) {
  WriteRecording(dir_ / "a.cgrec", 3);
  WriteRecording(dir_ / "b.cgrec", 3, 2);
  const ProcessResult result = Cli({"diff", "--first", dir_ / "a.cgrec", dir_ / "b.cgrec"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("first difference: replay 1, y (probe 2 of 2)"),
                                HasSubstr("pattern: every mismatch lies in [1]")));
  WriteText(dir_ / "map", "y x\n");
  EXPECT_EQ(Cli({"diff", "--map", dir_ / "map", dir_ / "a.cgrec", dir_ / "b.cgrec"}).code, 1);
  EXPECT_EQ(Cli({"diff", "--by", "order", dir_ / "a.cgrec", dir_ / "a.cgrec"}).code, 0);
  EXPECT_EQ(Cli({"diff", "--align", "step", dir_ / "a.cgrec", dir_ / "a.cgrec"}).code, 0);
  EXPECT_THAT(Cli({"diff", "--stat", dir_ / "a.cgrec", dir_ / "b.cgrec"}).out, HasSubstr("3 of 3"));
  WriteRecording(dir_ / "c.cgrec", 2);
  const ProcessResult names = Cli({"diff", "--name-only", dir_ / "a.cgrec", dir_ / "c.cgrec"});
  EXPECT_EQ(names.code, 3);
  EXPECT_THAT(names.err,
              HasSubstr("not everything was compared. Why: the same command with --stat"));
}

TEST_F(CliSourcesTest, ShowTakesANameThatHasAnAtOrThatAGlobSelects) {
  const std::string header =
      R"({"a b/c:d@3":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
          "lay.0":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},
          "lay.1":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},
          "x@old":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})";
  const float values[] = {1, 2, 3, 4};
  WriteText(dir_ / "a.safetensors",
            testing_support::SafetensorsBytes(
                header, std::string(reinterpret_cast<const char*>(values), sizeof(values))));
  const std::string file = dir_ / "a.safetensors";
  const auto value_of = [&](const std::string& name) {
    return CliJson({"show", file + ":" + name})["values"];
  };
  EXPECT_EQ(value_of("a b/c:d@3"), json::parse("[1.0]"));
  EXPECT_EQ(value_of("a b/*"), json::parse("[1.0]"));
  EXPECT_EQ(value_of("lay.0@1"), json::parse("[2.0]"));
  EXPECT_EQ(value_of("*.1"), json::parse("[3.0]"));
  EXPECT_EQ(value_of("x@old"), json::parse("[4.0]"));
  const ProcessResult several = Cli({"show", file + ":lay.*"});
  EXPECT_EQ(several.code, 4);
  EXPECT_THAT(several.err, HasSubstr("'lay.*' selects 2 probes, and show shows one: 'lay.0', "
                                     "'lay.1'. Type for example: cgdebug-cli show"));
  EXPECT_EQ(Cli({"show", file + ":nope*"}).code, 4);
  EXPECT_THAT(Cli({"show", file + ":x@older"}).err, HasSubstr("what follows @ is a replay"));
}

TEST_F(CliSourcesTest, OfATensorThatCannotBeReadNobodySaysThatItIsFinite) {
  WriteText(dir_ / "a.safetensors", testing_support::SafetensorsBytes(
                                        R"({"odd":{"dtype":"U64","shape":[1],"data_offsets":[0,8]},
                    "x":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}})",
                                        std::string(9, '\x01')));
  const std::string stats = Cli({"stats", dir_ / "a.safetensors"}).out;
  EXPECT_THAT(stats, testing::ContainsRegex("odd +U64\\[1\\] +1 +- +- +- +- +1 unread"));
  EXPECT_THAT(stats, testing::ContainsRegex("x +u8\\[1\\] +1 +1 +1 +1 +0"));
  EXPECT_THAT(Cli({"check", dir_ / "a.safetensors"}).out, HasSubstr("only replay 1 was looked at"));
}

}  // namespace
}  // namespace cgdebug::cli
