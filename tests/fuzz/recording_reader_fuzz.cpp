// Opens any bytes as a recording and reads everything that is in it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/verify_recording.h"
#include "tests/fuzz/fuzz_segment.h"

using cgdebug::recording::RecordingReader;

namespace {

void ReadAll(const RecordingReader& reader) {
  for (const auto& slot : reader.slots()) {
    for (const auto& ref : reader.Snapshots(slot.id)) {
      const auto snapshot = reader.Read(ref);
      const auto payload = reader.ReadPayload(ref);
      // Every payload that is returned matches its hash, whatever the file says.
      if (!payload.ok() || payload->bytes.empty()) continue;
      if (!snapshot.ok() || cgdebug::recording::Xxh3(payload->bytes) != snapshot->payload_hash ||
          payload->bytes.size() != slot.payload_bytes) {
        std::abort();
      }
    }
    (void)reader.Last(slot.id);
    (void)reader.Find(slot.id, 1);
  }
  (void)reader.complete();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  cgdebug::fuzz::WriteSeeds();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string& directory = cgdebug::fuzz::WriteSegment(std::span(data, size));
  for (const bool trust_index : {true, false}) {
    auto reader = RecordingReader::Open(directory, {.trust_index = trust_index});
    if (!reader.ok()) continue;
    ReadAll(**reader);
    (void)(*reader)->Refresh();
  }
  if (auto reader = RecordingReader::Open(directory); reader.ok())
    (void)cgdebug::recording::VerifyRecording((*reader)->directory());
  return 0;
}
