// Answers about jobs and values that exist only in the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/core/recording/recording_reader.h"
#include "daemon/serve/handlers.h"
#include "daemon/serve/tail_stream.h"
#include "tests/support/daemon/model_fixture.h"
#include "tests/support/daemon/served_answer.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::serve {
namespace {

class Served : public testing::Test {
 protected:
  pipeline::SessionPtr AddJob(const std::string& uuid, std::int64_t created_ns, int rank = -1) {
    auto identity = test::MakeIdentity(uuid, "run" + uuid, created_ns);
    identity.rank = rank;
    return registry_.AddSession(std::move(identity));
  }
  pipeline::SlotPtr AddSlot(const pipeline::SessionPtr& session, const std::string& probe,
                            std::uint64_t order, bool retired = false) {
    auto slot = test::MakeSlot(session, probe, order);
    registry_.SetSlot(slot, {}, 1, retired);
    return slot;
  }
  // A ring of 4 values in device memory.
  static pipeline::SlotPtr OnDevice(const pipeline::SessionPtr& session, const std::string& probe,
                                    std::uint64_t order) {
    auto slot = std::make_shared<pipeline::SlotIdentity>(*test::MakeSlot(session, probe, order));
    slot->registration.flags |= layout::kSlotOnDevice;
    slot->registration.device_capacity = 4;
    slot->registration.device_bytes = 1024;
    slot->registration.record_every = 1;
    return slot;
  }
  void AddValue(const pipeline::SlotPtr& slot, std::uint64_t replay, float value,
                std::uint64_t serial) {
    const auto delivery = test::MakeDelivery(slot, replay, {value, value});
    auto snapshot = std::make_shared<pipeline::Snapshot>(*delivery.snapshot);
    snapshot->serial = serial;
    store_.Put(snapshot, delivery.payload);
    registry_.SetLast(snapshot);
  }
  v1::Response Ask(const v1::Request& request) {
    pipeline::PayloadPtr payload;
    return test::MessageOf(*handlers_.AnswerNow(request, &payload));
  }
  // Without an ingest thread there is nothing to wait for.
  v1::Response AskSlowly(const v1::Request& request) {
    reads_.End();
    pipeline::PayloadPtr payload;
    return test::MessageOf(handlers_.AnswerSlowly(request, &payload));
  }
  v1::Response StartRecording(const std::string& session, std::uint64_t max_bytes) {
    v1::Request request;
    request.mutable_record_start()->set_directory(dir_ / "a.cgrec");
    request.mutable_record_start()->set_session(session);
    request.mutable_record_start()->set_max_bytes(max_bytes);
    return AskSlowly(request);
  }
  TailStream Tail(const v1::TailRequest& request) {
    v1::Error error;
    auto tail = TailStream::Open(model_, request, &error);
    EXPECT_TRUE(tail) << error.message();
    return *std::move(tail);
  }
  static std::vector<v1::TailReply> RepliesOf(TailStream* tail) {
    std::vector<v1::TailReply> replies;
    while (auto reply = tail->Next()) {
      if (!reply->has_caught_up()) replies.push_back(*std::move(reply));
    }
    return replies;
  }
  double Got(const std::string& probe, std::int64_t replay) {
    v1::Request request;
    request.mutable_get()->set_probe(probe);
    request.mutable_get()->set_replay(replay);
    const v1::Response response = Ask(request);
    EXPECT_FALSE(response.has_error()) << response.error().message();
    return response.get().snapshot().stats().max();
  }

  testing_support::TempDir dir_;
  pipeline::Registry registry_;
  pipeline::EventLog events_;
  pipeline::SnapshotStore store_{1 << 20};
  pipeline::ControlQueue controls_;
  pipeline::RingReads reads_;
  pipeline::Recorder recorder_{{}, [](const auto&, const std::string&) {}};
  Model model_{&registry_, &events_, &store_, &controls_, &reads_, &recorder_};
  Handlers handlers_{model_, {}};
};

TEST_F(Served, AValueIsThatOfTheNewestJobThatHasTheProbe) {
  const auto old_job = AddJob("aa", 10);
  const auto new_job = AddJob("bb", 20);
  const auto newest_job = AddJob("cc", 30);
  AddValue(AddSlot(old_job, "x", 1), 1, 1, 1);
  AddValue(AddSlot(new_job, "x", 1), 1, 2, 2);
  AddValue(AddSlot(newest_job, "y", 1), 1, 3, 3);
  EXPECT_EQ(Got("x", -1), 2);
  EXPECT_EQ(Got("x", 1), 2);
}

TEST_F(Served, AReplayThatTwoGraphsHaveIsTheLaterOne) {
  const auto job = AddJob("aa", 10);
  const auto first = AddSlot(job, "x", 1);
  const auto second = AddSlot(job, "x", 2);
  AddValue(first, 3, 1, 500);
  AddValue(second, 3, 2, 400);
  EXPECT_EQ(Got("x", 3), 1);
  AddValue(first, 4, 1, 600);
  AddValue(second, 4, 2, 700);
  EXPECT_EQ(Got("x", 4), 2);
}

TEST_F(Served, AReplayIsThatOfAGraphThatStillReplaysWhereOneHasIt) {
  const auto job = AddJob("aa", 10);
  const auto gone = AddSlot(job, "x", 1, /*retired=*/true);
  const auto living = AddSlot(job, "x", 2);
  AddValue(living, 3, 1, 400);
  AddValue(gone, 3, 2, 500);
  AddValue(gone, 4, 3, 600);
  EXPECT_EQ(Got("x", 3), 1);
  EXPECT_EQ(Got("x", 4), 3);
}

TEST_F(Served, AReplayThatMemoryLacksIsLookedForInTheRing) {
  const auto slot = AddSlot(AddJob("aa", 10), "x", 1);
  AddValue(slot, 3, 1, 1);
  registry_.SetSlot(slot, {.replays = 3}, 1, false);
  v1::Request request;
  request.mutable_get()->set_probe("x");
  pipeline::PayloadPtr payload;
  const auto is_answered_at_once = [&](std::int64_t replay) {
    request.mutable_get()->set_replay(replay);
    return handlers_.AnswerNow(request, &payload).has_value();
  };
  EXPECT_TRUE(is_answered_at_once(3));
  EXPECT_TRUE(is_answered_at_once(-1));
  EXPECT_TRUE(is_answered_at_once(4)) << "no ring has what was not produced";
  EXPECT_FALSE(is_answered_at_once(2));
  std::thread ingest([&] {
    pollfd wanted = {reads_.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&wanted, 1, 10'000), 1);
    reads_.Serve(
        [&](const pipeline::RingRequest& ring) {
          EXPECT_EQ(ring.slot, slot);
          EXPECT_EQ(ring.replay, 2u);
          pipeline::RingContent content;
          content.readable = true;
          content.entries.push_back({.ordinal = 2, .replay = 2, .payload = test::Bytes({7, 7})});
          return content;
        },
        [] { return pipeline::RingHeads(); });
  });
  const v1::Response response = test::MessageOf(handlers_.AnswerSlowly(request, &payload));
  ingest.join();
  ASSERT_FALSE(response.has_error()) << response.error().message();
  EXPECT_EQ(response.get().snapshot().replay(), 2u);
  EXPECT_EQ(response.get().snapshot().stats().max(), 7);
  ASSERT_NE(payload, nullptr);
  EXPECT_EQ(*payload, test::Bytes({7, 7}));
}

TEST_F(Served, ValuesThatCannotBeHadFromTheDeviceAreNamedWithTheirReplays) {
  const auto job = AddJob("aa", 10);
  const auto on_device = OnDevice(job, "x", 1);
  registry_.SetSlot(on_device, {.replays = 15, .produced = 15}, 1, false);
  v1::Request request;
  request.mutable_get()->set_probe("x");
  request.mutable_get()->set_replay(-1);
  pipeline::PayloadPtr payload;
  EXPECT_FALSE(handlers_.AnswerNow(request, &payload)) << "the device is asked first";
  EXPECT_THAT(AskSlowly(request).error().message(),
              testing::HasSubstr("its values are on the device, whose ring has replays 12 to 15"));
  registry_.EndSession(job, pipeline::SessionState::kDied, 15);
  EXPECT_THAT(AskSlowly(request).error().message(),
              testing::HasSubstr("replays 12 to 15 were on the device of a job that died"));
}

TEST_F(Served, AnOlderValueOfAnotherCallIsNotShownForTheNewestWhichIsOnTheDevice) {
  const auto job = AddJob("aa", 10);
  const auto eager = AddSlot(job, "x", 1);
  AddValue(eager, 3, 1, 100);  // at 3 ns
  const auto on_device = OnDevice(job, "x", 2);
  registry_.SetSlot(on_device, {.replays = 15, .produced = 15}, 20, false);
  v1::Request request;
  request.mutable_get()->set_probe("x");
  request.mutable_get()->set_replay(-1);
  EXPECT_THAT(AskSlowly(request).error().message(), testing::HasSubstr("its values are on the"));
  registry_.SetSlot(on_device, {.replays = 15, .produced = 15}, 2, false);
  EXPECT_EQ(AskSlowly(request).get().snapshot().replay(), 3u) << "the call on the device is older";
  registry_.SetSlot(on_device, {.replays = 15, .produced = 15}, 20, true);
  EXPECT_THAT(AskSlowly(request).error().message(),
              testing::HasSubstr("its graph is gone, so no replay sends them any more"));
}

TEST_F(Served, AValueThatCameEarlierIsNotShownForTheNewestWhichIsOnTheDevice) {
  const auto on_device = OnDevice(AddJob("aa", 10), "x", 1);
  registry_.SetSlot(on_device, {.replays = 3, .produced = 3, .consumed = 3}, 3, false);
  AddValue(on_device, 3, 1, 100);
  v1::Request request;
  request.mutable_get()->set_probe("x");
  request.mutable_get()->set_replay(-1);
  EXPECT_EQ(Ask(request).get().snapshot().replay(), 3u) << "a recording wanted its values";
  registry_.SetSlot(on_device, {.replays = 9, .produced = 9, .consumed = 9}, 9, false);
  pipeline::PayloadPtr payload;
  EXPECT_FALSE(handlers_.AnswerNow(request, &payload)) << "the device is asked first";
  EXPECT_THAT(AskSlowly(request).error().message(), testing::HasSubstr("its values are on the"));
}

TEST_F(Served, AReplayThatOnlyTheDeviceHasIsNotSaidToBeAbsent) {
  const auto job = AddJob("aa", 10);
  AddValue(AddSlot(job, "x", 1), 3, 1, 100);
  registry_.SetSlot(OnDevice(job, "x", 2), {.replays = 15, .produced = 15}, 20, false);
  v1::Request request;
  request.mutable_get()->set_probe("x");
  request.mutable_get()->set_replay(14);
  std::thread ingest([&] {
    pollfd wanted = {reads_.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&wanted, 1, 10'000), 1);
    reads_.Serve(
        [&](const pipeline::RingRequest& ring) {
          EXPECT_EQ(ring.replay, 14u);
          pipeline::RingContent content;
          content.readable = true;
          content.unreadable = {{14, layout::LossCause::kOnDevice}};
          return content;
        },
        [] { return pipeline::RingHeads(); });
  });
  pipeline::PayloadPtr payload;
  const v1::Response response = test::MessageOf(handlers_.AnswerSlowly(request, &payload));
  ingest.join();
  EXPECT_THAT(response.error().message(), testing::HasSubstr("its values are on the device"));
}

TEST_F(Served, AListThatLostItsPlaceIsAnErrorAndNotShort) {
  const auto job = AddJob("aa", 10);
  AddSlot(job, "x", 1);
  AddSlot(AddJob("bb", 20), "y", 1);
  v1::Request request;
  request.mutable_probes()->set_after_session(job->key);
  request.mutable_probes()->set_after_slot(1);
  EXPECT_EQ(Ask(request).probes().probes_size(), 1);
  registry_.ForgetSession(job);
  EXPECT_THAT(Ask(request).error().message(), testing::HasSubstr("was removed while its probes"));
}

TEST_F(Served, TheDeviceMemoryOfADeadJobIsNotCounted) {
  const auto job = AddJob("aa", 10);
  registry_.SetSession(job, {.device_bytes = 1024});
  v1::Request request;
  request.mutable_sessions()->set_include_dead(true);
  EXPECT_EQ(Ask(request).sessions().sessions(0).device_bytes(), 1024u);
  registry_.EndSession(job, pipeline::SessionState::kDied, 15);
  EXPECT_EQ(Ask(request).sessions().sessions(0).device_bytes(), 0u);
}

TEST_F(Served, ADeadJobIsListedOnlyWhenItIsAskedFor) {
  const auto dead = AddJob("aa", 10);
  const auto alive = AddJob("bb", 20);
  registry_.EndSession(dead, pipeline::SessionState::kDied, 15);
  const auto sessions = [&](bool include_dead) {
    v1::Request request;
    request.mutable_sessions()->set_include_dead(include_dead);
    pipeline::PayloadPtr payload;
    std::vector<std::string> keys;
    const v1::Response response = test::MessageOf(*handlers_.AnswerNow(request, &payload));
    for (const v1::Session& session : response.sessions().sessions()) keys.push_back(session.key());
    return keys;
  };
  EXPECT_THAT(sessions(false), testing::ElementsAre(alive->key));
  EXPECT_THAT(sessions(true), testing::UnorderedElementsAre(dead->key, alive->key));
}

TEST_F(Served, AChangeIsForSlotsWhoseGraphIsThere) {
  const auto job = AddJob("aa", 10);
  const auto live = AddSlot(job, "x", 1);
  AddSlot(job, "x", 2, /*retired=*/true);
  v1::Request request;
  request.mutable_set()->add_probes("x");
  request.mutable_set()->mutable_control()->set_mode(v1::Control::OFF);
  pipeline::PayloadPtr payload;
  const v1::Response response = test::MessageOf(*handlers_.AnswerNow(request, &payload));
  ASSERT_FALSE(response.has_error()) << response.error().message();
  EXPECT_EQ(response.set().slots(), 1u);
  EXPECT_EQ(response.set().probes(), 1u);
  const auto changes = controls_.Take();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].slot, live);
}

TEST_F(Served, ATailShowsThePastInTheOrderInWhichItHappened) {
  const auto job = AddJob("aa", 10);
  const auto first = AddSlot(job, "a", 1);
  const auto second = AddSlot(job, "b", 2);
  const auto add = [&](const pipeline::SlotPtr& slot, std::uint64_t replay, std::uint64_t serial) {
    auto snapshot =
        std::make_shared<pipeline::Snapshot>(*test::MakeDelivery(slot, replay, {1, 2}).snapshot);
    snapshot->serial = serial;
    events_.Add(job, pipeline::SnapshotPtr(snapshot));
  };
  events_.Add(job, pipeline::SessionChange{false});
  for (std::uint64_t replay = 1; replay <= 3; ++replay) add(first, replay, 10 * replay);
  add(second, 1, 10);
  events_.Add(job, pipeline::Loss{second, 1, 3, "overwritten before it was read"});
  add(second, 3, 30);
  events_.Add(job, pipeline::SessionChange{true});
  const auto past = [&](std::uint32_t last) {
    v1::TailRequest request;
    request.set_last(last);
    v1::Error error;
    auto tail = TailStream::Open(model_, request, &error);
    std::vector<std::string> lines;
    while (auto reply = tail->Next()) {
      if (reply->has_session_change()) {
        lines.push_back(reply->session_change().ended() ? "end" : "begin");
      } else if (reply->has_loss()) {
        lines.push_back("loss");
      } else if (reply->has_snapshot()) {
        lines.push_back(reply->snapshot().probe() + std::to_string(reply->snapshot().replay()));
      }
    }
    return lines;
  };
  EXPECT_THAT(past(100),
              testing::ElementsAre("begin", "a1", "b1", "a2", "a3", "loss", "b3", "end"));
  EXPECT_THAT(past(3), testing::ElementsAre("a3", "loss", "b3", "end"));
}

TEST_F(Served, ThePastOfSomeRowsBeginsWithTheirJob) {
  const auto job = AddJob("aa", 10);
  std::vector<pipeline::SnapshotPtr> rows;
  for (const char* probe : {"a", "b"}) {
    rows.push_back(test::MakeDelivery(AddSlot(job, probe, rows.size() + 1), 1, {1, 1}).snapshot);
  }
  events_.Add(job, pipeline::SessionChange{false});
  events_.Add(job, pipeline::Rows{std::move(rows)});
  v1::TailRequest request;
  request.set_last(100);
  request.add_probes("b");
  TailStream tail = Tail(request);
  const std::vector<v1::TailReply> replies = RepliesOf(&tail);
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_TRUE(replies[0].has_session_change());
  EXPECT_EQ(replies[1].snapshot().probe(), "b");
}

TEST_F(Served, TheHistoryOfACallIsWhatIsKeptOfItAlone) {
  const auto job = AddJob("aa", 10);
  const auto slot = AddSlot(job, "x", 1);
  AddValue(AddSlot(job, "x", 2), 1, 5, 1);
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    AddValue(slot, replay, static_cast<float>(replay), 100 + replay);
  }
  const auto replays = [&](std::uint64_t first, std::uint64_t last) {
    v1::Request request;
    request.mutable_history()->set_session(job->key);
    request.mutable_history()->set_slot(1);
    request.mutable_history()->set_first(first);
    request.mutable_history()->set_last(last);
    pipeline::PayloadPtr payload;
    const v1::Response response = test::MessageOf(*handlers_.AnswerNow(request, &payload));
    std::vector<std::uint64_t> replays;
    for (const auto& entry : response.history().entries()) {
      EXPECT_EQ(entry.serial(), 100 + entry.replay());
      EXPECT_EQ(entry.stats().max(), static_cast<double>(entry.replay()));
      EXPECT_TRUE(entry.has_values());
      replays.push_back(entry.replay());
    }
    return replays;
  };
  EXPECT_THAT(replays(0, 0), testing::ElementsAre(2, 3)) << "its ring has room for two";
  EXPECT_THAT(replays(3, 0), testing::ElementsAre(3));
  EXPECT_THAT(replays(0, 2), testing::ElementsAre(2));
  v1::Request request;
  request.mutable_history()->set_session(job->key);
  request.mutable_history()->set_slot(7);
  pipeline::PayloadPtr payload;
  EXPECT_EQ(test::MessageOf(*handlers_.AnswerNow(request, &payload)).error().code(),
            v1::Error::NO_PROBE);
}

TEST_F(Served, ATailIsToldOfWhatItMissedOfItsOwnJobOnly) {
  const auto own = AddJob("aa", 10);
  const auto other = AddJob("bb", 20);
  const auto own_slot = AddSlot(own, "x", 1);
  const auto other_slot = AddSlot(other, "x", 1);
  v1::TailRequest request;
  request.set_session(own->key);
  request.set_follow(true);
  v1::Error error;
  auto tail = TailStream::Open(model_, request, &error);
  ASSERT_TRUE(tail) << error.message();
  // More than the log keeps, of both.
  events_.Add(own, pipeline::Loss{own_slot, 1, 2, "overwritten before it was read"});
  for (int i = 0; i < 200'000; ++i) {
    events_.Add(other, pipeline::Loss{other_slot, 1, 2, "overwritten before it was read"});
  }
  tail->Collect();
  std::uint64_t missed = 0;
  while (auto reply = tail->Next()) {
    if (!reply->has_loss()) continue;
    EXPECT_EQ(reply->loss().session(), own->key);
    missed += reply->loss().count();
  }
  EXPECT_EQ(missed, 1u);
}

TEST_F(Served, APageCountsItsRowsWithNanBesideTheFirstThatIsNotFinite) {
  const auto job = AddJob("aa", 10);
  v1::TailRequest request;
  request.set_follow(true);
  request.set_pages(true);
  TailStream pages = Tail(request);
  std::vector<pipeline::SnapshotPtr> rows;
  for (const std::uint64_t nan : {0, 2, 0, 1}) {
    const auto slot = AddSlot(job, "row" + std::to_string(rows.size()), rows.size() + 1);
    pipeline::Snapshot row = *test::MakeDelivery(slot, 1, {1, 1}).snapshot;
    row.stats.nan = nan;
    row.stats.pos_inf = rows.empty() ? 5 : 0;
    rows.push_back(std::make_shared<const pipeline::Snapshot>(std::move(row)));
  }
  events_.Add(job, pipeline::Rows{std::move(rows)});
  pages.Collect();
  v1::Page page;
  for (const v1::TailReply& reply : RepliesOf(&pages)) {
    if (reply.has_page()) page = reply.page();
  }
  EXPECT_EQ(page.first_bad(), "row0");
  EXPECT_EQ(page.nonfinite(), 3u);
  EXPECT_EQ(page.with_nan(), 2u);
}

TEST_F(Served, AClientThatReadsSlowlyHoldsOnlySoManyRowsAndIsToldHowManyItMissed) {
  const auto job = AddJob("aa", 10);
  const auto wanted = test::MakeDelivery(AddSlot(job, "x", 1), 1, {1, 1}).snapshot;
  const auto other = test::MakeDelivery(AddSlot(job, "y", 2), 1, {1, 1}).snapshot;
  const auto add = [&](std::size_t rows, TailStream* tail) {
    std::vector<pipeline::SnapshotPtr> page(rows, other);
    page.front() = wanted;
    events_.Add(job, pipeline::Rows{std::move(page)});
    tail->Collect();
  };
  const auto lost = [](TailStream* tail) {
    std::uint64_t count = 0;
    for (const v1::TailReply& reply : RepliesOf(tail)) count += reply.loss().count();
    return count;
  };
  v1::TailRequest request;
  request.set_follow(true);
  request.set_pages(true);
  TailStream pages = Tail(request);
  constexpr std::size_t kRows = 1024;
  for (std::size_t i = 0; i < TailStream::kMaxPendingRows / kRows + 10; ++i) add(kRows, &pages);
  EXPECT_EQ(lost(&pages), 10 * kRows);
  add(kRows, &pages);
  EXPECT_EQ(lost(&pages), 0u) << "what was read made room";

  request.set_pages(false);
  request.add_probes("x");
  TailStream rows = Tail(request);
  for (std::size_t i = 0; i < TailStream::kMaxPending + 10; ++i) add(2, &rows);
  EXPECT_EQ(lost(&rows), 11u) << "one row of each is wanted; one place has 'caught up'";
}

TEST_F(Served, AChangeCountsTheProbesOfEachJob) {
  for (const char* uuid : {"aa", "bb"}) {
    const auto job = AddJob(uuid, 10);
    AddSlot(job, "x", 1);
    AddSlot(job, "x", 2);
  }
  v1::Request request;
  request.mutable_set()->add_probes("x");
  request.mutable_set()->mutable_control()->set_mode(v1::Control::OFF);
  const v1::Response response = Ask(request);
  EXPECT_EQ(response.set().slots(), 4u);
  EXPECT_EQ(response.set().probes(), 2u);
}

TEST_F(Served, AChangeMayBeForASingleReplay) {
  AddSlot(AddJob("aa", 10), "x", 1);
  v1::Request request;
  request.mutable_set()->add_probes("x");
  v1::Control& control = *request.mutable_set()->mutable_control();
  control.set_mode(v1::Control::FULL);
  control.set_from(5);
  control.set_until(5);
  EXPECT_TRUE(Ask(request).has_set()) << Ask(request).error().message();
  control.set_until(4);
  EXPECT_EQ(Ask(request).error().code(), v1::Error::BAD_REQUEST);
}

TEST_F(Served, ValuesOfAnEagerRowCannotBeTurnedOn) {
  auto row = std::make_shared<pipeline::SlotIdentity>(
      *test::MakeSlot(AddJob("aa", 10), "fwd/layers.0/mm_2", 1));
  row->op = "2 aten.mm.default 0 1";
  registry_.SetSlot(row, {}, 1, false);
  v1::Request request;
  request.mutable_set()->add_probes("fwd/*");
  v1::Control& control = *request.mutable_set()->mutable_control();
  control.set_mode(v1::Control::FULL);
  const v1::Response response = Ask(request);
  EXPECT_EQ(response.error().code(), v1::Error::BAD_REQUEST);
  EXPECT_THAT(response.error().message(),
              testing::AllOf(testing::HasSubstr("a row of an eager log"),
                             testing::HasSubstr("--eager --values 'fwd/layers.0/mm_2'")));
  control.set_mode(v1::Control::OFF);
  EXPECT_TRUE(Ask(request).has_set()) << Ask(request).error().message();
}

TEST_F(Served, TheFirstNanAndTheFirstInfEachSayWhatIsKept) {
  const auto job = AddJob("aa", 10);
  const auto with_nan = AddSlot(job, "x", 1);
  const auto with_inf = AddSlot(job, "y", 2);
  AddValue(with_inf, 7, 1, 700);
  registry_.SetFirsts(with_nan, {.nan = {.replay = 3, .count = 1, .serial = 300}, .inf = {}});
  registry_.SetFirsts(with_inf, {.nan = {}, .inf = {.replay = 7, .count = 1, .serial = 700}});
  v1::Request request;
  request.mutable_sessions();
  const v1::Response response = Ask(request);
  ASSERT_EQ(response.sessions().sessions_size(), 1);
  const v1::Session& session = response.sessions().sessions(0);
  EXPECT_EQ(session.first_nan().kept(), v1::FirstNonfinite::NOTHING);
  EXPECT_EQ(session.first_inf().kept(), v1::FirstNonfinite::VALUES);
}

TEST_F(Served, ATailOfOneRankShowsThatRankAlone) {
  std::vector<std::string> keys;
  for (const int rank : {0, 1}) {
    const auto job = AddJob(rank == 0 ? "aa" : "bb", 10, rank);
    events_.Add(job, pipeline::Loss{AddSlot(job, "x", 1), 1, 2, "overwritten"});
    keys.push_back(job->key);
  }
  v1::TailRequest request;
  request.set_last(10);
  request.set_rank(1);
  TailStream tail = Tail(request);
  const auto replies = RepliesOf(&tail);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].loss().session(), keys[1]);
}

TEST_F(Served, ATailUntilTheEndOfTheJobsWaitsForTheFirstOne) {
  v1::TailRequest request;
  request.set_follow(true);
  request.set_until_exit(true);
  TailStream tail = Tail(request);
  EXPECT_THAT(RepliesOf(&tail), testing::IsEmpty());
  EXPECT_FALSE(tail.finished());
  const auto job = AddJob("aa", 10);
  for (const bool ended : {false, true}) {
    events_.Add(job, pipeline::SessionChange{ended});
    tail.Collect();
    EXPECT_EQ(RepliesOf(&tail).size(), 1u);
    EXPECT_EQ(tail.finished(), ended);
  }
}

TEST_F(Served, AFailedComparisonIsAFinding) {
  const auto job = AddJob("aa", 10);
  const auto delivery = test::MakeDelivery(AddSlot(job, "x", 1), 3, {1, 1});
  events_.Add(job, pipeline::SnapshotPtr(delivery.snapshot));
  events_.Add(job, pipeline::CompareFailure{delivery.snapshot, "2 of 2 elements mismatch"});
  v1::TailRequest request;
  request.set_last(10);
  request.set_only(v1::TailRequest::FINDINGS);
  TailStream tail = Tail(request);
  const auto replies = RepliesOf(&tail);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].compare_failed().replay(), 3u);
}

TEST_F(Served, NoRecordingOfAnEndedJobBegins) {
  const auto job = AddJob("aa", 10);
  EXPECT_TRUE(StartRecording(job->label, 0).has_record_start());
  registry_.EndSession(job, pipeline::SessionState::kExited, 15);
  const v1::Response response = StartRecording(job->label, 0);
  EXPECT_EQ(response.error().code(), v1::Error::NO_SESSION);
  EXPECT_THAT(response.error().message(), testing::HasSubstr("cgdebug-cli freeze"));
}

TEST_F(Served, TheSmallestSizeOfARecordingIsTaken) {
  EXPECT_EQ(StartRecording("", recording::kMinMaxBytes - 1).error().code(), v1::Error::BAD_REQUEST);
  const v1::Response response = StartRecording("", recording::kMinMaxBytes);
  EXPECT_TRUE(response.has_record_start()) << response.error().message();
}

TEST_F(Served, WithoutANameTheRanksSinceTheLastRestartAreFrozen) {
  for (int restart = 0; restart < 2; ++restart) {
    for (int rank = 0; rank < 2; ++rank) {
      const int number = 2 * restart + rank;
      auto identity = test::MakeIdentity("a" + std::to_string(number), "run", 10 + number);
      identity.rank = rank;
      identity.restart_count = restart;
      identity.label += std::to_string(number);
      AddValue(AddSlot(registry_.AddSession(identity), "x", 1), 1, 1, 1);
    }
  }
  v1::Request request;
  request.mutable_freeze()->set_directory(dir_ / "a.cgrec");
  const v1::Response response = AskSlowly(request);
  ASSERT_TRUE(response.has_freeze()) << response.error().message();
  const auto reader = recording::RecordingReader::Open(dir_ / "a.cgrec");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  std::vector<std::string> labels;
  for (const auto& session : (*reader)->sessions()) labels.push_back(session.label);
  EXPECT_THAT(labels, testing::UnorderedElementsAre("run2", "run3"));
}

TEST_F(Served, WithoutANameTheNewestJobIsFrozen) {
  AddValue(AddSlot(AddJob("aa", 10), "x", 1), 1, 1, 1);
  const auto newest = AddJob("bb", 20);
  AddValue(AddSlot(newest, "x", 1), 1, 2, 2);
  v1::Request request;
  request.mutable_freeze()->set_directory(dir_ / "a.cgrec");
  const v1::Response response = AskSlowly(request);
  ASSERT_TRUE(response.has_freeze()) << response.error().message();
  const auto reader = recording::RecordingReader::Open(dir_ / "a.cgrec");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  ASSERT_EQ((*reader)->sessions().size(), 1u);
  EXPECT_EQ((*reader)->sessions()[0].label, newest->label);
}

}  // namespace
}  // namespace cgdebug::serve
