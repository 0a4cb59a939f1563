// Files as sources of tensors: what is read, and what is refused.
#include "client/source/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "client/source/safetensors.h"
#include "tests/support/analysis/memory_source.h"
#include "tests/support/recording/recording_fixture.h"
#include "tests/support/recording/safetensors_file.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::source {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::RecordingFixture;
using testing_support::SafetensorsBytes;
using testing_support::TempDir;
using testing_support::WriteFloats;
using testing_support::WriteRecording;
using testing_support::WriteText;

std::string RefusalOf(const std::string& header, const std::string& data) {
  const TempDir dir;
  WriteText(dir / "a.safetensors", SafetensorsBytes(header, data));
  const Result<SafetensorsFile> file = OpenSafetensors(dir / "a.safetensors");
  return file.ok() ? "" : file.error().message;
}

constexpr const char* kGood = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(Safetensors, ReadsTensorsWhereTheyLie) {
  const TempDir dir;
  WriteText(dir / "a.safetensors",
            SafetensorsBytes(R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
                             R"("a":{"dtype":"I64","shape":[],"data_offsets":[4,12]}})",
                             std::string("\x80\x3f\x00\x40", 4) + std::string(8, '\x01')));
  const Result<SafetensorsFile> file = OpenSafetensors(dir / "a.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors.size(), 2u);
  EXPECT_EQ(file->tensors[0].name, "b");
  EXPECT_EQ(file->tensors[0].dtype, layout::Dtype::kBfloat16);
  EXPECT_THAT(file->tensors[0].shape, ElementsAre(2, 1));
  EXPECT_EQ(file->tensors[1].bytes, 8u);
  const Result<Values> values = ReadTensor(*file, file->tensors[1]);
  ASSERT_TRUE(values.ok()) << values.error().message;
  ASSERT_EQ(values->bytes.size(), 8u);
  EXPECT_EQ(static_cast<int>(values->bytes[0]), 1);
}

TEST(Safetensors, RefusesValuesOfAFileThatWasCutOffOrReplacedSinceItWasOpened) {
  const TempDir dir;
  const std::string path = dir / "a.safetensors";
  const std::vector<float> values(100'000, 7);
  WriteFloats(path, {{"x", values}});
  const auto source = Open(path);
  ASSERT_TRUE(source.ok()) << source.error().message;
  const auto snapshot = (*source)->Get(0, (*source)->Keys(0)->front());
  ASSERT_TRUE(snapshot.ok());
  const auto before = (*source)->LoadWritable(*snapshot);
  ASSERT_TRUE(before.ok()) << before.error().message;
  std::filesystem::resize_file(path, 5000);
  EXPECT_EQ(std::memcmp(before->bytes.data(), values.data(), before->bytes.size()), 0);
  EXPECT_THAT((*source)->Load(*snapshot).error().message, HasSubstr("changed while it was read"));
  EXPECT_FALSE((*source)->LoadWritable(*snapshot).ok());
  WriteFloats(dir / "b.safetensors", {{"x", std::vector<float>(100'000, 8)}});
  std::filesystem::rename(dir / "b.safetensors", path);
  EXPECT_FALSE((*source)->Load(*snapshot).ok());
}

TEST(Safetensors, RefusesHeadersThatCannotBe) {
  const std::string data(8, '\0');
  EXPECT_EQ(RefusalOf(kGood, data), "");
  EXPECT_THAT(RefusalOf(kGood, std::string(7, '\0')), HasSubstr("cut off"));
  EXPECT_THAT(RefusalOf(kGood, std::string(9, '\0')), HasSubstr("belong to none"));
  const auto entry = [&](const std::string& text) {
    return RefusalOf("{\"a\":" + text + "}", data);
  };
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), HasSubstr("12 bytes"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
              HasSubstr("not a range"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
              HasSubstr("not a number"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
              HasSubstr("not a number"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]})"),
              HasSubstr("64 bits"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})"),
              HasSubstr("64 bits"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})"),
              HasSubstr("cut off"));
  EXPECT_THAT(entry(R"({"dtype":5,"shape":[2],"data_offsets":[0,8]})"), HasSubstr("needs dtype"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), HasSubstr("needs dtype"));
  EXPECT_THAT(entry("7"), HasSubstr("needs dtype"));
  EXPECT_THAT(entry(R"([[[[[[[[1]]]]]]]])"), HasSubstr("not a JSON object"));
  EXPECT_THAT(RefusalOf("[]", data), HasSubstr("not a JSON object"));
  EXPECT_THAT(RefusalOf("{", data), HasSubstr("not a JSON object"));
  EXPECT_THAT(RefusalOf(std::string(100'000, '['), data), HasSubstr("not a JSON object"));
  const std::string one = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_THAT(RefusalOf("{" + one + "," + one + "}", data), HasSubstr("twice"));
}

TEST(Safetensors, RefusesLengthsBeyondTheFile) {
  const TempDir dir;
  std::string bytes = SafetensorsBytes(kGood, std::string(8, '\0'));
  for (const std::uint64_t length :
       {UINT64_MAX, std::uint64_t{1} << 40, std::uint64_t{99'000'000}}) {
    std::memcpy(bytes.data(), &length, sizeof(length));
    WriteText(dir / "a.safetensors", bytes);
    EXPECT_FALSE(OpenSafetensors(dir / "a.safetensors").ok()) << length;
  }
}

TEST(Safetensors, OwnNumbersThatCannotBeAreAsIfTheyWereNotThere) {
  const testing_support::TempDir dir;
  testing_support::WriteText(
      dir / "a.safetensors",
      SafetensorsBytes(
          R"({"__metadata__":{"cgdebug":"{\"replay\":-1,\"rank\":1099511627776,\"step\":1e3}"},)"
          R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          std::string(4, 0)));
  const Result<SafetensorsFile> file = OpenSafetensors(dir / "a.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->replay, 0u);
  EXPECT_EQ(file->rank, -1);
  EXPECT_EQ(file->step, -1);
}

TEST(Safetensors, ADtypeThatIsNotKnownIsNamed) {
  const testing_support::TempDir dir;
  testing_support::WriteText(
      dir / "a.safetensors",
      SafetensorsBytes(R"({"x":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}})", "abcdefgh"));
  const auto source = Open(dir / "a.safetensors");
  ASSERT_TRUE(source.ok()) << source.error().message;
  const auto stats = StatsOf(**source, *(*source)->Get(0, (*source)->Keys(0)->front()));
  ASSERT_FALSE(stats.ok());
  EXPECT_EQ(stats.error().message, "x@1 is of dtype U64, which this version cannot read");
}

TEST(Safetensors, AWiderTypeHoldsTheValuesOfATypeThatNoProbeHas) {
  const testing_support::TempDir dir;
  testing_support::WriteText(
      dir / "a.safetensors",
      SafetensorsBytes(R"({"n":{"dtype":"U32","shape":[2],"data_offsets":[0,8]},
                          "s":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[8,12]}})",
                       std::string("\x01\0\0\0\xff\xff\xff\xff\x7f\x80\0\xff", 12)));
  const auto source = Open(dir / "a.safetensors");
  ASSERT_TRUE(source.ok()) << source.error().message;
  const auto stats_of = [&](std::size_t slot) {
    return *StatsOf(**source, *(*source)->Get(slot, (*source)->Keys(slot)->front()));
  };
  EXPECT_EQ((*source)->slots()[0].dtype_name, "int64");
  EXPECT_EQ((*source)->slots()[0].site, "U32 in the file");
  EXPECT_EQ(stats_of(0).max, 4294967295.0);
  EXPECT_EQ(stats_of(0).min, 1.0);
  EXPECT_EQ((*source)->slots()[1].dtype_name, "float8_e8m0fnu");
  EXPECT_EQ((*source)->slots()[1].site, "");
  EXPECT_EQ(stats_of(1).nan, 1u);
  EXPECT_EQ(stats_of(1).max, 2.0);
  EXPECT_EQ(stats_of(1).min, 0x1p-127);
}

TEST(Safetensors, AShapeOfFloat4CountsValuesOfWhichAByteHasTwo) {
  const testing_support::TempDir dir;
  const auto open = [&](const char* header, std::size_t bytes) {
    WriteText(dir / "a.safetensors", SafetensorsBytes(header, std::string(bytes, '\x21')));
    return Open(dir / "a.safetensors");
  };
  const auto source = open(R"({"x":{"dtype":"F4","shape":[2,6],"data_offsets":[0,6]}})", 6);
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->slots()[0].dtype_name, "float4_e2m1fn_x2");
  EXPECT_THAT((*source)->slots()[0].shape, ElementsAre(2u, 3u));
  const auto stats = StatsOf(**source, *(*source)->Get(0, (*source)->Keys(0)->front()));
  EXPECT_EQ(stats->count, 12u);
  EXPECT_EQ(stats->max, 1.0);
  for (const char* shape : {R"({"x":{"dtype":"F4","shape":[2,5],"data_offsets":[0,5]}})",
                            R"({"x":{"dtype":"F4","shape":[],"data_offsets":[0,5]}})"}) {
    const auto refused = open(shape, 5);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("is odd"));
  }
}

TEST(Safetensors, NoTruncationAndNoFlippedBitCrashes) {
  const TempDir dir;
  const std::string good = SafetensorsBytes(kGood, std::string(8, '\x3f'));
  for (std::size_t size = 0; size < good.size(); ++size) {
    WriteText(dir / "a.safetensors", good.substr(0, size));
    EXPECT_FALSE(OpenSafetensors(dir / "a.safetensors").ok()) << size;
  }
  for (std::size_t bit = 0; bit < 8 * (good.size() - 8); ++bit) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    WriteText(dir / "a.safetensors", flipped);
    const Result<SafetensorsFile> file = OpenSafetensors(dir / "a.safetensors");
    if (!file.ok()) continue;
    for (const SafetensorsTensor& tensor : file->tensors) EXPECT_LE(tensor.bytes, 8u);
  }
}

TEST(Source, FilesOfAFolderAreReplaysByTheNumberInTheirName) {
  const TempDir dir;
  WriteFloats(dir / "step_9.safetensors", {{"x", {1, 2}}});
  WriteFloats(dir / "step_10.safetensors", {{"x", {3, 4}}});
  const auto source = Open(dir.path().string());
  ASSERT_TRUE(source.ok()) << source.error().message;
  ASSERT_EQ((*source)->slots().size(), 1u);
  const auto keys = (*source)->Keys(0);
  ASSERT_TRUE(keys.ok());
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].replay, 9u);
  EXPECT_EQ((*keys)[1].replay, 10u);
  const auto snapshot = (*source)->Get(0, (*keys)[1]);
  ASSERT_TRUE(snapshot.ok());
  const auto stats = StatsOf(**source, *snapshot);
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->max, 4);
}

TEST(Source, FilesThatShareNoNameAreOneReplay) {
  const TempDir dir;
  WriteFloats(dir / "model-00001-of-00002.safetensors", {{"x", {1}}});
  WriteFloats(dir / "model-00002-of-00002.safetensors", {{"y", {2}}});
  const auto source = Open(dir.path().string());
  ASSERT_TRUE(source.ok()) << source.error().message;
  ASSERT_EQ((*source)->slots().size(), 2u);
  for (const std::size_t slot : {0, 1}) EXPECT_EQ((*source)->Keys(slot)->at(0).replay, 1u);
}

TEST(Source, AShardThatIsNotHereIsSaid) {
  const TempDir dir;
  WriteFloats(dir / "model-00001-of-00003.safetensors", {{"x", {1, 2}}});
  WriteFloats(dir / "model-00003-of-00003.safetensors", {{"y", {1, 2}}});
  const auto unread = [&](const std::string& path) {
    const auto source = Open(path);
    return source.ok() ? (*source)->Describe().unread : std::vector{source.error().message};
  };
  const std::string folder = dir.path().string();
  EXPECT_THAT(unread(folder), ElementsAre("model-00002-of-00003.safetensors is not here"));
  // Who names one file wants no other.
  EXPECT_THAT(unread(dir / "model-00001-of-00003.safetensors"), ElementsAre());
  WriteFloats(dir / "model-00002-of-00003.safetensors", {{"z", {1, 2}}});
  EXPECT_THAT(unread(folder), ElementsAre());
  WriteText(dir / "model.safetensors.index.json",
            R"({"weight_map": {"x": "model-00001-of-00003.safetensors", "v": "vision.safetensors",
                               "w": "words.safetensors"}})");
  EXPECT_THAT(unread(folder), ElementsAre("vision.safetensors is not here, and 1 more is not"));
  WriteText(dir / "model.safetensors.index.json", "no JSON at all");
  EXPECT_THAT(unread(folder), ElementsAre(HasSubstr("model.safetensors.index.json is no index")));
  std::filesystem::remove(dir / "model.safetensors.index.json");
  WriteFloats(dir / "from-00000-of-00002.safetensors", {{"a", {1, 2}}});
  EXPECT_THAT(unread(folder), ElementsAre("from-00001-of-00002.safetensors is not here"));
}

TEST(Source, APathThatIsNotASourceIsRefusedAndTheKindsAreNamed) {
  const TempDir dir;
  EXPECT_THAT(Open(dir / "nowhere").error().message, HasSubstr("does not exist"));
  EXPECT_THAT(Open(dir.path().string()).error().message, HasSubstr("neither a recording"));
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(Open(dir / "pipe").error().message, dir / "pipe" + " is not a regular file");
  for (const char* text : {"", "short", "a text that is no tensor at all, but long enough"}) {
    WriteText(dir / "text", text);
    EXPECT_EQ(
        Open(dir / "text").error().message,
        dir / "text" +
            " cannot be read: it does not look like a .safetensors file, the only kind of "
            "file that can be read; a recording is a directory, NAME.cgrec. Type for example: "
            "cgdebug-cli info NAME.cgrec");
  }
}

// Small values of recordings are copied, large ones are mapped.
TEST(Source, ChangingWritableValuesChangesNothingElse) {
  for (const std::size_t count : {2u, 100'000u}) {
    const TempDir dir;
    const std::vector<float> values(count, 7);
    WriteFloats(dir / "a.safetensors", {{"w", {1}}, {"x", values}});
    RecordingFixture recording(dir / "a.cgrec");
    recording.AddSlot("w", {1});
    recording.Add(recording.AddSlot("x", {count}), 1, values);
    recording.Close();
    for (const char* name : {"a.safetensors", "a.cgrec"}) {
      const auto source = Open(dir / name);
      ASSERT_TRUE(source.ok()) << source.error().message;
      const auto snapshot = (*source)->Get(1, (*source)->Keys(1)->front());
      ASSERT_TRUE(snapshot.ok());
      const auto writable = (*source)->LoadWritable(*snapshot);
      ASSERT_TRUE(writable.ok()) << writable.error().message;
      auto* bytes = const_cast<std::byte*>(writable->bytes.data());
      ASSERT_EQ(writable->bytes.size(), count * 4);
      for (std::size_t i = 0; i < writable->bytes.size(); ++i) bytes[i] = std::byte{0xff};
      for (const auto& again : {(*source)->Load(*snapshot), (*source)->LoadWritable(*snapshot)}) {
        ASSERT_TRUE(again.ok()) << again.error().message;
        EXPECT_EQ(std::memcmp(again->bytes.data(), values.data(), again->bytes.size()), 0) << name;
      }
    }
  }
}

TEST(RecordingSource, GivesWhatWasWritten) {
  const TempDir dir;
  WriteRecording(dir / "a.cgrec", 3, 10);
  const auto source = Open(dir / "a.cgrec");
  ASSERT_TRUE(source.ok()) << source.error().message;
  ASSERT_EQ((*source)->slots().size(), 2u);
  EXPECT_EQ(SlotText((*source)->slots()[1]), "y");
  EXPECT_EQ(TypeText((*source)->slots()[0]), "f32[2,2]");
  const auto keys = (*source)->Keys(1);
  ASSERT_TRUE(keys.ok());
  ASSERT_EQ(keys->size(), 3u);
  const auto snapshot = (*source)->Get(1, keys->back());
  ASSERT_TRUE(snapshot.ok()) << snapshot.error().message;
  EXPECT_EQ(snapshot->step, 1003);
  EXPECT_TRUE(snapshot->hash.has_value());
  EXPECT_EQ(snapshot->stats->max, 30);
  const auto values = (*source)->Load(*snapshot);
  ASSERT_TRUE(values.ok()) << values.error().message;
  float second = 0;
  std::memcpy(&second, values->bytes.data() + 4, 4);
  EXPECT_EQ(second, 30);
  EXPECT_TRUE((*source)->Gaps().empty());
  EXPECT_FALSE((*source)->Describe().is_cut_off);
}

// If they were mapped, they would end the process that reads them.
TEST(RecordingSource, HeldValuesOutliveAFileThatIsCutOff) {
  const TempDir dir;
  const std::vector<float> values(100'000, 7);
  for (const bool finished : {true, false}) {
    RecordingFixture recording(dir / "a.cgrec");
    recording.Add(recording.AddSlot("x", {values.size()}), 1, values);
    if (finished) recording.Close();
    const auto source = Open(dir / "a.cgrec");
    ASSERT_TRUE(source.ok()) << source.error().message;
    const auto snapshot = (*source)->Get(0, (*source)->Keys(0)->front());
    ASSERT_TRUE(snapshot.ok()) << snapshot.error().message;
    const auto held = finished ? (*source)->Load(*snapshot) : (*source)->LoadWritable(*snapshot);
    ASSERT_TRUE(held.ok()) << held.error().message;
    std::filesystem::resize_file(dir / "a.cgrec/segment-000001.cgd", 8192);
    EXPECT_EQ(std::memcmp(held->bytes.data(), values.data(), held->bytes.size()), 0);
    EXPECT_THAT((*source)->Load(*snapshot).error().message,
                AnyOf(HasSubstr("was cut off while it was read"), HasSubstr("is damaged at byte")));
    if (!finished) recording.Close();
    std::filesystem::remove_all(dir / "a.cgrec");
  }
}

TEST(RecordingSource, SaysWhatIsMissing) {
  const TempDir dir;
  {
    RecordingFixture recording(dir / "a.cgrec");
    const std::uint32_t x = recording.AddSlot("x", {1});
    recording.Add(x, 1, {1});
    recording.Lose(x, 2);
    recording.Add(x, 3, {3}, /*stats_only=*/true);
    const auto growing = Open(dir / "a.cgrec");
    ASSERT_TRUE(growing.ok()) << growing.error().message;
    EXPECT_TRUE((*growing)->Describe().is_growing);
    recording.Close(recording::StopReason::kDiskFull);
  }
  const auto source = Open(dir / "a.cgrec");
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_TRUE((*source)->Describe().is_cut_off);
  ASSERT_EQ((*source)->Gaps().size(), 1u);
  EXPECT_EQ((*source)->Gaps()[0].count, 1u);
  const auto keys = (*source)->Keys(0);
  ASSERT_EQ(keys->size(), 2u);
  const auto snapshot = (*source)->Get(0, keys->back());
  ASSERT_TRUE(snapshot.ok());
  EXPECT_FALSE(snapshot->has_values);
  EXPECT_FALSE((*source)->Load(*snapshot).ok());
}

TEST(RecordingSource, AFolderIsItsRanks) {
  const TempDir dir;
  WriteRecording(dir / "r0.cgrec", 2, 1, 0);
  WriteRecording(dir / "r1.cgrec", 2, 5, 1);
  const auto source = Open(dir.path().string());
  ASSERT_TRUE(source.ok()) << source.error().message;
  ASSERT_EQ((*source)->slots().size(), 4u);
  EXPECT_EQ((*source)->slots()[3].rank, 1);
  const auto snapshot = (*source)->Get(3, (*source)->Keys(3)->front());
  ASSERT_TRUE(snapshot.ok());
  EXPECT_EQ(snapshot->slot, 3u);
  EXPECT_EQ(snapshot->stats->max, 5);
  EXPECT_TRUE((*source)->Load(*snapshot).ok());
  EXPECT_EQ((*source)->Recordings().size(), 2u);
}

TEST(RecordingSource, AFolderLacksWhatAnyOfItsRanksLacks) {
  const TempDir dir;
  for (const int rank : {0, 1}) {
    RecordingFixture recording(dir / ("r" + std::to_string(rank) + ".cgrec"), rank);
    recording.Add(recording.AddSlot("x", {1}), 1, {1});
    const std::uint32_t y = recording.AddSlot("y", {1});
    if (rank == 1) recording.Lose(y, 1);
    recording.Close(rank == 0 ? recording::StopReason::kDiskFull
                              : recording::StopReason::kJobEnded);
  }
  const auto source = Open(dir.path().string());
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_TRUE((*source)->Describe().is_cut_off);
  ASSERT_EQ((*source)->Gaps().size(), 1u);
  const Slot& lacks = (*source)->slots()[(*source)->Gaps()[0].slot];
  EXPECT_EQ(lacks.probe, "y");
  EXPECT_EQ(lacks.rank, 1);
}

class Iterations final : public testing_support::MemorySource {
 public:
  Result<std::vector<Key>> Keys(std::size_t) override {
    return std::vector<Key>{{1, 1, 0}, {1, 2, 1}, {1, 3, 2}, {3, 4, 0}};
  }
};

TEST(Source, AReplayWithoutANumberIsItsLastIteration) {
  Iterations source;
  const auto id = [&](std::uint64_t replay, std::optional<std::uint32_t> iteration = {}) {
    const std::optional<Key> key = *source.Find(0, replay, iteration);
    return key ? key->id : 0;
  };
  EXPECT_EQ(id(1), 3u);
  EXPECT_EQ(id(1, 0), 1u);
  EXPECT_EQ(id(1, 1), 2u);
  EXPECT_EQ(id(1, 3), 0u);
  EXPECT_EQ(id(2), 0u);
  EXPECT_EQ(id(3), 4u);
}

TEST(RecordingSource, AFolderGrowsAsLongAsOneOfItsRecordingsDoes) {
  const TempDir dir;
  WriteRecording(dir / "r0.cgrec", 2, 1, 0);
  RecordingFixture recording(dir / "r1.cgrec", 1);
  recording.Add(recording.AddSlot("x", {1}), 1, {1});
  EXPECT_TRUE((*Open(dir.path().string()))->Describe().is_growing);
  recording.Close();
  EXPECT_FALSE((*Open(dir.path().string()))->Describe().is_growing);
}

TEST(RecordingSource, ARunHasAsManyRanksAsItsLargestSessionSays) {
  const TempDir dir;
  for (const auto& [rank, size] : {std::pair(0, 4), std::pair(1, 2)}) {
    recording::Session session;
    session.uuid = std::string(32, static_cast<char>('a' + rank));
    session.run_id = "run";
    session.rank = rank;
    session.world_size = size;
    auto writer =
        *recording::RecordingWriter::Open(dir / ("r" + std::to_string(rank) + ".cgrec"), {});
    ASSERT_TRUE(writer->AddSession(session).ok());
    ASSERT_TRUE(writer->Close(recording::StopReason::kJobEnded).ok());
  }
  const auto source = Open(dir.path().string());
  ASSERT_TRUE(source.ok()) << source.error().message;
  const std::vector<AbsentRanks> absent = AbsentRanksOf(**source);
  ASSERT_EQ(absent.size(), 1u);
  EXPECT_EQ(absent[0].world_size, 4u);
  EXPECT_EQ(absent[0].absent, (std::set<std::uint64_t>{2, 3}));
}

}  // namespace
}  // namespace cgdebug::source
