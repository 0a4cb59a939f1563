// source_tensor.h: one tensor of a source.
#pragma once

#include <cstddef>
#include <string>

#include "client/cli/context.h"
#include "client/cli/sources/selector.h"
#include "client/source/source.h"
#include "daemon/core/base/result.h"

namespace cgdebug::cli {

// Whether a daemon's Get cannot answer it: it names a file, or selects by something other than a
// replay number.
bool NeedsSource(const Inside& inside);

// The snapshot that is meant.
struct FoundTensor {
  std::size_t slot = 0;
  source::Key key = {};
};

// By the exact name of the probe, "name#1" for a second call. Of several captures and shapes the
// one whose snapshot is the newest, or with first_nan and step the earliest, by serial. Fails: no
// such probe, rank or replay, or a replay number that several of them have; the message
//        names what there is.
Result<FoundTensor> FindTensor(source::Source& source, const Context& context,
                               const Inside& inside);

// Fails: it cannot be read.
Result<source::Tensor> LoadTensor(source::Source& source, const FoundTensor& found);

// Keeps "[0, :8]" of the tensor, as NumPy would; a number drops its dimension. The statistics are
// computed again. Fails: it is not a slice, it selects nothing, or there are no values.
Result<void> CutSlice(source::Tensor* tensor, const std::string& slice);

}  // namespace cgdebug::cli
