#include "libprobe/ring/segment/extents.h"

#include <cstring>
#include <new>
#include <utility>

#include "libprobe/ring/shared_copy.h"

namespace cgdebug::ring {

const SharedFile* Extents::Open(std::uint32_t index, std::string* reason, bool* may_pass) {
  const auto found = opened_.find(index);
  if (found != opened_.end()) return &found->second;
  if (index == 0 || opened_.size() >= layout::kMaxExtents) {
    *reason = "names an impossible extent";
    return nullptr;
  }
  try {
    SharedFile file = SharedFile::Open(segment_ + "." + std::to_string(index));
    layout::ExtentHeader header = {};
    if (file.bytes() >= layout::kExtentDataOffset) CopyShared(&header, file.data(), sizeof(header));
    if (header.magic != layout::kExtentMagic || header.index != index ||
        std::memcmp(header.uuid, header_->uuid, sizeof(header.uuid)) != 0) {
      *reason = "extent " + std::to_string(index) + " does not belong to the segment";
      return nullptr;
    }
    if (file.bytes() != header.bytes) {
      *reason = "extent " + std::to_string(index) + " was cut off: it has " +
                std::to_string(file.bytes()) + " of " + std::to_string(header.bytes) + " bytes";
      return nullptr;
    }
    file.CloseDescriptor();
    return &opened_.emplace(index, std::move(file)).first->second;
  } catch (const SharedMemoryError& error) {
    *reason = error.what();
    if (may_pass != nullptr) *may_pass = error.code() != 0;
    return nullptr;
  } catch (const std::bad_alloc&) {
    *reason = "the daemon has no memory for it";
    if (may_pass != nullptr) *may_pass = true;
    return nullptr;
  }
}

std::byte* Extents::Beside(const layout::SlotFacts& registration, std::uint64_t bytes,
                           const std::string& what, std::string* reason) {
  const SharedFile* extent = Open(registration.expected_extent, reason);
  if (extent == nullptr) return nullptr;
  if (registration.expected_offset > extent->bytes() ||
      bytes > extent->bytes() - registration.expected_offset) {
    *reason = what + " lies outside its extent";
    return nullptr;
  }
  return extent->data() + registration.expected_offset;
}

std::optional<std::vector<std::byte>> Extents::CopyBeside(const layout::SlotFacts& registration,
                                                          std::uint64_t bytes,
                                                          const std::string& what,
                                                          std::string* reason) {
  const std::byte* shared = Beside(registration, bytes, what, reason);
  if (shared == nullptr) return std::nullopt;
  std::vector<std::byte> copy(bytes);
  CopyShared(copy.data(), shared, copy.size());
  return copy;
}

std::uint64_t Extents::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [index, file] : opened_) bytes += file.bytes();
  return bytes;
}

}  // namespace cgdebug::ring
