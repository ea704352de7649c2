#pragma once
// What a checkpoint of PyTorch's trainers holds, whatever its files look like: a state dict,
// flattened. Tensors are made of boxes that lie in items; everything else is JSON.
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"

#include "formats/dcp/boxes.hpp"
#include "formats/dcp/metadata.hpp"
#include "formats/dcp/stored_items.hpp"

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

struct Chunk {
  Box box;
  std::uint32_t item = 0;
};

struct TensorEntry {
  std::string key;  ///< parts of the path joined with "."
  KeyPath path;     ///< empty: the files do not say
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<Chunk> chunks;         ///< by their first elements
  std::vector<std::uint64_t> reach;  ///< per chunk: the end of what it and those before it hold
};

struct ObjectEntry {
  std::string key;
  KeyPath path;
  Json value;
};

struct StateDict {
  std::vector<TensorEntry> tensors;
  std::vector<ObjectEntry> objects;
  std::unique_ptr<Items> items;
  std::uint32_t world_size = 1;  ///< of the run that saved, as far as file names tell
  Json scheduler;                ///< where a file of its own holds it
  Json producer;
  std::vector<std::string> notes;
};

/// Elements `range` of a tensor. Returns how many of their bytes a checksum covers. Throws
/// Corrupt when an item is not what the entry says. Thread-safe.
std::uint64_t read_elements(const TensorEntry& tensor, const Items& items, ElementRange range,
                            std::span<std::byte> out,
                            torch::Reading reading = torch::Reading::Data);

/// Puts a StateDict together from the files of one or several folders.
class StateDictBuilder {
 public:
  explicit StateDictBuilder(Storage& storage);

  /// Tensors and objects of a `.metadata`, with their items in `folder`. Several ranks may each
  /// give their part: then the first copy of a box or object counts.
  void add_folder(const Path& folder, const Metadata& metadata);
  /// A piece of a tensor that is at hand already. `shape` is the whole tensor's.
  void add_piece(const std::string& key, KeyPath path, const Shape& shape, Box box,
                 torch::TensorView view);
  /// The object of a torch.save file: its tensors become entries below `path`. `rank` wrote it.
  void add_object(const std::string& key, const KeyPath& path, const torch::TorchFile& file,
                  std::uint64_t rank = 0);
  /// A data file, opened.
  std::shared_ptr<const File> open(const Path& path) {
    return torch::open_window(pool_, path).file;
  }

  /// Drops copies of boxes; throws Corrupt unless the boxes of every tensor cover it exactly.
  StateDict finish(const std::string& where);

  StateDict out;
  bool ranks_repeat = false;  ///< several ranks may give the same box; then the first counts

 private:
  TensorEntry& entry(const std::string& key, KeyPath path, DType dtype, const Shape& shape,
                     const std::string& where);
  void add_named_tensor(const std::string& key, const KeyPath& path, const torch::TorchFile& file,
                        torch::Value value, std::uint64_t rank);
  void add_stored_object(const std::string& key, KeyPath path, std::uint32_t item);

  Storage& storage_;
  std::shared_ptr<FilePool> pool_;
  std::unordered_map<std::string, std::size_t> tensors_, objects_;  // by key
  std::unordered_map<std::string, std::size_t> order_;              // of keys, where it is known
};

}  // namespace unishard::converters::dcp
