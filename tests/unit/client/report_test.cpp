// What a report is made of, with values and places that no real job has. test_report.py has the
// rest.
#include "client/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "client/report/columns.h"
#include "client/report/page.h"
#include "client/report/picture.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::MemorySource;

Json PictureOf(const std::vector<std::uint64_t>& shape, const std::vector<float>& values,
               std::optional<std::uint64_t> marked = std::nullopt) {
  const auto view =
      numerics::MakeTensorView(layout::Dtype::kFloat32, shape, std::as_bytes(std::span(values)));
  EXPECT_TRUE(view.ok());
  return PictureJson(*view, 2, marked);
}

TEST(ReportColumns, EveryReplayHasAColumnUpToTheLargestNumber) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const Axis axis(0, kMost, 1000);
  EXPECT_LE(axis.columns(), 1000u);
  EXPECT_EQ(axis.ColumnOf(0), 0u);
  EXPECT_EQ(axis.ColumnOf(kMost), axis.columns() - 1);
  EXPECT_EQ(Axis(7, 7, 1000).columns(), 1u);
  EXPECT_EQ(Axis(1, 0, 1000).columns(), 0u);
  EXPECT_EQ(Axis(1, 1001, 1000).replays_per_column(), 2u);
}

TEST(ReportColumns, MergedColumnsKeepTheWorst) {
  Strip strip(5);
  const std::vector<float> values = {-3, NAN, 2, INFINITY};
  strip.Add(1, numerics::ComputeStats(*numerics::MakeTensorView(layout::Dtype::kFloat32,
                                                                std::vector<std::uint64_t>{4},
                                                                std::as_bytes(std::span(values)))));
  strip.AddGap(2, 99);
  const Json merged = strip.Merged(3).ToJson();
  EXPECT_EQ(merged["state"]["u1"], Base64(std::as_bytes(std::span("\x03\x02", 2))));
  const std::vector<float> nan = {1, NAN};
  EXPECT_EQ(merged["nan"]["f4"], Base64(std::as_bytes(std::span(nan))));
  EXPECT_EQ(merged["inf"], merged["nan"]);
}

TEST(ReportColumns, WhatAFloatDoesNotHoldIsADouble) {
  EXPECT_TRUE(SeriesJson({0.5, -2, NAN, INFINITY}, true).contains("f4"));
  EXPECT_TRUE(SeriesJson({1e300}, false).contains("f8"));
  EXPECT_TRUE(SeriesJson({1e-300}, false).contains("f8"));
  EXPECT_TRUE(SeriesJson({16777217.0}, true).contains("f8"));
  EXPECT_TRUE(SeriesJson({0.1}, false).contains("f4"));
  EXPECT_TRUE(SeriesJson({NAN}, false).is_null());
  EXPECT_EQ(Base64({}), "");
  EXPECT_EQ(Base64(std::as_bytes(std::span("abcd", 4))), "YWJjZA==");
}

TEST(ReportPicture, ShapesWithoutAnImageHaveNone) {
  EXPECT_TRUE(PictureOf({}, {1}).is_null());
  EXPECT_TRUE(PictureOf({3, 0}, {}).is_null());
  EXPECT_EQ(PictureOf({3}, {1, 2, 3})["rows"], 1);
}

TEST(ReportPicture, ABlockShowsNanBeforeInfBeforeTheLargest) {
  std::vector<float> values(2 * 200, 1);
  values[1] = -5;
  values[3] = INFINITY;
  values[6] = -INFINITY;
  values[7] = NAN;
  const Json picture = PictureOf({2, 200}, values);
  EXPECT_EQ(picture["of_width"], 3);
  const std::string codes = picture["images"][0]["u1"];
  EXPECT_EQ(codes.substr(0, 4), Base64(std::as_bytes(std::span("\x03\x01\x00", 3))));
}

TEST(ReportPicture, TheExtremesOfADtypeStayInReach) {
  const double most = std::numeric_limits<double>::max();
  for (const std::vector<double>& values :
       {std::vector<double>{most, -most}, {5e-324, 0}, {most, 5e-324}}) {
    const std::vector<std::uint64_t> shape = {2};
    const auto view =
        numerics::MakeTensorView(layout::Dtype::kFloat64, shape, std::as_bytes(std::span(values)));
    const Json picture = PictureJson(*view, 1, std::nullopt);
    EXPECT_TRUE(picture["scale"].get<double>() > 0);
    EXPECT_EQ(picture["images"][0]["u1"].get<std::string>().substr(0, 1), "/");  // code 255
  }
}

TEST(ReportPicture, ABlockShowsInfBeforeTheLargestDouble) {
  std::vector<double> values(200, 1);
  values[0] = std::numeric_limits<double>::max();
  values[1] = INFINITY;
  const std::vector<std::uint64_t> shape = {200};
  const auto view =
      numerics::MakeTensorView(layout::Dtype::kFloat64, shape, std::as_bytes(std::span(values)));
  const Json picture = PictureJson(*view, 1, std::nullopt);
  const std::string codes = picture["images"][0]["u1"];
  EXPECT_TRUE(codes.starts_with("A")) << codes.substr(0, 4);  // 1, and no number
}

TEST(Report, APlaceInANameIsNotFilledIn) {
  const std::string page =
      MakePage({.title = "{{data}}", .verdict = "<b>", .text = "", .data = "1"});
  EXPECT_THAT(page, HasSubstr("<title>{{data}} - cgdebug report</title>"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;"));
}

TEST(Report, GapsAndSnapshotsThatCannotBeReadAreInIt) {
  MemorySource source;
  const std::size_t slot = source.AddSlot("x", {2});
  source.Add(slot, 1, {1, 2});
  source.Add(slot, 4, {1, NAN});
  source.gone.insert({slot, 4});
  source.gaps.push_back({.slot = slot, .count = UINT64_MAX, .after_replay = UINT64_MAX - 1});
  source.gaps.push_back({.slot = slot, .count = 2, .after_replay = 1, .before_replay = 4});
  const Result<Report> report = MakeReport(source, nullptr, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_THAT(report->verdict, HasSubstr("Inconclusive"));
  EXPECT_THAT(report->html, HasSubstr(R"("unread":1)"));
  EXPECT_THAT(report->html, HasSubstr(R"("gap_count":2)"));
}

// One column more in each attempt took minutes.
TEST(Report, TheReplaysOfThousandsOfProbesShareAsManyColumnsAsFit) {
  MemorySource source;
  for (int i = 0; i < 4000; ++i) {
    const std::size_t slot = source.AddSlot("p" + std::to_string(i), {1});
    source.Add(slot, 1, {1});
    source.Add(slot, 100'000, {2});
  }
  const Result<Report> report = MakeReport(source, nullptr, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_THAT(report->html, HasSubstr(R"("axis":{"first":1,"last":100000,"columns":)"));
  EXPECT_THAT(report->html, Not(HasSubstr(R"("columns":1000,)")));
  EXPECT_THAT(report->html, HasSubstr(R"("left_out":{"lines":3000,"with_findings":0})"));
  EXPECT_THAT(report->html, AllOf(HasSubstr("\"p999\""), Not(HasSubstr("\"p1000\""))));
}

TEST(Report, APairWhoseEqualValuesAreDamagedIsNotShownAsEqual) {
  MemorySource a, b;
  for (MemorySource* source : {&a, &b}) {
    source->has_hashes = true;
    source->Add(source->AddSlot("x", {2}), 1, {1, 2});
  }
  b.damaged.insert(0);
  const Result<Report> report = MakeReport(a, &b, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_THAT(report->html, HasSubstr(R"("not_compared":1)"));
  EXPECT_THAT(report->html, HasSubstr(R"("difference":{"state":{"u1":"BA=="})"));  // 4 alone
}

TEST(Report, ValuesThatCannotBeReadAreNotCalledUnrecorded) {
  MemorySource source;
  source.Add(source.AddSlot("x", {2}), 1, {1, 2});
  source.damaged.insert(0);
  const Result<Report> report = MakeReport(source, nullptr, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_THAT(report->html, HasSubstr(R"("picture":"The values cannot be read: )"));
}

TEST(Report, ASourceThatCannotBeReadIsInconclusiveAndNotEmpty) {
  MemorySource source;
  source.description.unread = {"b.cgrec: no such file"};
  Result<Report> report = MakeReport(source, nullptr, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_THAT(report->html, HasSubstr(R"("kind":"inconclusive")"));
  EXPECT_THAT(report->verdict, HasSubstr("Inconclusive"));

  source.description.unread.clear();
  source.AddSlot("x", {2});
  const Result<Selector> other = Selector::Parse(std::vector<std::string>{"y"});
  report = MakeReport(source, nullptr, {.scope = {.probes = *other}});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_THAT(report->verdict, HasSubstr("has no probe that was asked for"));
}

}  // namespace
}  // namespace cgdebug::report
