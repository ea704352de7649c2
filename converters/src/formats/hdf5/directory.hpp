#pragma once
// The content of an HDF5 file, found by walking its groups. Only hard links are followed; soft and
// external links become losses.
// Pre: the caller holds the Hdf5Lock.
#include "formats/hdf5/data_set.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::hdf5 {

/// A data set of numbers.
struct ListedTensor {
  std::string path;                      ///< path of a link by which it can be opened
  std::string name;                      ///< tensor name that the path represents
  std::vector<std::string> other_names;  ///< hard links to the same data set
  StoredTensor stored;
};

struct Directory {
  std::vector<ListedTensor> tensors;
  std::optional<std::string> catalog_text;
  Losses losses;
};

/// Lists a file. Groups that record the order of their links are walked in that order, others by
/// name.
/// Throws: Corrupt, naming `file_name` and the object.
Directory list_file(hid_t file, std::uint64_t file_bytes, const std::string& file_name);

}  // namespace unishard::converters::hdf5
