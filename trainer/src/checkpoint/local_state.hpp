#pragma once
// Which memory of this rank holds which tensor of the catalog. The catalog is the same on every
// rank.
#include "unishard/format/catalog.hpp"

#include "engine/training_state.hpp"

#include <optional>
#include <vector>

namespace unishard::trainer::detail {

/// The elements of one tensor that this rank has, in one piece of memory.
struct LocalTensor {
  ElementRange held;
  std::span<std::byte> bytes;  ///< in host memory
  at::Tensor keep = {};        ///< owns `bytes` where they are a copy
  at::Tensor on_device = {};  ///< flat; defined where they are in a device's memory, not in `bytes`

  /// Elements `range` of the tensor, which this has.
  LocalTensor part(ElementRange range) const;
  /// The same, or a copy in host memory.
  LocalTensor on_host() const;
};

class LocalState {
 public:
  /// Lists the tensors; `derived` marks are all false. The state must outlive this.
  explicit LocalState(const TrainingState& state);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  LocalTensor local(std::size_t tensor) const;
  /// Whether loading writes here: not the 16-bit weights, which follow from the fp32 ones.
  bool is_loaded(std::size_t tensor) const { return origins_[tensor].kind != Kind::Weights; }
  /// Whether tensor is 16-bit weights and this rank's share is exactly the rounding of its fp32
  /// master. Several threads may ask at once.
  bool is_rounded_master(std::size_t tensor) const;
  /// Of 16-bit weights: the tensor of their fp32 master.
  std::optional<std::size_t> master_of(std::size_t tensor) const;

 private:
  enum class Kind : std::uint8_t { Master, State, Weights, Replica };
  struct Origin {
    Kind kind;
    std::size_t source;  ///< parameter or, for replicas, index into replicas_
    std::size_t state;
  };
  void add(const ParameterRecord& parameter, std::string_view state_name, DType dtype,
           Origin origin);
  void add_replica(const std::string& fqn, const at::Tensor& tensor, std::string_view state_name);

  const TrainingState& state_;
  std::vector<TensorInfo> tensors_;
  std::vector<Origin> origins_;
  std::vector<at::Tensor> replicas_;
  mutable const FlatUnit* rounded_unit_ = nullptr;  ///< the unit that rounded_ was made of
  mutable at::Tensor rounded_;
};

}  // namespace unishard::trainer::detail
