#include "client/cli/views/tensor/tensor_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/live/messages.h"
#include "tests/support/daemon/fake_daemon.h"

namespace cgdebug::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::MakeSnapshot;

source::Tensor MakeTensor(const std::vector<float>& values) {
  client::Tensor tensor;
  *tensor.reply.mutable_snapshot() = MakeSnapshot("blk3.attn", 17, values);
  tensor.payload.assign(reinterpret_cast<const char*>(values.data()),
                        values.size() * sizeof(float));
  tensor.reply.set_payload_bytes(tensor.payload.size());
  return live::TensorOf(std::move(tensor));
}

std::string Report(const source::Tensor& tensor, const TensorReportOptions& options = {}) {
  const Result<std::string> report = TensorReport(tensor, options, Style());
  return report.ok() ? *report : "error: " + report.error().message;
}

TEST(TensorReport, NamesTheTensorItsStatisticsAndItsValues) {
  const std::string report = Report(MakeTensor({0, 1, 2, 3}));
  EXPECT_THAT(report, HasSubstr("blk3.attn @17"));
  EXPECT_THAT(report, HasSubstr("elements  4  16 B"));
  EXPECT_THAT(report, HasSubstr("zero      1 (25%)"));
  EXPECT_THAT(report, HasSubstr("mean      1.5"));
  EXPECT_THAT(report, HasSubstr("histogram"));
  EXPECT_THAT(report, HasSubstr("[0, 1, 2, 3]"));
}

TEST(TensorReport, WhereNonfiniteListsEveryOneWithItsIndex) {
  TensorReportOptions options;
  options.where = "nan";
  const std::string report = Report(MakeTensor({1, NAN, 2, -INFINITY}), options);
  EXPECT_THAT(report, HasSubstr("[1]                     nan"));
  EXPECT_THAT(report, HasSubstr("[3]                     -inf"));
  EXPECT_THAT(report, Not(HasSubstr(" more")));
}

TEST(TensorReport, ALongListSaysHowManyAreNotShown) {
  TensorReportOptions options;
  options.where = "nan";
  EXPECT_THAT(Report(MakeTensor(std::vector<float>(50, NAN)), options), HasSubstr("and 30 more"));
}

TEST(TensorReport, LargestComeFirstAndNanBeforeAll) {
  TensorReportOptions options;
  options.topk = 3;
  const Json json = TensorReportJson(MakeTensor({1, -9, NAN, INFINITY, 3}), options)["topk"];
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["index"], 2);
  EXPECT_EQ(json[0]["value"], "NaN");
  EXPECT_EQ(json[1]["index"], 3);
  EXPECT_EQ(json[1]["value"], "Infinity");
  EXPECT_EQ(json[2]["value"], -9.0);
}

TEST(TensorReport, MoreTopkThanElementsShowsThemAll) {
  TensorReportOptions options;
  options.topk = 100;
  EXPECT_EQ(TensorReportJson(MakeTensor({1, 2}), options)["topk"].size(), 2u);
}

TEST(TensorReport, DroppedPayloadIsSaidNotInvented) {
  source::Tensor tensor = MakeTensor({1, 2});
  tensor.payload.clear();
  tensor.snapshot.has_values = false;
  EXPECT_THAT(Report(tensor), HasSubstr("no values: only the statistics were kept"));
  EXPECT_THAT(Report(tensor), HasSubstr("type: cgdebug-cli run --watch '*' --on nan -- COMMAND"));
  const Json json = TensorReportJson(tensor, {});
  EXPECT_EQ(json["payload_dropped"], true);
  EXPECT_FALSE(json.contains("values"));
}

TEST(TensorReport, PayloadThatDoesNotFitItsShapeIsAnError) {
  source::Tensor tensor = MakeTensor({1, 2});
  tensor.payload.pop_back();
  EXPECT_THAT(Report(tensor), HasSubstr("error: "));
}

TEST(TensorReport, EmptyTensorHasAReport) {
  EXPECT_THAT(Report(MakeTensor({})), HasSubstr("elements  0"));
}

TEST(TensorReport, HistogramOfTheWholeRangeOfDoubleDoesNotOverflow) {
  source::Tensor tensor = MakeTensor({-1, 1});
  tensor.stats.min = -1.7e308;
  tensor.stats.max = 1.7e308;
  EXPECT_THAT(Report(tensor), Not(HasSubstr("inf ..")));
}

}  // namespace
}  // namespace cgdebug::cli
