#pragma once
// Makes an exchange file without its payload: libhdf5 writes names, types and shapes and allocates
// every data set; the bytes then go to the offsets by positioned writes, as in native shards.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::hdf5 {

struct NewDataSet {
  std::string path;  ///< without a leading "/"; groups come into being
  DType dtype = DType::Float32;
  Shape shape;
  std::string main_name = {};  ///< attribute `fqn`; empty: none
};

struct NewFile {
  std::vector<NewDataSet> data_sets;
  std::vector<std::pair<std::string, std::size_t>> links;  ///< second names: path, data set
  std::uint64_t text_bytes = 0;                            ///< of /unishard.catalog; 0: none
};

/// Where to write, as offsets in the file. 0 for what has no bytes.
struct NewFileOffsets {
  std::vector<std::uint64_t> data_sets;
  std::uint64_t text = 0;
};

/// Creates `path`. The same NewFile gives the same bytes. Throws Io.
NewFileOffsets create_file(const Path& path, const NewFile& content);

}  // namespace unishard::converters::hdf5
