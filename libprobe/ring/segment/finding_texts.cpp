#include "libprobe/ring/segment/finding_texts.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "libprobe/ring/shared_copy.h"
#include "libprobe/ring/utf8.h"

namespace cgdebug::ring {

bool FindingTexts::IsFirst(layout::FindingKind kind, const Found& found) const {
  const layout::FindingText& known = Shared(kind);
  const std::uint64_t version = LoadRelaxed(known.version);
  if (version == 0 || version % 2 != 0) return true;  // odd: a daemon died while it wrote
  const bool is_of_row = LoadRelaxed(known.is_of_row) != 0;
  if (is_of_row != found.is_of_row) return is_of_row;
  return found.serial != 0 && std::pair(found.serial, found.order) <
                                  std::pair(LoadRelaxed(known.serial), LoadRelaxed(known.order));
}

void FindingTexts::Set(layout::FindingKind kind, const Found& found, std::string_view text) {
  if (!IsFirst(kind, found)) return;
  layout::FindingText& shared = Shared(kind);
  const std::uint64_t version = LoadRelaxed(shared.version) | 1;
  StoreRelaxed(shared.version, version);
  std::atomic_thread_fence(std::memory_order_release);
  const std::size_t bytes = CutLength(text, sizeof(shared.text));
  StoreRelaxed(shared.serial, found.serial);
  StoreRelaxed(shared.order, found.order);
  StoreRelaxed(shared.is_of_row, found.is_of_row ? 1u : 0u);
  StoreRelaxed(shared.bytes, static_cast<std::uint32_t>(bytes));
  CopyShared(shared.text, text.data(), bytes);
  StoreRelease(shared.version, version + 1);
}

std::string FindingTexts::Read(layout::FindingKind kind) const {
  const layout::FindingText& shared = Shared(kind);
  if (LoadRelaxed(shared.version) == 0) return {};
  const std::size_t bytes_untrusted = LoadRelaxed(shared.bytes);
  std::string text(std::min(bytes_untrusted, sizeof(shared.text)), '\0');
  CopyShared(text.data(), shared.text, text.size());
  return text;
}

}  // namespace cgdebug::ring
