// segment_view.h: another process's segment, seen by the daemon.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libprobe/ring/graph_census.h"
#include "libprobe/ring/op_log_table.h"
#include "libprobe/ring/segment/extents.h"
#include "libprobe/ring/segment/finding_texts.h"
#include "libprobe/ring/segment/freeze_lines.h"
#include "libprobe/ring/segment/job_account.h"
#include "libprobe/ring/segment/segment_names.h"
#include "libprobe/ring/segment/shared_file.h"
#include "libprobe/ring/slot_ring_reader.h"
#include "proto/layout/segment_layout.h"

namespace cgdebug::ring {

// Trusts nothing in the segment: sizes come from the validated copies made here.
//
// Thread: one at a time.
class SegmentView {
 public:
  // Opens and checks a control file. Never opens the caller's own segment: closing it would drop
  // the caller's locks.
  // Fails: nullptr, with the reason in *reason; *may_pass says whether the system refused something
  //        that it may grant later.
  static std::unique_ptr<SegmentView> Attach(const std::string& name, std::string* reason,
                                             bool* may_pass = nullptr);

  const std::string& name() const { return control_.name(); }
  const layout::SegmentHeader& header() const { return header_; }
  // The only descriptor it holds.
  int fd() const { return control_.fd(); }
  std::string uuid() const;

  // Claims the reader's end: false when another daemon has it. Held until the view is destroyed.
  // `socket`: where clients reach this daemon.
  bool BecomeReader(const std::string& socket = "");
  // Where the daemon that reads the segment listens, or the last one that did; empty if none said.
  std::string ReaderSocket() const;
  // Tells the producer that its reader leaves in order, so that it waits for nobody.
  void Leave();
  bool ProducerAlive() const;
  // The producer's pid in this process's PID namespace, as the kernel says; 0 if the producer is
  // dead or cannot be seen from here.
  pid_t ProducerPid() const;
  bool ProducerExitedCleanly() const;

  std::uint64_t activity() const;  // changes when anything was committed or registered
  // Changes when the directory did, and with commits of the CPU.
  std::uint64_t host_activity() const;
  std::int64_t step() const;
  std::uint64_t device_bytes() const;     // that the producer's probes take of devices
  std::uint64_t released_unread() const;  // entries the producer gave up before they were read
  std::uint32_t slot_count() const;
  std::uint64_t shm_bytes() const;  // control file and the extents opened so far

  // The directory word of a slot. It changes when the block is given to another slot.
  std::uint64_t directory_word(std::uint32_t index) const;

  // The ring of slot `index` (below slot_count()).
  // Fails: nullopt with the reason; *may_pass as for Attach(). An empty reason means that the slot
  //        is empty or free, or was replaced meanwhile; in that case its directory word has
  //        changed.
  std::optional<SlotRingReader> OpenSlot(std::uint32_t index, std::string* reason,
                                         bool* may_pass = nullptr);
  // Tells the slot's writer that nobody reads it, so that it does not wait; Accept() takes that
  // back.
  void Refuse(std::uint32_t index);
  void Accept(std::uint32_t index);

  // The expected tensor of a comparing slot, payload_bytes long.
  // Fails: nullopt with the reason.
  std::optional<std::vector<std::byte>> ReadExpected(const layout::SlotFacts& registration,
                                                     std::string* reason);

  // The rows of a slot that holds a page of an op log.
  // Fails: nullopt with the reason.
  std::optional<std::vector<OpLogRow>> ReadOpLog(const layout::SlotFacts& registration,
                                                 std::string* reason);
  // As SlotRingReader::SetFirsts() and firsts(), for one row of the page.
  // Requires: ReadOpLog() gave that row, and the slot is valid.
  void SetFirsts(const layout::SlotFacts& registration, std::size_t row,
                 const FirstNonfinites& firsts);
  FirstNonfinites firsts(const layout::SlotFacts& registration, std::size_t row);

  // The CUDA graphs that the producer captured; empty if it captured none, or if their table
  // cannot be read.
  GraphCensus Graphs();

  // Tells waiting writers that the reader moves.
  void AddProgress(std::uint64_t entries);
  void AddPrinted(std::uint64_t lines, std::uint64_t on_terminal);

  // What the daemon has found, what stopped rings in device memory, and what the producer says that
  // nobody sees. They are parts of the view's memory.
  FindingTexts findings() const { return FindingTexts(control_.data()); }
  FreezeLines freezes() const { return FreezeLines(control_.data()); }
  JobAccount account() const { return JobAccount(control_.data()); }

  // How many bytes the producer wants to be free in /dev/shm; 0 if it asked for none or has its
  // answer.
  std::uint64_t RoomWanted() const;
  void AnswerRoom();

 private:
  explicit SegmentView(SharedFile control)
      : control_(std::move(control)), extents_(control_.name(), &header_) {}
  // Opens the slot where the directory says it lies. `word` is the directory word as it was read
  // before that place.
  std::optional<SlotRingReader> OpenBlock(const layout::DirectoryEntry* entry, std::uint64_t word,
                                          std::string* reason, bool* may_pass);
  const layout::DirectoryEntry& entry(std::uint32_t index) const;
  layout::OpLogRow* SharedRow(const layout::SlotFacts& registration, std::size_t row);

  SharedFile control_;
  layout::SegmentHeader header_ = {};
  Extents extents_;
};

}  // namespace cgdebug::ring
