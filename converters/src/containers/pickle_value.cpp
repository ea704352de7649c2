#include "unishard/format/error.hpp"

#include "containers/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <set>

namespace unishard::converters::torch {
namespace {

/// Present names of modules that pickles of protocol 2 and other Python versions name differently.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kModuleNames = {{
    {"__builtin__", "builtins"},
    {"copy_reg", "copyreg"},
    {"pathlib._local", "pathlib"},
    {"numpy._core.multiarray", "numpy.core.multiarray"},
    {"numpy._core.numeric", "numpy.core.numeric"},
}};

constexpr std::array<std::string_view, 3> kDictClasses = {
    "collections.OrderedDict", "collections.defaultdict", "collections.Counter"};

std::string canonical_name(std::string_view qualified) {
  for (const auto& [other, name] : kModuleNames) {
    if (qualified.size() > other.size() && qualified.starts_with(other) &&
        qualified[other.size()] == '.') {
      return fmt::format("{}{}", name, qualified.substr(other.size()));
    }
  }
  return std::string(qualified);
}

[[noreturn]] void raise_kind(const Pickle& pickle, std::string_view wanted, NodeKind found) {
  raise(ErrorCode::Corrupt,
        fmt::format("{}: expected {}, found {}", pickle.what(), wanted, to_string(found)));
}

}  // namespace

std::string_view to_string(NodeKind kind) {
  constexpr std::array<std::string_view, 14> kNames = {
      "None",  "bool", "int", "a large int", "float",           "str",      "bytes", "list",
      "tuple", "dict", "set", "a name",      "a persistent id", "an object"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view Pickle::text_of(const Node& node) const {
  const std::uint64_t offset = node.bits;
  if (offset < bytes_.size()) return std::string_view(bytes_).substr(offset, node.box);
  return std::string_view(decoded_).substr(offset - bytes_.size(), node.box);
}

const Pickle::Box& Pickle::box_of(const Node& node) const {
  static const Box kEmpty;
  return node.box == kNoBox ? kEmpty : boxes_[node.box];
}

std::vector<std::string> Pickle::globals() const {
  std::set<std::string> names;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].kind == NodeKind::Global) names.insert(Value(*this, id).global());
  }
  return {names.begin(), names.end()};
}

const std::string& Value::where() const { return pickle_->what(); }

NodeKind Value::kind() const { return pickle_->nodes_[id_].kind; }

bool Value::is_dict() const {
  if (is(NodeKind::Dict)) return true;
  return is(NodeKind::Object) && std::ranges::count(kDictClasses, callable_name()) > 0;
}

bool Value::boolean() const {
  if (!is(NodeKind::Bool)) raise_kind(*pickle_, "bool", kind());
  return pickle_->nodes_[id_].bits != 0;
}

std::int64_t Value::integer() const {
  if (!is(NodeKind::Int) && !is(NodeKind::Bool)) raise_kind(*pickle_, "int", kind());
  return static_cast<std::int64_t>(pickle_->nodes_[id_].bits);
}

std::uint64_t Value::unsigned_int() const {
  const std::int64_t number = integer();
  if (number < 0) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} where a count is expected", pickle_->what(), number));
  }
  return static_cast<std::uint64_t>(number);
}

double Value::real() const {
  if (is(NodeKind::Float)) return std::bit_cast<double>(pickle_->nodes_[id_].bits);
  if (!is(NodeKind::Int) && !is(NodeKind::Bool)) raise_kind(*pickle_, "float", kind());
  return static_cast<double>(integer());
}

std::string_view Value::text() const {
  if (!is(NodeKind::Str) && !is(NodeKind::Bytes) && !is(NodeKind::BigInt)) {
    raise_kind(*pickle_, "str", kind());
  }
  return pickle_->text_of(pickle_->nodes_[id_]);
}

std::string_view Value::string() const {
  if (!is(NodeKind::Str)) raise_kind(*pickle_, "str", kind());
  return text();
}

std::span<const NodeId> Value::items() const {
  switch (kind()) {
    case NodeKind::List:
    case NodeKind::Tuple:
    case NodeKind::Set:
      return pickle_->box_of(pickle_->nodes_[id_]).items;
    case NodeKind::Object: {
      const Pickle::Box& box = pickle_->box_of(pickle_->nodes_[id_]);
      if (callable_name() == "torch.Size" && args().size() == 1) return args()[0].items();
      return box.items;
    }
    default:
      raise_kind(*pickle_, "a list or tuple", kind());
  }
}

Value Value::operator[](std::size_t index) const {
  const auto all = items();
  if (index >= all.size()) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {} elements where more than {} are expected",
                                          pickle_->what(), all.size(), index));
  }
  return {*pickle_, all[index]};
}

std::span<const NodeId> Value::raw_pairs() const {
  if (!is(NodeKind::Dict) && !is(NodeKind::Object)) raise_kind(*pickle_, "dict", kind());
  return pickle_->box_of(pickle_->nodes_[id_]).pairs;
}

std::size_t Value::pair_count() const {
  if (!is_dict()) raise_kind(*pickle_, "dict", kind());
  return raw_pairs().size() / 2;
}

Value Value::key(std::size_t index) const { return {*pickle_, raw_pairs()[2 * index]}; }
Value Value::value(std::size_t index) const { return {*pickle_, raw_pairs()[2 * index + 1]}; }

std::optional<Value> Value::find(std::string_view wanted) const {
  for (std::size_t i = pair_count(); i-- > 0;) {
    if (const Value k = key(i); k.is(NodeKind::Str) && k.text() == wanted) return value(i);
  }
  return std::nullopt;
}

Value Value::at(std::string_view wanted) const {
  if (const auto found = find(wanted)) return *found;
  raise(ErrorCode::Corrupt, fmt::format("{}: no key {}", pickle_->what(), unishard::quote(wanted)));
}

std::string Value::global() const {
  if (!is(NodeKind::Global)) raise_kind(*pickle_, "a name", kind());
  return canonical_name(pickle_->text_of(pickle_->nodes_[id_]));
}

std::string Value::callable_name() const {
  const Value called = callable();
  if (called.is(NodeKind::Global)) return called.global();
  if (!called.is(NodeKind::Persistent)) return {};
  // The older container keeps the class of a module with its source: ("module", class, file, text).
  const Value id = called.args();
  const bool is_module = id.is_sequence() && id.size() > 1 && id[0].is(NodeKind::Str) &&
                         id[0].text() == "module" && id[1].is(NodeKind::Global);
  return is_module ? id[1].global() : std::string();
}

Value Value::callable() const {
  if (!is(NodeKind::Object)) raise_kind(*pickle_, "an object", kind());
  return {*pickle_, pickle_->box_of(pickle_->nodes_[id_]).callable};
}

Value Value::args() const {
  if (!is(NodeKind::Object) && !is(NodeKind::Persistent)) raise_kind(*pickle_, "an object", kind());
  return {*pickle_, pickle_->box_of(pickle_->nodes_[id_]).args};
}

std::optional<Value> Value::state() const {
  if (!is(NodeKind::Object)) return std::nullopt;
  const Pickle::Box& box = pickle_->box_of(pickle_->nodes_[id_]);
  if (!box.has_state) return std::nullopt;
  return Value(*pickle_, box.state);
}

std::optional<Value> Value::field(std::string_view name) const {
  const auto built = state();
  if (!built) return std::nullopt;
  if (built->is_dict()) return built->find(name);
  if (!built->is(NodeKind::Tuple)) return std::nullopt;
  for (std::size_t i = 0; i < built->size(); ++i) {
    if (!(*built)[i].is_dict()) continue;
    if (const auto found = (*built)[i].find(name)) return found;
  }
  return std::nullopt;
}

void Pickle::require_single_keys() const {
  std::vector<std::string_view> texts;
  std::vector<std::uint64_t> numbers;
  for (const Box& box : boxes_) {
    texts.clear();
    numbers.clear();
    for (std::size_t i = 0; i < box.pairs.size(); i += 2) {
      const Node& key = nodes_[box.pairs[i]];
      if (key.kind == NodeKind::Str) texts.push_back(text_of(key));
      // True is the key 1 in Python.
      if (key.kind == NodeKind::Int || key.kind == NodeKind::Bool) numbers.push_back(key.bits);
    }
    std::ranges::sort(texts);
    std::ranges::sort(numbers);
    const auto text = std::ranges::adjacent_find(texts);
    const auto number = std::ranges::adjacent_find(numbers);
    if (text == texts.end() && number == numbers.end()) continue;
    raise(
        ErrorCode::Corrupt,
        fmt::format("{}: a dict has the key {} twice, of which Python keeps the last value only",
                    what_, text != texts.end() ? unishard::quote(*text) : std::to_string(*number)),
        "the file is damaged: use a copy or another checkpoint");
  }
}

}  // namespace unishard::converters::torch
