// segment_view.h: another process's segment, seen by the daemon.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/ring/segment_names.h"
#include "libprobe/ring/shared_file.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// Nothing in the segment is believed: sizes come from the validated copies made here.
//
// Thread: one thread at a time.
class SegmentView {
 public:
  // Opens and checks a control file. Never opens the caller's own segment: closing it would drop
  // the caller's locks. Fails: nullptr, with the reason in *reason.
  static std::unique_ptr<SegmentView> Attach(const std::string& name, std::string* reason);

  const std::string& name() const { return control_.name(); }
  const layout::SegmentHeader& header() const { return header_; }
  std::string uuid() const;

  // Claims the reader's end: false when another daemon has it. Held until the view is destroyed.
  bool BecomeReader();
  // Tells the producer that its reader goes away in order: nobody is to be waited for.
  void Leave();
  bool ProducerAlive() const;
  bool ProducerExitedCleanly() const;

  std::uint64_t activity() const;  // changes when anything was committed or registered
  std::int64_t step() const;
  std::uint64_t released_unread() const;  // entries the producer gave up before they were read
  std::uint32_t slot_count() const;
  std::uint64_t shm_bytes() const;  // control file and the extents opened so far

  // The directory word of a slot: changes when the slot's block changes hands.
  std::uint64_t directory_word(std::uint32_t index) const;

  // The ring of slot `index` (below slot_count()).
  // Fails: nullopt with the reason. An empty reason means that the slot is empty or free, or that
  //        it changed hands meanwhile: then its directory word is another one.
  std::optional<SlotRingReader> OpenSlot(std::uint32_t index, std::string* reason);

  // The expected tensor of a comparing slot, payload_bytes long.
  // Fails: nullopt with the reason.
  std::optional<std::vector<std::byte>> ReadExpected(const layout::SlotRegistration& registration,
                                                     std::string* reason);

  // Tells waiting writers that the reader moves.
  void AddProgress(std::uint64_t entries);
  void AddPrinted(std::uint64_t lines, std::uint64_t on_terminal);

 private:
  explicit SegmentView(SharedFile control) : control_(std::move(control)) {}
  const SharedFile* Extent(std::uint32_t index, std::string* reason);
  // Where the directory said that the slot lies, which had this word before it was asked.
  std::optional<SlotRingReader> OpenBlock(const layout::DirectoryEntry* entry, std::uint64_t word,
                                          std::string* reason);
  layout::ProducerLine* producer() const;
  layout::ConsumerLine* consumer() const;

  SharedFile control_;
  layout::SegmentHeader header_ = {};
  std::map<std::uint32_t, SharedFile> extents_;
};

}  // namespace cgdebug::ring
