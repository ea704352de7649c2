#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "core/embedded_catalog.hpp"
#include "formats/gguf/header.hpp"
#include "formats/gguf/types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unishard::converters::gguf {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;
constexpr std::size_t kDimensions = 4;  // of ggml

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

template <class T>
bool put_integer(std::string& out, const Json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<T>(value.get<std::uint64_t>())
                        : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  if (fits) put<T>(out, value.get<T>());
  return fits;
}

/// Returns false, for a value that is not of this type.
bool put_value(std::string& out, ValueType type, const Json& value) {
  switch (type) {
    case ValueType::UInt8:
      return put_integer<std::uint8_t>(out, value);
    case ValueType::Int8:
      return put_integer<std::int8_t>(out, value);
    case ValueType::UInt16:
      return put_integer<std::uint16_t>(out, value);
    case ValueType::Int16:
      return put_integer<std::int16_t>(out, value);
    case ValueType::UInt32:
      return put_integer<std::uint32_t>(out, value);
    case ValueType::Int32:
      return put_integer<std::int32_t>(out, value);
    case ValueType::UInt64:
      return put_integer<std::uint64_t>(out, value);
    case ValueType::Int64:
      return put_integer<std::int64_t>(out, value);
    case ValueType::Float32:
      if (value.is_number()) put<float>(out, value.get<float>());
      return value.is_number();
    case ValueType::Float64:
      if (value.is_number()) put<double>(out, value.get<double>());
      return value.is_number();
    case ValueType::Bool:
      if (value.is_boolean()) put<std::uint8_t>(out, value.get<bool>() ? 1 : 0);
      return value.is_boolean();
    case ValueType::String:
      if (value.is_string()) put_text(out, value.get_ref<const std::string&>());
      return value.is_string();
    case ValueType::Array:
      break;
  }
  return false;
}

/// Appends a key with its value, `[type, value]`; returns false, and appends nothing, when that is
/// no metadata of GGUF.
bool put_key(std::string& out, std::string_view key, const Json& typed) {
  const bool is_pair = typed.is_array() && typed.size() == 2 && typed[0].is_string();
  const auto type =
      is_pair ? value_type_from_name(typed[0].get_ref<const std::string&>()) : std::nullopt;
  if (!type) return false;
  const Json& value = typed[1];
  std::string made;
  put_text(made, key);
  if (!value.is_array()) {
    put(made, static_cast<std::uint32_t>(*type));
    if (!put_value(made, *type, value)) return false;
  } else {
    put(made, static_cast<std::uint32_t>(ValueType::Array));
    put(made, static_cast<std::uint32_t>(*type));
    put<std::uint64_t>(made, value.size());
    for (const Json& each : value) {
      if (!put_value(made, *type, each)) return false;
    }
  }
  out += made;
  return true;
}

[[noreturn]] void refuse(const TensorEntry& tensor, const std::string& why,
                         const std::string& hint) {
  raise(ErrorCode::Unsupported,
        fmt::format("tensor {}: GGUF has no {}", unishard::quote(tensor.name), why), hint);
}

std::uint32_t type_number(const TensorEntry& tensor) {
  const auto number = number_of(tensor.dtype);
  if (!number) {
    const bool is_float = info(tensor.dtype).kind == Kind::Float;
    refuse(tensor, std::string(unishard::name_of(tensor.dtype)),
           is_float ? "pass --dtype fp32, bf16 or fp16"
                    : "choose another format, or leave the tensor out (convert --only)");
  }
  return *number;
}

}  // namespace

Draft encode_header(Header& header) {
  Draft draft;
  std::string keys;
  std::uint64_t key_count = 0;
  for (const auto& [key, value] : header.metadata.items()) {
    if (put_key(keys, key, value)) {
      ++key_count;
    } else {
      draft.notes.push_back(fmt::format("the metadata {}", unishard::quote(key)));
    }
  }
  if (header.catalog_text &&
      put_key(keys, kCatalogKey, Json::array({"string", *header.catalog_text})))
    ++key_count;
  std::string tensors;
  std::uint64_t offset = 0;
  for (TensorEntry& tensor : header.tensors) {
    if (tensor.shape.size() > kDimensions)
      refuse(tensor,
             fmt::format("tensors of {} dimensions (up to {})", tensor.shape.size(), kDimensions),
             "");
    put_text(tensors, tensor.name);
    put<std::uint32_t>(tensors, static_cast<std::uint32_t>(tensor.shape.size()));
    for (std::size_t d = tensor.shape.size(); d-- > 0;)
      put<std::uint64_t>(tensors, tensor.shape[d]);
    put<std::uint32_t>(tensors, type_number(tensor));
    put<std::uint64_t>(tensors, offset);
    tensor.offset = offset;
    const std::uint64_t bytes =
        checked_mul(element_count(tensor.shape), size_of(tensor.dtype), tensor.name);
    offset = round_up(checked_add(offset, bytes, "GGUF file"), kAlignment, "GGUF file");
  }
  draft.bytes = kMagic;
  put<std::uint32_t>(draft.bytes, kVersion);
  put<std::uint64_t>(draft.bytes, header.tensors.size());
  put<std::uint64_t>(draft.bytes, key_count);
  draft.bytes += keys;
  draft.bytes += tensors;
  draft.bytes.resize(round_up(draft.bytes.size(), kAlignment, "GGUF header"), '\0');
  for (TensorEntry& tensor : header.tensors) tensor.offset += draft.bytes.size();
  draft.file_bytes = checked_add(draft.bytes.size(), offset, "GGUF file");
  return draft;
}

}  // namespace unishard::converters::gguf
