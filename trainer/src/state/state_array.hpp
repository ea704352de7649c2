#pragma once
// A one-dimensional array of a rank's training state, in the memory of a device or of the host, or
// in a file. A handle: copies are the same array.
#include "unishard/trainer/construction.hpp"

#include "device/pinned_memory.hpp"
#include "state/file_array.hpp"
#include "state/file_copies.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace unishard::trainer::detail {

/// Thread-safe for ranges that do not overlap.
class StateArray {
 public:
  StateArray() = default;
  /// An array in memory. Pre: `values` is contiguous and has one dimension.
  explicit StateArray(at::Tensor values) : values_(std::move(values)) {}
  /// An array of zeros in a file. `copies` are the way between the file and a device; null on the
  /// host. Throws: NoSpace.
  StateArray(std::shared_ptr<BlockFile> file, std::shared_ptr<FileCopies> copies,
             std::int64_t elements, at::ScalarType type);
  /// An array of zeros in host memory that `device` can read and write by itself.
  static StateArray pinned(std::int64_t elements, at::ScalarType type, at::Device device);

  bool defined() const { return tensor().defined() || file_ != nullptr; }
  bool is_in_file() const { return file_ != nullptr; }
  /// Returns true for an array that pinned() has made.
  bool is_pinned() const { return pinned_ != nullptr; }
  std::int64_t elements() const { return file_ ? elements_ : tensor().numel(); }
  at::ScalarType type() const { return file_ ? type_ : tensor().scalar_type(); }
  std::int64_t bytes_in_memory() const;
  std::int64_t bytes_in_file() const;

  /// Returns the array in memory. Pre: !is_in_file().
  const at::Tensor& tensor() const { return pinned_ ? pinned_->values : values_; }
  /// Returns elements [begin, begin + count): a view where they are in memory, else a copy in host
  /// memory.
  at::Tensor values(std::int64_t begin, std::int64_t count) const;
  at::Tensor values() const { return values(0, elements()); }
  /// Returns the elements on `device`: themselves, or a copy, which the current stream of `device`
  /// makes. They may change when it has been waited for.
  at::Tensor on(at::Device device) const;
  /// Fills `into`, a contiguous tensor of this type in host memory, with the elements from `begin`
  /// on. Pre: is_in_file().
  void read(std::int64_t begin, const at::Tensor& into) const;
  /// Replaces the elements from `begin` on.
  void write(std::int64_t begin, const at::Tensor& values) const;

  /// Returns an array in the file that keeps the present values; see FileArray::snapshot().
  /// Pre: is_in_file().
  StateArray snapshot() const;
  const std::shared_ptr<FileArray>& file() const { return file_; }
  /// Exchanges the values with those of an array of the same kind, size and type.
  /// Pre: both are in files or pinned.
  void take(const StateArray& other) const;

 private:
  struct Pinned {
    at::Tensor values;
    std::unique_ptr<PinnedMemory> memory;  ///< null without elements
  };

  at::Tensor values_;  ///< in memory that is not pinned
  std::shared_ptr<Pinned> pinned_;
  std::shared_ptr<FileArray> file_;
  std::shared_ptr<FileCopies> copies_;
  std::int64_t elements_ = 0;
  at::ScalarType type_ = at::kFloat;
};

/// The places of a unit's arrays.
class StatePlaces {
 public:
  /// Throws: as BlockFile::make() does.
  StatePlaces(const Placement& placement, Residence optimizer, Residence parameters);

  /// Returns true when the fp32 weights and optimizer states leave the device's memory.
  bool offloads_optimizer() const { return optimizer_.residence != Residence::Device; }
  bool offloads_parameters() const { return parameters_.residence != Residence::Device; }
  /// Returns true when the fp32 weights and optimizer states are in a file.
  bool has_optimizer_in_file() const { return optimizer_.residence == Residence::File; }

  /// Each returns an array of zeros: of the optimizer, or of the parameters.
  StateArray make_for_optimizer(std::int64_t elements, at::ScalarType type) const {
    return make(optimizer_, elements, type);
  }
  StateArray make_for_parameters(std::int64_t elements, at::ScalarType type) const {
    return make(parameters_, elements, type);
  }

 private:
  struct Place {
    Residence residence = Residence::Device;
    std::shared_ptr<BlockFile> file;
    std::shared_ptr<FileCopies> copies;  ///< null on the host
  };
  static Place place(Residence residence, const std::string& folder, const Placement& placement);
  StateArray make(const Place& place, std::int64_t elements, at::ScalarType type) const;

  at::Device device_;
  Place optimizer_, parameters_;
};

}  // namespace unishard::trainer::detail
