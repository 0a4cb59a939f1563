#include "daemon/core/recording/files/byte_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/core/base/regular_file.h"
#include "daemon/core/base/unique_fd.h"
#include "daemon/core/recording/files/remote_files.h"

namespace cgdebug::recording {
namespace {

class LocalFile : public ByteFile {
 public:
  LocalFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  Result<std::uint64_t> Size() const override {
    struct stat status = {};
    if (fstat(fd_.get(), &status) != 0) return ErrnoError("cannot look at " + path_);
    return static_cast<std::uint64_t>(status.st_size);
  }
  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> buffer) const override {
    return cgdebug::ReadAt(fd_.get(), offset, buffer);
  }
  int fd() const override { return fd_.get(); }
  // What is read stays in the processor's cache until it is summed up.
  std::size_t part_bytes() const override { return 256 << 10; }

 private:
  std::string path_;
  UniqueFd fd_;
};

constexpr std::size_t kBlockBytes = 16 << 10;
constexpr std::size_t kMostAhead = 256;  // blocks
constexpr std::size_t kPartBytes = 8 << 20;
constexpr std::size_t kCacheBytes = 256 << 20;
constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max();  // as of any file

// Blocks of remote files, those that were used last. One for all files: a folder may have thousands
// of recordings.
class BlockCache {
 public:
  using Block = std::shared_ptr<const std::vector<std::byte>>;
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // file, block

  static BlockCache& Get() {
    static auto* cache = new BlockCache;  // never freed, as files may live until the process ends
    return *cache;
  }

  std::uint64_t NewFile() {
    const std::scoped_lock lock(mutex_);
    return ++files_;
  }
  Block Find(const Key& key) {
    const std::scoped_lock lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    blocks_.splice(blocks_.begin(), blocks_, found->second);
    return found->second->second;
  }
  void Add(const Key& key, Block block) {
    const std::scoped_lock lock(mutex_);
    if (places_.contains(key)) return;
    bytes_ += block->size();
    blocks_.emplace_front(key, std::move(block));
    places_[key] = blocks_.begin();
    while (bytes_ > kCacheBytes) {
      bytes_ -= blocks_.back().second->size();
      places_.erase(blocks_.back().first);
      blocks_.pop_back();
    }
  }
  void Drop(std::uint64_t file) {
    const std::scoped_lock lock(mutex_);
    for (auto at = places_.lower_bound({file, 0});
         at != places_.end() && at->first.first == file;) {
      bytes_ -= at->second->second->size();
      blocks_.erase(at->second);
      at = places_.erase(at);
    }
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::uint64_t files_ = 0;
  std::size_t bytes_ = 0;
  std::list<std::pair<Key, Block>> blocks_;  // the one used last first
  std::map<Key, std::list<std::pair<Key, Block>>::iterator> places_;
};

// Fetches large pieces as they are asked for, and small ones by blocks that are kept. Blocks that
// are asked for in a row are fetched further and further ahead.
class RemoteFile : public ByteFile {
 public:
  RemoteFile(std::string url, RemoteFiles* files)
      : url_(std::move(url)), files_(files), id_(BlockCache::Get().NewFile()) {}
  ~RemoteFile() override { BlockCache::Get().Drop(id_); }

  Result<std::uint64_t> Size() const override {
    const Result<std::uint64_t> size = files_->Size(url_);
    if (!size.ok()) return size;
    if (*size > kMostBytes) return Error{fmt::format("{} cannot have {} bytes", url_, *size)};
    const std::scoped_lock lock(mutex_);
    // Another file may lie there now.
    if (*size != size_) BlockCache::Get().Drop(id_);
    size_ = *size;
    next_block_ = 0;
    ahead_ = 1;
    return size;
  }

  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> buffer) const override {
    const std::uint64_t size = [&] {
      const std::scoped_lock lock(mutex_);
      return size_;
    }();
    if (offset >= size) return std::size_t{0};
    buffer = buffer.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size - offset)));
    if (buffer.size() > kBlockBytes) {
      if (const auto got = files_->Fetch(url_, offset, buffer); !got.ok()) return got.error();
      return buffer.size();
    }
    for (std::size_t done = 0; done < buffer.size();) {
      const std::uint64_t at = offset + done;
      const Result<BlockCache::Block> block = GetBlock(at / kBlockBytes, size);
      if (!block.ok()) return block.error();
      const std::size_t begin = at % kBlockBytes;
      const std::size_t count = std::min(buffer.size() - done, (*block)->size() - begin);
      std::memcpy(buffer.data() + done, (*block)->data() + begin, count);
      done += count;
    }
    return buffer.size();
  }

  std::size_t part_bytes() const override { return kPartBytes; }

 private:
  Result<BlockCache::Block> GetBlock(std::uint64_t number, std::uint64_t size) const {
    BlockCache& cache = BlockCache::Get();
    if (auto block = cache.Find({id_, number})) return block;
    const std::uint64_t all = (size + kBlockBytes - 1) / kBlockBytes;
    std::size_t count = 1;
    {
      const std::scoped_lock lock(mutex_);
      ahead_ = number == next_block_ ? std::min(2 * ahead_, kMostAhead) : 1;
      count = static_cast<std::size_t>(std::min<std::uint64_t>(ahead_, all - number));
      next_block_ = number + count;
    }
    const std::uint64_t begin = number * kBlockBytes;
    const std::uint64_t end = std::min<std::uint64_t>(size, begin + count * kBlockBytes);
    std::vector<std::byte> bytes(static_cast<std::size_t>(end - begin));
    if (const auto got = files_->Fetch(url_, begin, bytes); !got.ok()) return got.error();
    BlockCache::Block first;
    for (std::size_t at = 0; at < bytes.size(); at += kBlockBytes) {
      const std::span piece =
          std::span(bytes).subspan(at, std::min(kBlockBytes, bytes.size() - at));
      auto block = std::make_shared<const std::vector<std::byte>>(piece.begin(), piece.end());
      if (at == 0) first = block;
      cache.Add({id_, number + at / kBlockBytes}, std::move(block));
    }
    return first;
  }

  std::string url_;
  RemoteFiles* files_;
  std::uint64_t id_;          // in the cache
  mutable std::mutex mutex_;  // guards what follows
  mutable std::uint64_t size_ = 0;
  mutable std::uint64_t next_block_ = 0;  // behind what was fetched last
  mutable std::size_t ahead_ = 1;         // how many blocks were fetched at once
};

}  // namespace

Result<std::unique_ptr<ByteFile>> ByteFile::Open(const std::string& path) {
  if (IsUrl(path)) {
    const Result<RemoteFiles*> files = FindRemoteFiles(path);
    if (!files.ok()) return files.error();
    return std::unique_ptr<ByteFile>(std::make_unique<RemoteFile>(path, *files));
  }
  auto fd = OpenRegularFile(path, O_RDONLY);
  if (!fd.ok()) return fd.error();
  return std::unique_ptr<ByteFile>(std::make_unique<LocalFile>(path, *std::move(fd)));
}

}  // namespace cgdebug::recording
