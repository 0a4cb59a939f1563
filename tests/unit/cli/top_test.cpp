// What `top` makes of two looks at the daemon, and how it fits on a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "client/cli/views/live/top_view.h"

namespace cgdebug::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

live::Session MakeSession(const std::string& key, int rank) {
  live::Session session;
  session.key = key;
  session.run_id = "train";
  session.label = "train/r" + std::to_string(rank);
  session.rank = rank;
  session.world_size = 64;
  return session;
}

live::Probe MakeProbe(const std::string& session, std::uint64_t order, const std::string& name,
                      std::uint64_t replay, double rms) {
  live::Probe probe;
  probe.session = session;
  probe.slot.order = order;
  probe.slot.probe = name;
  probe.slot.graph_id = 1;
  probe.replay = probe.counters.replays = replay;
  probe.last_stats.emplace();
  probe.last_stats->count = 8;
  probe.last_stats->rms = probe.last_stats->abs_max = rms;
  return probe;
}

class TopTest : public ::testing::Test {
 protected:
  // A second after the look before.
  void Look(std::vector<live::Session> sessions, std::vector<live::Probe> probes) {
    live::Status status;
    status.pid = 4711;
    status.sessions = std::move(sessions);
    at_ += std::chrono::seconds(1);
    model_.Add(std::move(status), std::move(probes), at_);
  }
  std::string Draw(std::optional<TopSize> size = std::nullopt) {
    std::string text;
    frame_ = DrawTop(model_, "", "", size, Style(), &choice_);
    for (const std::string& line : frame_.lines) text += line + "\n";
    return text;
  }

  TopModel model_;
  TopChoice choice_;
  TopFrame frame_;
  TopModel::TimePoint at_ = TopModel::TimePoint() + std::chrono::hours(1);
};

TEST_F(TopTest, RatesAreThoseBetweenTwoLooksAndGraphsAddUp) {
  live::Session session = MakeSession("a", 0);
  live::Probe other = MakeProbe("a", 3, "z", 5, 1);
  other.slot.graph_id = 2;
  Look({session}, {MakeProbe("a", 1, "x", 10, 1), MakeProbe("a", 2, "y", 10, 1), other});
  EXPECT_FALSE(model_.sessions().at(0).rates);
  session.counters.bytes = 4096;
  session.counters.lost_overwritten = 3;
  other.counters.replays = 8;
  Look({session}, {MakeProbe("a", 1, "x", 30, 1), MakeProbe("a", 2, "y", 30, 1), other});
  ASSERT_TRUE(model_.sessions().at(0).rates);
  EXPECT_EQ(model_.sessions()[0].rates->replays, 23) << "20 of one graph and 3 of the other";
  EXPECT_EQ(model_.sessions()[0].rates->bytes, 4096);
  EXPECT_EQ(model_.sessions()[0].rates->lost, 3);
}

TEST_F(TopTest, ADaemonThatCountsFromZeroAgainGivesNoNegativeRate) {
  live::Session session = MakeSession("a", 0);
  session.counters.bytes = 1 << 20;
  Look({session}, {MakeProbe("a", 1, "x", 10, 1)});
  session.counters.bytes = 0;
  Look({session}, {MakeProbe("a", 1, "x", 2, 1)});
  EXPECT_EQ(model_.sessions().at(0).rates->bytes, 0);
  EXPECT_EQ(model_.sessions()[0].rates->replays, 0);
}

TEST_F(TopTest, WhatChangedMostIsOnTopAndWhatBecameNanAboveIt) {
  const std::vector<live::Session> sessions = {MakeSession("a", 0)};
  Look(sessions, {MakeProbe("a", 1, "same", 1, 2), MakeProbe("a", 2, "grows", 1, 2),
                  MakeProbe("a", 3, "sick", 1, 2), MakeProbe("a", 4, "silent", 1, 2)});
  live::Probe sick = MakeProbe("a", 3, "sick", 2, 2);
  sick.last_stats->nan = 1;
  Look(sessions, {MakeProbe("a", 1, "same", 2, 2), MakeProbe("a", 2, "grows", 2, 3), sick,
                  MakeProbe("a", 4, "silent", 1, 2)});
  std::vector<std::string> names;
  for (const TopProbe* one : RowsOf(model_, choice_)) names.push_back(NameText(*one));
  EXPECT_THAT(names, ::testing::ElementsAre("sick", "grows", "same", "silent"));
  const std::string text = Draw();
  EXPECT_THAT(text, AllOf(HasSubstr("NaN/Inf"), HasSubstr("+50%")));
  EXPECT_FALSE(RowsOf(model_, choice_)[3]->change) << "no new snapshot is not \"the same\"";
}

TEST_F(TopTest, AProbeWithoutAFiniteElementHasNoRmsAndAnInfiniteChange) {
  EXPECT_TRUE(std::isinf((TopChange{1, kNan, false}.Size())));
  EXPECT_EQ((TopChange{kNan, kNan, false}.Size()), 0);
  EXPECT_EQ((TopChange{0, 5, false}.Size()), 1);
}

TEST_F(TopTest, ARankThatEndsStaysAndOneThatHadEndedBeforeIsLeftOut) {
  live::Session old = MakeSession("old", 7), one = MakeSession("a", 0);
  old.state = live::SessionState::kExited;
  Look({old, one}, {MakeProbe("old", 1, "x", 9, 1), MakeProbe("a", 1, "x", 1, 1)});
  EXPECT_EQ(model_.sessions().size(), 1u);
  EXPECT_EQ(model_.probes().size(), 1u);
  one.state = live::SessionState::kDied;
  Look({old, one}, {MakeProbe("old", 1, "x", 9, 1), MakeProbe("a", 1, "x", 1, 1)});
  EXPECT_THAT(Draw(), HasSubstr("died"));
}

TEST_F(TopTest, EveryFrameFitsItsTerminalAndShowsTheNan) {
  std::vector<live::Session> sessions;
  std::vector<live::Probe> probes;
  for (int rank = 0; rank < 64; ++rank) {
    sessions.push_back(MakeSession(std::to_string(rank), rank));
    probes.push_back(
        MakeProbe(std::to_string(rank), 1, "model.layers.17.self_attn.o_proj.out", 3, 1.5));
  }
  sessions[50].first_nan.emplace();
  sessions[50].first_nan->slot.probe = "blk3.out";
  sessions[50].first_nan->replay = 17;
  Look(sessions, probes);
  Look(sessions, probes);
  for (const TopSize size : {TopSize{10, 40}, TopSize{24, 80}, TopSize{50, 200}, TopSize{5, 20}}) {
    const std::string text = Draw(size);
    EXPECT_LT(frame_.lines.size(), size.rows) << "a line for the keys";
    if (size.columns < 40) continue;
    EXPECT_THAT(text, AllOf(HasSubstr("NaN blk3"), HasSubstr("50"), HasSubstr("LOST")))
        << "the rank in trouble has a line of its own in " << size.columns;
    EXPECT_THAT(text, HasSubstr("all alive, finite, nothing lost"));
    for (std::size_t i = 1; i < frame_.lines.size(); ++i) {
      EXPECT_LE(DisplayWidth(frame_.lines[i]), size.columns == 40 ? 80 : size.columns)
          << frame_.lines[i];
    }
  }
}

TEST_F(TopTest, WithoutAJobItSaysWhatToTypeOnTheNarrowestTerminalToo) {
  Look({}, {});
  std::string text = Draw(TopSize{10, 40});
  std::ranges::replace(text, '\n', ' ');
  EXPECT_THAT(text, HasSubstr("cgdebug-cli run"));
  for (std::size_t i = 1; i < frame_.lines.size(); ++i) {
    EXPECT_LE(DisplayWidth(frame_.lines[i]), 40u);
  }
}

TEST_F(TopTest, AJobInThePlaceOfAProbeIsNamedWithWhatToType) {
  Look({MakeSession("a", 0)}, {MakeProbe("a", 1, "fwd/0", 3, 1)});
  choice_.filter = "train/r0";
  choice_.selector = *Selector::ParseList(choice_.filter);
  EXPECT_THAT(Draw(), HasSubstr("Type: cgdebug-cli top -s train/r0"));
}

TEST_F(TopTest, RowsKeepTheirOrderWhileOneIsSelectedAndItStaysInSight) {
  std::vector<live::Probe> probes;
  for (std::uint64_t i = 0; i < 100; ++i) {
    probes.push_back(MakeProbe("a", i, "p" + std::to_string(i), 1, 1));
  }
  Look({MakeSession("a", 0)}, probes);
  for (const TopProbe* one : RowsOf(model_, choice_)) choice_.held.push_back(one->id());
  choice_.selected = TopId("a", 80);
  for (std::uint64_t i = 0; i < 100; ++i) {
    probes[i] = MakeProbe("a", i, "p" + std::to_string(i), 2, 1 + static_cast<double>(i));
  }
  Look({MakeSession("a", 0)}, probes);
  EXPECT_EQ(RowsOf(model_, choice_)[0]->id(), TopId("a", 0));
  Draw(TopSize{24, 80});
  ASSERT_TRUE(frame_.highlighted);
  EXPECT_THAT(frame_.lines.at(*frame_.highlighted), HasSubstr("p80 "));
}

TEST_F(TopTest, WhatIsNotKnownIsNotZero) {
  live::Session ended = MakeSession("a", 0);
  live::Probe unread = MakeProbe("a", 1, "x", 0, 1);
  unread.last_stats.reset();
  Look({ended}, {unread});
  ended.state = live::SessionState::kExited;
  Look({ended}, {unread});
  const Json json = ToJson(model_, choice_);
  EXPECT_TRUE(json.at("sessions").at(0).at("replays_per_s").is_null());
  EXPECT_TRUE(json.at("probes").at(0).at("rms_before").is_null());
  EXPECT_THAT(Draw(), ::testing::ContainsRegex("\nx +- +- ")) << "no NaN was counted in it";
}

TEST_F(TopTest, AControlCharacterInANameDoesNotReachTheTerminal) {
  Look({MakeSession("a", 0)}, {MakeProbe("a", 1, "evil\x1b[2J", 1, 1)});
  EXPECT_THAT(Draw(), AllOf(HasSubstr("evil\\x1b"), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace cgdebug::cli
