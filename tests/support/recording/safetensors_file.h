// safetensors_file.h: writes small .safetensors files, good and bad.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace cgdebug::testing_support {

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

// One-dimensional float32 tensors, in this order.
inline void WriteFloats(const std::string& path,
                        const std::vector<std::pair<std::string, std::vector<float>>>& tensors,
                        const std::string& shape = "") {
  std::string header = "{", data;
  for (const auto& [name, values] : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    if (begin > 0) header += ",";
    header +=
        fmt::format(R"("{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", name,
                    shape.empty() ? std::to_string(values.size()) : shape, begin, data.size());
  }
  WriteText(path, SafetensorsBytes(header + "}", data));
}

}  // namespace cgdebug::testing_support
