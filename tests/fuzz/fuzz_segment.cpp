#include "tests/fuzz/fuzz_segment.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "daemon/core/recording/files/checksum.h"
#include "daemon/core/recording/recording_writer.h"
#include "proto/layout/recording_layout.h"

namespace cgdebug::fuzz {
namespace {

namespace fs = std::filesystem;
using layout::FileHeader;
using layout::RecordHeader;

// One per process, because several fuzz targets run side by side.
const std::string& Directory() {
  static const struct Own {
    ~Own() { fs::remove_all(path); }
    std::string path = "/dev/shm/fuzz-" + std::to_string(getpid()) + ".cgrec";
  } own;
  return own.path;
}

void PutRight(std::vector<std::uint8_t>* bytes) {
  if (bytes->size() < sizeof(FileHeader)) bytes->resize(sizeof(FileHeader));
  FileHeader file;
  std::memcpy(&file, bytes->data(), sizeof(file));
  file.magic = layout::kRecordingMagic;
  file.major = layout::kRecordingMajor;
  file.features = 0;
  const auto file_bytes = std::as_bytes(std::span(&file, 1));
  file.crc32c = recording::Crc32c(file_bytes.first(offsetof(FileHeader, crc32c)));
  std::memcpy(bytes->data(), &file, sizeof(file));
  for (std::size_t at = sizeof(file); at + sizeof(RecordHeader) <= bytes->size(); at += 64) {
    RecordHeader header;
    std::memcpy(&header, bytes->data() + at, sizeof(header));
    if (header.magic != layout::kRecordMagic) continue;
    header.offset = at;
    header.segment = file.segment;
    std::memcpy(&header.tag, file.uuid, sizeof(header.tag));
    header.crc32c = 0;
    const std::size_t room = bytes->size() - at - sizeof(header);
    const std::size_t meta = header.meta_bytes < room ? header.meta_bytes : room;
    std::memcpy(bytes->data() + at, &header, sizeof(header));
    header.crc32c =
        recording::Crc32c(std::as_bytes(std::span(*bytes).subspan(at, sizeof(header) + meta)));
    std::memcpy(bytes->data() + at, &header, sizeof(header));
  }
}

}  // namespace

const std::string& WriteSegment(std::span<const std::uint8_t> input) {
  const std::string& directory = Directory();
  // A writer that continues the recording adds files.
  fs::remove_all(directory);
  fs::create_directory(directory);
  std::vector<std::uint8_t> bytes(input.begin(), input.end());
  const bool put_right = !bytes.empty() && (bytes.front() & 1) != 0;
  if (!bytes.empty()) bytes.erase(bytes.begin());
  if (put_right) PutRight(&bytes);
  std::ofstream file(directory + "/segment-000001.cgd", std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return directory;
}

void WriteSeeds() {
  const char* seeds = std::getenv("CGDEBUG_FUZZ_SEEDS");
  if (seeds == nullptr) return;
  for (const int replays : {1, 3, 40}) {
    const std::string& directory = Directory();
    fs::remove_all(directory);
    {
      recording::WriterOptions options;
      options.durability = recording::Durability::kNone;
      options.index_bytes = 2048;
      auto writer = recording::RecordingWriter::Open(directory, options).value();
      recording::Session session;
      session.uuid = std::string(32, 'a');
      recording::Slot slot;
      slot.session = *writer->AddSession(session);
      slot.probe = "x";
      slot.dtype = layout::Dtype::kFloat32;
      slot.shape = {2};
      slot.payload_bytes = 8;
      (void)writer->AddSlot(slot);
      for (int replay = 1; replay <= replays; ++replay) {
        recording::Snapshot snapshot;
        snapshot.ordinal = snapshot.replay = static_cast<std::uint64_t>(replay);
        const float values[2] = {1, static_cast<float>(replay)};
        (void)writer->Append(snapshot, std::as_bytes(std::span(values)));
      }
      (void)writer->AddLoss({});
      (void)writer->AddMark({});
      (void)writer->Close(recording::StopReason::kRequested);
    }
    std::ifstream in(directory + "/segment-000001.cgd", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    for (const char first : {'\0', '\1'}) {
      std::ofstream out(
          std::string(seeds) + "/seed-" + std::to_string(replays) + (first != '\0' ? "-right" : ""),
          std::ios::binary);
      out << first << bytes;
    }
    fs::remove_all(directory);
  }
}

}  // namespace cgdebug::fuzz
