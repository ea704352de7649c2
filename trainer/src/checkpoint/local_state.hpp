#pragma once
// Maps the tensors of the catalog, which is the same on every rank, to this rank's memory.
#include "unishard/format/catalog.hpp"
#include "unishard/trainer/communicator.hpp"

#include "state/state_array.hpp"
#include "state/training_state.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// The elements of one tensor that this rank holds, in one piece of memory or of a file.
struct LocalTensor {
  ElementRange held;
  std::span<std::byte> bytes;  ///< in host memory
  /// Owns `bytes` when they are a copy.
  at::Tensor keep = {};
  /// Flat tensor of the elements when they are in a device's memory, or have another type in memory
  /// than in a checkpoint; `bytes` is then empty.
  at::Tensor on_device = {};
  at::ScalarType stored = at::kFloat;  ///< type of `on_device`'s values in a checkpoint
  /// The elements are those of this array from `first` on, if it is defined; `bytes` is then empty.
  StateArray in_file = {};
  std::int64_t first = 0;

  /// Returns elements `range` of the tensor.
  /// Pre: held.contains(range).
  LocalTensor part(ElementRange range) const;
  /// Returns the same elements in host memory; copies them if they are on a device or in a file.
  LocalTensor on_host() const;
};

/// Thread safety: const functions are thread-safe.
class LocalState {
 public:
  /// Lists the tensors; all `derived` marks are false.
  /// Lifetime: `state` must outlive this object.
  explicit LocalState(const TrainingState& state);

  /// Gives buffers that differ between the ranks, as those of batch norm do, the values of rank 0
  /// in this object. Every rank saves a part of them, which must be parts of one buffer. The model
  /// keeps its values. Returns the names of these buffers. Collective.
  std::vector<std::string> take_buffers_of_rank0(Communicator& communicator);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  LocalTensor local(std::size_t tensor) const;
  /// Returns true when loading writes to this tensor: not for 16-bit weights, which follow from the
  /// fp32 ones.
  bool is_loaded(std::size_t tensor) const { return origins_[tensor].kind != Kind::Weights; }
  /// Returns true when the engine alone changes the tensor, in an update, a load or when it is
  /// given new weights: optimizer states, and masters that are not the parameters.
  bool is_own(std::size_t tensor) const;
  /// Returns one bool on the weights' device: whether this rank's part of 16-bit weights is not the
  /// rounding of their fp32 master; see any_is_not_rounded(). Pre: master_of(tensor).
  at::Tensor differs_from_master(std::size_t tensor) const;
  /// Returns the fp32 master of 16-bit weights.
  std::optional<std::size_t> master_of(std::size_t tensor) const;

 private:
  enum class Kind : std::uint8_t { Master, State, Weights, Frozen, Replica };
  struct Origin {
    Kind kind;
    std::size_t source;  ///< index of the parameter or, for replicas, in replicas_
    std::size_t state;
  };
  void add(const ParameterRecord& parameter, std::string_view state_name, DType dtype,
           Origin origin);
  void add_frozen(std::size_t index);
  void add_untrained(const std::string& fqn, const at::Tensor& tensor, std::string_view state_name,
                     Origin origin);
  LocalTensor replica(std::size_t tensor) const;
  std::vector<std::size_t> different_buffers(Communicator& communicator) const;

  const TrainingState& state_;
  std::vector<TensorInfo> tensors_;
  std::vector<Origin> origins_;
  std::vector<at::Tensor> replicas_;
};

}  // namespace unishard::trainer::detail
