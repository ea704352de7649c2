#pragma once
// What a checkpoint says of one tensor, without its bytes. A *tensor* is a parameter's fqn plus a
// state:
// ("h.0.attn.qkv.weight", "exp_avg"). Elements are numbered row-major over the global shape; every
// range is half-open and counts elements of the whole tensor. Values only; safe from any thread.
#include "unishard/format/dtype.hpp"
#include "unishard/format/stats.hpp"

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard {

using Shape = std::vector<std::uint64_t>;

/// Product of the dimensions (1 for a scalar). Throws Corrupt on overflow.
std::uint64_t element_count(const Shape& shape);

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

/// The common part; empty (begin == end) when there is none.
ElementRange intersect(const ElementRange& a, const ElementRange& b);

/// States that UniShard itself gives a meaning to. Optimizers add states under their own names.
namespace state {
inline constexpr std::string_view kFp32 = "fp32";            ///< fp32 master weights
inline constexpr std::string_view kExpAvg = "exp_avg";       ///< Adam's first moment
inline constexpr std::string_view kExpAvgSq = "exp_avg_sq";  ///< Adam's second moment
inline constexpr std::string_view kWeights =
    "weights";  ///< trained 16-bit weights, or frozen weights
inline constexpr std::string_view kBuffer = "buffer";  ///< registered buffers of the model
}  // namespace state

struct TensorInfo {
  std::string fqn;
  std::string state;
  DType dtype = DType::Float32;
  Shape shape;
  std::int32_t group = -1;  ///< index into Catalog::groups, or -1
  bool frozen = false;
  /// True for 16-bit `weights` that are exactly the rounding of the same fqn's `fp32` state: they
  /// are digested but not stored, and are rebuilt on reading.
  bool derived = false;
  std::optional<std::uint64_t> crc64;  ///< CRC-64/XZ of all bytes in row-major order, once known
  std::optional<Stats> stats;          ///< over all elements, once known

  std::uint64_t elements() const { return element_count(shape); }
  std::uint64_t bytes() const;
  /// "h.0.weight [exp_avg]": how messages and tables name a tensor.
  std::string label() const;
};

}  // namespace unishard
