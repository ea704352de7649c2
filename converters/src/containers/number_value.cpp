#include "containers/number_value.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace unishard::converters::torch {
namespace {

constexpr std::uint64_t kScalarBytes = 16;

template <class T>
double widened(const std::vector<std::byte>& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return static_cast<double>(value);
}

std::optional<double> element(DType dtype, const std::vector<std::byte>& bytes) {
  switch (dtype) {
    case DType::Int64:
      return widened<std::int64_t>(bytes);
    case DType::Int32:
      return widened<std::int32_t>(bytes);
    case DType::Int16:
      return widened<std::int16_t>(bytes);
    case DType::Int8:
      return widened<std::int8_t>(bytes);
    case DType::UInt8:
    case DType::Bool:
      return widened<std::uint8_t>(bytes);
    default:
      if (info(dtype).kind != Kind::Float) return std::nullopt;
      return float_at(dtype, bytes.data());
  }
}

}  // namespace

std::optional<double> number_of(const TorchFile& file, Value value) {
  switch (value.kind()) {
    case NodeKind::Int:
    case NodeKind::Bool:
    case NodeKind::Float:
      return value.real();
    default:
      break;
  }
  if (!TorchFile::is_tensor(value)) return std::nullopt;
  const TensorView view = file.tensor(value);
  if (!view.storage || view.elements() != 1) return std::nullopt;
  return element(view.dtype, view.read_all(kScalarBytes));
}

}  // namespace unishard::converters::torch
