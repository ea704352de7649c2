// The machine: a stack of nodes, a stack of marks, a memo. Opcodes by PEP 307, PEP 3154 and PEP
// 574, as CPython's pickletools lists them.
#include "containers/pickle.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"

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

/// Length of the UTF-8 sequence at `text`, surrogates allowed (Python writes lone ones so); 0 when
/// bad.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | (code >> 6));
  } else {
    if (code < 0x10000) {
      put(0xe0 | (code >> 12));
    } else {
      put(0xf0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3f));
    }
    put(0x80 | ((code >> 6) & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

/// The code that the `digits` hexadecimal digits at the start of `text` spell.
std::optional<std::uint32_t> hex_code(std::string_view text, std::size_t digits) {
  std::uint32_t code = 0;
  if (text.size() < digits) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, code, 16);
  if (error != std::errc() || end != text.data() + digits || code > 0x10ffff) return std::nullopt;
  return code;
}

/// What a Python 2 string literal (opcode STRING) means; nullopt when it is not one.
std::optional<std::string> unquote(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back() ||
      (line.front() != '\'' && line.front() != '"')) {
    return std::nullopt;
  }
  line = line.substr(1, line.size() - 2);
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out.push_back(line[i]);
      continue;
    }
    if (++i == line.size()) return std::nullopt;
    constexpr std::string_view escapes = "nrtabfv0\\'\"";
    constexpr std::string_view meanings("\n\r\t\a\b\f\v\0\\'\"", 11);
    if (line[i] == 'x') {
      const auto code = hex_code(line.substr(i + 1), 2);
      if (!code) return std::nullopt;
      out.push_back(static_cast<char>(*code));
      i += 2;
    } else if (const std::size_t known = escapes.find(line[i]); known != std::string_view::npos) {
      out.push_back(meanings[known]);
    } else {
      return std::nullopt;
    }
  }
  return out;
}

/// What opcode UNICODE's line means: raw, but for \uXXXX and \UXXXXXXXX; other bytes are Latin-1.
std::optional<std::string> raw_unicode(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char next = i + 1 < line.size() ? line[i + 1] : '\0';
    if (line[i] != '\\' || (next != 'u' && next != 'U')) {
      append_utf8(out, static_cast<unsigned char>(line[i]));
      continue;
    }
    const std::size_t digits = next == 'u' ? 4 : 8;
    const auto code = hex_code(line.substr(i + 2), digits);
    if (!code) return std::nullopt;
    append_utf8(out, *code);
    i += 1 + digits;
  }
  return out;
}

}  // namespace

class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, const PickleLimits& limits)
      : p_(pickle), memory_(pickle.what_, std::min(limits.memory_bytes, description_limit())) {
    memory_.charge(pickle.bytes_.size());
  }

  void run() {
    while (step(take_byte())) {
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
  std::uint8_t take_byte() {
    op_at_ = at_;
    return static_cast<std::uint8_t>(take(1)[0]);
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
    if (!is_utf8(text)) fail("a str that is not UTF-8");
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
    if (!is_utf8(module) || !is_utf8(name)) fail("a name that is not UTF-8");
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

  bool step(std::uint8_t op);
  bool step_value(std::uint8_t op);
  bool step_text(std::uint8_t op);
  bool step_container(std::uint8_t op);
  bool step_object(std::uint8_t op);
  bool step_memo(std::uint8_t op);
  void pop_one();

  Pickle& p_;
  MemoryBudget memory_;
  std::uint64_t at_ = 0, op_at_ = 0, memo_entries_ = 0;
  std::size_t most_stacked_ = 0;
  std::vector<NodeId> stack_, memo_;
  std::vector<std::size_t> marks_;
};

bool PickleMachine::step(std::uint8_t op) {
  if (op == '.') {
    p_.root_ = pop();
    if (!stack_.empty() || !marks_.empty()) fail("values are left on the stack at STOP");
    return false;
  }
  if (step_value(op) || step_text(op) || step_container(op) || step_object(op) || step_memo(op))
    return true;
  if (op >= 0x82 && op <= 0x84) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: byte {}: the pickle uses the extension registry", p_.what_, op_at_));
  }
  if (op == 0x97 || op == 0x98) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: byte {}: the pickle keeps buffers outside itself", p_.what_, op_at_));
  }
  fail(fmt::format("unknown opcode 0x{:02x}", op));
}

bool PickleMachine::step_value(std::uint8_t op) {
  switch (op) {
    case 'N':
      return push(make(NodeKind::None)), true;
    case 0x88:
    case 0x89:
      return push(make(NodeKind::Bool, op == 0x88 ? 1u : 0u)), true;
    case 'K':
      return push(make_int(number<std::uint8_t>())), true;
    case 'M':
      return push(make_int(number<std::uint16_t>())), true;
    case 'J':
      return push(make_int(number<std::int32_t>())), true;
    case 0x8a:
      return push(make_long(take(number<std::uint8_t>()))), true;
    case 0x8b:
      return push(make_long(take(length32()))), true;
    case 'I': {
      const std::string_view text = line();
      const bool is_bool = text == "00" || text == "01";
      return push(is_bool ? make(NodeKind::Bool, text == "01" ? 1u : 0u) : make_decimal(text)),
             true;
    }
    case 'L': {
      std::string_view text = line();
      if (text.ends_with('L')) text.remove_suffix(1);
      return push(make_decimal(text)), true;
    }
    case 'G':
      return push(make(NodeKind::Float, __builtin_bswap64(number<std::uint64_t>()))), true;
    case 'F':
      return push(make_float_line(line())), true;
    default:
      return false;
  }
}

bool PickleMachine::step_text(std::uint8_t op) {
  const auto push_text = [&](NodeKind kind_of_text, std::uint64_t length) {
    const std::string_view text = take(length);
    push(kind_of_text == NodeKind::Str ? make_str(text) : make_text(kind_of_text, text));
    return true;
  };
  switch (op) {
    case 'X':
      return push_text(NodeKind::Str, number<std::uint32_t>());
    case 0x8c:
      return push_text(NodeKind::Str, number<std::uint8_t>());
    case 0x8d:
      return push_text(NodeKind::Str, number<std::uint64_t>());
    case 'B':
      return push_text(NodeKind::Bytes, number<std::uint32_t>());
    case 'C':
      return push_text(NodeKind::Bytes, number<std::uint8_t>());
    case 0x8e:
    case 0x96:
      return push_text(NodeKind::Bytes, number<std::uint64_t>());
    case 'U':
      return push(make_python2_str(take(number<std::uint8_t>()))), true;
    case 'T':
      return push(make_python2_str(take(length32()))), true;
    case 'S': {
      const auto text = unquote(line());
      if (!text) fail("a string literal that does not parse");
      return push(make_decoded(is_ascii(*text) ? NodeKind::Str : NodeKind::Bytes, *text)), true;
    }
    case 'V': {
      const auto text = raw_unicode(line());
      if (!text) fail("a unicode literal that does not parse");
      return push(make_decoded(NodeKind::Str, *text)), true;
    }
    default:
      return false;
  }
}

bool PickleMachine::step_container(std::uint8_t op) {
  switch (op) {
    case '(':
      charge(sizeof(std::size_t));
      return marks_.push_back(stack_.size()), true;
    case ')':
      return push(make(NodeKind::Tuple)), true;
    case 0x85:
    case 0x86:
    case 0x87:
      return push_tuple(op - 0x84u), true;
    case 't':
      return push(make_tuple(pop_mark())), true;
    case ']':
      return push(make(NodeKind::List)), true;
    case 'l':
      return push(make_tuple(pop_mark(), NodeKind::List)), true;
    case '}':
      return push(make(NodeKind::Dict)), true;
    case 'd': {
      const std::vector<NodeId> pairs = pop_mark();
      push(make(NodeKind::Dict));
      return set_items_of_top(pairs), true;
    }
    case 0x8f:
      return push(make(NodeKind::Set)), true;
    case 0x91:
      return push(make_tuple(pop_mark(), NodeKind::Set)), true;
    case 'a': {
      const NodeId item = pop();
      return append_to_top(std::span(&item, 1), false), true;
    }
    case 'e':
    case 0x90: {
      const std::vector<NodeId> items = pop_mark();
      return append_to_top(items, op == 0x90), true;
    }
    case 's': {
      const NodeId value = pop(), key = pop();
      const NodeId pair[2] = {key, value};
      return set_items_of_top(pair), true;
    }
    case 'u': {
      const std::vector<NodeId> pairs = pop_mark();
      return set_items_of_top(pairs), true;
    }
    default:
      return false;
  }
}

bool PickleMachine::step_object(std::uint8_t op) {
  switch (op) {
    case 'c': {
      const std::string_view module = line();
      return push(make_global(module, line())), true;
    }
    case 0x93:
      return stack_global(), true;
    case 'R':
    case 0x81:
      return call(), true;
    case 0x92:
      return call_with_keywords(), true;
    case 'b':
      return build(), true;
    case 'i':
    case 'o':
      return instantiate(op == 'o'), true;
    case 'Q':
      return push_persistent(pop()), true;
    case 'P':
      return push_persistent(make_python2_str(line())), true;
    default:
      return false;
  }
}

void PickleMachine::pop_one() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
  } else {
    pop();
  }
}

bool PickleMachine::step_memo(std::uint8_t op) {
  switch (op) {
    case 0x80:
      if (number<std::uint8_t>() > 5) fail("a protocol above 5");
      return true;
    case 0x95:
      if (number<std::uint64_t>() > p_.bytes_.size() - at_)
        fail("a frame that ends after the file");
      return true;
    case '0':
      return pop_one(), true;
    case '1':
      return pop_mark(), true;
    case '2':
      return push(top()), true;
    case 'q':
      return remember(number<std::uint8_t>()), true;
    case 'r':
      return remember(number<std::uint32_t>()), true;
    case 'p':
      return remember(memo_line()), true;
    case 0x94:
      return remember(memo_entries_), true;
    case 'h':
      return recall(number<std::uint8_t>()), true;
    case 'j':
      return recall(number<std::uint32_t>()), true;
    case 'g':
      return recall(memo_line()), true;
    default:
      return false;
  }
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
  return pickle;
}

}  // namespace unishard::converters::torch
