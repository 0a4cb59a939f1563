#include "client/cli/views/live/event_printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/live/messages.h"
#include "tests/support/daemon/fake_daemon.h"

namespace cgdebug::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::MakeSession;
using testing_support::MakeSnapshot;

class EventPrinterTest : public ::testing::Test {
 protected:
  ~EventPrinterTest() override {
    if (file_ != nullptr) std::fclose(file_);
    std::free(text_);
  }
  std::string Print(const std::vector<v1::TailReply>& events, EventPrinterOptions options = {}) {
    if (file_ != nullptr) std::fclose(file_);
    std::free(text_);
    file_ = ::open_memstream(&text_, &bytes_);
    EventPrinter printer(options, file_);
    for (const v1::TailReply& event : events) printer.Print(live::EventOf(event));
    std::fflush(file_);
    summary_ = printer.Summary();
    totals_ = printer.totals();
    return std::string(text_, bytes_);
  }
  static v1::TailReply Of(const v1::Snapshot& snapshot) {
    v1::TailReply event;
    *event.mutable_snapshot() = snapshot;
    return event;
  }
  static v1::TailReply Loss(std::uint64_t count) {
    v1::TailReply event;
    event.mutable_loss()->set_session("3f2a91c0");
    event.mutable_loss()->set_rank(-1);
    event.mutable_loss()->set_probe("blk3.attn");
    event.mutable_loss()->set_count(count);
    event.mutable_loss()->set_before_replay(1204);
    event.mutable_loss()->set_cause("overwritten");
    return event;
  }

  std::FILE* file_ = nullptr;
  char* text_ = nullptr;
  std::size_t bytes_ = 0;
  std::string summary_;
  EventTotals totals_;
};

TEST_F(EventPrinterTest, OneLineASnapshot) {
  const std::string out = Print({Of(MakeSnapshot("blk3.attn", 1203, {1, 2, 3, 4}))});
  EXPECT_THAT(out, StartsWith("@1203 blk3.attn  f32[4]  "));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
}

TEST_F(EventPrinterTest, NonFiniteValuesAreLoudAndCounted) {
  const std::string out = Print({Of(MakeSnapshot("x", 1, {1, NAN, INFINITY}))});
  EXPECT_THAT(out, HasSubstr("NaN"));
  EXPECT_THAT(out, HasSubstr("+Inf!"));
  EXPECT_EQ(totals_.nonfinite, 1u);
  EXPECT_THAT(summary_, HasSubstr("1 with NaN or Inf"));
}

TEST_F(EventPrinterTest, LossIsALineOfItsOwnWithProbeCountAndCause) {
  const std::string out = Print({Loss(2)});
  EXPECT_EQ(out, "@1204 -- blk3.attn: 2 snapshots lost: overwritten\n");
  EXPECT_THAT(summary_, HasSubstr("2 lost"));
}

TEST_F(EventPrinterTest, LossWithoutAProbeHasNoEmptyName) {
  v1::TailReply loss = Loss(1);
  loss.mutable_loss()->clear_probe();
  EXPECT_THAT(Print({loss}), HasSubstr("-- 1 snapshot lost: overwritten"));
}

TEST_F(EventPrinterTest, OneRankNeedsNoPrefixTwoGetOne) {
  v1::Snapshot first = MakeSnapshot("x", 1, {1});
  v1::Snapshot second = first;
  first.set_rank(0);
  second.set_rank(1);
  second.set_session("99999999");
  const std::string out = Print({Of(first), Of(second), Of(first)});
  EXPECT_THAT(out, StartsWith("@1 x"));
  EXPECT_THAT(out, HasSubstr("\nr1 @1 x"));
  EXPECT_THAT(out, HasSubstr("\nr0 @1 x"));
}

TEST_F(EventPrinterTest, ARankThatIsNotTheFirstHasItsPrefixBeforeAnotherOneIsSeen) {
  v1::Snapshot snapshot = MakeSnapshot("x", 1, {1});
  snapshot.set_rank(1);
  EXPECT_THAT(Print({Of(snapshot)}), StartsWith("r1 @1 x"));
}

TEST_F(EventPrinterTest, ProcessesWithoutRanksAreToldApartByTheirLabels) {
  v1::Snapshot first = MakeSnapshot("x", 1, {1});
  v1::Snapshot second = first;
  second.set_session("99999999");
  second.set_session_label("other.py-1");
  EXPECT_THAT(Print({Of(first), Of(second)}), HasSubstr("\nother.py-1 @1 x"));
}

TEST_F(EventPrinterTest, FailedComparisonKeepsItsLinesUnderIt) {
  v1::TailReply event;
  event.mutable_compare_failed()->set_probe("blk3.attn");
  event.mutable_compare_failed()->set_replay(17);
  event.mutable_compare_failed()->set_step(-1);
  event.mutable_compare_failed()->set_text("Tensor-likes are not close!\n\nMismatched: 3\n");
  EXPECT_EQ(Print({event}),
            "@17 -- comparison FAILED: blk3.attn: Tensor-likes are not close!\n"
            "     Mismatched: 3\n");
}

TEST_F(EventPrinterTest, PrintedTensorDoesNotRepeatTheLineOfItsSnapshot) {
  v1::TailReply print;
  print.mutable_print()->set_session("3f2a91c0");
  print.mutable_print()->set_rank(-1);
  print.mutable_print()->set_probe("x");
  print.mutable_print()->set_replay(6);
  print.mutable_print()->set_text("[cgdebug] @6 x  f32[2]  n=2\n          [1, 2]");
  const std::string after = Print({Of(MakeSnapshot("x", 6, {1, 2})), print});
  EXPECT_EQ(after.substr(after.find('\n')), "\n     [1, 2]\n");
  EXPECT_THAT(Print({Of(MakeSnapshot("x", 7, {1, 2})), print}), HasSubstr("\n[cgdebug] @6 x"));
}

TEST_F(EventPrinterTest, EndOfASessionSaysHowAndWhatWasLost) {
  v1::TailReply event;
  *event.mutable_session_change()->mutable_session() = MakeSession("3f2a91c0");
  event.mutable_session_change()->set_ended(true);
  event.mutable_session_change()->mutable_session()->set_state(v1::Session::DIED);
  event.mutable_session_change()->mutable_session()->mutable_counters()->set_lost_at_death(1);
  EXPECT_THAT(Print({event}), HasSubstr("died after 1 204 replays, 1 lost"));
}

TEST_F(EventPrinterTest, JsonIsOneDocumentALine) {
  EventPrinterOptions options;
  options.is_json = true;
  const std::string out = Print({Of(MakeSnapshot("x", 1, {NAN})), Loss(1)}, options);
  EXPECT_THAT(out, StartsWith("{\"event\":\"snapshot\","));
  EXPECT_THAT(out, HasSubstr("\n{\"event\":\"loss\","));
  EXPECT_THAT(out, Not(HasSubstr("null,\"max\"")));
}

TEST_F(EventPrinterTest, ControlCharactersOfANameDoNotReachTheTerminal) {
  EXPECT_THAT(Print({Of(MakeSnapshot("a\x1b[2J", 1, {1}))}), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace cgdebug::cli
