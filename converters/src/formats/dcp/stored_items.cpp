#include "formats/dcp/stored_items.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "formats/dcp/zstd_item.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters::dcp {
namespace {

/// An item up to this size is read at once.
constexpr std::uint64_t kSmallItemBytes = 16 << 10;
/// Bytes of an item in memory that are compared at a time.
constexpr std::uint64_t kCheckedBytes = std::uint64_t{1} << 20;
/// Capacity of the cache: unpacked bytes, and descriptions at a flat rate.
constexpr std::uint64_t kCacheBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kDescriptionBytes = 4096;
/// Bytes of an archive beside its tensor: pickle, directory and padding.
constexpr std::uint64_t kArchiveBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kObjectBytes = std::uint64_t{256} << 20;

/// The bytes of an item, read or unpacked.
class MemoryFile final : public File {
 public:
  MemoryFile(Path path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: an item ends before byte {}", path_.string(), offset + out.size()));
    }
    std::copy_n(std::as_bytes(std::span(bytes_)).data() + offset, out.size(), out.data());
  }
  void write_at(std::uint64_t, std::span<const std::byte>) override { refuse(); }
  void reserve(std::uint64_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override { refuse(); }
  void close() override {}
  const Path& path() const override { return path_; }

 private:
  [[noreturn]] static void refuse() { raise(ErrorCode::Internal, "a file opened for reading"); }

  const Path path_;
  const std::string bytes_;
};

}  // namespace

torch::Window in_memory(const Path& path, std::string bytes) {
  const std::uint64_t size = bytes.size();
  return {std::make_shared<MemoryFile>(path, std::move(bytes)), 0, size};
}

/// Cache of the most recently used items. Each slot has its own lock, so that an item is unpacked
/// once and other items are not delayed.
class Items::Cache {
 public:
  struct Slot {
    std::mutex mutex;
    std::shared_ptr<const torch::TensorView> view;
  };

  std::shared_ptr<Slot> slot(std::uint32_t item, std::uint64_t cost) {
    const std::scoped_lock lock(mutex_);
    if (const auto known = known_.find(item); known != known_.end()) {
      order_.splice(order_.begin(), order_, known->second);
      return order_.front().slot;
    }
    order_.push_front({item, cost, std::make_shared<Slot>()});
    known_[item] = order_.begin();
    total_ += cost;
    while (total_ > kCacheBytes && order_.size() > 1) {
      total_ -= order_.back().cost;
      known_.erase(order_.back().item);
      order_.pop_back();
    }
    return order_.front().slot;
  }

 private:
  struct Entry {
    std::uint32_t item = 0;
    std::uint64_t cost = 0;
    std::shared_ptr<Slot> slot;
  };
  std::mutex mutex_;
  std::list<Entry> order_;  // last used first
  std::unordered_map<std::uint32_t, std::list<Entry>::iterator> known_;
  std::uint64_t total_ = 0;
};

Items::Items() : cache_(std::make_unique<Cache>()) {}
Items::~Items() = default;

std::uint32_t Items::add(torch::Window window, Packing packing) {
  items_.push_back({std::move(window), packing, nullptr});
  return checked_cast<std::uint32_t>(items_.size() - 1, "number of items");
}

std::uint32_t Items::add(torch::TensorView view) {
  items_.push_back({view.storage ? view.storage->window : torch::Window{}, Packing::Plain,
                    std::make_shared<const torch::TensorView>(std::move(view))});
  return checked_cast<std::uint32_t>(items_.size() - 1, "number of items");
}

Path Items::file(std::uint32_t item) const {
  const torch::Window& window = items_.at(item).window;
  return window.file ? window.file->path() : Path();
}

std::string Items::place(std::uint32_t item) const {
  const torch::Window& window = items_[item].window;
  return window.file ? fmt::format("{} at byte {}", window.name(), window.begin) : "memory";
}

torch::Window Items::unpacked(const Item& item, std::uint64_t limit_bytes) const {
  const Path& path = item.window.file->path();
  if (item.packing == Packing::Zstd) return in_memory(path, unpack_zstd(item.window, limit_bytes));
  if (item.window.size > kSmallItemBytes) return item.window;
  std::string bytes(item.window.size, '\0');
  item.window.read(0, std::as_writable_bytes(std::span(bytes)));
  return in_memory(path, std::move(bytes));
}

std::shared_ptr<const torch::TensorView> Items::tensor(std::uint32_t index,
                                                       std::uint64_t tensor_bytes) const {
  const Item& item = items_.at(index);
  if (item.view) return item.view;
  const std::uint64_t limit = checked_add(tensor_bytes, kArchiveBytes, "bytes of an item");
  const bool in_memory = item.packing == Packing::Zstd || item.window.size <= kSmallItemBytes;
  const auto slot = cache_->slot(
      index, kDescriptionBytes + (in_memory ? std::max(tensor_bytes, item.window.size) : 0));
  const std::scoped_lock lock(slot->mutex);
  if (slot->view) return slot->view;
  constexpr torch::PickleLimits kTensorPickle{.bytes = 16 << 20, .memory_bytes = 64 << 20};
  const torch::TorchFile file(unpacked(item, limit), kTensorPickle);
  if (!torch::TorchFile::is_tensor(file.root())) {
    raise(ErrorCode::Corrupt, "the item holds an object that is not a tensor");
  }
  torch::TensorView view = file.tensor(file.root());
  if (view.storage && view.storage->checksum)
    view.storage = checked(index, in_memory, view.storage);
  slot->view = std::make_shared<const torch::TensorView>(std::move(view));
  return slot->view;
}

/// Returns the storage with the checksum state known so far. Bytes in memory are compared at once.
std::shared_ptr<const torch::StorageBytes> Items::checked(
    std::uint32_t item, bool is_in_memory,
    const std::shared_ptr<const torch::StorageBytes>& storage) const {
  if (!is_checked_) {
    storage->checksum->ignore();
    return storage;
  }
  if (is_in_memory) {
    std::vector<std::byte> buffer(std::min<std::uint64_t>(storage->size(), kCheckedBytes));
    try {
      torch::complete_checksum(*storage, buffer);
    } catch (const Error& error) {
      throw error.with_context(fmt::format("the item in {}: ", place(item)));
    }
    return storage;
  }
  const std::scoped_lock lock(mutex_);
  const auto [known, is_new] = checksums_.emplace(item, storage->checksum);
  if (is_new) return storage;
  auto again = std::make_shared<torch::StorageBytes>(*storage);
  again->checksum = known->second;
  return again;
}

torch::TouchedEntries Items::touched() const {
  torch::TouchedEntries touched;
  std::unordered_set<const torch::EntryChecksum*> known;
  const auto add = [&](std::uint32_t item, const torch::EntryChecksum* checksum) {
    if (checksum->is_touched() && known.insert(checksum).second)
      touched.emplace_back(item, checksum);
  };
  // Views that are at hand come first: parts of one flat parameter share its item's checksum.
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const auto& view = items_[i].view;
    if (view && view->storage && view->storage->checksum) add(i, view->storage->checksum.get());
  }
  const std::scoped_lock lock(mutex_);
  for (const auto& [item, checksum] : checksums_) add(item, checksum.get());
  return touched;
}

void Items::ignore_checksums() {
  is_checked_ = false;
  for (const Item& item : items_) {
    if (item.view && item.view->storage && item.view->storage->checksum)
      item.view->storage->checksum->ignore();
  }
  for (const auto& [item, checksum] : checksums_) checksum->ignore();
}

torch::Window Items::unpacked(std::uint32_t item) const {
  return unpacked(items_.at(item), kObjectBytes);
}

}  // namespace unishard::converters::dcp
