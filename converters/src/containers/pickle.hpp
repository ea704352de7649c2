#pragma once
// Python pickles as data. Nothing is imported, looked up or called: names stay names, calls stay
// "this name with these arguments". All protocols (0 to 5); linear time; memory is counted and
// capped while reading. A Pickle is immutable after parse() and may be read from any thread.
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
  Persistent,  ///< a persistent id: item 0 is the id
  Object,      ///< a callable or class with its arguments, state, items and pairs
};

struct PickleLimits {
  std::uint64_t bytes = std::uint64_t{1} << 30;  ///< of input
  /// Of text and nodes; description_limit() if that is less.
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
};

class Pickle;

/// One node. A cheap handle: valid while the Pickle lives. Accessors throw Corrupt ("expected a
/// dict, found int") for another kind.
class Value {
 public:
  Value(const Pickle& pickle, NodeId id) : pickle_(&pickle), id_(id) {}

  NodeKind kind() const;
  NodeId id() const { return id_; }
  /// Its file, as messages call it.
  const std::string& where() const;
  bool is(NodeKind kind_wanted) const { return kind() == kind_wanted; }
  bool is_none() const { return is(NodeKind::None); }
  bool is_sequence() const { return is(NodeKind::List) || is(NodeKind::Tuple); }
  /// A dict, or an OrderedDict, defaultdict or Counter.
  bool is_dict() const;

  bool boolean() const;
  std::int64_t integer() const;        ///< Int, or Bool as 0 and 1
  std::uint64_t unsigned_int() const;  ///< integer() that must not be negative
  double real() const;                 ///< Float, Int or Bool
  std::string_view text() const;       ///< Str; bytes of Bytes and BigInt
  std::string_view string() const;     ///< Str only

  /// List, Tuple, Set: the elements. Object: what APPEND added. torch.Size: its numbers.
  std::size_t size() const { return items().size(); }
  std::span<const NodeId> items() const;
  Value operator[](std::size_t index) const;

  /// The pairs of a dict in order; a key that occurs twice is there twice.
  std::size_t pair_count() const;
  Value key(std::size_t index) const;
  Value value(std::size_t index) const;
  /// The value of a string key of a dict, the last one when there are several. Linear.
  std::optional<Value> find(std::string_view key) const;
  /// find(), or Corrupt naming the key.
  Value at(std::string_view key) const;

  /// Global: "module.name"; Python 2 and moved modules under their Python 3 names.
  std::string global() const;
  /// Object: its callable's global(), or "" when that is not a Global.
  std::string callable_name() const;
  bool calls(std::string_view global_name) const {
    return is(NodeKind::Object) && callable_name() == global_name;
  }
  Value callable() const;
  Value args() const;                  ///< Object: a Tuple; Persistent: the id
  std::optional<Value> state() const;  ///< Object: the argument of BUILD
  /// A field of an object's state: of a dict state, or of the dicts of a (dict, slots) tuple.
  std::optional<Value> field(std::string_view name) const;
  std::span<const NodeId> raw_pairs() const;  ///< key, value, key, value, ...

 private:
  const Pickle* pickle_;
  NodeId id_;
};

std::string_view to_string(NodeKind kind);

class Pickle {
 public:
  /// Reads one pickle at the start of `bytes`, which are kept. `what` names the file in messages.
  /// Throws Corrupt naming the byte.
  static std::unique_ptr<Pickle> parse(std::string bytes, std::string_view what,
                                       const PickleLimits& limits = {});

  Value root() const { return {*this, root_}; }
  /// Bytes from the start up to and with STOP.
  std::uint64_t consumed() const { return consumed_; }
  const std::string& bytes() const { return bytes_; }
  const std::string& what() const { return what_; }
  /// Every "module.name" that occurs, sorted, once.
  std::vector<std::string> globals() const;
  /// All Persistent nodes in order of appearance.
  const std::vector<NodeId>& persistents() const { return persistents_; }

 private:
  friend class Value;
  friend class PickleMachine;
  static constexpr std::uint32_t kNoBox = ~std::uint32_t{0};
  struct Node {
    NodeKind kind = NodeKind::None;
    std::uint32_t box = kNoBox;  // of containers and objects; text length of strings
    std::uint64_t bits = 0;      // Int, Float (as bits), Bool; text offset of strings
  };
  struct Box {
    std::vector<NodeId> items, pairs;
    NodeId callable = 0, args = 0, state = 0;
    bool has_state = false;
  };
  Pickle() = default;
  std::string_view text_of(const Node& node) const;
  const Box& box_of(const Node& node) const;

  std::string bytes_, what_;
  std::string
      decoded_;  // texts that are not in bytes_ as they are; offsets count on from bytes_.size()
  std::vector<Node> nodes_;
  std::vector<Box> boxes_;
  std::vector<NodeId> persistents_;
  NodeId root_ = 0;
  std::uint64_t consumed_ = 0;
};

}  // namespace unishard::converters::torch
