// shared_file.h: one mapped file in /dev/shm, whose pages are reserved before they are used.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace cgdebug::ring {

// Shared memory that could not be created, reserved or mapped. The text says what to type.
class SharedMemoryError : public std::runtime_error {
 public:
  SharedMemoryError(const std::string& text, bool no_space, int code = 0)
      : std::runtime_error(text), no_space_(no_space), code_(code) {}
  bool no_space() const { return no_space_; }
  // The errno of the system call that failed; 0 when the file itself is not what it should be.
  int code() const { return code_; }

 private:
  bool no_space_;
  int code_;
};

// Lifetime: the mapping and its one descriptor live as long as the object, unless the descriptor is
//           closed earlier; the name stays until Unlink().
class SharedFile {
 public:
  // Creates a file of `bytes`, mode 0600, with every page reserved: a full /dev/shm is an error
  // here and never a SIGBUS later.
  // Fails: throws SharedMemoryError and leaves nothing behind.
  static SharedFile Create(const std::string& name, std::size_t bytes) {
    return Create(name, bytes, bytes);
  }
  // The same with only the first `reserved` bytes reserved. Nobody may touch the others before
  // Reserve() did.
  static SharedFile Create(const std::string& name, std::size_t bytes, std::size_t reserved);
  // Requires: the descriptor is open. Fails: throws SharedMemoryError.
  void Reserve(std::size_t offset, std::size_t bytes);

  // Maps the whole of an existing file, readable and writable.
  // Fails: throws SharedMemoryError, also if it belongs to another user or is empty.
  static SharedFile Open(const std::string& name);

  SharedFile() = default;
  SharedFile(SharedFile&&) noexcept = default;
  SharedFile& operator=(SharedFile&&) noexcept = default;

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  std::size_t bytes() const { return region_.get_size(); }
  const std::string& name() const { return name_; }
  int fd() const { return object_.get_mapping_handle().handle; }

  // Keeps the mapping. For files without locks: a process may have few descriptors and many rings.
  void CloseDescriptor() { object_ = {}; }

  // Gives the file its final name in one step.
  void Rename(const std::string& name);
  void Unlink() noexcept;

 private:
  std::string name_;
  boost::interprocess::shared_memory_object object_;
  boost::interprocess::mapped_region region_;
};

std::string ShmPath(const std::string& name);

struct ShmSpace {
  double free_bytes;
  double total_bytes;  // 0 = without a limit
};
ShmSpace GetShmSpace() noexcept;

}  // namespace cgdebug::ring
