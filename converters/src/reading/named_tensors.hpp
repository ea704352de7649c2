#pragma once
// The tensors of a source's model by name, with which the quantizers look for each other's tensors.
#include "unishard/converters/source.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace unishard::converters {

/// Lifetime: the source must outlive this object.
class NamedTensors {
 public:
  using Predicate = std::function<bool(const TensorInfo&)>;
  /// Tensors for which `is_kept` is true stay as they are.
  NamedTensors(const Source& source, Predicate is_kept);

  const Source& source() const { return source_; }
  const TensorInfo& operator[](std::size_t tensor) const {
    return source_.catalog().tensors[tensor];
  }
  /// Returns the weights and buffers that do not stay as they are, in the order of the catalog.
  const std::vector<std::size_t>& candidates() const { return candidates_; }
  /// Returns whether any weight or buffer stays as it is.
  bool keeps_any() const { return keeps_any_; }
  /// Returns whether a tensor with this name belongs to a weight that stays as it is.
  bool serves_kept(std::string_view name) const;
  /// Returns the weight or buffer with this name, which may be its second name.
  std::optional<std::size_t> find(std::string_view name) const;
  /// Returns all bytes of a tensor, which describes others.
  /// Throws: Corrupt when it has more than `most` bytes.
  std::vector<std::byte> bytes(std::size_t tensor, std::uint64_t most) const;

 private:
  const Source& source_;
  const Predicate is_kept_;
  std::vector<std::size_t> candidates_;
  bool keeps_any_ = false;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

/// Returns what stands before the name's last part, with the dot behind it: "a.b." for
/// "a.b.weight".
std::string_view module_of(std::string_view name);

/// Returns what the same tensors of all layers have in common: "layers.#.mlp" for "layers.12.mlp".
std::string without_numbers(std::string_view name);

/// Throws Corrupt: "<label of the tensor>: <problem>".
[[noreturn]] void raise_tensor(const TensorInfo& tensor, std::string_view problem);

/// Reads elements `range` of a tensor as float32.
void read_floats(const Source& source, std::size_t tensor, ElementRange range,
                 std::span<float> out);

}  // namespace unishard::converters
