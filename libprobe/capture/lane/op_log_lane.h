// op_log_lane.h: the rows of an op log on a GPU: one launch computes the rows of many tensors.
//
//   compute path:  a batch of tensors -> their rows in the page
//   leaf:          page -> ring entry, commit (direct_lane.h), when the page is complete
//
// Why batches: a kernel of its own costs each row 2 us; in a batch of 64 a small row costs a
// thirtieth of that. The last block of a tensor to finish adds up the parts that the others left
// (op_log_kernels.cu).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cgdebug/probe.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/capture/kernels/direct_kernels.h"

namespace cgdebug::capture {

inline constexpr std::size_t kOpLogRowsOfPage = 640;
inline constexpr std::size_t kMostOpLogTensors = 64;  // of one batch

struct OpLogTensor {
  const void* data = nullptr;
  Dtype dtype = Dtype::kInvalid;
  std::uint64_t count = 0;
  std::uint32_t row = 0;              // in its page
  std::optional<ElementOrder> order;  // none: the elements lie in their usual order
  // Of a tensor whose rows lie one behind another: the row shows those behind the first *tail_start
  // alone, a number in device memory, as it is when the row is computed. Below 0 is 0, and there
  // may be fewer rows. Null: all.
  const std::int64_t* tail_start = nullptr;
  std::uint32_t elements_of_row = 0;
};

// The device memory of a page: its rows, and behind them parts of them, 146 KiB in all; and the
// parts of its large batches, if it has any: a batch that many short blocks read lets the job's own
// blocks in between, but each block leaves a part. As numbers of layout::DeviceStats.
std::uint64_t OpLogPageParts();
std::uint64_t OpLogLargeParts();
inline constexpr std::uint64_t kLargeOpLogBatch = std::uint64_t{32} << 20;  // bytes that are read

// Computes rows of the page that lies at `page`, as if `stream`, which is capturing, stood at `at`.
// What the stream captures from now on comes after them. Returns the last nodes of the rows.
// `state`: of the page's leaf. `launch`: layout::OpLogRow::launch of these rows. `parts`:
// OpLogLargeParts() for a large batch, null for another one.
// Requires: at least one tensor, at most kMostOpLogTensors; one `tail_start` of those that have
// one. Fails: throws ProbeError; the rows are not computed then.
Position ComputeRows(layout::DeviceStats* page, layout::DeviceStats* parts, DirectState* state,
                     std::span<const OpLogTensor> tensors, std::uint32_t launch, int device,
                     void* stream, const Position& at);

// Computes rows at once, outside of any capture: those of `tensors` at `rows`, an array of
// layout::DeviceStats in device memory. `scratch`: ScratchBytesOfRows() of device memory, zero
// before its first use, which no other stream uses.
// Requires: at least one tensor, at most kMostOpLogTensors. Fails: throws ProbeError.
std::uint64_t ScratchBytesOfRows();
void ComputeRowsNow(void* rows, void* scratch, std::span<const OpLogTensor> tensors, int device,
                    void* stream);

// A row of an eager op, in host memory that a GPU writes some time after the launch. Its owner
// gives it back when it is there; nobody may use one that never comes again.
struct EagerRow {
  layout::DeviceStats* stats = nullptr;  // null: of no GPU
  int device = 0;
};
// Requires: the lock of the ProbeTable, as the others. Fails: throws ProbeError; kNoSpace if too
// many rows wait for the GPU, or too many streams have some.
EagerRow LaunchEagerRow(OpLogTensor tensor, int device, void* stream);
bool IsThere(const EagerRow& row);
void GiveBack(const EagerRow& row);
// Whether the GPU has failed, so that its rows never come.
bool HasFailed(int device) noexcept;

}  // namespace cgdebug::capture
