// safetensors.h: one .safetensors file: an 8-byte length, a JSON header, then the tensors' bytes.
//
// The header is not trusted: sizes, offsets and shapes agree with each other and with the file, or
// the file is refused.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/source/source.h"
#include "daemon/core/base/result.h"
#include "proto/layout/dtype.h"

namespace cgdebug::source {

struct SafetensorsTensor {
  std::string name;
  std::string dtype_name;  // in the file: "BF16"
  // One of our types that holds each of its values; kInvalid: there is none.
  layout::Dtype dtype = layout::Dtype::kInvalid;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // of its values in the file
  std::uint64_t bytes_in_file = 0;
  std::uint64_t bytes = 0;  // as values of `dtype`, which may be wider than those in the file
  // What `export --to safetensors` adds; defaults for any other file.
  std::uint64_t order = 0;
  std::uint64_t graph_id = 0;
  std::string graph;            // the name of the graph
  bool graph_is_given = false;  // whether the user named it
  std::uint64_t serial = 0;     // of the replay; 0: unknown
  std::uint32_t invocation = 0;
  std::string probe;    // the name, without what export adds to keep names apart
  std::string session;  // label of the job
  std::string part;     // the elements that it has; empty: all of them
};

struct SafetensorsFile {
  std::string path;
  struct stat status = {};                      // when its header was read
  std::vector<SafetensorsTensor> tensors = {};  // in the order of the header
  std::uint64_t replay = 0;                     // 0: it does not say
  std::int64_t step = -1;
  int rank = -1;
  // What the recording lacks that it was exported from, in sentences.
  std::vector<std::string> missing = {};
  // The replays of its rank that the files before and behind it have; 0: none.
  std::uint64_t replay_before = 0;
  std::uint64_t replay_after = 0;
  std::vector<int> ranks = {};  // of the export that it is a file of; empty: it does not say
};

// Fails: a file that is cut off, contradicts itself, or has a header larger than the format allows.
Result<SafetensorsFile> OpenSafetensors(const std::string& path);

// The values, read into memory: a mapping of a file that is truncated would raise SIGBUS.
// Fails: the file is no longer the one whose header was read.
Result<Values> ReadTensor(const SafetensorsFile& file, const SafetensorsTensor& tensor);

}  // namespace cgdebug::source
