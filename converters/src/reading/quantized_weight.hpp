#pragma once
// A weight that is stored as quantized numbers, and how its values are computed.
#include "unishard/converters/source.hpp"
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Upper bound on the elements that one QuantizedValues::read() computes.
inline constexpr std::uint64_t kStepElements = std::uint64_t{1} << 20;

/// Computes the values of one weight from the tensors of a source. Thread-safe.
class QuantizedValues {
 public:
  virtual ~QuantizedValues() = default;
  /// Computes elements `range` of the weight. Reads only what they need.
  /// Pre: `range` is not empty, has at most kStepElements elements and the size of `values`.
  virtual void read(const Source& source, ElementRange range, std::span<float> values) const = 0;
  /// Returns what Source::read_boundary() returns for the weight.
  virtual std::uint64_t read_boundary(const Source& source, std::uint64_t element) const = 0;
};

struct QuantizedWeight {
  std::size_t tensor = 0;  ///< of the source: the quantized numbers
  std::string fqn;         ///< of the weight
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<std::size_t> sides;  ///< tensors of the source that only serve this weight
  std::string method;              ///< for messages: "bitsandbytes nf4"
  std::shared_ptr<const QuantizedValues> values;
};

}  // namespace unishard::converters
