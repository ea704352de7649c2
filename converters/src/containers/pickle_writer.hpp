#pragma once
// Writes pickles of protocol 2 with the opcodes that torch.load(weights_only=True) accepts. One
// value after another is appended; containers are opened and closed by begin_/end_ pairs. Not
// thread-safe.
#include "unishard/format/dtype.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/pickle_opcodes.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace unishard::converters::torch {

class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void real(double value);
  void str(std::string_view utf8);
  void bytes(std::string_view bytes);
  /// An int of any size, two's complement and little-endian. Throws Unsupported from 256 bytes on.
  void long_integer(std::string_view bytes);
  /// A str with a code point of Latin-1 for each byte.
  void latin1_text(std::string_view bytes);

  void begin_dict();          ///< then key, value, key, value, ...
  void begin_ordered_dict();  ///< collections.OrderedDict
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();

  void global(std::string_view module, std::string_view name);
  /// Call of the global and the tuple before it: GLOBAL, args tuple, then reduce().
  void reduce();
  /// An instance: GLOBAL, then new_object(), then its state, then build().
  void new_object();
  void build();
  void size(const Shape& shape);  ///< torch.Size
  void dtype(DType dtype);        ///< the name torch.float32, ...

  /// A contiguous tensor at element `offset` of storage `key`, which holds `storage_elements` of
  /// its type.
  void tensor(DType dtype, const Shape& shape, std::string_view key, std::uint64_t storage_elements,
              std::uint64_t offset = 0);

  /// The pickle; at most once.
  std::string finish();

 private:
  void op(Opcode code) { out_.push_back(static_cast<char>(code)); }
  template <class T>
  void raw(T value);
  void put_text(std::string_view text);

  std::string out_;
  std::unordered_map<std::string, std::uint32_t> memo_;  // strings and globals already written
};

}  // namespace unishard::converters::torch
