#pragma once
// The header of one array in numpy's format (.npy), versions 1 to 3:
//    "\x93NUMPY" | major | minor | u16 or u32 length | a Python dict as text, padded with blanks
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
// Thread safety: pure functions.
#include "unishard/format/tensor_info.hpp"

#include "containers/zip_reader.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unishard::converters::numpy {

inline constexpr std::string_view kArrayMagic("\x93NUMPY", 6);

struct ArrayHeader {
  std::string descr;           ///< as in the file: "<f4"
  std::optional<DType> dtype;  ///< nullopt: elements that UniShard has no type for
  bool is_raw = false;  ///< one untyped byte ("|V1"): which 8-bit float, `dtype` does not tell
  bool big_endian = false;
  bool fortran_order = false;
  Shape shape;
  std::uint64_t data_offset = 0;  ///< of the first element

  std::uint64_t data_bytes() const { return element_count(shape) * size_of(*dtype); }
};

/// Reads and checks the header of the array in `content`.
/// Throws: Corrupt for a header that numpy does not write, or one that claims more bytes than there
/// are; Unsupported for another version of the format. Messages name only the defect.
ArrayHeader read_header(const torch::Window& content);

/// Returns what precedes the elements, which numpy aligns to 64 bytes. bfloat16 is "<V2" and 8-bit
/// floats are "|V1", as numpy writes the types of ml_dtypes.
std::string encode_header(DType dtype, const Shape& shape);

/// Returns true for elements that are text or times, which no model has.
bool holds_text(std::string_view descr);

/// Returns what messages call elements without a DType, for example "Python objects (a pickle,
/// which is never executed)".
std::string describe_elements(std::string_view descr);

}  // namespace unishard::converters::numpy
