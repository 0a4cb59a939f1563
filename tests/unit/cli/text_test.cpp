// What cgdebug-cli reads and writes without a daemon: selectors, tables, JSON, .npy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>

#include "client/cli/output_file.h"
#include "client/cli/progress.h"
#include "client/cli/sources/selector.h"
#include "client/cli/views/json.h"
#include "client/cli/views/tensor/npy.h"
#include "client/cli/views/terminal.h"
#include "client/live/messages.h"
#include "client/live/status.h"
#include "daemon/core/base/duration.h"
#include "daemon/core/numerics/ascii.h"
#include "daemon/core/wire/message_fields.h"
#include "tests/support/daemon/fake_daemon.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::MakeSnapshot;

TEST(RankSet, TakesAListWithRanges) {
  const Result<RankSet> ranks = RankSet::Parse("0,3,8..10");
  ASSERT_TRUE(ranks.ok());
  std::vector<int> contained;
  for (int rank = -1; rank < 16; ++rank) {
    if (ranks->Contains(rank)) contained.push_back(rank);
  }
  EXPECT_THAT(contained, ::testing::ElementsAre(0, 3, 8, 9, 10));
  EXPECT_EQ(ranks->Single(), -1);
  EXPECT_EQ(RankSet::Parse("7")->Single(), 7);
}

TEST(RankSet, EmptySelectsEverythingAlsoWhatIsNotDistributed) {
  EXPECT_TRUE(RankSet::Parse("")->Contains(-1));
  EXPECT_TRUE(RankSet::Parse("")->selects_all());
}

TEST(RankSet, RefusesAnythingButAListAndShowsOne) {
  for (const char* text : {"a", "1,", ",1", "3..1", "-1", "1..", "1-3", "0x2", "99999999999"}) {
    const Result<RankSet> ranks = RankSet::Parse(text);
    ASSERT_FALSE(ranks.ok()) << text;
    EXPECT_THAT(ranks.error().message, HasSubstr("--ranks 0,1,8..15"));
  }
}

TEST(Inside, TakesProbeSessionAndReplay) {
  const auto parse = [](const char* text) { return *ParseInside(text); };
  EXPECT_EQ(parse("blk3.attn").probe, "blk3.attn");
  EXPECT_EQ(parse("blk3.attn").replay, -1);
  EXPECT_EQ(parse("blk3.attn@17").replay, 17);
  EXPECT_EQ(parse("blk3.attn@-2").replay, -2);
  EXPECT_EQ(parse("blk3.attn@17").iteration, std::nullopt);
  EXPECT_EQ(parse("blk3.attn@17.3").replay, 17);
  EXPECT_EQ(parse("blk3.attn@17.3").iteration, 3u);
  EXPECT_EQ(parse("live:blk3.attn@17").source, "");
  EXPECT_EQ(parse("live:blk3.attn@17").probe, "blk3.attn");
  EXPECT_EQ(parse("train.py-4711:blk3.attn").source, "train.py-4711");
  EXPECT_EQ(parse("a:b:c").text, "a:b:c");
  EXPECT_EQ(parse("a:b:c").probe, "b:c");
}

TEST(Inside, TakesAShapeAndAGraph) {
  const auto parse = [](const char* text) { return *ParseInside(text); };
  const Inside both = parse("a.cgrec:x#1{16,100}@g:bs=8#2@20[0,:8]");
  EXPECT_EQ(both.source, "a.cgrec");
  EXPECT_EQ(both.probe, "x#1");
  EXPECT_EQ(both.which.Text(), "{16,100}@g:bs=8#2");
  EXPECT_EQ(both.replay, 20);
  EXPECT_EQ(both.slice, "[0,:8]");
  EXPECT_EQ(parse("x@g:8x512").which.graph, "8x512");
  EXPECT_EQ(parse("x@g:8x512").replay, -1);
  EXPECT_EQ(parse("x@g:bs=8@first-nan").which.graph, "bs=8");
  EXPECT_TRUE(parse("x@g:bs=8@first-nan").first_nan);
  EXPECT_TRUE(parse("x{}@3").which.shape->empty());
  EXPECT_EQ(parse("x{name}").probe, "x{name}");
}

TEST(Inside, RefusesAnInvalidReplay) {
  for (const char* text :
       {"x@", "x@0", "x@last", "x@1.", "x@-1.5", "x@1.x", "x@1.-1", "@3", "live:@3", "", "live:"}) {
    EXPECT_FALSE(ParseInside(text).ok()) << text;
  }
}

TEST(OutputFile, IsWholeOrNotThereAndWhatItWouldReplaceStays) {
  const testing_support::TempDir folder;
  const std::string fresh = folder / "new", old = folder / "old", link = folder / "link";
  ASSERT_TRUE(WriteFile(old, false, "", "what was there").ok());
  ASSERT_EQ(::chmod(old.c_str(), 0600), 0);
  ASSERT_EQ(::symlink(old.c_str(), link.c_str()), 0);
  EXPECT_FALSE(WriteFile(old, false, "", "x").ok());
  // A disk that is full after 64 bytes.
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full = {64, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  const std::string long_text(100, 'x');
  const Result<void> made = WriteFile(fresh, false, "header", long_text);
  const Result<void> replaced = WriteFile(link, true, "header", long_text);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, before);
  EXPECT_FALSE(made.ok());
  EXPECT_FALSE(replaced.ok());
  EXPECT_FALSE(std::filesystem::exists(fresh));
  EXPECT_EQ(testing_support::ReadText(old), "what was there");
  ASSERT_TRUE(WriteFile(link, true, "header", long_text).ok());
  EXPECT_EQ(testing_support::ReadText(old), "header" + long_text);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  struct stat about {};
  ASSERT_EQ(::stat(old.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777u, 0600u) << "it stays as private as it was";
  const auto files = std::distance(std::filesystem::directory_iterator(folder / ""),
                                   std::filesystem::directory_iterator());
  EXPECT_EQ(files, 2) << "no part is left behind";
  EXPECT_TRUE(WriteFile("/dev/null", true, "", "x").ok());
}

class ColorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"NO_COLOR", "FORCE_COLOR"}) ::unsetenv(name);
    ::setenv("TERM", "xterm", 1);
  }
};

TEST_F(ColorTest, FlagWinsOverTheEnvironment) {
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(WantsColor(ColorChoice::kAlways, -1));
  ::unsetenv("NO_COLOR");
  ::setenv("FORCE_COLOR", "1", 1);
  EXPECT_FALSE(WantsColor(ColorChoice::kNever, -1));
}

TEST_F(ColorTest, EnvironmentDecidesWhereNoFlagDoes) {
  EXPECT_FALSE(WantsColor(ColorChoice::kAuto, -1)) << "no terminal";
  ::setenv("FORCE_COLOR", "1", 1);
  EXPECT_TRUE(WantsColor(ColorChoice::kAuto, -1));
  ::setenv("FORCE_COLOR", "0", 1);
  EXPECT_FALSE(WantsColor(ColorChoice::kAuto, -1));
  ::setenv("FORCE_COLOR", "1", 1);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(WantsColor(ColorChoice::kAuto, -1));
}

TEST(Terminal, WidthCountsColumnsNotBytes) {
  EXPECT_EQ(DisplayWidth("abc"), 3u);
  EXPECT_EQ(DisplayWidth("μ=∈"), 3u);
  EXPECT_EQ(DisplayWidth("中文"), 4u);
  EXPECT_EQ(DisplayWidth("🚀x"), 3u);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1u) << "an accent lies on its letter";
  EXPECT_EQ(DisplayWidth("\xe4\xb8"), 1u) << "half a character";
  EXPECT_EQ(DisplayWidth(Style(true).Red("abc")), 3u);
}

TEST(Progress, SaysHowFarItIsAndHowLongItTakes) {
  EXPECT_EQ(HowFarText(12'000, 30'000, 4), "12 000 of 30 000 snapshots read, about 6s more");
  EXPECT_EQ(HowFarText(30'001, 30'000, 4), "30 001 snapshots read");
  EXPECT_EQ(HowFarText(5, 0, 4), "5 snapshots read") << "of a live job";
}

TEST(Terminal, WideCharactersAreCutAndWrappedByTheirColumns) {
  EXPECT_EQ(CutToColumns("层注意力输出", 12), "层注意力输出");
  EXPECT_EQ(CutToColumns("层注意力输出", 8), "层注意…") << "7 columns: half a character is none";
  EXPECT_EQ(PadToColumns("🚀", 4), "🚀  ");
  EXPECT_EQ(PadToColumns("中文字", 4), "中文字");
  EXPECT_EQ(WrapLines("中文 中文 x\n", 9), "中文 中文\n    x\n");
  TextTable table({{"NAME"}, {"N"}});
  table.Add({"中文", "1"});
  table.Add({"🚀", "2"});
  table.Add({"ab", "3"});
  EXPECT_EQ(table.Render(Style(), 0),
            "NAME  N\n"
            "中文  1\n"
            "🚀    2\n"
            "ab    3\n");
}

TEST(Terminal, NamesOfAJobCannotDriveTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
  EXPECT_EQ(Printable("blk μ"), "blk μ");
  EXPECT_EQ(Printable("a\xc2\x9b"
                      "2Jb\xc2\xb5"),
            "a\\x9b2Jb\xc2\xb5");
}

TEST(Terminal, WordsToPasteAreQuotedWhenAShellWouldReadThem) {
  EXPECT_EQ(ShellWord("blk3.attn"), "blk3.attn");
  EXPECT_EQ(ShellWord("blk[0] $(x)"), "'blk[0] $(x)'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellWord(""), "''");
}

TEST(Terminal, DurationsHaveTwoUnits) {
  EXPECT_EQ(FormatDuration(0.25), "250 ms");
  EXPECT_EQ(FormatDuration(42), "42s");
  EXPECT_EQ(FormatDuration(133), "2m13s");
  EXPECT_EQ(FormatDuration(2 * 3600 + 13 * 60), "2h13m");
  EXPECT_EQ(FormatDuration(100 * 3600), "4d4h");
  EXPECT_EQ(FormatGrouped(2041982), "2 041 982");
  EXPECT_EQ(FormatGrouped(999), "999");
}

TEST(TextTable, AlignsAndCutsTheLastColumn) {
  TextTable table({{"NAME"}, {"N", TextTable::Align::kRight}, {"COMMAND"}});
  table.Add({"μ", "7", "a long command that does not fit"});
  table.Add({"long.name", "1234", "b"});
  EXPECT_EQ(table.Render(Style(), 32),
            "NAME          N  COMMAND\n"
            "μ             7  a long command…\n"
            "long.name  1234  b\n");
}

TEST(TextTable, ThousandsAreApartInCounts) {
  TextTable table({{"PROBE"},
                   {"REPLAYS", TextTable::Align::kCount},
                   {"LOST", TextTable::Align::kCount},
                   {"PID", TextTable::Align::kRight}});
  table.Add({"x1234567", "1..100000", Style(true).Yellow("1204"), "31337"});
  const std::string text = table.Render(Style(), 0);
  EXPECT_THAT(text, HasSubstr("x1234567  1..100 000"));
  EXPECT_THAT(text, HasSubstr(Style(true).Yellow("1 204")));
  EXPECT_THAT(text, HasSubstr("31337"));
  EXPECT_THAT(table.Render(Style(), 30), HasSubstr("1..100 000")) << "no number is cut";
}

TEST(TextTable, WhatLeavesLateIsLeftOutWhenNothingOptionalIsLeft) {
  using Align = TextTable::Align;
  TextTable table({{"PROBE"},
                   {.title = "LANE", .leaves_late = true},
                   {"RING", Align::kRight, true},
                   {.title = "GRAPH", .leaves_late = true},
                   {"REPLAY", Align::kRight}});
  table.Add({"blk", "direct", "16x84MiB", "bs=8", "123456789"});
  EXPECT_THAT(table.Render(Style(), 32), HasSubstr("left out for want of room: RING;"));
  EXPECT_THAT(table.Render(Style(), 24), HasSubstr("left out for want of room: RING GRAPH;"));
  EXPECT_THAT(table.Render(Style(), 17), HasSubstr("left out for want of room: LANE RING GRAPH;"));
}

TEST(TextTable, ARowFitsTheTerminalWithoutAnyNumberCut) {
  using Align = TextTable::Align;
  TextTable table({{"PROBE"},
                   {"LANE", Align::kLeft, true},
                   {"RING", Align::kRight, true},
                   {"REPLAY", Align::kRight},
                   {"LAST"}});
  table.Add({"transformer.blocks.11.mlp.down_proj.weight", "direct", "16x84MiB", "123456789",
             "f32[4096,4096] and what follows it"});
  const std::string wide = table.Render(Style(), 200);
  EXPECT_THAT(wide, HasSubstr("down_proj.weight  direct  16x84MiB  123456789  f32[4096,4096]"));
  for (const std::size_t columns : {40, 60, 80, 100}) {
    const std::string text = table.Render(Style(), columns);
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = text.substr(begin, end - begin);
      if (!line.starts_with("left out")) EXPECT_LE(DisplayWidth(line), columns) << line;
    }
    EXPECT_THAT(text, HasSubstr("123456789")) << columns;
  }
  EXPECT_EQ(table.Render(Style(), 45),
            "PROBE           LANE       REPLAY  LAST\n"
            "transformer.b…  direct  123456789  f32[4096,…\n"
            "left out for want of room: RING; --json has them\n");
}

TEST(TextTable, NamesAreCutLastAndKeepTheirEnd) {
  using Align = TextTable::Align;
  TextTable table({TextTable::Name("PROBE"), {"TENSOR"}, {"LAST", Align::kLeft, true}});
  table.Add({"fwd/model.layers.11.self_attention.q_proj", "f32[4096,4096]", "n=16777216 x=0.5"});
  table.Add({"fwd/model.layers.11.模块.アテンション", "f32[4096,4096]", "n=16777216 x=0.5"});
  EXPECT_EQ(table.Render(Style(), 60),
            "PROBE                                 TENSOR      LAST\n"
            "…del.layers.11.self_attention.q_proj  f32[4096,…  n=1677721…\n"
            "…d/model.layers.11.模块.アテンション  f32[4096,…  n=1677721…\n");
  EXPECT_EQ(table.Render(Style(), 40),
            "PROBE                         TENSOR\n"
            "…rs.11.self_attention.q_proj  f32[4096,…\n"
            "…layers.11.模块.アテンション  f32[4096,…\n"
            "left out for want of room: LAST; --json has them\n");
  EXPECT_EQ(table.Render(Style(), 30),
            "PROBE               TENSOR\n"
            "…_attention.q_proj  f32[4096,…\n"
            "…模块.アテンション  f32[4096,…\n"
            "left out for want of room: LAST; --json has them\n")
      << "a row is one line";
  EXPECT_EQ(CutToLastColumns("fwd/模块", 8), "fwd/模块");
  EXPECT_EQ(CutToLastColumns("fwd/模块", 7), "…d/模块");
  EXPECT_EQ(CutToLastColumns("fwd/模块", 4), "…块") << "half of a character is not shown";
}

TEST(Ascii, OurOwnGlyphsAreSpelledAndNamesAreLeft) {
  EXPECT_EQ(numerics::ToAscii("层μσ.out@3  n=8 x∈[0 |█▁ ▄| 11.6] μ=0.456 σ=0.978…"),
            "层μσ.out@3  n=8 x in [0 |#_ =| 11.6] mean=0.456 std=0.978~");
}

TEST(Ascii, TheLocaleDecidesAndNoLocaleIsUtf8) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) ::unsetenv(name);
  EXPECT_FALSE(LocaleIsAscii());
  ::setenv("LANG", "C", 1);
  EXPECT_TRUE(LocaleIsAscii());
  ::setenv("LC_CTYPE", "en_US.utf8", 1);
  EXPECT_FALSE(LocaleIsAscii());
  ::setenv("LC_ALL", "POSIX", 1);
  EXPECT_TRUE(LocaleIsAscii());
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) ::unsetenv(name);
}

TEST(WrapLines, BreaksAtSpacesAndIndentsWhatFollows) {
  EXPECT_EQ(WrapLines("one two three\n  four five six\nshort\n", 9),
            "one two\n    three\n  four\n    five\n    six\nshort\n");
  EXPECT_EQ(WrapLines("a-word-that-is-wider than it\n", 10),
            "a-word-that-is-wider\n    than\n    it\n");
  EXPECT_EQ(WrapLines("\x1b[31mred\x1b[0m and so on", 7), "\x1b[31mred\x1b[0m and\n   so\n   on");
}

TEST(Json, NonFiniteNumbersAreNamedNotNull) {
  v1::Snapshot snapshot = MakeSnapshot("x", 3, {NAN});
  snapshot.mutable_stats()->set_max(HUGE_VAL);
  snapshot.mutable_stats()->set_mean(-HUGE_VAL);
  const Json json = Json::parse(Dump(ToJson(live::TensorOf(snapshot)), false));
  EXPECT_EQ(json["stats"]["min"], "NaN");
  EXPECT_EQ(json["stats"]["max"], "Infinity");
  EXPECT_EQ(json["stats"]["mean"], "-Infinity");
  EXPECT_EQ(json["stats"]["first_nonfinite"]["value"], "NaN");
  EXPECT_EQ(json["stats"]["nan"], 1);
}

TEST(Json, CountersAreNumbers) {
  layout::Counters counters;
  counters.produced = 9007199254740993;
  EXPECT_THAT(Dump(FieldsJson(counters), false), HasSubstr("\"produced\":9007199254740993"));
}

TEST(Json, NamesThatAreNotUtf8DoNotThrow) {
  v1::Snapshot snapshot = MakeSnapshot("a\xff", 1, {1.0f});
  EXPECT_THAT(Dump(ToJson(live::TensorOf(snapshot)), false), Not(HasSubstr("\xff")));
}

template <typename T>
void ExpectListsEveryField(const google::protobuf::Descriptor* message) {
  std::set<int> listed;
  const T value{};
  T::ForEachField(value, [&](const layout::Field& field, const auto&...) {
    EXPECT_TRUE(listed.insert(static_cast<int>(field.number)).second) << field.number;
  });
  for (int i = 0; i < message->field_count(); ++i) {
    EXPECT_TRUE(listed.contains(message->field(i)->number())) << message->field(i)->full_name();
  }
  EXPECT_EQ(listed.size(), static_cast<std::size_t>(message->field_count()))
      << message->full_name();
}

TEST(Answers, EveryFieldOfAMessageArrives) {
  ExpectListsEveryField<live::Probe>(v1::ProbeInfo::descriptor());
  ExpectListsEveryField<live::FirstNonfinite>(v1::FirstNonfinite::descriptor());
  ExpectListsEveryField<live::Session>(v1::Session::descriptor());
  ExpectListsEveryField<live::LaneUse>(v1::LaneUse::descriptor());
  ExpectListsEveryField<live::SessionGraphs>(v1::SessionGraphs::descriptor());
  ExpectListsEveryField<live::Recording>(v1::Recording::descriptor());
  ExpectListsEveryField<live::Status>(v1::StatusReply::descriptor());
  ExpectListsEveryField<live::Skipped>(v1::Skipped::descriptor());
  ExpectListsEveryField<live::Pruned>(v1::PruneReply::descriptor());
  ExpectListsEveryField<live::Controlled>(v1::SetReply::descriptor());
  ExpectListsEveryField<layout::SlotControl>(v1::Control::descriptor());

  v1::ProbeInfo message;
  message.add_actions(v1::ProbeInfo::PRINT);
  message.add_actions(v1::ProbeInfo::COMPARE);
  message.mutable_verdict()->set_state(v1::Verdict::FAIL);
  message.set_rank(-1);
  const auto probe = wire::FieldsOf<live::Probe>(message);
  EXPECT_EQ(probe.actions, (std::vector{live::Action::kPrint, live::Action::kCompare}));
  EXPECT_EQ(probe.verdict->state, layout::VerdictState::kFail);
  EXPECT_EQ(probe.slot.rank, -1);
  EXPECT_FALSE(probe.first_nan || probe.control || probe.last_stats);
  const Json json = FieldsJson(probe);
  EXPECT_EQ(json["actions"], Json({"print", "compare"}));
  EXPECT_EQ(json["verdict"]["state"], "fail");
  EXPECT_TRUE(json["control"].is_null());
}

TEST(Json, EveryEventSaysItsKind) {
  v1::TailReply event;
  event.mutable_loss()->set_count(2);
  EXPECT_EQ(ToJson(live::EventOf(event))["event"], "loss");
  EXPECT_EQ(ToJson(live::EventOf(event))["count"], 2);
  event.mutable_session_change()->set_ended(true);
  EXPECT_EQ(ToJson(live::EventOf(event))["event"], "session_ended");
}

TEST(Npy, HeaderIsNumpysOwn) {
  const std::vector<std::uint64_t> shape = {2, 3};
  const std::string header = NpyHeader(layout::Dtype::kFloat32, shape);
  EXPECT_EQ(header.size() % 64, 0u);
  EXPECT_EQ(header.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const auto low = static_cast<unsigned char>(header[8]);
  const auto high = static_cast<unsigned char>(header[9]);
  EXPECT_EQ(low + 256u * high, header.size() - 10);
  EXPECT_THAT(header, HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
  EXPECT_EQ(header.back(), '\n');
}

TEST(Npy, ShapesOfZeroAndOneDimension) {
  EXPECT_THAT(NpyHeader(layout::Dtype::kInt64, {}), HasSubstr("'shape': (), "));
  const std::vector<std::uint64_t> one = {7};
  EXPECT_THAT(NpyHeader(layout::Dtype::kBfloat16, one), HasSubstr("'<u2'"));
  EXPECT_THAT(NpyHeader(layout::Dtype::kBfloat16, one), HasSubstr("'shape': (7,), "));
}

TEST(Npy, ManyDimensionsStillFitTheHeader) {
  const std::vector<std::uint64_t> shape(16, 1'000'000);
  const std::string header = NpyHeader(layout::Dtype::kBool, shape);
  EXPECT_EQ(header.size() % 64, 0u);
  EXPECT_THAT(header, HasSubstr("1000000), }"));
}

}  // namespace
}  // namespace cgdebug::cli
