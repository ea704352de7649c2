#pragma once
// A file written by torch.save: the zip container (torch 1.6 and later), or the older sequence of
// pickles. The object is a Pickle; tensors are views into the file.
#include "containers/tensor_view.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Immutable and thread-safe after construction.
class TorchFile {
 public:
  /// Opens the file in `window`.
  /// Throws: Corrupt; Unsupported for TorchScript, tar and other files.
  explicit TorchFile(Window window, const PickleLimits& limits = {});

  Value root() const { return pickle_->root(); }
  const Pickle& pickle() const { return *pickle_; }
  std::string name() const { return window_.name(); }
  /// Returns the folder that the entries of the zip archive lie in, which torch names after the
  /// file that it writes; empty for the older container.
  std::string archive_name() const;
  /// Returns the number of bytes after the pickle in the zip entry data.pkl. Files that torch wrote
  /// have none.
  std::uint64_t trailing_bytes() const;
  /// Returns how many storages an archive has that the pickle does not name.
  std::size_t unnamed_storages() const;

  /// Returns true when `value` rebuilds a tensor of any kind: plain, parameter, sparse, quantized,
  /// DTensor.
  static bool is_tensor(Value value);
  /// Returns the view of a dense tensor. Parameters and tensors with attributes are unwrapped.
  /// Throws: Unsupported, naming the kind, for sparse, quantized, nested, DTensor and ShardedTensor
  /// values and for element types that UniShard does not have; Corrupt when elements lie outside
  /// the storage.
  TensorView tensor(Value value) const;
  /// Returns whether `tensor` is an nn.Parameter.
  static bool is_parameter(Value tensor);
  /// Returns whether autograd computes gradients for a plain tensor or a parameter.
  static bool requires_grad(Value tensor);
  /// Returns the Python attributes of a tensor (torch._tensor._rebuild_from_type_v2), or nullopt.
  static std::optional<Value> attributes(Value tensor);
  /// Returns the same of an ordinary tensor: those of a subclass belong to its class.
  static std::optional<Value> user_attributes(Value tensor);

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
  std::uint64_t behind_ = 0;  // bytes behind the last storage of a legacy container
  std::map<std::string, std::shared_ptr<const StorageBytes>, std::less<>> legacy_;
  struct Cache;
  std::shared_ptr<Cache> cache_;  // storages of the zip container, by key
};

/// Appends a note when the file has trailing_bytes(), unnamed_storages() or names of tensors that
/// contradict each other.
void note_oddities(const TorchFile& file, std::vector<std::string>& notes);

/// Returns true when `head`, the first 32 bytes of a file, may begin a file of torch.save.
bool is_torch_head(std::string_view head);

/// Returns true for a file of torch.save. A zip archive may have other bytes before it.
bool is_torch_file(const Window& window);

/// Returns the element type of a typed storage class ("torch.FloatStorage") or of a dtype
/// ("torch.float32").
std::optional<DType> dtype_of_global(std::string_view global_name);

}  // namespace unishard::converters::torch
