#include "containers/object_tree.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"
#include "unishard/format/text.hpp"

#include "containers/plain_objects.hpp"
#include "containers/torch_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace unishard::converters::torch {
namespace {

constexpr unsigned kDepth = 200;
/// Fields of a torch.nn.Module that its state dict is made of.
constexpr std::array<std::string_view, 3> kModuleParts = {"_parameters", "_buffers", "_modules"};
/// A pickle may use one node many times. The output may exceed its input by this much.
constexpr std::uint64_t kExpansion = 16, kSmallTree = 1u << 17;

std::string hex(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15u];
  }
  return out;
}

/// Returns the decimal digits of a two's complement, little-endian integer. Quadratic, so for short
/// ones only.
std::string decimal(std::string_view bytes) {
  std::vector<std::uint32_t> digits;  // base 256, most significant first, magnitude
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  std::uint32_t carry = negative ? 1 : 0;
  for (const char c : bytes) {
    const std::uint32_t byte = static_cast<unsigned char>(c);
    const std::uint32_t value = negative ? ((~byte & 0xffu) + carry) : byte;
    carry = negative ? value >> 8 : 0;
    digits.push_back(value & 0xff);
  }
  std::ranges::reverse(digits);
  std::string out;
  while (!digits.empty()) {
    std::uint32_t remainder = 0;
    std::vector<std::uint32_t> quotient;
    for (const std::uint32_t digit : digits) {
      const std::uint32_t value = remainder * 256 + digit;
      remainder = value % 10;
      if (!quotient.empty() || value / 10 != 0) quotient.push_back(value / 10);
    }
    out.push_back(static_cast<char>('0' + remainder));
    digits = std::move(quotient);
  }
  if (out.empty()) out = "0";
  if (negative) out.push_back('-');
  std::ranges::reverse(out);
  return out;
}

/// Returns the number as Python prints it: the shortest text that reads back, with a point or an
/// exponent.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double magnitude = std::fabs(value);
  if (value == 0 || (magnitude >= 1e-4 && magnitude < 1e16)) {
    const std::string text = fmt::format("{}", value);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }
  return fmt::format("{}", value);
}

/// Returns true for a str that JSON cannot hold because it has a lone surrogate.
bool has_surrogate(std::string_view text) {
  for (std::size_t at = text.find('\xed'); at != std::string_view::npos && at + 1 < text.size();
       at = text.find('\xed', at + 1)) {
    if (static_cast<unsigned char>(text[at + 1]) >= 0xa0) return true;
  }
  return false;
}

/// Returns the text with lone surrogates, which are no UTF-8, as Python's repr has them.
std::string readable(std::string_view text) {
  if (!has_surrogate(text)) return std::string(text);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_surrogate = i + 2 < text.size() && has_surrogate(text.substr(i, 2));
    if (!is_surrogate) {
      out += text[i];
      continue;
    }
    const auto low = [&](std::size_t at) { return static_cast<unsigned char>(text[at]) & 0x3fu; };
    out += fmt::format("\\ud{:03x}", (low(i + 1) << 6 | low(i + 2)) & 0xfffu);
    i += 2;
  }
  return out;
}

/// A value that cannot be written out.
struct Endless {
  std::string problem;
};

/// Every copy of a text is charged before it is made: a pickle may refer to one text a thousand
/// times, and JSON holds a thousand copies.
class Describer {
 public:
  Describer(Value root, std::uint64_t budget) : budget_(budget), memory_(root.where()) {}

  /// Throws: EndlessObject for a value that cannot be written out, not even without some members.
  Json describe(Value value, const std::string& path) {
    try {
      Json content = json(value, path, 0);
      lose_unregistered();
      return content;
    } catch (const Endless& error) {
      throw EndlessObject(ErrorCode::Corrupt, fmt::format("{}: {}", name(path), error.problem));
    }
  }

  std::vector<NamedTensor> tensors;
  std::vector<std::string> opaque;
  std::vector<std::string> attributes;
  std::vector<std::string> renamed;
  std::vector<std::pair<std::string, std::string>> left_out;
  std::vector<std::pair<std::string, std::string>> lost_weights;
  std::vector<std::pair<std::string, std::string>> optimizers;
  std::vector<std::string> unregistered;

 private:
  Json json(Value value, const std::string& path, unsigned depth) {
    if (depth > kDepth)
      throw Endless{fmt::format("objects nested deeper than {} levels, or one in itself", kDepth)};
    if (used_++ > budget_) throw Endless{"the object grows beyond measure when it is written out"};
    memory_.charge(2 * sizeof(Json));
    switch (value.kind()) {
      case NodeKind::None:
        return nullptr;
      case NodeKind::Bool:
        return value.boolean();
      case NodeKind::Int:
        return value.integer();
      case NodeKind::BigInt:
        return big_int(value);
      case NodeKind::Float:
        return real(value.real());
      case NodeKind::Str:
        return text(value.text());
      case NodeKind::Bytes:
        return typed("bytes", "hex", hexadecimal(value.text()));
      case NodeKind::List:
        return sequence(value, path, depth);
      case NodeKind::Tuple:
        return typed("tuple", "items", sequence(value, path, depth));
      case NodeKind::Set:
        return typed("set", "items", sequence(value, path, depth));
      case NodeKind::Dict:
        return dict(value, path, depth);
      case NodeKind::Global:
        return global(value.global());
      case NodeKind::Persistent:
        return typed("persistent", "id", json(value.args(), path, depth + 1));
      case NodeKind::Object:
        return object(value, path, depth);
    }
    return nullptr;
  }

  /// Keys that contain "." can give two tensors the same path; later ones get a number.
  std::string unique(const std::string& path) {
    if (names_.insert(path).second) return path;
    std::uint64_t& number = numbers_[path];
    number = std::max<std::uint64_t>(number, 1);
    std::string name;
    do {
      name = fmt::format("{}#{}", path, ++number);
    } while (!names_.insert(name).second);
    renamed.push_back(
        fmt::format("{}: another tensor has the path {} as well", name, unishard::quote(path)));
    return name;
  }

  static std::string name(const std::string& path) {
    constexpr std::size_t kShown = 200;
    if (path.size() > kShown) return fmt::format("{}...", std::string_view(path).substr(0, kShown));
    return path.empty() ? "the object" : path;
  }
  /// Cuts a path that is too long for a tensor's name, so that it does not grow with each level.
  static std::string join(const std::string& path, std::string_view part) {
    if (path.size() > limits::kNameBytes) return path;
    const std::string_view begin = part.substr(0, limits::kNameBytes + 1);
    return path.empty() ? std::string(begin) : fmt::format("{}.{}", path, begin);
  }
  /// The path of the value of a dict's key. The empty text is no name of a tensor.
  std::string join_key(const std::string& path, std::string_view key, Value value) {
    if (!key.empty()) return join(path, key);
    std::string named = join(path, "tensor");
    if (TorchFile::is_tensor(value))
      renamed.push_back(fmt::format("{}: its name is the empty text", name(named)));
    return named;
  }

  /// Builds {"$type": type, key: value} without the copies that an initializer list makes.
  Json typed(std::string_view type, const char* key, Json value) {
    memory_.charge(sizeof(Json::object_t) + 4 * sizeof(Json::object_t::value_type));
    Json out = Json::object();
    out["$type"] = type;
    out[key] = std::move(value);
    return out;
  }
  std::string hexadecimal(std::string_view bytes) {
    memory_.charge(2 * bytes.size());
    return hex(bytes);
  }

  Json big_int(Value value) {
    if (value.text().size() > 128) return typed("int", "hex_le", hexadecimal(value.text()));
    return typed("int", "dec", decimal(value.text()));
  }
  static Json real(double value) {
    if (std::isfinite(value)) return value;
    return {{"$type", "float"}, {"value", float_text(value)}};
  }
  Json text(std::string_view text) {
    memory_.charge(sizeof(std::string) + text.size());  // before it is looked at, too
    if (has_surrogate(text)) return typed("str", "hex", hexadecimal(text));
    return std::string(text);
  }
  static Json global(const std::string& name) {
    if (dtype_of_global(name)) return {{"$type", "torch.dtype"}, {"value", name}};
    return {{"$type", "global"}, {"name", name}};
  }

  Json sequence(Value value, const std::string& path, unsigned depth) {
    memory_.charge(sizeof(Json::array_t));
    Json out = Json::array();
    for (std::size_t i = 0; i < value.size(); ++i)
      out.push_back(json(value[i], join(path, std::to_string(i)), depth + 1));
    return out;
  }

  Json pair(Value key, Value value, const std::string& path, unsigned depth) {
    memory_.charge(sizeof(Json::array_t) + 4 * sizeof(Json));
    Json out = Json::array();
    out.push_back(json(key, path, depth + 1));
    const std::string below = join_key(path, part_of(key), value);
    if (!has_text(key) && TorchFile::is_tensor(value))
      renamed.push_back(fmt::format("{}: its key is {}, and no text", name(below),
                                    text_of(key) ? "bytes" : to_string(key.kind())));
    out.push_back(json(value, below, depth + 1));
    return out;
  }

  /// Returns the text of a text, or of bytes; nullopt for other keys.
  static std::optional<std::string_view> text_of(Value key) {
    if (key.is(NodeKind::Str) || key.is(NodeKind::Bytes)) return key.text();
    // Bytes of protocol 2.
    const bool is_bytes = key.is(NodeKind::Object) && key.callable_name() == "_codecs.encode" &&
                          key.args().size() > 0 && key.args()[0].is(NodeKind::Str);
    return is_bytes ? std::optional(key.args()[0].text()) : std::nullopt;
  }

  /// Whether the key is a text, or has a usual one in a name.
  static bool has_text(Value key) {
    return key.is(NodeKind::Str) || key.is(NodeKind::Int) || key.is(NodeKind::Tuple) ||
           key.is(NodeKind::Float) || key.is(NodeKind::Bool) || key.is(NodeKind::None);
  }

  /// Returns path_part(), at most as long as a path may be.
  static std::string part_of(Value key) {
    const auto text = text_of(key);
    return text ? readable(text->substr(0, limits::kNameBytes + 1)) : path_part(key);
  }

  Json pairs(std::span<const NodeId> all, Value owner, const std::string& path, unsigned depth) {
    Json out = Json::array();
    for (std::size_t i = 0; i < all.size() / 2; ++i) {
      out.push_back(pair(owner.key(i), owner.value(i), path, depth));
    }
    return out;
  }

  /// Returns a JSON object when all keys are distinct texts without a special meaning.
  Json dict(Value value, const std::string& path, unsigned depth) {
    std::vector<std::string_view> keys;
    for (std::size_t i = 0; i < value.pair_count(); ++i) {
      const Value key = value.key(i);
      memory_.charge(sizeof(std::string_view) + (key.is(NodeKind::Str) ? key.text().size() : 0));
      const bool plain =
          key.is(NodeKind::Str) && !key.text().starts_with('$') && !has_surrogate(key.text());
      if (!plain)
        return typed("builtins.dict", "pairs", pairs(value.raw_pairs(), value, path, depth));
      keys.push_back(key.text());
    }
    std::ranges::sort(keys);
    if (std::ranges::adjacent_find(keys) != keys.end()) {
      return typed("builtins.dict", "pairs", pairs(value.raw_pairs(), value, path, depth));
    }
    // Built as an array of pairs first: insertion into an ordered object is linear in its size.
    Json::object_t out;
    memory_.charge(sizeof out + keys.size() * sizeof(Json::object_t::value_type));
    out.reserve(keys.size());
    for (std::size_t i = 0; i < value.pair_count(); ++i) {
      const std::string_view key = value.key(i).text();
      if (auto content = member(value.value(i), join_key(path, key, value.value(i)), depth))
        out.push_back({std::string(key), *std::move(content)});
    }
    return Json(std::move(out));
  }

  /// Returns nullopt, with a line, for a member near the root that cannot be written out, so that
  /// one odd object does not cost the others.
  std::optional<Json> member(Value value, const std::string& path, unsigned depth) {
    constexpr unsigned kNearRoot = 3;
    constexpr std::size_t kMost = 16;  // each of them may take as long as all the rest
    if (depth >= kNearRoot || left_out.size() >= kMost) return json(value, path, depth + 1);
    const std::array<std::size_t, 4> sizes = {tensors.size(), opaque.size(), renamed.size(),
                                              attributes.size()};
    const std::uint64_t used = used_;
    try {
      return json(value, path, depth + 1);
    } catch (const Endless& error) {
      for (std::size_t i = sizes[0]; i < tensors.size(); ++i) names_.erase(tensors[i].name);
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(sizes[0]), tensors.end());
      opaque.resize(sizes[1]);
      renamed.resize(sizes[2]);
      attributes.resize(sizes[3]);
      left_out.emplace_back(name(path), error.problem);
      is_in_config_ = false;
      used_ = used;
    }
    return std::nullopt;
  }

  Json object(Value value, const std::string& path, unsigned depth) {
    if (is_packed_state(value)) return unknown(value, value.callable_name(), path, depth);
    if (TorchFile::is_tensor(value)) {
      if (!value.items().empty() || !value.raw_pairs().empty()) {
        raise(ErrorCode::Corrupt, fmt::format("{}: elements set on a tensor", name(path)));
      }
      if (path.size() > limits::kNameBytes)
        raise(ErrorCode::Corrupt, fmt::format("{}: the name of a tensor is longer than {} bytes",
                                              name(path), limits::kNameBytes));
      memory_.charge(2 * sizeof(NamedTensor) + 2 * path.size());
      tensors.push_back({unique(path.empty() ? "tensor" : path), value});
      read_.insert(value.id());
      note_attributes(value, tensors.back().name);
      Json tensor = {{"$tensor", tensors.back().name}};
      if (TorchFile::is_parameter(value)) tensor["parameter"] = true;
      if (TorchFile::requires_grad(value)) tensor["requires_grad"] = true;
      return tensor;
    }
    const std::string call = value.callable_name();
    if (call == "torch.Size") return typed(call, "items", sequence(value, path, depth));
    if (call == "torch.device") return {{"$type", call}, {"value", device(value.args())}};
    if (call == "_codecs.encode" || call == "builtins.bytes" || call == "builtins.bytearray")
      return encoded(value, call, path, depth);
    if (call == "builtins.complex" && value.args().size() == 2) {
      return {{"$type", "complex"},
              {"value", Json::array({real(value.args()[0].real()), real(value.args()[1].real())})}};
    }
    if ((call == "builtins.set" || call == "builtins.frozenset") && value.args().size() == 1 &&
        value.args()[0].is_sequence()) {
      return typed(call.substr(9), "items", sequence(value.args()[0], path, depth));
    }
    if (value.is_dict()) return dict_class(value, call, path, depth);
    if (const auto content = config_content(value, call))
      return config(*content, call, path, depth);
    if (is_module(value)) return module(value, call, path, depth);
    return unknown(value, call, path, depth);
  }

  /// Returns what a container or a node of OmegaConf holds, which the class has in a field.
  static std::optional<Value> config_content(Value value, std::string_view call) {
    if (!call.starts_with("omegaconf.")) return std::nullopt;
    const bool is_node = call.starts_with("omegaconf.nodes.");
    return value.field(is_node ? "_val" : "_content");
  }

  /// Describes the plain list, dict or value that OmegaConf wraps. The lines name the outermost.
  Json config(Value content, const std::string& call, const std::string& path, unsigned depth) {
    if (!is_in_config_)
      opaque.push_back(fmt::format("{}: {}, of which the values are read", name(path), name(call)));
    const bool was_in_config = std::exchange(is_in_config_, true);
    Json plain = json(content, path, depth + 1);
    is_in_config_ = was_in_config;
    return plain;
  }

  /// Returns the number or text of an object that is made of it alone: a member of an enumeration.
  /// Classes have capital letters, and functions, which may make anything of it, do not.
  static std::optional<Value> only_value(Value value, std::string_view call) {
    const std::string_view type = call.substr(call.rfind('.') + 1);
    const bool is_class = !type.empty() && type[0] >= 'A' && type[0] <= 'Z';
    const Value args = value.args();
    if (!is_class || makes_plain_object(call) || args.size() != 1 || !value.items().empty() ||
        !value.raw_pairs().empty() || has_state(value))
      return std::nullopt;
    constexpr std::array<NodeKind, 5> kKinds = {NodeKind::Bool, NodeKind::Int, NodeKind::BigInt,
                                                NodeKind::Float, NodeKind::Str};
    return std::ranges::count(kKinds, args[0].kind()) > 0 ? std::optional(args[0]) : std::nullopt;
  }
  static bool has_state(Value value) {
    const auto state = value.state();
    return state && !(state->is_dict() && state->pair_count() == 0) && !state->is_none();
  }

  void note_attributes(Value tensor, const std::string& path) {
    auto members = TorchFile::user_attributes(tensor);
    if (members && members->is(NodeKind::Tuple) && members->size() > 0) members = (*members)[0];
    if (!members || !members->is_dict() || members->pair_count() == 0) return;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < members->pair_count() && names.size() <= kFirstNames; ++i) {
      std::string each = name(part_of(members->key(i)));
      // A mark of FSDP1's hooks (torch/distributed/fsdp/_state_dict_utils.py).
      if (each != "_has_been_cloned") names.push_back(std::move(each));
    }
    if (names.empty()) return;
    attributes.push_back(fmt::format("{}: {}", name(path), first_names(names)));
    memory_.charge(2 * sizeof(std::string) + attributes.back().size());
  }

  /// Whether it is a state of torchao's, of which the parts are kept as those of other objects.
  static bool is_packed_state(Value value) {
    const Value args = value.args();
    return value.callable_name() == kFromType && args.size() == 4 && args[1].is(NodeKind::Global) &&
           is_packed_state_class(args[1].global());
  }

  static std::string device(Value args) {
    std::string out(args[0].text());
    if (args.size() > 1) out += fmt::format(":{}", args[1].integer());
    return out;
  }

  /// Decodes bytes of protocol 2, which are stored as the code points of a text.
  Json encoded(Value value, const std::string& call, const std::string& path, unsigned depth) {
    const std::string_view type = call == "builtins.bytearray" ? "bytearray" : "bytes";
    const Value args = value.args();
    if (args.size() == 0) return typed(type, "hex", "");
    if (!args[0].is(NodeKind::Str)) {
      Json inner = json(args[0], path, depth + 1);
      if (!inner.is_object() || !inner.contains("hex")) return unknown(value, call, path, depth);
      return typed(type, "hex", std::move(inner["hex"]));
    }
    memory_.charge(args[0].text().size());
    std::string bytes;
    for (std::string_view text = args[0].text(); !text.empty();) {
      const auto lead = static_cast<unsigned char>(text[0]);
      if (lead >= 0x80 && (lead > 0xc3 || text.size() < 2))
        return unknown(value, call, path, depth);
      const unsigned code =
          lead < 0x80 ? lead : ((lead & 3u) << 6) | (static_cast<unsigned char>(text[1]) & 0x3fu);
      bytes.push_back(static_cast<char>(code));
      text.remove_prefix(lead < 0x80 ? 1 : 2);
    }
    return typed(type, "hex", hexadecimal(bytes));
  }

  /// Describes OrderedDict and similar types: pairs that were set one by one, and pairs in the
  /// argument (Python 2, Counter).
  Json dict_class(Value value, const std::string& call, const std::string& path, unsigned depth) {
    Json out = typed(call, "pairs", pairs(value.raw_pairs(), value, path, depth));
    const Value args = value.args();
    if (args.size() > 0 && args[0].is_dict()) {
      out["pairs"] = pairs(args[0].raw_pairs(), args[0], path, depth);
    } else if (args.size() > 0 && args[0].is(NodeKind::List)) {
      for (std::size_t i = 0; i < args[0].size(); ++i) {
        const Value item = args[0][i];
        out["pairs"].push_back(pair(item[0], item[1], path, depth));
      }
    } else if (args.size() > 0) {
      out["args"] = json(args, path, depth + 1);
    }
    if (const auto metadata = value.field("_metadata"))
      out["_metadata"] = json(*metadata, path, depth + 1);
    return out;
  }

  /// Describes a pickled torch.nn.Module: its tensors get the names that its state dict gives them.
  Json module(Value value, const std::string& call, const std::string& path, unsigned depth) {
    Json out = {{"$type", "torch.nn.Module"}, {"name", call}, {"members", Json::object()}};
    for (const std::string_view part : kModuleParts) {
      const Value members = *value.field(part);
      for (std::size_t i = 0; i < members.pair_count(); ++i) {
        const std::string key = part_of(members.key(i));
        const Value member = members.value(i);
        if (!member.is_none()) out["members"][key] = json(member, join(path, key), depth + 1);
      }
    }
    find_elsewhere(*value.state(), path, true, 0);
    return out;
  }

  /// Takes down the tensors in `value`, the fields of a module or what is in one of them. Those
  /// that a state dict has are in `registered` fields, which are read before.
  void find_elsewhere(Value value, const std::string& path, bool has_registered, unsigned depth) {
    if (depth > kDepth) return;
    const auto visit = [&](Value member, const std::string& name) {
      memory_.charge(sizeof(NodeId));
      if (!walked_.insert(member.id()).second) return;
      if (!TorchFile::is_tensor(member)) return find_elsewhere(member, name, false, depth + 1);
      memory_.charge(sizeof(NamedTensor) + name.size());
      elsewhere_.push_back({name, member});
    };
    if (value.is_sequence() || value.is(NodeKind::Set)) {
      for (std::size_t i = 0; i < value.size(); ++i) visit(value[i], join(path, std::to_string(i)));
    } else if (value.is(NodeKind::Object) && !value.is_dict()) {
      visit(value.args(), path);
      if (const auto state = value.state()) visit(*state, path);
    }
    for (std::size_t i = 0; value.is_dict() && i < value.pair_count(); ++i) {
      const std::string key = part_of(value.key(i));
      const bool is_part = std::ranges::count(kModuleParts, key) > 0;
      if (is_part && has_registered) continue;
      visit(value.value(i), is_part ? path : join(path, key));
    }
  }

  /// Of the tensors that modules hold elsewhere, those that are read under no other name.
  void lose_unregistered() {
    for (const NamedTensor& tensor : elsewhere_) {
      if (read_.contains(tensor.value.id())) continue;
      const bool is_quantized = tensor.value.callable_name() == "torch._utils._rebuild_qtensor";
      if (is_quantized || TorchFile::is_parameter(tensor.value)) {
        lost_weights.emplace_back(
            name(tensor.name), fmt::format("a {} that the state dict of its module would not have",
                                           is_quantized ? "quantized tensor" : "parameter"));
      } else {
        unregistered.push_back(name(tensor.name));
      }
    }
  }

  /// Takes down what an object of a known kind is for a model. Returns false for others.
  bool note_kind(Value value, const std::string& call, const std::string& path) {
    if (call == "torch.nn.parameter.UninitializedParameter" ||
        call == "torch.nn.parameter.UninitializedBuffer") {
      lost_weights.emplace_back(name(path),
                                "it has no shape and no data: its lazy module has not "
                                "run yet");
      return true;
    }
    const auto fields = value.state();
    const auto has = [&](const char* key) { return fields->find(key).has_value(); };
    if (!fields || !fields->is_dict() || !has("state") || !has("param_groups") || !has("defaults"))
      return false;
    optimizers.emplace_back(path, name(call));
    return true;
  }

  /// Keeps the parts of an object; never calls it.
  Json unknown(Value value, const std::string& call, const std::string& path, unsigned depth) {
    if (!note_kind(value, call, path) && !makes_plain_object(call)) {
      if (const auto number_or_text = only_value(value, call)) {
        opaque.push_back(fmt::format("{}: {}, of which the value is read", name(path), name(call)));
        return json(*number_or_text, path, depth + 1);
      }
      opaque.push_back(fmt::format("{}: {}", name(path), call.empty() ? "a call" : name(call)));
    }
    memory_.charge(2 * path.size() + 3 * call.size() + 8 * sizeof(Json::object_t::value_type));
    Json out = {{"$type", "object"}, {"name", call}};
    if (call.empty()) out["callable"] = json(value.callable(), path, depth + 1);
    if (value.args().size() > 0) out["args"] = sequence(value.args(), path, depth + 1);
    if (const auto state = value.state()) out["state"] = json(*state, path, depth + 1);
    if (!value.items().empty()) out["items"] = sequence(value, path, depth);
    if (!value.raw_pairs().empty()) out["pairs"] = pairs(value.raw_pairs(), value, path, depth);
    return out;
  }

  const std::uint64_t budget_;
  bool is_in_config_ = false;
  std::uint64_t used_ = 0;
  MemoryBudget memory_;
  std::unordered_set<std::string> names_;  ///< names of tensors
  std::unordered_set<NodeId> read_;        ///< the tensors themselves
  std::unordered_set<NodeId> walked_;      ///< see find_elsewhere()
  std::vector<NamedTensor> elsewhere_;     ///< which tensors it has found
  // Last number given to each repeated path.
  std::unordered_map<std::string, std::uint64_t> numbers_;
};

}  // namespace

bool is_module(Value value) {
  for (const std::string_view part : kModuleParts) {
    const auto members = value.field(part);
    if (!members || !members->is_dict()) return false;
  }
  return true;
}

std::string path_part(Value key) {
  switch (key.kind()) {
    case NodeKind::Str:
    case NodeKind::Bytes:
      return readable(key.text());
    case NodeKind::None:
      return "None";
    case NodeKind::Bool:
      return key.boolean() ? "True" : "False";
    case NodeKind::Int:
      return std::to_string(key.integer());
    case NodeKind::BigInt:
      return key.text().size() <= 128 ? decimal(key.text()) : hex(key.text());
    case NodeKind::Float:
      return float_text(key.real());
    case NodeKind::Tuple: {
      std::string out = "(";
      for (std::size_t i = 0; i < std::min<std::size_t>(key.size(), 16); ++i) {
        const Value item = key[i];
        if (item.is_sequence()) return "(...)";
        out += (i == 0 ? "" : ", ") +
               (item.is(NodeKind::Str) ? fmt::format("'{}'", path_part(item)) : path_part(item));
      }
      return out + (key.size() == 1 ? ",)" : ")");
    }
    default:
      return fmt::format("<{}>", to_string(key.kind()));
  }
}

ObjectTree describe(Value root, std::uint64_t pickle_bytes) {
  Describer describer(root, std::max(kSmallTree, kExpansion * pickle_bytes));
  ObjectTree tree;
  tree.content = describer.describe(root, {});
  tree.tensors = std::move(describer.tensors);
  tree.opaque = std::move(describer.opaque);
  tree.attributes = std::move(describer.attributes);
  tree.renamed = std::move(describer.renamed);
  tree.left_out = std::move(describer.left_out);
  tree.lost_weights = std::move(describer.lost_weights);
  tree.optimizers = std::move(describer.optimizers);
  tree.unregistered = std::move(describer.unregistered);
  std::erase_if(tree.renamed, [&](const std::string& line) {
    return std::ranges::any_of(tree.optimizers, [&](const auto& each) {
      return each.first.empty() || line.starts_with(each.first + ".");
    });
  });
  return tree;
}

Json to_json(Value value, const std::string& path) {
  return Describer(value, kSmallTree).describe(value, path);
}

}  // namespace unishard::converters::torch
