// The machine: a stack of nodes, a stack of marks, a memo. Opcodes by PEP 307, PEP 3154 and PEP
// 574, as CPython's pickletools lists them.
#include "containers/pickle.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"

#include "containers/pickle_opcodes.hpp"
#include "containers/pickle_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

namespace unishard::converters::torch {
namespace {

/// Memo indices may run ahead of the number of entries by this many (writers that leave gaps).
constexpr std::uint64_t kMemoSlack = 65536;
/// Longest decimal number that is parsed.
constexpr std::size_t kDecimalDigits = 20;

}  // namespace

class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, const PickleLimits& limits)
      : p_(pickle), memory_(pickle.what_, std::min(limits.memory_bytes, description_limit())) {
    memory_.charge(pickle.bytes_.size());
  }

  void run() {
    while (step(take_opcode())) {
    }
    p_.consumed_ = at_;
  }

 private:
  using Node = Pickle::Node;

  [[noreturn]] void fail(std::string_view problem) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: pickle damaged at byte {}: {}", p_.what_, op_at_, problem));
  }

  // --- input ---
  std::string_view take(std::uint64_t count) {
    if (count > p_.bytes_.size() - at_) fail("it ends before its STOP");
    const std::string_view out = std::string_view(p_.bytes_).substr(at_, count);
    at_ += count;
    return out;
  }
  Opcode take_opcode() {
    op_at_ = at_;
    return static_cast<Opcode>(take(1)[0]);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view line() {
    const std::size_t end = p_.bytes_.find('\n', at_);
    if (end == std::string::npos) fail("a line without its end");
    const std::string_view out = take(end - at_);
    at_ += 1;
    return out;
  }
  std::uint64_t length32() {
    const auto length = number<std::int32_t>();
    if (length < 0) fail("a negative length");
    return static_cast<std::uint64_t>(length);
  }

  // --- nodes ---
  // A vector that grows holds up to twice what it was given.
  void charge(std::uint64_t bytes) { memory_.charge(2 * bytes); }
  NodeId make(NodeKind kind, std::uint64_t bits = 0, std::uint32_t box = Pickle::kNoBox) {
    charge(sizeof(Node));
    p_.nodes_.push_back({kind, box, bits});
    return static_cast<NodeId>(p_.nodes_.size() - 1);
  }
  Pickle::Box& box(NodeId id) {
    Node& node = p_.nodes_[id];
    if (node.box == Pickle::kNoBox) {
      charge(sizeof(Pickle::Box));
      node.box = static_cast<std::uint32_t>(p_.boxes_.size());
      p_.boxes_.emplace_back();
    }
    return p_.boxes_[node.box];
  }
  NodeId make_text(NodeKind kind, std::string_view text) {  // text lies in bytes_
    const auto offset =
        text.empty() ? 0 : static_cast<std::uint64_t>(text.data() - p_.bytes_.data());
    if (text.size() >= Pickle::kNoBox) fail("a text of 4 GiB or more");
    return make(kind, offset, static_cast<std::uint32_t>(text.size()));
  }
  NodeId make_decoded(NodeKind kind, std::string_view text) {
    charge(text.size());
    const std::uint64_t offset = p_.bytes_.size() + p_.decoded_.size();
    p_.decoded_.append(text);
    return make(kind, offset, static_cast<std::uint32_t>(text.size()));
  }
  NodeId make_str(std::string_view text) {
    if (!is_pickle_utf8(text)) fail("a str that is not UTF-8");
    return make_text(NodeKind::Str, text);
  }
  NodeId make_python2_str(std::string_view text) {
    return make_text(is_ascii(text) ? NodeKind::Str : NodeKind::Bytes, text);
  }
  NodeId make_int(std::int64_t value) {
    return make(NodeKind::Int, static_cast<std::uint64_t>(value));
  }
  NodeId make_long(std::string_view bytes) {
    if (bytes.size() > 8) return make_text(NodeKind::BigInt, bytes);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bits |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
    if (negative && bytes.size() < 8) bits |= ~std::uint64_t{0} << (8 * bytes.size());
    return make(NodeKind::Int, bits);
  }
  NodeId make_decimal(std::string_view digits) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.size() > kDecimalDigits || error != std::errc() ||
        end != digits.data() + digits.size()) {
      fail("a decimal number that does not fit 64 bits");
    }
    return make_int(value);
  }
  NodeId make_float_line(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      fail("a float that is not a number");
    return make(NodeKind::Float, std::bit_cast<std::uint64_t>(value));
  }
  NodeId make_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > limits::kNameBytes) fail("a name that is too long");
    if (!is_pickle_utf8(module) || !is_pickle_utf8(name)) fail("a name that is not UTF-8");
    return make_decoded(NodeKind::Global, fmt::format("{}.{}", module, name));
  }
  NodeId make_object(NodeId callable, NodeId args) {
    const NodeId id = make(NodeKind::Object);
    Pickle::Box& parts = box(id);
    parts.callable = callable;
    parts.args = args;
    return id;
  }
  NodeId make_tuple(std::span<const NodeId> items, NodeKind kind = NodeKind::Tuple) {
    const NodeId id = make(kind);
    if (!items.empty()) append(id, items);
    return id;
  }
  void append(NodeId id, std::span<const NodeId> items) {
    charge(sizeof(NodeId) * items.size());
    auto& target = box(id).items;
    target.insert(target.end(), items.begin(), items.end());
  }

  // --- stack ---
  void push(NodeId id) {
    stack_.push_back(id);
    if (stack_.size() <= most_stacked_) return;
    charge(2 * sizeof(NodeId));  // twice: it may leave the stack at once, for a list
    most_stacked_ = stack_.size();
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  NodeId top() const {
    if (stack_.size() <= floor()) fail("the stack is empty");
    return stack_.back();
  }
  NodeId pop() {
    const NodeId id = top();
    stack_.pop_back();
    return id;
  }
  std::vector<NodeId> pop_mark() {
    if (marks_.empty()) fail("no mark on the stack");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<NodeId> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  void push_tuple(std::size_t count) {
    NodeId items[3] = {};
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push(make_tuple(std::span(items).first(count)));
  }
  NodeKind kind(NodeId id) const { return p_.nodes_[id].kind; }

  void append_to_top(std::span<const NodeId> items, bool to_set) {
    const NodeKind target = kind(top());
    if (target != NodeKind::Object && target != (to_set ? NodeKind::Set : NodeKind::List)) {
      fail(fmt::format("elements added to {}", to_string(target)));
    }
    append(top(), items);
  }
  void set_items_of_top(std::span<const NodeId> pairs) {
    const NodeKind target = kind(top());
    if (target != NodeKind::Dict && target != NodeKind::Object) {
      fail(fmt::format("a key set on {}", to_string(target)));
    }
    if (pairs.size() % 2 != 0) fail("a key without a value");
    charge(sizeof(NodeId) * pairs.size());
    auto& all = box(top()).pairs;
    all.insert(all.end(), pairs.begin(), pairs.end());
  }
  void call() {  // REDUCE and NEWOBJ
    const NodeId args = pop(), callable = pop();
    if (kind(args) != NodeKind::Tuple) fail(fmt::format("called with {}", to_string(kind(args))));
    const NodeKind called =
        kind(callable);  // legacy files keep a module's class in a persistent id
    if (called != NodeKind::Global && called != NodeKind::Object &&
        called != NodeKind::Persistent) {
      fail(fmt::format("a call of {}", to_string(called)));
    }
    push(make_object(callable, args));
  }
  void call_with_keywords() {
    const NodeId keywords = pop();
    if (kind(keywords) != NodeKind::Dict) fail("keyword arguments that are not a dict");
    call();
    const std::vector<NodeId> pairs =
        p_.nodes_[keywords].box == Pickle::kNoBox ? std::vector<NodeId>{} : box(keywords).pairs;
    set_items_of_top(pairs);
  }
  void build() {
    const NodeId state = pop();
    if (kind(top()) != NodeKind::Object)
      fail(fmt::format("state set on {}", to_string(kind(top()))));
    Pickle::Box& parts = box(top());
    if (parts.has_state) fail("state set twice on one object");
    parts.state = state;
    parts.has_state = true;
  }
  void instantiate(bool class_on_stack) {  // OBJ, INST
    NodeId callable = 0;
    if (!class_on_stack) {
      const std::string_view module = line();
      callable = make_global(module, line());
    }
    std::vector<NodeId> args = pop_mark();
    if (class_on_stack) {
      if (args.empty() || kind(args[0]) != NodeKind::Global) fail("an instance of no class");
      callable = args[0];
      args.erase(args.begin());
    }
    push(make_object(callable, make_tuple(args)));
  }
  void push_persistent(NodeId pid) {
    const NodeId id = make(NodeKind::Persistent);
    box(id).args = pid;
    charge(sizeof(NodeId));
    p_.persistents_.push_back(id);
    push(id);
  }
  void stack_global() {
    const NodeId name = pop(), module = pop();
    if (kind(name) != NodeKind::Str || kind(module) != NodeKind::Str)
      fail("a name that is not a str");
    push(make_global(p_.text_of(p_.nodes_[module]), p_.text_of(p_.nodes_[name])));
  }

  // --- memo ---
  static constexpr NodeId kUnset = ~NodeId{0};
  void remember(std::uint64_t index) {
    if (index > memo_entries_ + kMemoSlack)
      fail(fmt::format("memo index {} is too far ahead", index));
    if (index >= memo_.size()) {
      charge(sizeof(NodeId) * (index + 1 - memo_.size()));
      memo_.resize(index + 1, kUnset);
    }
    memo_entries_ += memo_[index] == kUnset ? 1u : 0u;
    memo_[index] = top();
  }
  void recall(std::uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kUnset)
      fail(fmt::format("memo has no entry {}", index));
    push(memo_[index]);
  }
  std::uint64_t memo_line() {
    const std::string_view text = line();
    std::uint64_t index = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    if (error != std::errc() || end != text.data() + text.size())
      fail("a memo index that is not a number");
    return index;
  }

  bool step(Opcode op);
  bool step_value(Opcode op);
  bool step_text(Opcode op);
  bool step_container(Opcode op);
  bool step_object(Opcode op);
  bool step_memo(Opcode op);
  void pop_one();

  Pickle& p_;
  MemoryBudget memory_;
  std::uint64_t at_ = 0, op_at_ = 0, memo_entries_ = 0;
  std::size_t most_stacked_ = 0;
  std::vector<NodeId> stack_, memo_;
  std::vector<std::size_t> marks_;
};

bool PickleMachine::step(Opcode op) {
  if (op == Opcode::Stop) {
    p_.root_ = pop();
    if (!stack_.empty() || !marks_.empty()) fail("values are left on the stack at STOP");
    return false;
  }
  if (step_value(op) || step_text(op) || step_container(op) || step_object(op) || step_memo(op))
    return true;
  if (op == Opcode::Ext1 || op == Opcode::Ext2 || op == Opcode::Ext4) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: byte {}: the pickle uses the extension registry", p_.what_, op_at_));
  }
  if (op == Opcode::NextBuffer || op == Opcode::ReadOnlyBuffer) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: byte {}: the pickle keeps buffers outside itself", p_.what_, op_at_));
  }
  fail(fmt::format("unknown opcode 0x{:02x}", static_cast<unsigned>(op)));
}

bool PickleMachine::step_value(Opcode op) {
  switch (op) {
    case Opcode::None:
      push(make(NodeKind::None));
      break;
    case Opcode::NewTrue:
    case Opcode::NewFalse:
      push(make(NodeKind::Bool, op == Opcode::NewTrue ? 1u : 0u));
      break;
    case Opcode::BinInt1:
      push(make_int(number<std::uint8_t>()));
      break;
    case Opcode::BinInt2:
      push(make_int(number<std::uint16_t>()));
      break;
    case Opcode::BinInt:
      push(make_int(number<std::int32_t>()));
      break;
    case Opcode::Long1:
      push(make_long(take(number<std::uint8_t>())));
      break;
    case Opcode::Long4:
      push(make_long(take(length32())));
      break;
    case Opcode::Int: {
      const std::string_view text = line();
      const bool is_bool = text == "00" || text == "01";
      push(is_bool ? make(NodeKind::Bool, text == "01" ? 1u : 0u) : make_decimal(text));
      break;
    }
    case Opcode::Long: {
      std::string_view text = line();
      if (text.ends_with('L')) text.remove_suffix(1);
      push(make_decimal(text));
      break;
    }
    case Opcode::BinFloat:
      push(make(NodeKind::Float, __builtin_bswap64(number<std::uint64_t>())));
      break;
    case Opcode::Float:
      push(make_float_line(line()));
      break;
    default:
      return false;
  }
  return true;
}

bool PickleMachine::step_text(Opcode op) {
  const auto push_text = [&](NodeKind kind_of_text, std::uint64_t length) {
    const std::string_view text = take(length);
    push(kind_of_text == NodeKind::Str ? make_str(text) : make_text(kind_of_text, text));
    return true;
  };
  switch (op) {
    case Opcode::BinUnicode:
      return push_text(NodeKind::Str, number<std::uint32_t>());
    case Opcode::ShortBinUnicode:
      return push_text(NodeKind::Str, number<std::uint8_t>());
    case Opcode::BinUnicode8:
      return push_text(NodeKind::Str, number<std::uint64_t>());
    case Opcode::BinBytes:
      return push_text(NodeKind::Bytes, number<std::uint32_t>());
    case Opcode::ShortBinBytes:
      return push_text(NodeKind::Bytes, number<std::uint8_t>());
    case Opcode::BinBytes8:
    case Opcode::ByteArray8:
      return push_text(NodeKind::Bytes, number<std::uint64_t>());
    case Opcode::ShortBinString:
      push(make_python2_str(take(number<std::uint8_t>())));
      break;
    case Opcode::BinString:
      push(make_python2_str(take(length32())));
      break;
    case Opcode::String: {
      const auto text = unquote(line());
      if (!text) fail("a string literal that does not parse");
      push(make_decoded(is_ascii(*text) ? NodeKind::Str : NodeKind::Bytes, *text));
      break;
    }
    case Opcode::Unicode: {
      const auto text = raw_unicode(line());
      if (!text) fail("a unicode literal that does not parse");
      push(make_decoded(NodeKind::Str, *text));
      break;
    }
    default:
      return false;
  }
  return true;
}

bool PickleMachine::step_container(Opcode op) {
  switch (op) {
    case Opcode::Mark:
      charge(sizeof(std::size_t));
      marks_.push_back(stack_.size());
      break;
    case Opcode::EmptyTuple:
      push(make(NodeKind::Tuple));
      break;
    case Opcode::Tuple1:
    case Opcode::Tuple2:
    case Opcode::Tuple3:
      push_tuple(static_cast<std::size_t>(op) - static_cast<std::size_t>(Opcode::Tuple1) + 1);
      break;
    case Opcode::Tuple:
      push(make_tuple(pop_mark()));
      break;
    case Opcode::EmptyList:
      push(make(NodeKind::List));
      break;
    case Opcode::List:
      push(make_tuple(pop_mark(), NodeKind::List));
      break;
    case Opcode::EmptyDict:
      push(make(NodeKind::Dict));
      break;
    case Opcode::Dict: {
      const std::vector<NodeId> pairs = pop_mark();
      push(make(NodeKind::Dict));
      set_items_of_top(pairs);
      break;
    }
    case Opcode::EmptySet:
      push(make(NodeKind::Set));
      break;
    case Opcode::FrozenSet:
      push(make_tuple(pop_mark(), NodeKind::Set));
      break;
    case Opcode::Append: {
      const NodeId item = pop();
      append_to_top(std::span(&item, 1), false);
      break;
    }
    case Opcode::Appends:
    case Opcode::AddItems: {
      const std::vector<NodeId> items = pop_mark();
      append_to_top(items, op == Opcode::AddItems);
      break;
    }
    case Opcode::SetItem: {
      const NodeId value = pop(), key = pop();
      const NodeId pair[2] = {key, value};
      set_items_of_top(pair);
      break;
    }
    case Opcode::SetItems: {
      const std::vector<NodeId> pairs = pop_mark();
      set_items_of_top(pairs);
      break;
    }
    default:
      return false;
  }
  return true;
}

bool PickleMachine::step_object(Opcode op) {
  switch (op) {
    case Opcode::Global: {
      const std::string_view module = line();
      push(make_global(module, line()));
      break;
    }
    case Opcode::StackGlobal:
      stack_global();
      break;
    case Opcode::Reduce:
    case Opcode::NewObj:
      call();
      break;
    case Opcode::NewObjEx:
      call_with_keywords();
      break;
    case Opcode::Build:
      build();
      break;
    case Opcode::Inst:
    case Opcode::Obj:
      instantiate(op == Opcode::Obj);
      break;
    case Opcode::BinPersId:
      push_persistent(pop());
      break;
    case Opcode::PersId:
      push_persistent(make_python2_str(line()));
      break;
    default:
      return false;
  }
  return true;
}

void PickleMachine::pop_one() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
  } else {
    pop();
  }
}

bool PickleMachine::step_memo(Opcode op) {
  switch (op) {
    case Opcode::Proto:
      if (number<std::uint8_t>() > 5) fail("a protocol above 5");
      return true;
    case Opcode::Frame:
      if (number<std::uint64_t>() > p_.bytes_.size() - at_)
        fail("a frame that ends after the file");
      return true;
    case Opcode::Pop:
      pop_one();
      break;
    case Opcode::PopMark:
      pop_mark();
      break;
    case Opcode::Dup:
      push(top());
      break;
    case Opcode::BinPut:
      remember(number<std::uint8_t>());
      break;
    case Opcode::LongBinPut:
      remember(number<std::uint32_t>());
      break;
    case Opcode::Put:
      remember(memo_line());
      break;
    case Opcode::Memoize:
      remember(memo_entries_);
      break;
    case Opcode::BinGet:
      recall(number<std::uint8_t>());
      break;
    case Opcode::LongBinGet:
      recall(number<std::uint32_t>());
      break;
    case Opcode::Get:
      recall(memo_line());
      break;
    default:
      return false;
  }
  return true;
}

std::unique_ptr<Pickle> Pickle::parse(std::string bytes, std::string_view what,
                                      const PickleLimits& limits) {
  if (bytes.size() > limits.bytes) {
    raise(ErrorCode::Corrupt, fmt::format("{}: a pickle of {} bytes; at most {} are read", what,
                                          bytes.size(), limits.bytes));
  }
  auto pickle = std::unique_ptr<Pickle>(new Pickle);
  pickle->bytes_ = std::move(bytes);
  pickle->what_ = what;
  PickleMachine(*pickle, limits).run();
  pickle->require_single_keys();
  return pickle;
}

}  // namespace unishard::converters::torch
