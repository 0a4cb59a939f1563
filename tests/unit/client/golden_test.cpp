// The recordings in tests/data were written once and must stay readable for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/core/recording/recording_reader.h"
#include "tests/support/temp_dir.h"

namespace cgdebug::recording {
namespace {

using Json = nlohmann::json;

const std::filesystem::path kData = CGDEBUG_TEST_DATA;

std::string Hex(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    hex += "0123456789abcdef"[std::to_integer<int>(byte) >> 4];
    hex += "0123456789abcdef"[std::to_integer<int>(byte) & 15];
  }
  return hex;
}

// What make.py wrote down about one snapshot: its bytes in hex, how many they are, null where only
// statistics were recorded, or "damaged".
Json Found(const RecordingReader& reader, const SnapshotRef& ref) {
  const auto snapshot = reader.Read(ref);
  if (!snapshot.ok()) return "damaged";
  if (snapshot->stats_only) return nullptr;
  const auto payload = reader.ReadPayload(ref);
  if (!payload.ok()) return "damaged";
  if (payload->bytes.size() <= 256) return Hex(payload->bytes);
  return payload->bytes.size();
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, IsReadAsItWasWritten) {
  const testing_support::TempDir dir;
  const std::string name = GetParam();
  std::filesystem::copy(kData / (name + ".cgrec"), dir / name,
                        std::filesystem::copy_options::recursive);
  const Json expected = Json::parse(std::ifstream(kData / (name + ".json"))).at("recording");
  const auto reader = RecordingReader::Open(dir / name);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  ASSERT_EQ((*reader)->slots().size(), expected.size());
  for (const Slot& slot : (*reader)->slots()) {
    // The expected ones are in the order in which a Source shows them.
    const auto same = std::find_if(expected.begin(), expected.end(), [&](const Json& other) {
      return other.at("probe") == slot.probe && other.at("order") == slot.order &&
             other.at("session") == (*reader)->sessions().at(slot.session).label;
    });
    ASSERT_NE(same, expected.end()) << slot.probe;
    EXPECT_EQ(same->at("dtype"), layout::DtypeName(slot.dtype));
    EXPECT_EQ(same->at("shape").get<std::vector<std::uint64_t>>(), slot.shape);
    Json found = Json::object();
    for (const SnapshotRef& ref : (*reader)->Snapshots(slot.id)) {
      found[std::to_string(ref.replay)] = Found(**reader, ref);
    }
    EXPECT_EQ(same->at("snapshots"), found) << slot.probe;
  }
}

INSTANTIATE_TEST_SUITE_P(Data, Golden,
                         testing::Values("dtypes", "statistics", "losses", "graphs", "damaged"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cgdebug::recording
