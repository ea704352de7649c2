#include "containers/sub_byte_types.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

namespace unishard::converters::safetensors {
namespace {

/// A key of the producer: a list of [fqn, dtype, shape].
constexpr const char* kKey = "sub_byte";

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 3> kBits = {
    {{"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}}};

std::uint64_t bits_of(std::string_view dtype) {
  const auto* const found =
      std::ranges::find(kBits, dtype, [](const auto& row) { return row.first; });
  return found == kBits.end() ? 0 : found->second;
}

/// Returns nullopt for a row that record_types() does not write.
std::optional<std::pair<std::string, SubByteType>> row_of(const Json& row) {
  const bool is_row = row.is_array() && row.size() == 3 && row[0].is_string() &&
                      row[1].is_string() && row[2].is_array() &&
                      row[2].size() <= limits::kDimensions;
  const auto is_size = [](const Json& size) { return size.is_number_unsigned(); };
  if (!is_row || !std::ranges::all_of(row[2], is_size)) return std::nullopt;
  SubByteType type{row[1].get<std::string>(), row[2].get<Shape>()};
  if (!is_sub_byte(type.dtype)) return std::nullopt;
  return std::pair(row[0].get<std::string>(), std::move(type));
}

bool fits(const SubByteType& type, const TensorInfo& tensor) {
  if (tensor.dtype != DType::UInt8 || tensor.state != state::kWeights) return false;
  try {
    return packed_shape(type) == tensor.shape;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool is_sub_byte(std::string_view dtype) { return bits_of(dtype) != 0; }

Shape packed_shape(const SubByteType& type) {
  const std::uint64_t width = bits_of(type.dtype);
  std::uint64_t bits = width;
  for (const std::uint64_t size : type.shape) bits = checked_mul(bits, size, "its shape");
  if (bits % 8 != 0)
    raise(ErrorCode::Corrupt, fmt::format("{} elements that are not whole bytes", type.dtype));
  if (type.shape.empty() || type.shape.back() * width % 8 != 0) return {bits / 8};
  Shape shape = type.shape;
  shape.back() = shape.back() * width / 8;
  return shape;
}

void record_types(Catalog& catalog, const std::vector<std::optional<SubByteType>>& types) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i])
      rows.push_back(Json::array({catalog.tensors[i].fqn, types[i]->dtype, types[i]->shape}));
  }
  if (catalog.producer.is_null()) catalog.producer = Json::object();
  if (!rows.empty() && catalog.producer.is_object()) catalog.producer[kKey] = std::move(rows);
}

std::vector<std::optional<SubByteType>> recorded_types(const Catalog& catalog) {
  std::vector<std::optional<SubByteType>> types(catalog.tensors.size());
  const Json& producer = catalog.producer;
  const auto rows = producer.is_object() ? producer.find(kKey) : producer.end();
  if (!producer.is_object() || rows == producer.end() || !rows->is_array()) return types;
  std::unordered_map<std::string, SubByteType> by_name;
  for (const Json& row : *rows) {
    if (auto found = row_of(row)) by_name.insert(*std::move(found));
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    const auto found = by_name.find(catalog.tensors[i].fqn);
    if (found != by_name.end() && fits(found->second, catalog.tensors[i])) types[i] = found->second;
  }
  return types;
}

}  // namespace unishard::converters::safetensors
