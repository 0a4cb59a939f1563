// Makes the catalogue of any bytes, twice; then continues them as a writer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>

#include "daemon/core/recording/catalogue/catalogue.h"
#include "daemon/core/recording/recording_writer.h"
#include "tests/fuzz/fuzz_segment.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  cgdebug::fuzz::WriteSeeds();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cgdebug::recording;
  const std::string& directory = cgdebug::fuzz::WriteSegment(std::span(data, size));
  std::filesystem::remove(CataloguePath(directory));
  const auto rebuilt = UpdateCatalogue(directory);
  const auto updated = UpdateCatalogue(directory);
  // Nothing is taken in twice.
  if (rebuilt.ok() && (!updated.ok() || *updated != 0)) std::abort();
  WriterOptions options;
  options.durability = Durability::kNone;
  if (auto writer = RecordingWriter::Open(directory, options); writer.ok()) {
    (void)(*writer)->AddMark({});
    (void)(*writer)->Close(StopReason::kRequested);
  }
  return 0;
}
