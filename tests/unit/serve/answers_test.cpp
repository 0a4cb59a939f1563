// What the daemon answers: each struct of daemon/core/answers is a message of proto/control.proto.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

#include "daemon/core/answers/reply.h"
#include "proto/control.pb.h"

namespace cgdebug::answers {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

FieldDescriptor::CppType TypeOf(const FieldDescriptor& field) {
  return field.type() == FieldDescriptor::TYPE_ENUM ? FieldDescriptor::CPPTYPE_INT32
                                                    : field.cpp_type();
}

// Whether a field of `T` may hold what the message has there.
template <typename T>
bool Fits(const FieldDescriptor& there) {
  if constexpr (std::is_same_v<T, std::string> || IsParsedText<T>) {
    return there.type() == FieldDescriptor::TYPE_STRING;
  } else if constexpr (IsOptional<const T>) {
    return there.has_presence() && Fits<typename T::value_type>(there);
  } else if constexpr (IsRange<const T>) {
    return there.is_repeated() && Fits<typename T::value_type>(there);
  } else if constexpr (IsMessage<T>) {
    return there.type() == FieldDescriptor::TYPE_MESSAGE;
  } else if constexpr (std::is_same_v<T, double>) {
    return there.type() == FieldDescriptor::TYPE_DOUBLE;
  } else if constexpr (std::is_same_v<T, bool>) {
    return there.type() == FieldDescriptor::TYPE_BOOL;
  } else if constexpr (std::is_enum_v<T>) {
    return there.type() == FieldDescriptor::TYPE_ENUM;
  } else {
    return TypeOf(there) != FieldDescriptor::CPPTYPE_STRING &&
           TypeOf(there) != FieldDescriptor::CPPTYPE_MESSAGE &&
           TypeOf(there) != FieldDescriptor::CPPTYPE_DOUBLE;
  }
}

// Each field has the number and type that the message has, and none of the message is left out.
template <typename T>
void ExpectIs(const Descriptor* message) {
  SCOPED_TRACE(message->full_name());
  std::set<int> listed;
  const T value{};
  T::ForEachField(value, [&](const layout::Field& field, const auto& member) {
    using Member = std::decay_t<decltype(member)>;
    const FieldDescriptor* there = message->FindFieldByNumber(static_cast<int>(field.number));
    ASSERT_NE(there, nullptr) << field.number << " " << field.name;
    SCOPED_TRACE(there->name());
    EXPECT_TRUE(listed.insert(there->number()).second);
    EXPECT_TRUE(Fits<Member>(*there));
    const bool is_zigzag = there->type() == FieldDescriptor::TYPE_SINT32 ||
                           there->type() == FieldDescriptor::TYPE_SINT64;
    EXPECT_EQ(field.encoding == layout::Encoding::kFixed,
              there->type() == FieldDescriptor::TYPE_FIXED64);
    EXPECT_EQ(field.encoding == layout::Encoding::kSigned, is_zigzag);
  });
  EXPECT_EQ(static_cast<int>(listed.size()), message->field_count());
}

// Also that its field of Response has that number.
template <typename T>
void ExpectAnswers(const Descriptor* message) {
  ExpectIs<T>(message);
  const FieldDescriptor* there = v1::Response::descriptor()->FindFieldByNumber(T::kNumber);
  ASSERT_NE(there, nullptr);
  EXPECT_EQ(there->message_type(), message);
}

TEST(Answers, EveryListOfFieldsIsThatOfItsMessage) {
  ExpectIs<FirstNonfinite>(v1::FirstNonfinite::descriptor());
  ExpectIs<Probe>(v1::ProbeInfo::descriptor());
  ExpectIs<OpLog>(v1::OpLog::descriptor());
  ExpectIs<Kept>(v1::HistoryReply::Entry::descriptor());
  ExpectIs<LaneUse>(v1::LaneUse::descriptor());
  ExpectIs<ReplicaCounts>(v1::ReplicaCounts::descriptor());
  ExpectIs<Session>(v1::Session::descriptor());
  ExpectIs<Skipped>(v1::Skipped::descriptor());
  ExpectIs<Recording>(v1::Recording::descriptor());
}

TEST(Answers, EveryAnswerHasTheNumberOfItsMessage) {
  ExpectAnswers<Status>(v1::StatusReply::descriptor());
  ExpectAnswers<Sessions>(v1::SessionsReply::descriptor());
  ExpectAnswers<Probes>(v1::ProbesReply::descriptor());
  ExpectAnswers<Pruned>(v1::PruneReply::descriptor());
  ExpectAnswers<Controlled>(v1::SetReply::descriptor());
  ExpectAnswers<RecordStarted>(v1::RecordStartReply::descriptor());
  ExpectAnswers<RecordStopped>(v1::RecordStopReply::descriptor());
  ExpectAnswers<Recordings>(v1::RecordListReply::descriptor());
  ExpectAnswers<Frozen>(v1::FreezeReply::descriptor());
  ExpectAnswers<History>(v1::HistoryReply::descriptor());
  ExpectAnswers<Graphs>(v1::GraphsReply::descriptor());
  ExpectAnswers<OpLogs>(v1::OpLogsReply::descriptor());
}

TEST(Answers, ProtobufReadsWhatTheDaemonEncodes) {
  Probe probe;
  probe.session = "3f2a91c0";
  probe.slot.probe = "blk2.act";
  probe.slot.rank = -1;
  probe.slot.shape = {8, 0, 512};
  probe.slot.order = 7;
  probe.lane = layout::Lane::kDirect;
  probe.actions = {Action::kPrint, Action::kStats};  // kPrint is 0
  probe.counters.produced = 5;
  probe.first_nan = FirstNonfinite{.slot = {}, .replay = 3, .serial = 1ull << 63, .count = 2};
  probe.first_nan->slot.probe = "blk2.act";
  probe.verdict.emplace();  // all of it is 0
  v1::Response response;
  ASSERT_TRUE(response.ParseFromString(EncodeReply(Probes{{probe, {}}, true})));
  ASSERT_EQ(response.kind_case(), v1::Response::kProbes);
  EXPECT_TRUE(response.probes().more());
  ASSERT_EQ(response.probes().probes_size(), 2);
  const v1::ProbeInfo& read = response.probes().probes(0);
  EXPECT_EQ(read.name(), "blk2.act");
  EXPECT_EQ(read.rank(), -1);
  EXPECT_EQ(read.shape(2), 512u);
  EXPECT_EQ(read.slot(), 7u);
  EXPECT_EQ(read.lane(), v1::ProbeInfo::DIRECT);
  ASSERT_EQ(read.actions_size(), 2);
  EXPECT_EQ(read.actions(0), v1::ProbeInfo::PRINT);
  EXPECT_EQ(read.counters().produced(), 5u);
  EXPECT_EQ(read.first_nan().serial(), 1ull << 63);
  EXPECT_TRUE(read.has_verdict());
  EXPECT_FALSE(read.has_first_inf());
  EXPECT_FALSE(read.has_last_stats());
}

TEST(Answers, AClientReadsWhatProtobufEncodes) {
  v1::Response response;
  v1::Session* session = response.mutable_sessions()->add_sessions();
  session->set_key("3f2a91c0");
  session->set_rank(-1);
  session->set_state(v1::Session::DIED);
  session->set_step(-1);
  session->mutable_first_inf()->set_probe("x");
  session->add_unseen("y");
  const auto sessions = DecodeReply<Sessions>(response.SerializeAsString());
  ASSERT_TRUE(sessions);
  ASSERT_EQ(sessions->value.size(), 1u);
  const Session& read = sessions->value[0];
  EXPECT_EQ(read.key, "3f2a91c0");
  EXPECT_EQ(read.rank, -1);
  EXPECT_EQ(read.state, SessionState::kDied);
  EXPECT_EQ(read.step, -1);
  ASSERT_TRUE(read.first_inf);
  EXPECT_EQ(read.first_inf->slot.probe, "x");
  EXPECT_FALSE(read.first_nan);
  EXPECT_EQ(read.unseen, std::vector<std::string>{"y"});
}

TEST(Answers, AnAnswerToSomethingElseIsNone) {
  v1::Response response;
  response.mutable_sessions();
  EXPECT_TRUE(DecodeReply<Sessions>(response.SerializeAsString()));
  EXPECT_FALSE(DecodeReply<Probes>(response.SerializeAsString()));
  EXPECT_FALSE(DecodeReply<Sessions>("\x1a\x7f"));  // says that it is longer than it is
}

}  // namespace
}  // namespace cgdebug::answers
