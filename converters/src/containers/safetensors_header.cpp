#include "containers/safetensors_header.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"

#include "containers/git_lfs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <tuple>
#include <unordered_map>

namespace unishard::converters::safetensors {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

/// Rank of a type; higher ones are stored first. Wide types come first, so that all tensors are
/// aligned.
constexpr std::array<DType, 19> kWriteOrder = {
    DType::UInt64,     DType::Int64,          DType::Float64,
    DType::Complex64,  DType::Float32,        DType::UInt32,
    DType::Int32,      DType::BFloat16,       DType::Float16,
    DType::UInt16,     DType::Int16,          DType::Float8E4M3,
    DType::Float8E5M2, DType::Float8E4M3Fnuz, DType::Float8E5M2Fnuz,
    DType::Float8E8M0, DType::Int8,           DType::UInt8,
    DType::Bool};

class Decoder {
 public:
  explicit Decoder(const File& file) : file_(file), where_(file.path().string()) {}

  Header decode() {
    const std::string text = read_text();
    const SortedJson json = parse_sorted_json(text, where_ + ": header");
    if (!json.is_object()) fail("the header is not a JSON object");
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadataKey) {
        decode_metadata(value);
      } else {
        header_.entries.push_back(decode_entry(name, value));
      }
    }
    check_coverage();
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", where_, problem));
  }
  [[noreturn]] void fail(std::string_view name, const std::string& problem) const {
    fail(fmt::format("tensor {}: {}", unishard::quote(name), problem));
  }

  std::string read_text() {
    const std::uint64_t file_bytes = file_.size();
    if (file_bytes < kLengthBytes) {
      fail(fmt::format("{} bytes are too few for a safetensors file", file_bytes));
    }
    std::array<std::byte, kLengthBytes> raw;
    file_.read_at(0, raw);
    std::uint64_t length = 0;
    for (std::size_t i = raw.size(); i-- > 0;) {
      length = length << 8 | std::to_integer<std::uint64_t>(raw[i]);
    }
    if (std::memcmp(raw.data(), kGitLfsStart.data(), raw.size()) == 0) {
      raise(ErrorCode::Unsupported, fmt::format("{} is {}", file_.path().string(), kGitLfsPointer));
    }
    if (length > kHeaderBytesMax) {
      fail(fmt::format(
          "header length {} at byte 0 is above the limit of {}: not a safetensors file?", length,
          kHeaderBytesMax));
    }
    if (length > file_bytes - kLengthBytes) {
      fail(fmt::format("header length {} at byte 0 goes beyond the end of the file ({} bytes)",
                       length, file_bytes));
    }
    header_.data_offset = kLengthBytes + length;
    data_bytes_ = file_bytes - header_.data_offset;
    MemoryBudget(file_.path().string()).charge(length);
    std::string text(length, '\0');
    file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
    // The JSON parser skips a byte order mark.
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || text[first] != '{')
      fail("the header does not start with '{'");
    if (first != 0) header_.notes.push_back("the header starts with blanks");
    if (length % 8 != 0) header_.notes.push_back("the header is not padded to 8 bytes");
    return text;
  }

  void decode_metadata(const SortedJson& json) {
    if (json.is_null()) return;
    if (!json.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) {
        fail(fmt::format("__metadata__ {}: the value is not a string", unishard::quote(key)));
      }
      header_.metadata.emplace_back(key, value.get<std::string>());
    }
  }

  const SortedJson& field(std::string_view name, const SortedJson& entry, const char* key) const {
    const auto found = entry.find(key);
    if (found == entry.end()) fail(name, fmt::format("{} is missing", key));
    return *found;
  }

  std::uint64_t number(std::string_view name, const SortedJson& json, std::string_view what) const {
    if (!json.is_number_unsigned()) {
      fail(name, fmt::format("{} {} is not a whole number from 0 to 2^64-1", what, json.dump()));
    }
    return json.get<std::uint64_t>();
  }

  DType decode_dtype(std::string_view name, const SortedJson& json) const {
    if (!json.is_string()) fail(name, "dtype is not a string");
    const auto& text = json.get_ref<const std::string&>();
    if (const auto dtype = dtype_from_safetensors(text); dtype && !text.empty()) return *dtype;
    if (is_sub_byte(text)) return DType::UInt8;
    fail(name, fmt::format("unknown dtype {}", unishard::quote(text)));
  }

  HeaderEntry decode_entry(const std::string& name, const SortedJson& json) const {
    if (!json.is_object()) fail(name, "its entry is not an object");
    HeaderEntry entry{
        .name = name, .dtype = decode_dtype(name, field(name, json, "dtype")), .shape = {}};
    const SortedJson& shape = field(name, json, "shape");
    if (!shape.is_array()) fail(name, "shape is not an array");
    if (shape.size() > limits::kDimensions) {
      fail(name, fmt::format("{} dimensions are more than {}", shape.size(), limits::kDimensions));
    }
    for (const SortedJson& size : shape) entry.shape.push_back(number(name, size, "size"));
    const SortedJson& offsets = field(name, json, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) fail(name, "data_offsets are not two numbers");
    entry.begin = number(name, offsets[0], "data offset");
    entry.end = number(name, offsets[1], "data offset");
    if (const auto dtype = entry_type(json); is_sub_byte(dtype)) pack(entry, dtype);
    check_size(entry);
    return entry;
  }

  /// Pre: decode_dtype() has accepted it.
  static const std::string& entry_type(const SortedJson& json) {
    return json.at("dtype").get_ref<const std::string&>();
  }

  void pack(HeaderEntry& entry, const std::string& dtype) const {
    SubByteType type{dtype, std::move(entry.shape)};
    try {
      entry.shape = packed_shape(type);
    } catch (const Error& error) {
      fail(entry.name, error.what());
    }
    entry.sub_byte = std::move(type);
  }

  void check_size(const HeaderEntry& entry) const {
    std::uint64_t bytes = size_of(entry.dtype);
    for (const std::uint64_t size : entry.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) {
        fail(entry.name, "the product of its shape overflows 64 bits");
      }
    }
    if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
      fail(entry.name, fmt::format("data_offsets [{}, {}] do not hold the {} bytes of its shape",
                                   entry.begin, entry.end, bytes));
    }
  }

  void check_coverage() {
    std::sort(header_.entries.begin(), header_.entries.end(),
              [](const HeaderEntry& a, const HeaderEntry& b) {
                return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
              });
    std::uint64_t covered = 0;
    for (const HeaderEntry& entry : header_.entries) {
      if (entry.begin != covered) {
        fail(entry.name,
             fmt::format("its bytes start at {} where {} was expected ({})", entry.begin, covered,
                         entry.begin < covered ? "two tensors overlap" : "a hole in the data"));
      }
      covered = entry.end;
    }
    if (covered != data_bytes_) {
      fail(fmt::format("the tensors take {} bytes, the file holds {} ({})", covered, data_bytes_,
                       covered > data_bytes_ ? "truncated" : "trailing bytes"));
    }
  }

  const File& file_;
  const std::string where_;
  std::uint64_t data_bytes_ = 0;
  Header header_;
};

/// Twice the place in kWriteOrder: elements below a byte come behind uint8.
std::size_t write_rank(const HeaderEntry& entry) {
  const auto found = std::find(kWriteOrder.begin(), kWriteOrder.end(), entry.dtype);
  return 2 * static_cast<std::size_t>(found - kWriteOrder.begin()) + (entry.sub_byte ? 1 : 0);
}

/// Returns the members of a JSON object in their order; of a key that comes twice, the last value.
/// Complexity: linear, since a model may have a key for each of many aliases.
std::string encode_members(const Metadata& metadata) {
  std::unordered_map<std::string_view, const std::string*> values;
  for (const auto& [key, value] : metadata) values[key] = &value;
  std::string text;
  for (const auto& [key, value] : metadata) {
    const auto last = values.extract(key);
    if (last.empty()) continue;
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", Json(key).dump(),
                        Json(*last.mapped()).dump());
  }
  return text;
}

}  // namespace

Header read_header(const File& file) { return Decoder(file).decode(); }

std::string encode_header(std::vector<HeaderEntry>& entries, const Metadata& metadata) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(write_rank(a), std::string_view(a.name)) <
           std::pair(write_rank(b), std::string_view(b.name));
  });
  std::string text = "{";  // built piece by piece: a tree would hold every name a second time
  if (!metadata.empty())
    text += fmt::format(R"("{}":{{{}}})", kMetadataKey, encode_members(metadata));
  std::uint64_t offset = 0;
  for (HeaderEntry& entry : entries) {
    if (write_rank(entry) == 2 * kWriteOrder.size()) {
      raise(
          ErrorCode::Unsupported,
          fmt::format("tensor {}: safetensors has no {}", unishard::quote(entry.name),
                      name_of(entry.dtype)),
          "write torch, dcp, npz or hdf5, which have it, or leave the tensor out (convert --only)");
    }
    entry.begin = offset;
    offset = checked_add(offset,
                         checked_mul(element_count(entry.shape), size_of(entry.dtype), entry.name),
                         "size of the safetensors file");
    entry.end = offset;
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        text.size() > 1 ? "," : "", Json(entry.name).dump(),
                        entry.sub_byte ? entry.sub_byte->dtype : info(entry.dtype).safetensors_name,
                        Json(entry.sub_byte ? entry.sub_byte->shape : entry.shape).dump(),
                        entry.begin, entry.end);
  }
  text += '}';
  text.resize(round_up(text.size(), 8, "safetensors header"), ' ');
  if (text.size() > kHeaderBytesMax) {
    raise(ErrorCode::Unsupported,
          fmt::format("the safetensors header would take {} bytes, readers refuse more than {}",
                      text.size(), kHeaderBytesMax),
          "write several files (--max_shard_size)");
  }
  std::string length(kLengthBytes, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return length + text;
}

}  // namespace unishard::converters::safetensors
