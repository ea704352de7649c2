#pragma once
// The memory of the devices. Its pages are mapped twice: tensors hold addresses of the first
// mapping, which nobody may access, and kernels use the second at a constant distance. The host's
// accesses are therefore found also while a kernel works on the same tensor.
#include "guarded_device/clock.hpp"

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace unishard::test::guarded {

/// One allocation. The object is reused, and never freed.
struct Block {
  std::byte* base = nullptr;  ///< in the first mapping
  std::size_t bytes = 0, capacity = 0;
  int id = 0;
  StreamKey home = {};    ///< on which it was allocated
  bool freed = true;      ///< no tensor has it any more
  std::string born = {};  ///< the operation that allocated it
  History history = {};
  std::set<StreamKey> recorded = {};  ///< by record_stream()

  std::string describe() const;
};

/// Thread-safe. Members of blocks other than `base` and `freed` are protected by Streams' mutex.
class Memory {
 public:
  /// Never destroyed: tensors outlive main().
  static Memory& instance();

  /// The memory is filled with NaN in all float types.
  /// Throws: c10::Error when there is none left.
  Block* allocate(std::size_t bytes, StreamKey home, const std::string& born);
  /// Fills it with NaN, and keeps it for a later allocation on the same stream.
  void free(Block* block);

  /// Returns the block at an address of the first mapping, or null. Async-signal-safe.
  const Block* find(const void* address) const;
  Block* find(const void* address);
  /// Returns true for each address of the first mapping. Async-signal-safe.
  bool contains(const void* address) const;
  /// Returns the same byte in the second mapping.
  /// Pre: contains(address).
  void* usable(const void* address) const;

 private:
  Memory();

  std::byte* seen_ = nullptr;
  std::byte* kernel_ = nullptr;
  std::atomic<Block*>* owners_ = nullptr;  ///< one for each page
  std::mutex mutex_;
  std::size_t used_ = 0;
  int ids_ = 0;
  std::map<std::pair<StreamKey, std::size_t>, std::vector<Block*>> free_;  ///< by capacity
};

}  // namespace unishard::test::guarded
