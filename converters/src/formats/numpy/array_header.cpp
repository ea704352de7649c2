#include "formats/numpy/array_header.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

namespace unishard::converters::numpy {
namespace {

constexpr std::uint64_t kTextBytesMax = std::uint64_t{1} << 20;
constexpr std::uint64_t kAlign = 64;

struct TypeName {
  std::string_view name;  // without the byte order
  DType dtype;
};

/// "f1", "V1" and "V2" are what numpy makes of the types of ml_dtypes. The first name of a type is
/// written.
constexpr std::array<TypeName, 18> kTypeNames = {{{"f8", DType::Float64},
                                                  {"f4", DType::Float32},
                                                  {"f2", DType::Float16},
                                                  {"V2", DType::BFloat16},
                                                  {"bfloat16", DType::BFloat16},
                                                  {"f1", DType::Float8E5M2},
                                                  {"i8", DType::Int64},
                                                  {"i4", DType::Int32},
                                                  {"i2", DType::Int16},
                                                  {"i1", DType::Int8},
                                                  {"u8", DType::UInt64},
                                                  {"u4", DType::UInt32},
                                                  {"u2", DType::UInt16},
                                                  {"u1", DType::UInt8},
                                                  {"V1", DType::UInt8},
                                                  {"b1", DType::Bool},
                                                  {"c8", DType::Complex64},
                                                  {"c16", DType::Complex128}}};

std::string_view without_byte_order(std::string_view descr) {
  const bool has_order =
      !descr.empty() && std::string_view("<>|=").find(descr.front()) != std::string_view::npos;
  return descr.substr(has_order ? 1 : 0);
}

/// Parses the dict, which is a Python literal of three known keys.
class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  ArrayHeader parse() {
    ArrayHeader header;
    bool has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && header.descr.empty()) {
        header.descr = descr();
      } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
        header.fortran_order = boolean();
      } else if (key == "shape" && !std::exchange(has_shape, true)) {
        header.shape = shape();
      } else {
        fail(fmt::format("an unexpected key {}", unishard::quote(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (!rest_.empty()) fail("text behind the dict");
    if (header.descr.empty() || !has_order || !has_shape) fail("a key is missing");
    return header;
  }

 private:
  [[noreturn]] static void fail(std::string_view problem) {
    raise(ErrorCode::Corrupt, fmt::format("the array's header is not numpy's: {}", problem));
  }
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
  }
  bool accept(char c) {
    skip_blanks();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("{} was expected before {}", c, unishard::quote(rest_)));
  }
  bool accept_word(std::string_view word) {
    skip_blanks();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::string string() {
    accept('u');  // Python 2
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) fail("a string without end");
    std::string text(rest_.substr(0, end));
    if (text.find('\\') != std::string::npos) fail("an escape in a string");
    rest_.remove_prefix(end + 1);
    return text;
  }

  /// A string, or the list or tuple that describes a record, as it is written.
  std::string descr() {
    skip_blanks();
    if (!rest_.starts_with('[') && !rest_.starts_with('(')) return string();
    std::size_t depth = 0, end = 0;
    do {
      if (end == rest_.size()) fail("a list without end");
      const char c = rest_[end++];
      depth += c == '[' || c == '(' ? 1 : 0;
      depth -= c == ']' || c == ')' ? 1 : 0;
    } while (depth > 0);
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return text;
  }

  bool boolean() {
    if (accept_word("True")) return true;
    if (!accept_word("False")) fail("fortran_order is neither True nor False");
    return false;
  }

  Shape shape() {
    Shape shape;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      std::uint64_t size = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc{}) fail("a size is not a whole number from 0 to 2^64-1");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      accept('L');  // Python 2
      shape.push_back(size);
      if (shape.size() > limits::kDimensions) fail("more than 64 dimensions");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  std::string_view rest_;
};

void take_type(ArrayHeader& header) {
  const std::string_view name = without_byte_order(header.descr);
  const auto* const found = std::ranges::find(kTypeNames, name, &TypeName::name);
  if (found == kTypeNames.end()) return;
  header.dtype = found->dtype;
  header.is_raw = name == "V1";
  header.big_endian = header.descr.starts_with('>') && size_of(found->dtype) > 1;
}

std::string_view type_name(DType dtype) {
  if (size_of(dtype) == 1 && info(dtype).kind == Kind::Float) return "V1";
  return std::ranges::find(kTypeNames, dtype, &TypeName::dtype)->name;
}

}  // namespace

ArrayHeader read_header(const torch::Window& content) {
  std::array<char, 12> start{};
  const std::size_t got = std::min<std::uint64_t>(start.size(), content.size);
  content.read(0, std::as_writable_bytes(std::span(start).first(got)));
  const std::string_view head(start.data(), got);
  if (!head.starts_with(kArrayMagic) || got < start.size())
    raise(ErrorCode::Corrupt, "not an array of numpy (it does not begin with \\x93NUMPY)");
  const int major = head[6], minor = head[7];
  if (major < 1 || major > 3 || minor != 0) {
    raise(ErrorCode::Unsupported,
          fmt::format("version {}.{} of numpy's array format (1.0 to 3.0 are read)", major, minor));
  }
  const std::uint64_t length_bytes = major == 1 ? 2 : 4;
  std::uint64_t text_bytes = 0;
  for (std::size_t i = length_bytes; i-- > 0;)
    text_bytes = text_bytes << 8 | static_cast<unsigned char>(head[8 + i]);
  const std::uint64_t text_offset = 8 + length_bytes;
  if (text_bytes > kTextBytesMax || text_bytes > content.size - text_offset)
    raise(ErrorCode::Corrupt, fmt::format("its header claims {} bytes", text_bytes));
  MemoryBudget(content.name()).charge(text_bytes);
  std::string text(text_bytes, '\0');
  content.read(text_offset, std::as_writable_bytes(std::span(text)));
  ArrayHeader header = Parser(text).parse();
  header.data_offset = text_offset + text_bytes;
  take_type(header);
  if (!header.dtype) return header;
  std::uint64_t bytes = size_of(*header.dtype);
  for (const std::uint64_t size : header.shape) bytes = checked_mul(bytes, size, "its shape");
  if (bytes > content.size - header.data_offset) {
    raise(ErrorCode::Corrupt, fmt::format("truncated: an array of {} bytes has {}", bytes,
                                          content.size - header.data_offset));
  }
  return header;
}

std::string encode_header(DType dtype, const Shape& shape) {
  const char order = size_of(dtype) == 1 ? '|' : '<';
  std::string text =
      fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}", order,
                  type_name(dtype), fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  constexpr std::size_t kFixed = kArrayMagic.size() + 2 + 2;
  text.resize(round_up(kFixed + text.size() + 1, kAlign, "npy header") - kFixed - 1, ' ');
  text += '\n';
  std::string header(kArrayMagic);
  header +=
      {'\x01', '\0', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

bool holds_text(std::string_view descr) {
  const std::string_view name = without_byte_order(descr);
  return !name.empty() && std::string_view("USaMm").find(name.front()) != std::string_view::npos;
}

std::string describe_elements(std::string_view descr) {
  const std::string_view name = without_byte_order(descr);
  if (name.starts_with('O')) return "Python objects (a pickle, which is never executed)";
  if (name.starts_with('[') || name.starts_with('(')) return "records";
  if (name.starts_with('U') || name.starts_with('S') || name.starts_with('a')) return "text";
  if (name.starts_with('M') || name.starts_with('m')) return "times";
  return fmt::format("elements of type {}", unishard::quote(descr));
}

}  // namespace unishard::converters::numpy
