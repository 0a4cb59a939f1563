// One measurement of tools/bench/recording.py: writes or opens, and prints what it took as JSON.
//
//   recording_bench cgrec DIR BYTES COUNT    a recording of COUNT snapshots of BYTES each
//   recording_bench raw FILE BYTES COUNT     the same payloads by write(), one after the other
//   recording_bench open DIR                 opens a recording and reads one snapshot
// Both writers end with fdatasync().
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "daemon/core/recording/recording_reader.h"
#include "daemon/core/recording/recording_writer.h"

namespace {

using cgdebug::recording::RecordingReader;
using cgdebug::recording::RecordingWriter;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "recording_bench: %s\n", why.c_str());
  std::exit(2);
}

std::vector<std::byte> Payload(std::uint64_t bytes) {
  std::vector<std::byte> payload(bytes);
  std::mt19937_64 random(1);
  for (std::uint64_t at = 0; at + 8 <= bytes; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(payload.data() + at, &word, sizeof(word));
  }
  return payload;
}

// The maximum of this program only: getrusage() also counts what its parent had before exec.
long MaxRssKib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return -1;
}

double WriteRecording(const std::string& directory, std::uint64_t bytes, std::uint64_t count) {
  const std::vector<std::byte> payload = Payload(bytes);
  cgdebug::recording::WriterOptions options;
  options.durability = cgdebug::recording::Durability::kNone;
  options.gather = true;  // as the daemon does
  const auto start = Clock::now();
  auto writer = RecordingWriter::Open(directory, options);
  if (!writer.ok()) Die(writer.error().message);
  cgdebug::recording::Session session;
  session.uuid = std::string(32, 'a');
  cgdebug::recording::Slot slot;
  slot.session = *(*writer)->AddSession(session);
  slot.probe = "x";
  slot.dtype = cgdebug::layout::Dtype::kUint8;
  slot.shape = {bytes};
  slot.payload_bytes = bytes;
  if (!(*writer)->AddSlot(slot).ok()) Die("no slot");
  for (std::uint64_t replay = 1; replay <= count; ++replay) {
    cgdebug::recording::Snapshot snapshot;
    snapshot.ordinal = snapshot.replay = replay;
    snapshot.timestamp_ns = static_cast<std::int64_t>(replay);
    const auto appended = (*writer)->Append(snapshot, payload);
    if (!appended.ok()) Die(appended.error().message);
  }
  if (!(*writer)->Commit().ok()) Die("no commit");
  const double seconds = SecondsSince(start);
  if (!(*writer)->Close(cgdebug::recording::StopReason::kRequested).ok()) Die("not closed");
  return seconds;
}

double WriteRaw(const std::string& path, std::uint64_t bytes, std::uint64_t count) {
  const std::vector<std::byte> payload = Payload(bytes);
  const auto start = Clock::now();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) Die("cannot create " + path);
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t written = ::write(fd, payload.data() + done, bytes - done);
      if (written <= 0) Die("cannot write " + path);
      done += static_cast<std::size_t>(written);
    }
  }
  if (::fdatasync(fd) != 0) Die("cannot sync " + path);
  const double seconds = SecondsSince(start);
  ::close(fd);
  return seconds;
}

double OpenOne(const std::string& directory) {
  const auto start = Clock::now();
  const auto reader = RecordingReader::Open(directory);
  if (!reader.ok()) Die(reader.error().message);
  const auto ref = (*reader)->Find(0, (*reader)->last_replay() / 2);
  if (!ref || !(*reader)->ReadPayload(*ref).ok()) Die("the snapshot cannot be read");
  return SecondsSince(start);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  double seconds = 0;
  if (what == "open") {
    seconds = OpenOne(argv[2]);
  } else if (argc == 5 && what == "cgrec") {
    seconds = WriteRecording(argv[2], std::strtoull(argv[3], nullptr, 10),
                             std::strtoull(argv[4], nullptr, 10));
  } else if (argc == 5 && what == "raw") {
    seconds =
        WriteRaw(argv[2], std::strtoull(argv[3], nullptr, 10), std::strtoull(argv[4], nullptr, 10));
  } else {
    Die("cgrec DIR BYTES COUNT | raw FILE BYTES COUNT | open DIR");
  }
  std::printf("{\"seconds\": %.6f, \"max_rss_kib\": %ld}\n", seconds, MaxRssKib());
  return 0;
}
