#pragma once
// Writes an exchange file without its payload: libhdf5 writes names, types and shapes and allocates
// every data set. The payload is then written to the offsets by positioned writes, as in
// native shards.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::hdf5 {

struct NewDataSet {
  std::string path;  ///< without a leading "/"; missing groups are created
  DType dtype = DType::Float32;
  Shape shape;
  std::string main_name = {};  ///< value of the attribute `fqn`; empty: none
};

struct NewFile {
  std::vector<NewDataSet> data_sets;
  /// Second names: path and number of the data set.
  std::vector<std::pair<std::string, std::size_t>> links;
  std::uint64_t text_bytes = 0;  ///< bytes of /unishard.catalog; 0: none
};

/// Offsets in the file; 0 for what has no bytes.
struct NewFileOffsets {
  std::vector<std::uint64_t> data_sets;
  std::uint64_t text = 0;
};

/// Writes everything except the payload to `file`, which is new and empty, and gives it its final
/// size. Equal content gives equal bytes.
/// Throws: what `file` throws; Io, with HDF5's reasons.
NewFileOffsets fill_new_file(File& file, const NewFile& content);

}  // namespace unishard::converters::hdf5
