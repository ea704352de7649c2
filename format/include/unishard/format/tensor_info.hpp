#pragma once
// Describes one tensor of a checkpoint without its bytes. A *tensor* is the fqn of a parameter plus
// a state, for example ("h.0.attn.qkv.weight", "exp_avg"). Elements are numbered row-major over the
// global shape; every range is half-open and counts elements of the whole tensor.
// Thread safety: values and pure functions.
#include "unishard/format/dtype.hpp"
#include "unishard/format/stats.hpp"

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard {

using Shape = std::vector<std::uint64_t>;

/// Returns the product of the dimensions; 1 for a scalar.
/// Throws: Corrupt on overflow.
std::uint64_t element_count(const Shape& shape);

/// The elements [begin, end).
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool contains(const ElementRange& other) const {
    return begin <= other.begin && other.end <= end;
  }
  auto operator<=>(const ElementRange&) const = default;
};

/// Returns the elements in both ranges; an empty range when there are none.
ElementRange intersect(const ElementRange& a, const ElementRange& b);

/// Names of the states to which UniShard itself gives a meaning. Optimizers add states under their
/// own names.
namespace state {
inline constexpr std::string_view kFp32 = "fp32";            ///< fp32 master weights
inline constexpr std::string_view kExpAvg = "exp_avg";       ///< first moment of Adam
inline constexpr std::string_view kExpAvgSq = "exp_avg_sq";  ///< second moment of Adam
/// Trained 16-bit weights, or frozen weights.
inline constexpr std::string_view kWeights = "weights";
inline constexpr std::string_view kBuffer = "buffer";  ///< registered buffers of the model
}  // namespace state

struct TensorInfo {
  std::string fqn;
  std::string state;
  DType dtype = DType::Float32;
  Shape shape;
  std::int32_t group = -1;  ///< index into Catalog::groups, or -1
  bool frozen = false;
  /// True for 16-bit `weights` that are exactly the rounding of the same fqn's `fp32` state. Their
  /// digest is stored, their bytes are not; a reader rebuilds them.
  bool derived = false;
  std::optional<std::uint64_t> crc64;  ///< CRC-64/XZ of all bytes in row-major order, once known
  std::optional<Stats> stats;          ///< statistics of all elements, once known

  std::uint64_t elements() const { return element_count(shape); }
  /// Throws: Corrupt on overflow, as elements() does.
  std::uint64_t bytes() const;
  /// Returns the name used by messages and tables: "h.0.weight [exp_avg]".
  std::string label() const;
};

}  // namespace unishard
