#pragma once
// Writes pickles of protocol 2 with the opcodes that torch.load(weights_only=True) accepts. Values
// are appended one after another; begin_ and end_ functions enclose the values of a container.
#include "unishard/format/dtype.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/pickle_opcodes.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace unishard::converters::torch {

/// Not thread-safe.
class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void real(double value);
  void str(std::string_view utf8);
  void bytes(std::string_view bytes);
  /// Appends an int in two's complement, little-endian.
  /// Throws: Unsupported from 256 bytes on.
  void long_integer(std::string_view bytes);
  /// Appends a str with one Latin-1 code point for each byte.
  void latin1_text(std::string_view bytes);

  void begin_dict();          ///< followed by key, value, key, value, ...
  void begin_ordered_dict();  ///< collections.OrderedDict
  void begin_items();         ///< of a dict or list that a call has just made
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();

  void global(std::string_view module, std::string_view name);
  /// Calls the global that was appended before the last tuple, with that tuple as arguments.
  void reduce();
  /// Creates an instance: append a global, call new_object(), append the state, call build().
  void new_object();
  void build();
  /// Appends a torch.Size.
  void size(const Shape& shape);
  void dtype(DType dtype);  ///< for example the global torch.float32

  /// True makes autograd compute gradients for the tensors that follow, if their types have any.
  bool requires_grad = false;
  /// Appends a contiguous tensor that begins at element `offset` of storage `key`, which holds
  /// `storage_elements` elements.
  void tensor(DType dtype, const Shape& shape, std::string_view key, std::uint64_t storage_elements,
              std::uint64_t offset = 0);

  /// Returns the pickle. Call it at most once.
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
