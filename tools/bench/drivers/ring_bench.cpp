// Small messages through a slot's ring and through a Unix socket, from one process to another on
// the same two cores: for tools/bench/ring.py.
//
//   ring_bench ring|socket BYTES SECONDS     prints one line of JSON
//
// throughput: the writer never waits for an answer, and waits when the other side is behind.
// latency:    one message at a time, every 50 us; from before it is written to when the reader,
// which
//             polls, has copied it out.
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/ring/segment/segment_view.h"
#include "libprobe/ring/segment/segment_writer.h"
#include "libprobe/ring/slot_ring_writer.h"

namespace cgdebug {
namespace {

std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void PinTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

// What the two processes share besides the messages.
struct Shared {
  std::atomic<std::uint64_t> received = 0;  // Atomic: written by the reader
  std::atomic<bool> stop = false;           // Atomic: written by the writer
};

class Channel {
 public:
  virtual ~Channel() = default;
  // In the reader's process, before the first message.
  virtual void OpenReader() {}
  virtual void Write(const std::byte* message) = 0;
  // False: nothing has come yet.
  virtual bool Read(std::byte* message) = 0;
};

class RingChannel final : public Channel {
 public:
  static constexpr std::uint32_t kCapacity = 1024;

  explicit RingChannel(std::uint64_t bytes) : bytes_(bytes) {
    layout::SlotRegistration r = {};
    r.probe_id = r.order = 1;
    r.dtype = static_cast<std::uint16_t>(layout::Dtype::kUint8);
    r.dims = 1;
    r.shape[0] = r.payload_bytes = bytes;
    r.capacity = kCapacity;
    r.record_every = 1;
    r.actions = layout::kActionRecord;
    const auto geometry = layout::ComputeGeometry(r.payload_bytes, r.capacity);
    r.payload_stride_bytes = geometry.payload_stride_bytes;
    r.headers_offset = geometry.headers_offset;
    r.payload_offset = geometry.payload_offset;
    std::snprintf(r.name, sizeof(r.name), "bench");
    const ring::Block block = segment_.Allocate(geometry.block_bytes, geometry.payload_offset);
    std::memcpy(block.data, &r, sizeof(r));
    slot_ = segment_.Publish(block);
    writer_.emplace(block.data, segment_.producer(), segment_.gate());
  }

  void OpenReader() override {
    std::string reason;
    view_ = ring::SegmentView::Attach(segment_.name(), &reason);
    if (view_ != nullptr) reader_ = view_->OpenSlot(slot_, &reason);
    if (!reader_) {
      std::fprintf(stderr, "ring_bench: %s\n", reason.c_str());
      _exit(1);
    }
  }
  void Write(const std::byte* message) override {
    writer_->Begin();
    std::memcpy(writer_->payload(), message, bytes_);
    writer_->Commit(0);
  }
  bool Read(std::byte* message) override {
    if (reader_->Read(next_, &entry_) != ring::ReadStatus::kOk) return false;
    ++next_;
    std::memcpy(message, entry_.payload.data(), bytes_);
    return true;
  }
  void Close() { segment_.Close(/*unlink=*/true); }

 private:
  std::uint64_t bytes_;
  static ring::Identity ForNoDaemon() {
    ring::Identity identity;
    identity.socket = "ring_bench";
    return identity;
  }
  ring::SegmentWriter segment_{ForNoDaemon()};
  std::uint32_t slot_ = 0;
  std::optional<ring::SlotRingWriter> writer_;
  std::unique_ptr<ring::SegmentView> view_;
  std::optional<ring::SlotRingReader> reader_;
  ring::Entry entry_;
  std::uint64_t next_ = 1;
};

class SocketChannel final : public Channel {
 public:
  explicit SocketChannel(std::uint64_t bytes) : bytes_(bytes) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) != 0) std::abort();
  }
  void Write(const std::byte* message) override {
    if (send(ends_[0], message, bytes_, 0) != static_cast<ssize_t>(bytes_)) std::abort();
  }
  bool Read(std::byte* message) override {
    return recv(ends_[1], message, bytes_, MSG_DONTWAIT) == static_cast<ssize_t>(bytes_);
  }

 private:
  std::uint64_t bytes_;
  int ends_[2] = {-1, -1};
};

// The reader: copies every message out; of those that carry a time, how old they were.
void ReadAll(Channel& channel, std::uint64_t bytes, Shared* shared, int report) {
  PinTo(1);
  channel.OpenReader();
  std::vector<std::byte> message(bytes);
  std::vector<float> ages_ns;
  while (!shared->stop.load(std::memory_order_relaxed)) {
    if (!channel.Read(message.data())) continue;
    std::int64_t sent_ns = 0;
    std::memcpy(&sent_ns, message.data(), sizeof(sent_ns));
    if (sent_ns != 0) ages_ns.push_back(static_cast<float>(NowNs() - sent_ns));
    shared->received.fetch_add(1, std::memory_order_release);
  }
  std::sort(ages_ns.begin(), ages_ns.end());
  const auto part = [&](double p) {
    return ages_ns.empty()
               ? 0.f
               : ages_ns[static_cast<std::size_t>(p * static_cast<double>(ages_ns.size() - 1))];
  };
  const float answer[3] = {part(0.5), part(0.99), part(1)};
  if (write(report, answer, sizeof(answer)) != sizeof(answer)) _exit(1);
  _exit(0);
}

int Run(const std::string& kind, std::uint64_t bytes, double seconds) {
  std::unique_ptr<Channel> channel;
  RingChannel* ring = nullptr;
  if (kind == "ring") {
    channel = std::make_unique<RingChannel>(bytes);
    ring = static_cast<RingChannel*>(channel.get());
  } else {
    channel = std::make_unique<SocketChannel>(bytes);
  }
  void* page =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 1;
  auto* shared = new (page) Shared;
  int report[2];
  if (pipe(report) != 0) return 1;
  const pid_t reader = fork();
  if (reader == 0) ReadAll(*channel, bytes, shared, report[1]);
  PinTo(0);
  std::vector<std::byte> message(bytes);
  std::uint64_t sent = 0;
  const auto write_one = [&](std::int64_t time_ns) {
    while (sent - shared->received.load(std::memory_order_acquire) >= RingChannel::kCapacity - 8) {
    }
    std::memcpy(message.data(), &time_ns, sizeof(time_ns));
    channel->Write(message.data());
    ++sent;
  };
  write_one(0);
  while (shared->received.load() < sent) usleep(1000);
  const std::int64_t start_ns = NowNs();
  const auto length_ns = static_cast<std::int64_t>(seconds * 5e8);
  std::uint64_t many = 0;
  while (NowNs() - start_ns < length_ns) {
    for (int i = 0; i < 64; ++i) write_one(0);
    many += 64;
  }
  while (shared->received.load() < sent) {
  }
  const double took_s = static_cast<double>(NowNs() - start_ns) / 1e9;
  const std::int64_t latency_end_ns = NowNs() + length_ns;
  for (std::int64_t next_ns = NowNs(); next_ns < latency_end_ns; next_ns += 50'000) {
    while (NowNs() < next_ns) {
    }
    write_one(NowNs());
    while (shared->received.load(std::memory_order_acquire) < sent) {
    }
  }
  shared->stop = true;
  float latency_ns[3] = {};
  if (read(report[0], latency_ns, sizeof(latency_ns)) != sizeof(latency_ns)) return 1;
  waitpid(reader, nullptr, 0);
  const double per_second = static_cast<double>(many) / took_s;
  std::printf("{\"messages_per_s\": %.0f, \"gbs\": %.3f, \"p50_ns\": %.0f, \"p99_ns\": %.0f}\n",
              per_second, per_second * static_cast<double>(bytes) / 1e9,
              static_cast<double>(latency_ns[0]), static_cast<double>(latency_ns[1]));
  if (ring != nullptr) ring->Close();
  return 0;
}

}  // namespace
}  // namespace cgdebug

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "ring_bench ring|socket BYTES SECONDS\n");
    return 2;
  }
  return cgdebug::Run(argv[1], std::strtoull(argv[2], nullptr, 10), std::strtod(argv[3], nullptr));
}
