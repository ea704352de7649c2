#pragma once
// The pieces of a checkpoint's data files: a range of a file each, opened on first use. Only a
// bounded number of files is open and of items is held, however many there are. Thread-safe once
// filled.
#include "unishard/format/storage.hpp"

#include "containers/entry_verification.hpp"
#include "containers/torch_file.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

/// How an item's bytes became its part of the file.
enum class Packing : std::uint8_t { Plain, Zstd };

class Items {
 public:
  Items();
  ~Items();
  /// A torch.save archive in `window`.
  std::uint32_t add(torch::Window window, Packing packing);
  /// A tensor whose place is known already.
  std::uint32_t add(torch::TensorView view);

  /// The tensor of an item; `tensor_bytes` of it are expected, which bounds what is unpacked.
  std::shared_ptr<const torch::TensorView> tensor(std::uint32_t item,
                                                  std::uint64_t tensor_bytes) const;
  /// The same where it is known without its file; else null.
  const torch::TensorView* at_hand(std::uint32_t item) const { return items_.at(item).view.get(); }
  /// The bytes of an item that is no tensor, unpacked. Not kept.
  torch::Window unpacked(std::uint32_t item) const;
  /// "<file> at byte 120".
  std::string place(std::uint32_t item) const;

  /// Items whose tensors were read from and have a checksum that is not compared at once.
  torch::TouchedEntries touched() const;
  /// How many items there are.
  std::uint64_t count() const { return items_.size(); }
  /// From now on checksums of tensors are not compared.
  void ignore_checksums();

 private:
  struct Item {
    torch::Window window;
    Packing packing = Packing::Plain;
    std::shared_ptr<const torch::TensorView> view;
  };
  class Cache;
  torch::Window unpacked(const Item& item, std::uint64_t limit_bytes) const;
  std::shared_ptr<const torch::StorageBytes> checked(
      std::uint32_t item, bool is_in_memory,
      const std::shared_ptr<const torch::StorageBytes>& storage) const;

  std::vector<Item> items_;
  bool is_checked_ = true;
  mutable std::mutex
      mutex_;  ///< guards the checksums: a view is forgotten, what was read of it not
  mutable std::unordered_map<std::uint32_t, std::shared_ptr<torch::EntryChecksum>> checksums_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace unishard::converters::dcp
