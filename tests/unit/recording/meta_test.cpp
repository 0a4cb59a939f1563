// Our codec of meta blocks and protobuf's own runtime: each reads what the other writes.
#include "daemon/core/recording/meta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>

#include "daemon/core/wire/message_fields.h"
#include "proto/control.pb.h"
#include "proto/layout/counters.h"
#include "proto/layout/graph_facts.h"
#include "proto/layout/slot_control.h"
#include "proto/layout/verdict.h"
#include "proto/recording.pb.h"

namespace cgdebug::recording {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(RecordingMeta, ProtobufReadsWhatIsWritten) {
  Snapshot snapshot;
  snapshot.slot = 300;
  snapshot.ordinal = kMax;
  snapshot.replay = 1;
  snapshot.step = -1;
  snapshot.timestamp_ns = -5;
  snapshot.stats_only = true;
  snapshot.payload_hash = 0x8000000000000001;
  snapshot.compared = true;
  snapshot.comparison = {0, 0.5, std::numeric_limits<double>::infinity()};
  snapshot.stats.count = 7;
  snapshot.stats.min = -0.0;
  snapshot.stats.max = std::numeric_limits<double>::infinity();
  snapshot.stats.has_hash = true;
  snapshot.stats.hash = 0;
  snapshot.stats.has_nonfinite = true;
  snapshot.stats.first_nonfinite = 0;
  snapshot.stats.histogram = {1, 2, 3, 0, 0, 0, 0, kMax};
  pb::Snapshot parsed;
  ASSERT_TRUE(parsed.ParseFromString(EncodeFields(snapshot)));
  EXPECT_EQ(parsed.slot(), 300u);
  EXPECT_EQ(parsed.ordinal(), kMax);
  EXPECT_EQ(parsed.step(), -1);
  EXPECT_EQ(parsed.timestamp_ns(), -5);
  EXPECT_TRUE(parsed.stats_only());
  EXPECT_EQ(parsed.payload_hash(), 0x8000000000000001);
  EXPECT_TRUE(parsed.has_mismatched());
  EXPECT_EQ(parsed.max_abs(), 0.5);
  EXPECT_TRUE(std::isinf(parsed.max_rel()));
  EXPECT_TRUE(std::signbit(parsed.stats().min()));
  EXPECT_TRUE(std::isnan(parsed.stats().mean()));
  EXPECT_TRUE(parsed.stats().has_first_nonfinite());
  EXPECT_EQ(parsed.stats().histogram_size(), 8);
  EXPECT_EQ(parsed.stats().histogram(7), kMax);
  EXPECT_TRUE(parsed.stats().has_xor_hash());
  EXPECT_EQ(parsed.stats().xor_hash(), 0u);

  Slot slot;
  slot.id = 9;
  slot.probe = "blk3.attn";
  slot.shape = {8, 0, kMax};
  slot.every = 0;
  slot.shard = "S(0) of [8] at (1) of dp=2, from [4]";
  slot.op = "17 aten.mm.default 3 5";
  slot.part = "rows:0:8 of [8192,4096]";
  slot.details = R"({"args":"self=#3, mat2=#5"})";
  pb::Slot parsed_slot;
  ASSERT_TRUE(parsed_slot.ParseFromString(EncodeFields(slot)));
  EXPECT_EQ(parsed_slot.probe(), "blk3.attn");
  EXPECT_EQ(parsed_slot.shape(2), kMax);
  EXPECT_EQ(parsed_slot.id(), 9u);
  EXPECT_EQ(parsed_slot.shard(), slot.shard);
  EXPECT_EQ(parsed_slot.op(), slot.op);
  EXPECT_EQ(parsed_slot.part(), slot.part);
  EXPECT_EQ(parsed_slot.details(), slot.details);

  Index index;
  index.runs = {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}};
  index.others = {4096, 8192};
  pb::Index parsed_index;
  ASSERT_TRUE(parsed_index.ParseFromString(EncodeFields(index)));
  ASSERT_EQ(parsed_index.runs_size(), 2);
  EXPECT_EQ(parsed_index.runs(1).last_ordinal(), 12u);
  EXPECT_EQ(parsed_index.others(1), 8192u);
}

// Compares a struct's list of fields with the message: each field has the same name, number and
// encoding, and the message has no further fields except `others`.
template <typename T>
void ExpectListedAs(const google::protobuf::Descriptor* message, int others = 0) {
  using google::protobuf::FieldDescriptor;
  SCOPED_TRACE(message->full_name());
  int listed = 0;
  const auto expect = [&](const layout::Field& field, const auto& value, bool is_optional) {
    using Value = std::decay_t<decltype(value)>;
    is_optional = is_optional || IsOptional<const Value>;
    SCOPED_TRACE(field.name);
    ++listed;
    const FieldDescriptor* there = message->FindFieldByNumber(static_cast<int>(field.number));
    ASSERT_NE(there, nullptr);
    EXPECT_EQ(std::string(there->name()), field.name);
    if (there->type() != FieldDescriptor::TYPE_MESSAGE) {
      EXPECT_EQ(there->has_presence(), is_optional);
    }
    const auto type = there->type();
    if constexpr (std::is_same_v<Value, double>) {
      EXPECT_EQ(type, FieldDescriptor::TYPE_DOUBLE);
    } else if constexpr (std::is_arithmetic_v<Value>) {
      EXPECT_EQ(field.encoding == layout::Encoding::kFixed, type == FieldDescriptor::TYPE_FIXED64);
      EXPECT_EQ(field.encoding == layout::Encoding::kSigned,
                type == FieldDescriptor::TYPE_SINT32 || type == FieldDescriptor::TYPE_SINT64);
      EXPECT_NE(type, FieldDescriptor::TYPE_DOUBLE);
    }
  };
  const T value{};
  T::ForEachField(value, [&](const layout::Field& field, const auto&... members) {
    constexpr bool kIsOptional = sizeof...(members) == 2;
    expect(field, std::get<sizeof...(members) - 1>(std::tie(members...)), kIsOptional);
  });
  EXPECT_EQ(listed + others, message->field_count());
}

TEST(RecordingMeta, EveryListOfFieldsIsThatOfItsMessage) {
  ExpectListedAs<numerics::Stats>(v1::Stats::descriptor());
  ExpectListedAs<layout::Counters>(v1::Counters::descriptor());
  ExpectListedAs<layout::Verdict>(v1::Verdict::descriptor());
  ExpectListedAs<layout::GraphFacts>(v1::GraphInfo::descriptor());
  ExpectListedAs<layout::GraphCensus>(v1::SessionGraphs::descriptor(), /*others=*/3);
  ExpectListedAs<Session>(pb::Session::descriptor());
  ExpectListedAs<Slot>(pb::Slot::descriptor());
  ExpectListedAs<Snapshot>(pb::Snapshot::descriptor());
  ExpectListedAs<Loss>(pb::Loss::descriptor());
  ExpectListedAs<Mark>(pb::Mark::descriptor());
  ExpectListedAs<Commit>(pb::Commit::descriptor());
  ExpectListedAs<SlotRun>(pb::SlotRun::descriptor());
  ExpectListedAs<Index>(pb::Index::descriptor());
  ExpectListedAs<End>(pb::End::descriptor());
  // A daemon's session has what a recording has of it, under the same numbers.
  const Session session{};
  Session::ForEachField(session, [](const layout::Field& field, const auto&) {
    if (std::string(field.name) == "id") return;
    const auto* there =
        v1::Session::descriptor()->FindFieldByNumber(static_cast<int>(field.number));
    ASSERT_NE(there, nullptr) << field.name;
    EXPECT_EQ(std::string(there->name()), field.name);
    EXPECT_EQ(there->type(), pb::Session::descriptor()->FindFieldByName(field.name)->type());
  });
}

TEST(RecordingMeta, StatisticsGoThroughAMessageWhole) {
  numerics::Stats stats;
  stats.count = kMax;
  stats.min = -0.0;
  stats.has_nonfinite = true;  // at index 0
  stats.histogram = {1, 2, 3, 0, 0, 0, 0, kMax};
  v1::Stats message;
  wire::FillMessage(stats, &message);
  EXPECT_EQ(message.count(), kMax);
  EXPECT_TRUE(message.has_first_nonfinite());
  EXPECT_FALSE(message.has_xor_hash());
  const auto back = wire::FieldsOf<numerics::Stats>(message);
  EXPECT_EQ(back.count, kMax);
  EXPECT_TRUE(std::signbit(back.min));
  EXPECT_TRUE(std::isnan(back.max));
  EXPECT_TRUE(back.has_nonfinite);
  EXPECT_FALSE(back.has_hash);
  EXPECT_EQ(back.histogram, stats.histogram);
}

TEST(RecordingMeta, AnAbsentFieldStaysAbsentAndAZeroIsThere) {
  layout::GraphFacts facts;
  facts.state = layout::GraphState::kFailed;
  facts.label = "bs=8";
  facts.replays = 0;
  facts.pool = {0, 7};
  v1::GraphInfo message;
  wire::FillMessage(facts, &message);
  EXPECT_FALSE(message.has_nodes());
  EXPECT_TRUE(message.has_replays());
  EXPECT_EQ(message.pool(1), 7u);
  const auto back = wire::FieldsOf<layout::GraphFacts>(message);
  EXPECT_EQ(back.state, layout::GraphState::kFailed);
  EXPECT_EQ(back.label, "bs=8");
  EXPECT_FALSE(back.nodes.has_value());
  EXPECT_EQ(back.replays, 0u);
  EXPECT_EQ(back.pool, facts.pool);
}

TEST(RecordingMeta, AControlGoesThroughAMessageWhole) {
  layout::SlotControl control;
  control.mode = layout::ControlMode::kFull;
  control.trigger = layout::ControlTrigger::kAbsMax;
  control.every = 10;
  control.from = 0;
  control.until = 9;
  control.threshold = 1e4;
  control.expires_ns = -1;
  v1::Control message;
  wire::FillMessage(control, &message);
  EXPECT_EQ(message.mode(), v1::Control::FULL);
  EXPECT_EQ(message.trigger(), v1::Control::ABS_MAX);
  const auto back = wire::FieldsOf<layout::SlotControl>(message);
  EXPECT_EQ(back.every, 10u);
  EXPECT_EQ(back.from, 0u);
  EXPECT_EQ(back.until, 9u);
  EXPECT_EQ(back.threshold, 1e4);
  EXPECT_EQ(back.expires_ns, -1);
}

TEST(RecordingMeta, AHashThatIsNotThereIsNotOneOfZero) {
  Snapshot snapshot;
  EXPECT_FALSE(DecodeFields<Snapshot>(EncodeFields(snapshot))->stats.has_hash);
  snapshot.stats.has_hash = true;
  EXPECT_TRUE(DecodeFields<Snapshot>(EncodeFields(snapshot))->stats.has_hash);
  snapshot.stats.hash = kMax;
  EXPECT_EQ(DecodeFields<Snapshot>(EncodeFields(snapshot))->stats.hash, kMax);
}

TEST(RecordingMeta, FieldsAreReadInAnyOrderAndUnknownOnesAreSkipped) {
  pb::Mark text, kind, step;
  text.set_text("why");
  kind.set_kind(2);
  step.set_step(-7);
  const std::string unknown = "\xf8\x07\x01";  // field 127
  const auto read =
      DecodeFields<Mark>(unknown + text.SerializeAsString() + step.SerializeAsString() + unknown +
                         kind.SerializeAsString() + unknown);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->text, "why");
  EXPECT_EQ(read->step, -7);
  EXPECT_EQ(static_cast<int>(read->kind), 2);
  EXPECT_FALSE(DecodeFields<Mark>(text.SerializeAsString() + "\xf8").has_value());
}

TEST(RecordingMeta, WhatProtobufWritesIsRead) {
  pb::Mark mark;
  mark.set_kind(2);
  mark.set_slot(-1);
  mark.set_step(-7);
  mark.set_text("why");
  const auto read = DecodeFields<Mark>(mark.SerializeAsString());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->slot, Mark::kNoSlot);
  EXPECT_EQ(read->step, -7);
  EXPECT_EQ(read->text, "why");

  // A field that is not there is 0, whatever the struct begins with.
  const auto empty = DecodeFields<Session>("");
  ASSERT_TRUE(empty.has_value());
  EXPECT_EQ(empty->rank, 0);
  EXPECT_EQ(empty->world_size, 0);

  pb::Session session;
  session.set_rank(-1);
  session.set_label("train");
  session.set_id(3);
  const auto read_session = DecodeFields<Session>(session.SerializeAsString());
  ASSERT_TRUE(read_session.has_value());
  EXPECT_EQ(read_session->rank, -1);
  EXPECT_EQ(read_session->id, 3u);
}

TEST(RecordingMeta, AnyBytesAreReadOrRefused) {
  std::mt19937 random(3);
  std::string good = EncodeFields(Snapshot{});
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = good;
    bytes.resize(random() % 64, static_cast<char>(random()));
    for (int change = 0; change < 4 && !bytes.empty(); ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    (void)DecodeFields<Snapshot>(bytes);
    (void)DecodeFields<Index>(bytes);
    (void)DecodeFields<Slot>(bytes);
  }
  EXPECT_FALSE(
      DecodeFields<Snapshot>("\x0a\xff").has_value());  // a length that goes on beyond the end
  EXPECT_FALSE(DecodeFields<Snapshot>("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").has_value());
}

}  // namespace
}  // namespace cgdebug::recording
