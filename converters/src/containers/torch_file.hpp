#pragma once
// A file that torch.save wrote: the zip container (torch 1.6 and later), or the older stream of
// pickles. The object is a Pickle; tensors are views into the file. Thread-safe after construction.
#include "containers/tensor_view.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace unishard::converters::torch {

class TorchFile {
 public:
  /// Opens what lies in `window`. Throws Corrupt or Unsupported (TorchScript, tar, other files).
  explicit TorchFile(Window window, const PickleLimits& limits = {});

  Value root() const { return pickle_->root(); }
  const Pickle& pickle() const { return *pickle_; }
  std::string name() const { return window_.name(); }
  /// Bytes of the zip entry data.pkl behind its pickle: nothing that torch writes has any.
  std::uint64_t trailing_bytes() const;

  /// True when `value` rebuilds a tensor of any sort: plain, parameter, sparse, quantized, DTensor.
  static bool is_tensor(Value value);
  /// The view of a dense tensor (parameters and tensors with attributes are unwrapped). Throws
  /// Unsupported naming the sort for sparse, quantized, nested, DTensor and ShardedTensor values
  /// and for element types that UniShard has not, Corrupt for geometry outside the storage.
  TensorView tensor(Value value) const;
  /// The Python attributes of a tensor that has some (torch._tensor._rebuild_from_type_v2).
  static std::optional<Value> attributes(Value tensor);

 private:
  [[noreturn]] void refuse_head(const std::string& head) const;
  void open_zip(const PickleLimits& limits);
  void open_legacy(const PickleLimits& limits);
  std::shared_ptr<const StorageBytes> storage(const std::string& key, std::uint64_t bytes) const;
  TensorView rebuild(const std::string& call, Value args) const;
  TensorView dense(Value args, std::size_t dtype_argument) const;

  Window window_;
  std::unique_ptr<ZipReader> zip_;  // null: legacy
  std::unique_ptr<Pickle> pickle_;
  bool big_endian_ = false;
  std::map<std::string, std::shared_ptr<const StorageBytes>, std::less<>> legacy_;
  struct Cache;
  std::shared_ptr<Cache> cache_;  // storages of the zip container, by key
};

/// Is this how a file of torch.save begins? 32 bytes are enough.
bool is_torch_head(std::string_view head);

/// Is this a file of torch.save? It may have other bytes before it, where a zip archive may.
bool is_torch_file(const Window& window);

/// The element type of a typed storage class ("torch.FloatStorage") or of a dtype
/// ("torch.float32").
std::optional<DType> dtype_of_global(std::string_view global_name);

}  // namespace unishard::converters::torch
