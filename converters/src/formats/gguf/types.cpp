#include "formats/gguf/types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::converters::gguf {
namespace {

struct TensorType {
  std::uint32_t number;
  std::string_view name;
  std::optional<DType> dtype = {};
};

constexpr std::array<TensorType, 34> kTensorTypes = {{{0, "F32", DType::Float32},
                                                      {1, "F16", DType::Float16},
                                                      {30, "BF16", DType::BFloat16},
                                                      {28, "F64", DType::Float64},
                                                      {24, "I8", DType::Int8},
                                                      {25, "I16", DType::Int16},
                                                      {26, "I32", DType::Int32},
                                                      {27, "I64", DType::Int64},
                                                      {2, "Q4_0"},
                                                      {3, "Q4_1"},
                                                      {6, "Q5_0"},
                                                      {7, "Q5_1"},
                                                      {8, "Q8_0"},
                                                      {9, "Q8_1"},
                                                      {10, "Q2_K"},
                                                      {11, "Q3_K"},
                                                      {12, "Q4_K"},
                                                      {13, "Q5_K"},
                                                      {14, "Q6_K"},
                                                      {15, "Q8_K"},
                                                      {16, "IQ2_XXS"},
                                                      {17, "IQ2_XS"},
                                                      {18, "IQ3_XXS"},
                                                      {19, "IQ1_S"},
                                                      {20, "IQ4_NL"},
                                                      {21, "IQ3_S"},
                                                      {22, "IQ2_S"},
                                                      {23, "IQ4_XS"},
                                                      {29, "IQ1_M"},
                                                      {34, "TQ1_0"},
                                                      {35, "TQ2_0"},
                                                      {39, "MXFP4"},
                                                      {40, "NVFP4"},
                                                      {41, "Q1_0"}}};

struct ValueName {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<ValueName, kValueTypes> kValueNames = {{{"uint8", 1},
                                                             {"int8", 1},
                                                             {"uint16", 2},
                                                             {"int16", 2},
                                                             {"uint32", 4},
                                                             {"int32", 4},
                                                             {"float32", 4},
                                                             {"bool", 1},
                                                             {"string", 0},
                                                             {"array", 0},
                                                             {"uint64", 8},
                                                             {"int64", 8},
                                                             {"float64", 8}}};

}  // namespace

std::optional<DType> dtype_of(std::uint32_t number) {
  const auto* const found = std::ranges::find(kTensorTypes, number, &TensorType::number);
  return found == kTensorTypes.end() ? std::nullopt : found->dtype;
}

std::optional<std::uint32_t> number_of(DType dtype) {
  const auto* const found = std::ranges::find(kTensorTypes, dtype, &TensorType::dtype);
  return found == kTensorTypes.end() ? std::nullopt : std::optional(found->number);
}

bool is_known_type(std::uint32_t number) {
  return std::ranges::find(kTensorTypes, number, &TensorType::number) != kTensorTypes.end();
}

std::string name_of_type(std::uint32_t number) {
  const auto* const found = std::ranges::find(kTensorTypes, number, &TensorType::number);
  return found == kTensorTypes.end() ? fmt::format("type {}", number) : std::string(found->name);
}

std::string_view name_of(ValueType type) {
  return kValueNames[static_cast<std::size_t>(type)].name;
}

std::optional<ValueType> value_type_from_name(std::string_view name) {
  const auto* const found = std::ranges::find(kValueNames, name, &ValueName::name);
  if (found == kValueNames.end()) return std::nullopt;
  return static_cast<ValueType>(found - kValueNames.begin());
}

std::uint64_t bytes_of(ValueType type) { return kValueNames[static_cast<std::size_t>(type)].bytes; }

}  // namespace unishard::converters::gguf
