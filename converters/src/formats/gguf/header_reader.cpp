#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"
#include "unishard/format/utf8.hpp"

#include "core/embedded_catalog.hpp"
#include "formats/gguf/header.hpp"
#include "formats/gguf/types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <unordered_set>

namespace unishard::converters::gguf {
namespace {

constexpr std::uint64_t kKeys = 16384;  // as many as a section of a manifest can hold
constexpr std::uint64_t kKeyBytes = 65535;
constexpr std::uint64_t kCatalogBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kBufferBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kTensorBytesMin = 24;  // of an entry without name and sizes
constexpr std::uint64_t kJsonValueBytes = 32;  // memory of a number or of an empty text
constexpr std::uint32_t kDefaultAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";

/// Reads numbers and texts one after the other.
class Cursor {
 public:
  explicit Cursor(const File& file)
      : file_(file), bytes_(file.size()), budget_(file.path().string()) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return bytes_ - at_; }

  [[noreturn]] void fail(const std::string& problem) const {
    raise(ErrorCode::Corrupt, fmt::format("{}: GGUF header damaged at byte {}: {}",
                                          file_.path().string(), at_, problem));
  }
  void charge(std::uint64_t bytes) { budget_.charge(bytes); }

  template <class T>
  T number() {
    T value{};
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  std::string text(std::uint64_t limit_bytes) {
    const auto length = number<std::uint64_t>();
    if (length > limit_bytes || length > left())
      fail(fmt::format("a text of {} bytes where at most {} can be", length,
                       std::min(limit_bytes, left())));
    charge(length);
    std::string text(length, '\0');
    take(std::as_writable_bytes(std::span(text)));
    return text;
  }

 private:
  void take(std::span<std::byte> out) {
    if (out.size() > left()) fail("the file ends here");
    if (out.size() > kBufferBytes) {
      file_.read_at(at_, out);
    } else {
      if (at_ < begin_ || at_ + out.size() > begin_ + buffer_.size()) {
        begin_ = at_;
        buffer_.resize(std::min(kBufferBytes, left()));
        file_.read_at(begin_, std::as_writable_bytes(std::span(buffer_)));
      }
      std::memcpy(out.data(), buffer_.data() + (at_ - begin_), out.size());
    }
    at_ += out.size();
  }

  const File& file_;
  const std::uint64_t bytes_;
  MemoryBudget budget_;
  std::uint64_t at_ = 0;
  std::string buffer_;  ///< bytes from begin_ on
  std::uint64_t begin_ = 0;
};

class Decoder {
 public:
  explicit Decoder(const File& file) : file_(file), in_(file) {}

  Header decode() {
    read_version();
    const auto tensors = in_.number<std::uint64_t>(), keys = in_.number<std::uint64_t>();
    if (keys > kKeys) in_.fail(fmt::format("{} keys; up to {} are read", keys, kKeys));
    if (tensors > limits::kTensors || tensors > in_.left() / kTensorBytesMin)
      in_.fail(fmt::format("{} tensors, for which the file is too short", tensors));
    for (std::uint64_t i = 0; i < keys; ++i) read_key();
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor();
    refuse_quantized(tensors);
    place_tensors();
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& hint = {}) const {
    raise(ErrorCode::Unsupported, fmt::format("{}: {}", file_.path().string(), what), hint);
  }

  void read_version() {
    in_.number<std::uint32_t>();  // the magic number
    const auto version = in_.number<std::uint32_t>();
    if (version == 2 || version == 3) return;
    if (version != 0 && (version & 0xffff) == 0)
      refuse("a big-endian GGUF file; little-endian ones are read");
    refuse(fmt::format("version {} of GGUF (2 and 3 are read)", version));
  }

  ValueType value_type() {
    const auto number = in_.number<std::uint32_t>();
    if (number >= kValueTypes) in_.fail(fmt::format("a value of type {}", number));
    return static_cast<ValueType>(number);
  }

  /// Returns null for a number or a text that JSON cannot hold.
  Json value(ValueType type) {
    in_.charge(kJsonValueBytes);
    switch (type) {
      case ValueType::UInt8:
        return in_.number<std::uint8_t>();
      case ValueType::Int8:
        return in_.number<std::int8_t>();
      case ValueType::UInt16:
        return in_.number<std::uint16_t>();
      case ValueType::Int16:
        return in_.number<std::int16_t>();
      case ValueType::UInt32:
        return in_.number<std::uint32_t>();
      case ValueType::Int32:
        return in_.number<std::int32_t>();
      case ValueType::UInt64:
        return in_.number<std::uint64_t>();
      case ValueType::Int64:
        return in_.number<std::int64_t>();
      case ValueType::Float32:
        return finite(static_cast<double>(in_.number<float>()));
      case ValueType::Float64:
        return finite(in_.number<double>());
      case ValueType::Bool: {
        const auto byte = in_.number<std::uint8_t>();
        if (byte > 1) in_.fail("a bool that is neither 0 nor 1");
        return byte == 1;
      }
      case ValueType::String: {
        std::string text = in_.text(in_.left());
        return valid_utf8(text) ? Json(std::move(text)) : Json();
      }
      case ValueType::Array:
        break;
    }
    in_.fail("an array of arrays");
  }
  static Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

  Json array(ValueType type) {
    const auto count = in_.number<std::uint64_t>();
    const std::uint64_t least = std::max<std::uint64_t>(bytes_of(type), 1);
    if (count > in_.left() / least) in_.fail(fmt::format("an array of {} values", count));
    in_.charge(count * sizeof(Json));
    Json::array_t values;
    values.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) values.push_back(value(type));
    return values;
  }

  void read_key() {
    const std::string key = in_.text(kKeyBytes);
    if (!valid_utf8(key)) in_.fail("a key that is not UTF-8");
    if (!keys_.insert(key).second) in_.fail(fmt::format("a second key {}", unishard::quote(key)));
    ValueType type = value_type();
    if (key == kCatalogKey && type == ValueType::String) {
      header_.catalog_text = in_.text(kCatalogBytes);
      return;
    }
    const bool is_array = type == ValueType::Array;
    if (is_array) type = value_type();
    Json content = is_array ? array(type) : value(type);
    if (key == kAlignmentKey) return take_alignment(type, content);
    const auto is_null = [](const Json& each) { return each.is_null(); };
    if (content.is_null() || (is_array && std::ranges::any_of(content, is_null))) {
      header_.losses.push_back({.role = Role::Metadata,
                                .name = key,
                                .why = "JSON cannot hold it: text that is not UTF-8, or NaN"});
      return;
    }
    header_.metadata[key] = Json::array({name_of(type), std::move(content)});
  }

  void take_alignment(ValueType type, const Json& content) {
    if (type != ValueType::UInt32 || !content.is_number())
      in_.fail(fmt::format("{} is {} and no single uint32", kAlignmentKey,
                           content.is_array() ? "an array" : name_of(type)));
    alignment_ = content.get<std::uint32_t>();
    if (!std::has_single_bit(alignment_))
      in_.fail(fmt::format("{} is not a power of 2", kAlignmentKey));
  }

  void read_tensor() {
    TensorEntry entry;
    entry.name = in_.text(limits::kNameBytes);
    if (!names_.insert(entry.name).second)
      in_.fail(fmt::format("a second tensor {}", unishard::quote(entry.name)));
    const auto dimensions = in_.number<std::uint32_t>();
    if (dimensions > limits::kDimensions) in_.fail(fmt::format("{} dimensions", dimensions));
    in_.charge(2 * sizeof(TensorEntry) + dimensions * sizeof(std::uint64_t));
    for (std::uint32_t d = 0; d < dimensions; ++d)
      entry.shape.push_back(in_.number<std::uint64_t>());
    std::ranges::reverse(entry.shape);
    const auto type = in_.number<std::uint32_t>();
    entry.offset = in_.number<std::uint64_t>();
    if (const auto dtype = dtype_of(type)) {
      entry.dtype = *dtype;
    } else if (!is_known_type(type)) {
      refuse(fmt::format("tensor {} is of type {}, which this version does not know",
                         unishard::quote(entry.name), type));
    } else if (quantized_++ == 0) {
      first_quantized_ = fmt::format("{} ({})", unishard::quote(entry.name), name_of_type(type));
    }
    header_.tensors.push_back(std::move(entry));
  }

  void refuse_quantized(std::uint64_t tensors) const {
    if (quantized_ == 0) return;
    refuse(fmt::format("{} of {} tensors are quantized, {} first; F64, F32, F16, BF16 and integers "
                       "are read",
                       quantized_, tensors, first_quantized_),
           "take the model's F32, F16 or BF16 file, or undo the quantization with `llama-quantize "
           "--allow-requantize IN OUT F32`");
  }

  /// Makes the offsets those in the file; checks that tensors follow each other.
  void place_tensors() {
    const std::uint64_t begin = round_up(in_.at(), alignment_, "GGUF header");
    std::uint64_t next = 0, end = begin;
    for (TensorEntry& entry : header_.tensors) {
      const auto fail = [&](const std::string& problem) {
        raise(ErrorCode::Corrupt, fmt::format("{}: tensor {}: {}", file_.path().string(),
                                              unishard::quote(entry.name), problem));
      };
      if (entry.offset != next)
        fail(fmt::format("its offset is {} where {} was expected", entry.offset, next));
      std::uint64_t bytes = size_of(entry.dtype);
      for (const std::uint64_t size : entry.shape) {
        if (__builtin_mul_overflow(bytes, size, &bytes))
          fail("the product of its sizes overflows 64 bits");
      }
      entry.offset += begin;
      if (entry.offset > file_.size() || bytes > file_.size() - entry.offset) {
        fail(fmt::format("truncated: its {} bytes begin at byte {} of a file of {}", bytes,
                         entry.offset, file_.size()));
      }
      end = entry.offset + bytes;
      next = round_up(end - begin, alignment_, entry.name);
    }
    if (!header_.tensors.empty() && file_.size() > round_up(end, alignment_, "GGUF file")) {
      header_.losses.push_back({.role = Role::Metadata,
                                .name = "the end of the file",
                                .why = "bytes behind the last tensor",
                                .bytes = file_.size() - end});
    }
  }

  const File& file_;
  Cursor in_;
  Header header_;
  std::uint32_t alignment_ = kDefaultAlignment;
  std::unordered_set<std::string> keys_, names_;
  std::uint64_t quantized_ = 0;
  std::string first_quantized_;
};

}  // namespace

Header read_header(const File& file) { return Decoder(file).decode(); }

}  // namespace unishard::converters::gguf
