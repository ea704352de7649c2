#pragma once
// The items of a checkpoint's data files: each a range of a file that is opened at first use. The
// numbers of open files and of cached items are bounded, however many items there are.
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

/// How an item's bytes were transformed before they were stored.
enum class Packing : std::uint8_t { Plain, Zstd };

/// Returns a window on bytes in memory. `path` is what messages call them.
torch::Window in_memory(const Path& path, std::string bytes);

/// Thread-safe once all items were added.
class Items {
 public:
  Items();
  ~Items();
  /// Adds a torch.save archive in `window`.
  std::uint32_t add(torch::Window window, Packing packing);
  /// Adds a tensor whose location is already known.
  std::uint32_t add(torch::TensorView view);

  /// Returns the tensor of an item. `tensor_bytes` is its expected size, which limits what is
  /// unpacked.
  /// Throws: Corrupt or Unsupported, naming the item's place.
  std::shared_ptr<const torch::TensorView> tensor(std::uint32_t item,
                                                  std::uint64_t tensor_bytes) const;
  /// Returns the tensor if it is known without opening the file; else null.
  const torch::TensorView* at_hand(std::uint32_t item) const { return items_.at(item).view.get(); }
  /// Returns the unpacked bytes of an item that is no tensor. They are not cached.
  torch::Window unpacked(std::uint32_t item) const;
  /// Returns the range of a file that holds an item; without a file for one in memory.
  const torch::Window& window(std::uint32_t item) const { return items_.at(item).window; }
  /// Returns the file that an item lies in.
  Path file(std::uint32_t item) const;
  /// Returns, for example, "<file> at byte 120".
  std::string place(std::uint32_t item) const;

  /// Returns the items whose tensors were read and whose checksum is not compared at once.
  torch::TouchedEntries touched() const;
  /// Returns the number of items.
  std::uint64_t count() const { return items_.size(); }
  /// Stops comparing the checksums of tensors.
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
  /// Guards the checksums. A view may be evicted from the cache; its checksum is kept.
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::uint32_t, std::shared_ptr<torch::EntryChecksum>> checksums_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace unishard::converters::dcp
