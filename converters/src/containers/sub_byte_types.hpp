#pragma once
// The element types of safetensors that are smaller than a byte: F4, F6_E2M3, F6_E3M2. UniShard has
// no such types. Their tensors are kept packed, as uint8, and the producer of the catalog records
// what they are, so that a safetensors file gets them back bit for bit.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::safetensors {

struct SubByteType {
  std::string dtype;  ///< "F4"
  Shape shape;        ///< counts elements, not bytes
};

bool is_sub_byte(std::string_view dtype);

/// Returns the shape as bytes: that of `type` with the last dimension packed, or one dimension when
/// a row is not whole bytes.
/// Throws: Corrupt when all elements together are not whole bytes.
Shape packed_shape(const SubByteType& type);

/// Records in catalog.producer what the packed tensors are; `types` has one entry per tensor.
void record_types(Catalog& catalog, const std::vector<std::optional<SubByteType>>& types);

/// Returns for each tensor what was recorded for it and still fits it.
std::vector<std::optional<SubByteType>> recorded_types(const Catalog& catalog);

}  // namespace unishard::converters::safetensors
