#pragma once
// Everything that an HDF5 file holds, found by walking its groups. Hard links only: soft and
// external ones are noted and never followed. Call under Hdf5Lock.
#include "formats/hdf5/data_set.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::hdf5 {

/// A data set with numbers in it.
struct ListedTensor {
  std::string path;                      ///< of the link that names it: how to open it
  std::string name;                      ///< what that path stands for
  std::vector<std::string> other_names;  ///< hard links to the same data set
  StoredTensor stored;
};

struct Directory {
  std::vector<ListedTensor> tensors;
  std::optional<std::string> catalog_text;
  std::vector<std::string> notes;  ///< what is there and is not read, one line each
};

/// Groups that remember the order in which they were filled are walked in it, others by name.
/// Throws Corrupt naming `file_name` and the object.
Directory list_file(hid_t file, std::uint64_t file_bytes, const std::string& file_name);

}  // namespace unishard::converters::hdf5
