#pragma once
// Writes `.metadata` with classes that torch 2.0 and later can read.
#include "unishard/format/tensor_info.hpp"

#include "containers/boxes.hpp"
#include "formats/dcp/metadata.hpp"

#include <string>
#include <vector>

namespace unishard::converters::dcp {

struct WrittenItem {
  std::string file;
  std::uint64_t offset = 0, length = 0;
};

struct WrittenTensor {
  std::string key;
  KeyPath path;
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<std::pair<Box, WrittenItem>> chunks;
};

struct WrittenObject {
  std::string key;
  KeyPath path;
  WrittenItem item;
};

/// Returns the pickle. An empty path is not recorded, as torch before 2.0 recorded none.
std::string encode_metadata(const std::vector<WrittenTensor>& tensors,
                            const std::vector<WrittenObject>& objects);

}  // namespace unishard::converters::dcp
