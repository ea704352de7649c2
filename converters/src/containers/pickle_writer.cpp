#include "containers/pickle_writer.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

namespace unishard::converters::torch {
namespace {

/// Returns the storage class of a type in module torch; empty when the type uses an UntypedStorage.
std::string_view storage_class(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return "DoubleStorage";
    case DType::Float32:
      return "FloatStorage";
    case DType::Float16:
      return "HalfStorage";
    case DType::BFloat16:
      return "BFloat16Storage";
    case DType::Int64:
      return "LongStorage";
    case DType::Int32:
      return "IntStorage";
    case DType::Int16:
      return "ShortStorage";
    case DType::Int8:
      return "CharStorage";
    case DType::UInt8:
      return "ByteStorage";
    case DType::Bool:
      return "BoolStorage";
    case DType::Complex64:
      return "ComplexFloatStorage";
    case DType::Complex128:
      return "ComplexDoubleStorage";
    case DType::Float8E4M3:
    case DType::Float8E5M2:
    case DType::Float8E4M3Fnuz:
    case DType::Float8E5M2Fnuz:
    case DType::Float8E8M0:
    case DType::UInt64:
    case DType::UInt32:
    case DType::UInt16:
      break;
  }
  return {};
}

}  // namespace

template <class T>
void PickleWriter::raw(T value) {
  out_.append(reinterpret_cast<const char*>(&value), sizeof value);
}

PickleWriter::PickleWriter() {
  op(Opcode::Proto);
  raw(std::uint8_t{2});
}

void PickleWriter::none() { op(Opcode::None); }
void PickleWriter::boolean(bool value) { op(value ? Opcode::NewTrue : Opcode::NewFalse); }

void PickleWriter::integer(std::int64_t value) {
  if (std::in_range<std::int32_t>(value)) {
    op(Opcode::BinInt);
    return raw(static_cast<std::int32_t>(value));
  }
  op(Opcode::Long1);
  raw(std::uint8_t{8});
  raw(value);
}

void PickleWriter::real(double value) {
  op(Opcode::BinFloat);
  raw(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void PickleWriter::put_text(std::string_view text) {
  if (text.size() > std::numeric_limits<std::uint32_t>::max())
    raise(ErrorCode::Unsupported, "a text of 4 GiB or more");
  op(Opcode::BinUnicode);
  raw(static_cast<std::uint32_t>(text.size()));
  out_ += text;
}

/// Writes each text once and recalls it from the memo afterwards, because names repeat.
void PickleWriter::str(std::string_view utf8) {
  const std::string key = fmt::format("s{}", utf8);
  if (const auto found = memo_.find(key); found != memo_.end()) {
    op(Opcode::LongBinGet);
    return raw(found->second);
  }
  put_text(utf8);
  op(Opcode::LongBinPut);
  raw(static_cast<std::uint32_t>(memo_.size()));
  memo_.emplace(key, static_cast<std::uint32_t>(memo_.size()));
}

void PickleWriter::long_integer(std::string_view bytes) {
  if (bytes.size() > 255) raise(ErrorCode::Unsupported, "an int of more than 255 bytes");
  op(Opcode::Long1);
  raw(static_cast<std::uint8_t>(bytes.size()));
  out_ += bytes;
}

void PickleWriter::latin1_text(std::string_view bytes) {
  std::string utf8;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) utf8.push_back(static_cast<char>(0xc0 | (byte >> 6)));
    utf8.push_back(static_cast<char>(byte >= 0x80 ? 0x80 | (byte & 0x3f) : byte));
  }
  put_text(utf8);
}

/// Writes each byte as a code point of Latin-1, as protocol 2 does.
void PickleWriter::bytes(std::string_view bytes) {
  global("_codecs", "encode");
  begin_tuple();
  latin1_text(bytes);
  str("latin1");
  end_tuple();
  reduce();
}

void PickleWriter::begin_dict() {
  op(Opcode::EmptyDict);
  op(Opcode::Mark);
}
void PickleWriter::begin_ordered_dict() {
  global("collections", "OrderedDict");
  op(Opcode::EmptyTuple);
  reduce();
  op(Opcode::Mark);
}
void PickleWriter::begin_items() { op(Opcode::Mark); }
void PickleWriter::end_dict() { op(Opcode::SetItems); }
void PickleWriter::begin_list() {
  op(Opcode::EmptyList);
  op(Opcode::Mark);
}
void PickleWriter::end_list() { op(Opcode::Appends); }
void PickleWriter::begin_tuple() { op(Opcode::Mark); }
void PickleWriter::end_tuple() { op(Opcode::Tuple); }

void PickleWriter::global(std::string_view module, std::string_view name) {
  const std::string key = fmt::format("g{}\n{}", module, name);
  if (const auto found = memo_.find(key); found != memo_.end()) {
    op(Opcode::LongBinGet);
    return raw(found->second);
  }
  op(Opcode::Global);
  out_ += fmt::format("{}\n{}\n", module, name);
  op(Opcode::LongBinPut);
  raw(static_cast<std::uint32_t>(memo_.size()));
  memo_.emplace(key, static_cast<std::uint32_t>(memo_.size()));
}

void PickleWriter::reduce() { op(Opcode::Reduce); }

void PickleWriter::new_object() {
  op(Opcode::EmptyTuple);
  op(Opcode::NewObj);
}

void PickleWriter::build() { op(Opcode::Build); }

void PickleWriter::size(const Shape& shape) {
  global("torch", "Size");
  begin_tuple();
  begin_tuple();
  for (const std::uint64_t dimension : shape) integer(static_cast<std::int64_t>(dimension));
  end_tuple();
  end_tuple();
  reduce();
}

void PickleWriter::dtype(DType dtype) { global("torch", name_of(dtype)); }

void PickleWriter::tensor(DType dtype, const Shape& shape, std::string_view key,
                          std::uint64_t storage_elements, std::uint64_t offset) {
  const std::string_view typed = storage_class(dtype);
  global("torch._utils", typed.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  begin_tuple();
  begin_tuple();
  str("storage");
  if (typed.empty()) {
    global("torch.storage", "UntypedStorage");
  } else {
    global("torch", typed);
  }
  put_text(key);
  str("cpu");
  integer(static_cast<std::int64_t>(typed.empty() ? storage_elements * size_of(dtype)
                                                  : storage_elements));
  end_tuple();
  op(Opcode::BinPersId);
  integer(static_cast<std::int64_t>(offset));
  Shape strides(shape.size());
  std::uint64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<std::uint64_t>(shape[d], 1);
  }
  for (const Shape* numbers : {&shape, static_cast<const Shape*>(&strides)}) {
    begin_tuple();
    for (const std::uint64_t number : *numbers) integer(static_cast<std::int64_t>(number));
    end_tuple();
  }
  const Kind kind = info(dtype).kind;
  boolean(requires_grad && (kind == Kind::Float || kind == Kind::Complex));
  global("collections", "OrderedDict");
  op(Opcode::EmptyTuple);
  reduce();
  if (typed.empty()) this->dtype(dtype);
  end_tuple();
  reduce();
}

std::string PickleWriter::finish() {
  op(Opcode::Stop);
  return std::move(out_);
}

}  // namespace unishard::converters::torch
