#pragma once
// `.metadata` as values: the pickled Metadata object of torch 1.12 to 2.15, whose classes have
// moved between modules. Every number is checked.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/boxes.hpp"
#include "formats/dcp/stored_items.hpp"

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

/// The location of an item: a range of bytes in a file of the folder.
struct StoredItem {
  std::uint32_t file = 0;  ///< index into Metadata::files
  std::uint64_t offset = 0, length = 0;
  Packing packing = Packing::Plain;
};

struct StoredChunk {
  Box box;
  StoredItem item;
};

struct StoredTensor {
  std::string key;
  std::optional<DType> dtype;  ///< nullopt: a type that UniShard does not have
  std::string dtype_name;
  Shape shape;
  std::vector<StoredChunk> chunks;  ///< without empty ones; not yet checked against the shape
};

struct StoredObject {
  std::string key;
  StoredItem item;
};

/// A part of a key's unflattened path: a key of a mapping, or a position in a list.
struct PathPart {
  std::string text;
  bool is_position = false;
  bool operator==(const PathPart&) const = default;
};
using KeyPath = std::vector<PathPart>;

struct Metadata {
  std::vector<StoredTensor> tensors;
  std::vector<StoredObject> objects;
  std::vector<StoredItem> empty;   ///< of chunks without elements, which are not read
  std::vector<std::string> files;  ///< relative paths, checked to stay inside the folder
  std::unordered_map<std::string, KeyPath> paths;      ///< planner_data
  std::unordered_map<std::string, std::size_t> order;  ///< position of a key in planner_data
  std::string version;                                 ///< empty when the writer recorded none
  std::vector<std::string> notes;
};

/// Returns the numbers of a sequence: a shape or an offset.
/// Throws: Corrupt for too many dimensions, and for what is no number of at least 0.
Shape extents_of(torch::Value sequence);

/// Throws: Corrupt, naming the file, the tensor or key, and the defect.
Metadata read_metadata(Storage& storage, const Path& path);

}  // namespace unishard::converters::dcp
