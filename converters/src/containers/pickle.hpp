#pragma once
// Reads Python pickles (protocols 0 to 5) as data. Nothing is imported or called: a name stays a
// name, and a call stays a name with its arguments. Time is linear, and memory is limited while
// reading.
// Thread safety: a Pickle is immutable after parse(); concurrent reads are safe.
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::torch {

using NodeId = std::uint32_t;

enum class NodeKind : std::uint8_t {
  None,
  Bool,
  Int,
  BigInt,  ///< does not fit 64 bits: two's complement, little-endian, in text()
  Float,
  Str,
  Bytes,  ///< bytes, bytearray and Python 2 strings that are not ASCII
  List,
  Tuple,
  Dict,
  Set,
  Global,      ///< "module.name"
  Persistent,  ///< a persistent id; args() is the id
  Object,      ///< a call of a callable or class: its arguments, state, items and pairs
};

struct PickleLimits {
  std::uint64_t bytes = std::uint64_t{1} << 30;  ///< input bytes
  /// Memory of texts and nodes; at most description_limit().
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
};

class Pickle;

/// A handle to one node.
/// Lifetime: the Pickle must outlive its values.
/// Throws: an accessor throws Corrupt ("expected a dict, found int") when the node has another
/// kind.
class Value {
 public:
  Value(const Pickle& pickle, NodeId id) : pickle_(&pickle), id_(id) {}

  NodeKind kind() const;
  NodeId id() const { return id_; }
  /// Returns the name of the file for messages.
  const std::string& where() const;
  bool is(NodeKind kind_wanted) const { return kind() == kind_wanted; }
  bool is_none() const { return is(NodeKind::None); }
  bool is_sequence() const { return is(NodeKind::List) || is(NodeKind::Tuple); }
  /// Returns true for a dict, OrderedDict, defaultdict or Counter.
  bool is_dict() const;

  bool boolean() const;
  std::int64_t integer() const;        ///< Int, or Bool as 0 and 1
  std::uint64_t unsigned_int() const;  ///< like integer(); throws Corrupt when negative
  double real() const;                 ///< Float, Int or Bool
  std::string_view text() const;       ///< Str; also the bytes of Bytes and BigInt
  std::string_view string() const;     ///< Str only

  /// Return the elements of a List, Tuple or Set, the elements appended to an Object (opcode
  /// APPEND), or the numbers of a torch.Size.
  std::size_t size() const { return items().size(); }
  std::span<const NodeId> items() const;
  Value operator[](std::size_t index) const;

  /// Return the pairs of a dict in order.
  std::size_t pair_count() const;
  Value key(std::size_t index) const;
  Value value(std::size_t index) const;
  /// Returns the value of a string key of a dict.
  /// Complexity: linear.
  std::optional<Value> find(std::string_view key) const;
  /// Returns find(key).
  /// Throws: Corrupt, naming the key, when it is missing.
  Value at(std::string_view key) const;

  /// Returns "module.name" of a Global; modules of Python 2 and renamed modules under their present
  /// names.
  std::string global() const;
  /// Returns global() of an Object's callable, or "" when that is not a Global.
  std::string callable_name() const;
  bool calls(std::string_view global_name) const {
    return is(NodeKind::Object) && callable_name() == global_name;
  }
  Value callable() const;
  Value args() const;                  ///< Object: a Tuple; Persistent: the id
  std::optional<Value> state() const;  ///< Object: the argument of BUILD
  /// Returns a field of an object's state, which is a dict or a (dict, slots) tuple of dicts.
  std::optional<Value> field(std::string_view name) const;
  std::span<const NodeId> raw_pairs() const;  ///< key, value, key, value, ...

 private:
  const Pickle* pickle_;
  NodeId id_;
};

std::string_view to_string(NodeKind kind);

/// One parsed pickle with its text.
class Pickle {
 public:
  /// Parses the pickle at the start of `bytes`. `what` is the file that messages name.
  /// Throws: Corrupt, naming the byte, for an invalid pickle or one above limits.bytes, and for a
  /// dict with a key twice; Unsupported
  /// for extension codes and out-of-band buffers; MemoryLimit above limits.memory_bytes.
  static std::unique_ptr<Pickle> parse(std::string bytes, std::string_view what,
                                       const PickleLimits& limits = {});

  Value root() const { return {*this, root_}; }
  /// Returns the bytes of the pickle, including the opcode STOP.
  std::uint64_t consumed() const { return consumed_; }
  const std::string& bytes() const { return bytes_; }
  const std::string& what() const { return what_; }
  /// Returns every "module.name" that occurs, sorted and unique.
  std::vector<std::string> globals() const;
  /// Returns all Persistent nodes in order of appearance.
  const std::vector<NodeId>& persistents() const { return persistents_; }

 private:
  friend class Value;
  friend class PickleMachine;
  static constexpr std::uint32_t kNoBox = ~std::uint32_t{0};
  struct Node {
    NodeKind kind = NodeKind::None;
    std::uint32_t box = kNoBox;  // index of a container's or object's box; text length of strings
    std::uint64_t bits = 0;      // value of Int, Float (bit pattern), Bool; text offset of strings
  };
  struct Box {
    std::vector<NodeId> items, pairs;
    NodeId callable = 0, args = 0, state = 0;
    bool has_state = false;
  };
  Pickle() = default;
  std::string_view text_of(const Node& node) const;
  const Box& box_of(const Node& node) const;
  /// Checks that no dict has a key twice. Python writes each once, and reads the last of two.
  /// Throws: Corrupt, naming the key.
  void require_single_keys() const;

  std::string bytes_, what_;
  std::string decoded_;  // texts that bytes_ holds encoded; offsets continue from bytes_.size()
  std::vector<Node> nodes_;
  std::vector<Box> boxes_;
  std::vector<NodeId> persistents_;
  NodeId root_ = 0;
  std::uint64_t consumed_ = 0;
};

}  // namespace unishard::converters::torch
