#include "containers/pickle_json.hpp"

#include "unishard/format/error.hpp"

#include "containers/plain_objects.hpp"
#include "containers/torch_file.hpp"
#include "core/key_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace unishard::converters::torch {
namespace {

[[noreturn]] void refuse(std::string_view type, std::string_view why) {
  raise(ErrorCode::Unsupported, fmt::format("a Python value of type {} {}", type, why),
        "leave it out of the output");
}

std::string from_hex(const std::string& hex, const std::string& type) {
  std::string bytes(hex.size() / 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint8_t byte = 0;
    const char* digits = hex.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) {
      refuse(type, "has text that is not hexadecimal");
    }
    bytes[i] = static_cast<char>(byte);
  }
  return bytes;
}

/// Returns decimal digits as a two's complement, little-endian integer. Quadratic; object_tree.cpp
/// writes decimals of up to 128 bytes only.
std::string from_decimal(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.empty() || text.size() > 400) refuse("int", "has no digits, or too many");
  std::string bytes;  // the magnitude
  for (const char digit : text) {
    if (digit < '0' || digit > '9') refuse("int", "has a character that is no digit");
    auto carry = static_cast<unsigned>(digit - '0');
    for (char& byte : bytes) {
      carry += 10u * static_cast<unsigned char>(byte);
      byte = static_cast<char>(carry & 0xffu);
      carry >>= 8;
    }
    if (carry != 0) bytes.push_back(static_cast<char>(carry));
  }
  bytes.push_back('\0');  // room for the sign
  if (!negative) return bytes;
  unsigned carry = 1;
  for (char& byte : bytes) {
    carry += 0xffu & ~static_cast<unsigned>(static_cast<unsigned char>(byte));
    byte = static_cast<char>(carry & 0xffu);
    carry >>= 8;
  }
  return bytes;
}

double from_float_text(const std::string& text) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return infinity;
  if (text == "-inf") return -infinity;
  refuse("float", fmt::format("with the value {}", quote(text)));
}

/// Returns null for a member that is missing, and for every member of what is no object.
const Json& member_or_null(const Json& json, const char* key) {
  static const Json none;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found == json.end() ? none : *found;
}

/// Returns the factory of a defaultdict; empty when it has none, nullopt for no plain class.
std::optional<std::string> factory_of(const Json& dict) {
  const Json& args = member_or_null(dict, "args");
  if (args.is_null()) return "";
  const Json& items = member_or_null(args, "items");
  if (!items.is_array()) return std::nullopt;
  if (items.empty() || items[0].is_null()) return "";
  const Json& name = member_or_null(items[0], "name");
  const bool is_plain = member_or_null(items[0], "$type") == "global" && name.is_string() &&
                        is_plain_factory(name.get_ref<const std::string&>());
  return is_plain ? std::optional(name.get<std::string>()) : std::nullopt;
}

/// Returns the name of the class or function that an object or a global has.
std::string class_of(const Json& json) {
  const Json& name = member_or_null(json, "name");
  if (name == "builtins.getattr" && json.contains("args") && json["args"].is_array() &&
      !json["args"].empty())
    return class_of(json["args"][0]);  // a member of an enumeration, of Python 3.11
  return name.is_string() ? name.get<std::string>() : std::string();
}

[[noreturn]] void refuse_object(const std::string& type, const Json& json) {
  const std::string name = class_of(json);
  if (name.empty()) refuse(type, "cannot be written as data");
  raise(ErrorCode::Unsupported,
        fmt::format("{} {}, which cannot be written as data",
                    type == "global" ? "the class or function" : "an object of the class",
                    quote(name)),
        "leave it out of the output");
}

class JsonPickler {
 public:
  JsonPickler(PickleWriter& pickle, const WriteTensor& tensor) : pickle_(pickle), tensor_(tensor) {}

  void value(const Json& json) {
    switch (json.type()) {
      case Json::value_t::null:
        return pickle_.none();
      case Json::value_t::boolean:
        return pickle_.boolean(json.get<bool>());
      case Json::value_t::number_integer:
        return pickle_.integer(json.get<std::int64_t>());
      case Json::value_t::number_unsigned:
        return unsigned_integer(json.get<std::uint64_t>());
      case Json::value_t::number_float:
        return pickle_.real(json.get<double>());
      case Json::value_t::string:
        return pickle_.str(json.get_ref<const std::string&>());
      case Json::value_t::array:
        return list(json);
      case Json::value_t::object:
        return object(json);
      case Json::value_t::binary:
      case Json::value_t::discarded:
        break;
    }
    refuse(json.type_name(), "is no JSON");
  }

 private:
  void unsigned_integer(std::uint64_t number) {
    if (std::in_range<std::int64_t>(number)) {
      return pickle_.integer(static_cast<std::int64_t>(number));
    }
    pickle_.long_integer(from_decimal(std::to_string(number)));
  }

  void list(const Json& all) {
    pickle_.begin_list();
    for (const Json& item : all) value(item);
    pickle_.end_list();
  }

  /// Appends items to an object that a call has just made.
  void items(const Json& all) {
    pickle_.begin_items();
    for (const Json& item : all) value(item);
    pickle_.end_list();
  }

  void tuple(const Json& items) {
    pickle_.begin_tuple();
    for (const Json& item : items) value(item);
    pickle_.end_tuple();
  }

  void object(const Json& json) {
    if (const auto type = json.find("$type"); type != json.end() && type->is_string()) {
      return typed(type->get_ref<const std::string&>(), json);
    }
    if (!json.empty() && json.begin().key() == "$tensor" && json.front().is_string())
      return tensor(json);
    pickle_.begin_dict();
    for (const auto& [key, item] : json.items()) {
      pickle_.str(key);
      value(item);
    }
    pickle_.end_dict();
  }

  void tensor(const Json& json) {
    const bool requires_grad = json.value("requires_grad", Json()) == true;
    const auto& name = json.front().get_ref<const std::string&>();
    if (json.value("parameter", Json()) != true) {
      pickle_.requires_grad = requires_grad;
      tensor_(pickle_, name);
      pickle_.requires_grad = false;
      return;
    }
    pickle_.global("torch._utils", "_rebuild_parameter");
    pickle_.begin_tuple();
    tensor_(pickle_, name);
    pickle_.boolean(requires_grad);
    pickle_.begin_ordered_dict();
    pickle_.end_dict();
    pickle_.end_tuple();
    pickle_.reduce();
  }

  void typed(const std::string& type, const Json& json) {
    try {
      if (scalar(type, json) || container(type, json) || plain_object(type, json)) return;
    } catch (const Json::exception&) {
      refuse(type, "lacks its value");
    }
    if (type == "torch.Tensor")
      raise(ErrorCode::Unsupported, "a tensor that is neither the model's nor the optimizer's",
            "leave it out of the output");
    refuse_object(type, json);
  }

  bool scalar(const std::string& type, const Json& json) {
    if (type == "bytes") {
      pickle_.bytes(from_hex(json.at("hex"), type));
    } else if (type == "bytearray") {
      bytearray(from_hex(json.at("hex"), type));
    } else if (type == "str") {
      pickle_.str(from_hex(json.at("hex"), type));
    } else if (type == "int") {
      const bool decimal = json.contains("dec");
      pickle_.long_integer(decimal ? from_decimal(json["dec"].get_ref<const std::string&>())
                                   : from_hex(json.at("hex_le"), type));
    } else if (type == "float") {
      pickle_.real(from_float_text(json.at("value")));
    } else if (type == "complex") {
      call("__builtin__", "complex", json.at("value"));
    } else if (type == "torch.dtype") {
      dtype(json.at("value"));
    } else if (type == "torch.device") {
      device(json.at("value"));
    } else {
      return false;
    }
    return true;
  }

  bool container(const std::string& type, const Json& json) {
    if (type == "tuple") {
      tuple(json.at("items"));
    } else if (type == "set" || type == "frozenset") {
      call("__builtin__", type, Json::array({json.at("items")}));
    } else if (type == "torch.Size") {
      call("torch", "Size", Json::array({{{"$type", "tuple"}, {"items", json.at("items")}}}));
    } else if (type == "builtins.dict") {
      pickle_.begin_dict();
      pairs(json.at("pairs"));
    } else if (type == "collections.Counter") {
      pickle_.global("collections", "Counter");
      pickle_.begin_tuple();
      pickle_.begin_dict();
      pairs(json.at("pairs"));
      pickle_.end_tuple();
      pickle_.reduce();
    } else if (type == "collections.defaultdict") {
      default_dict(json);
    } else if (type == "collections.OrderedDict") {
      pickle_.begin_ordered_dict();
      pairs(json.at("pairs"));
      if (json.contains("_metadata")) metadata(json["_metadata"]);
    } else {
      return false;
    }
    return true;
  }

  void default_dict(const Json& json) {
    pickle_.global("collections", "defaultdict");
    pickle_.begin_tuple();
    const std::optional<std::string> factory = factory_of(json);
    if (!factory) refuse("collections.defaultdict", "has a factory that is no plain class");
    if (!factory->empty()) global(*factory);
    pickle_.end_tuple();
    pickle_.reduce();
    pickle_.begin_items();
    pairs(json.at("pairs"));
  }

  bool plain_object(const std::string& type, const Json& json) {
    if (type == "global" && is_plain_class(json.at("name").get_ref<const std::string&>())) {
      global(json["name"]);
      return true;
    }
    if (type != "object" || !makes_plain_object(json.at("name").get_ref<const std::string&>()) ||
        json.contains("pairs"))
      return false;
    global(json["name"]);
    tuple(json.value("args", Json::array()));
    pickle_.reduce();
    if (json.contains("items")) items(json["items"]);
    if (json.contains("state")) {
      value(json["state"]);
      pickle_.build();
    }
    return true;
  }

  void global(const std::string& name) {
    const std::size_t dot = name.rfind('.');
    const std::string module = name.substr(0, dot);
    pickle_.global(module == "builtins" ? "__builtin__" : module, name.substr(dot + 1));
  }

  void call(std::string_view module, std::string_view name, const Json& arguments) {
    pickle_.global(module, name);
    tuple(arguments);
    pickle_.reduce();
  }

  void pairs(const Json& all) {
    for (const Json& pair : all) {
      value(pair.at(0));
      value(pair.at(1));
    }
    pickle_.end_dict();
  }

  /// Writes an attribute of the dict, as nn.Module.state_dict() returns it.
  void metadata(const Json& json) {
    pickle_.begin_dict();
    pickle_.str("_metadata");
    value(json);
    pickle_.end_dict();
    pickle_.build();
  }

  /// Writes bytes as protocol 2 does: as the code points of a text.
  void bytearray(const std::string& bytes) {
    pickle_.global("__builtin__", "bytearray");
    pickle_.begin_tuple();
    pickle_.latin1_text(bytes);
    pickle_.str("latin-1");
    pickle_.end_tuple();
    pickle_.reduce();
  }

  void dtype(const std::string& name) {
    const std::size_t dot = name.rfind('.');
    if (!dtype_of_global(name) || dot == std::string::npos) {
      refuse("torch.dtype", fmt::format("called {} is not known", quote(name)));
    }
    pickle_.global(name.substr(0, dot), name.substr(dot + 1));
  }

  void device(const std::string& name) {
    const std::size_t colon = name.find(':');
    Json arguments = Json::array({name.substr(0, colon)});
    if (colon != std::string::npos) {
      const std::string digits = name.substr(colon + 1);
      int index = 0;
      if (std::from_chars(digits.data(), digits.data() + digits.size(), index).ec != std::errc()) {
        refuse("torch.device", fmt::format("called {} is not known", quote(name)));
      }
      arguments.push_back(index);
    }
    call("torch", "device", arguments);
  }

  PickleWriter& pickle_;
  const WriteTensor& tensor_;
};

}  // namespace

void write_json(PickleWriter& pickle, const Json& value, const WriteTensor& tensor) {
  JsonPickler(pickle, tensor).value(value);
}

void refuse_tensor(PickleWriter&, const std::string& name) {
  raise(ErrorCode::Unsupported,
        fmt::format("{} is a tensor, and only plain values can be written there", quote(name)));
}

std::unique_ptr<Pickle> pickle_of(const Json& value, std::string_view what) {
  PickleWriter writer;
  write_json(writer, value, refuse_tensor);
  return Pickle::parse(writer.finish(), what);
}

void write_none(PickleWriter& pickle, const std::string&) { pickle.none(); }

namespace {

/// Returns why write_json() refuses `value`; empty when it does not.
std::string refusal(const Json& value, const WriteTensor& tensor) {
  PickleWriter scratch;
  try {
    write_json(scratch, value, tensor);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

class Pruner {
 public:
  Pruner(std::vector<std::string>& dropped, WriteTensor tensor)
      : dropped_(dropped), tensor_(std::move(tensor)) {}

  /// Returns what can be written of `value`; nullopt, with a line, for nothing.
  std::optional<Json> prune(const Json& value, const std::string& path) {
    const std::string reason = refusal(value, tensor_);
    if (reason.empty()) return value;
    if (has_pairs(value) && is_dict(value)) return pairs(value, path);
    if (has_pairs(value) && value.value("$type", Json()) == "collections.defaultdict")
      return without_factory(value, path);
    if (value.is_object() && !value.contains("$type") && !value.contains("$tensor"))
      return members(value, path);
    if (auto kept = container(value, path)) return kept;
    dropped_.push_back(fmt::format("{}: {}", path.empty() ? "the object" : path, reason));
    return std::nullopt;
  }
  Json members(const Json& object, const std::string& path) {
    Json kept = Json::object();
    for (const auto& [key, value] : object.items()) {
      if (auto member = prune(value, below(path, key))) kept[key] = std::move(*member);
    }
    return kept;
  }

 private:
  /// Returns the value with null for each of its items that cannot be written, and without such
  /// fields of a namespace; nullopt, without a line, for another value, and for one of which that
  /// leaves nothing, or of which much is lost.
  std::optional<Json> container(const Json& value, const std::string& path) {
    constexpr std::size_t kMostLost = 16;
    std::vector<std::string> lines;
    std::swap(lines, dropped_);
    std::optional<Json> kept = parts_of_container(value, path);
    std::swap(lines, dropped_);
    if (!kept || lines.size() > kMostLost || !refusal(*kept, tensor_).empty()) return std::nullopt;
    dropped_.insert(dropped_.end(), lines.begin(), lines.end());
    return kept;
  }
  std::optional<Json> parts_of_container(const Json& value, const std::string& path) {
    if (value.is_array()) return items(value, path);
    if (!value.is_object()) return std::nullopt;
    const Json type = value.value("$type", Json()), name = value.value("name", Json());
    const bool is_tuple = type == "tuple" && value.contains("items");
    const bool is_namespace = type == "object" && value.contains("state") &&
                              (name == "argparse.Namespace" || name == "types.SimpleNamespace");
    if (!is_tuple && !is_namespace) return std::nullopt;
    const char* const part = is_tuple ? "items" : "state";
    auto inside = is_tuple ? items(value[part], path) : prune(value[part], path);
    if (!inside) return std::nullopt;
    Json kept = value;
    kept[part] = *std::move(inside);
    return kept;
  }
  std::optional<Json> items(const Json& list, const std::string& path) {
    Json kept = Json::array();
    bool is_any_kept = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto item = prune(list[i], below(path, std::to_string(i)));
      is_any_kept |= item.has_value();
      if (!item) dropped_.back() += "; None is in its place";
      kept.push_back(item ? *std::move(item) : Json());
    }
    return is_any_kept ? std::optional(std::move(kept)) : std::nullopt;
  }

  static bool has_pairs(const Json& value) {
    if (!value.is_object() || !value.contains("pairs") || !value["pairs"].is_array()) return false;
    return std::ranges::all_of(
        value["pairs"], [](const Json& pair) { return pair.is_array() && pair.size() == 2; });
  }
  static bool is_dict(const Json& value) {
    const Json type = value.value("$type", Json());
    return type == "builtins.dict" || type == "collections.OrderedDict";
  }
  Json without_factory(const Json& value, const std::string& path) {
    Json dict = value;
    if (!factory_of(dict)) {
      dict.erase("args");
      dropped_.push_back(fmt::format("{}: the factory of a defaultdict is no plain class", path));
    }
    return pairs(dict, path);
  }
  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : fmt::format("{}.{}", path, key);
  }
  Json pairs(const Json& dict, const std::string& path) {
    Json kept = dict;
    kept["pairs"] = Json::array();
    for (const Json& pair : dict["pairs"]) {
      const std::string at = below(path, key_text(pair[0]));
      if (const std::string reason = refusal(pair[0], tensor_); !reason.empty()) {
        dropped_.push_back(fmt::format("{}: {}", at, reason));
      } else if (auto value = prune(pair[1], at)) {
        kept["pairs"].push_back(Json::array({pair[0], std::move(*value)}));
      }
    }
    return kept;
  }

  std::vector<std::string>& dropped_;
  const WriteTensor tensor_;
};

}  // namespace

bool is_numpy_scalar(const Json& value) {
  return value.is_object() && value.value("name", Json()) == "numpy.core.multiarray.scalar";
}

bool is_numpy_array(const Json& value) {
  if (!value.is_object() || value.value("$type", Json()) != "object") return false;
  const Json name = value.value("name", Json());
  return name == "numpy.core.multiarray._reconstruct" || name == "numpy.core.numeric._frombuffer";
}

namespace {

/// A storage without a tensor, or bytes of which torch makes one.
bool is_storage(const Json& value) {
  if (!value.is_object()) return false;
  const Json type = value.value("$type", Json());
  return type == "persistent" ||
         (type == "object" && value.value("name", Json()) == "torch.storage._load_from_bytes");
}

std::string child_path(const std::string& path, const std::string& key) {
  return path.empty() ? key : fmt::format("{}.{}", path, key);
}

/// What a call makes of data is one thing: its arguments are no members.
void find_in_object(const Json& object, const std::string& path, Losses& losses) {
  Losses inside;
  for (const char* part : {"args", "state", "items", "pairs", "callable"}) {
    if (object.contains(part)) find_unread_data(object[part], "", inside);
  }
  if (inside.empty()) return;
  Loss loss = std::move(inside.front());
  loss.name = path;
  losses.push_back(std::move(loss));
}

}  // namespace

bool is_unread_data(const Json& value) { return is_numpy_array(value) || is_storage(value); }

void find_unread_data(const Json& value, const std::string& path, Losses& losses) {
  if (is_unread_data(value)) {
    const bool is_kept = is_numpy_array(value);
    losses.push_back({.role = Role::Weight,
                      .name = path,
                      .why = is_kept ? "an array of numpy" : "a storage without a tensor",
                      .is_kept = is_kept});
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i)
      find_unread_data(value[i], child_path(path, std::to_string(i)), losses);
  } else if (!value.is_object()) {
    return;
  } else if (!value.contains("$type")) {
    for (const auto& [key, child] : value.items())
      find_unread_data(child, child_path(path, key), losses);
  } else if (value["$type"] == "object") {
    find_in_object(value, path, losses);
  } else if (value.contains("pairs") && value["pairs"].is_array()) {
    for (const Json& pair : value["pairs"])
      find_unread_data(pair[1], child_path(path, key_text(pair[0])), losses);
  } else {
    for (const char* part : {"items", "members"}) {
      if (value.contains(part)) find_unread_data(value[part], path, losses);
    }
  }
}

namespace {

/// Calls `take` with each key and value of a dict whose keys are texts; with nothing of others.
template <class Take>
void each_named(const Json& dict, const Take& take) {
  if (!dict.is_object() || dict.contains("$tensor")) return;
  if (!dict.contains("$type")) {
    for (const auto& [key, value] : dict.items()) take(key, value);
  } else if (dict.contains("pairs") && dict["pairs"].is_array()) {
    for (const Json& pair : dict["pairs"]) {
      if (pair[0].is_string()) take(pair[0].get_ref<const std::string&>(), pair[1]);
    }
  }
}

/// Returns the items of a list or a tuple; null for another value.
const Json* items_of(const Json& value) {
  if (value.is_array()) return &value;
  const bool is_tuple = value.is_object() && value.value("$type", Json()) == "tuple" &&
                        value.contains("items") && value["items"].is_array();
  return is_tuple ? &value["items"] : nullptr;
}

/// Whether it is what a tensor may have been replaced by: other members of a state dict, such as an
/// extra state, are texts, bytes or objects.
bool is_emptied(const Json& value) {
  const Json* const items = items_of(value);
  return value.is_null() || value.is_number() || is_numpy_scalar(value) ||
         (items != nullptr && !items->empty() && std::ranges::all_of(*items, is_emptied));
}

/// Whether a parameter's name has a value that no module's state dict has under such a name.
bool is_emptied_parameter(const std::string& key, const Json& value) {
  if (!key.ends_with(".weight") && !key.ends_with(".bias")) return false;
  const bool is_bytes = value.is_object() && value.value("$type", Json()) == "bytes";
  return is_bytes || value.is_boolean() || value.is_string() ||
         (value.is_structured() && value.empty());
}

std::string_view what_is(const Json& value) {
  if (value.is_null()) return "nothing (None)";
  if (is_emptied(value)) return "a number";
  if (value.is_boolean()) return "True or False";
  if (value.is_string()) return "a text";
  return value.contains("$type") ? "bytes" : "an empty list or dict";
}

/// Whether most of the members are tensors with the names of modules. An optimizer whose states
/// and settings lie in one flat dict has numbers.
bool is_state_dict(const Json& dict) {
  std::size_t members = 0, tensors = 0;
  bool has_settings = false;
  each_named(dict, [&](const std::string& key, const Json& value) {
    ++members;
    has_settings |= key.find("param_groups") != std::string::npos;
    const bool is_tensor = value.is_object() && value.contains("$tensor");
    if (is_tensor && key.find('.') != std::string::npos) ++tensors;
  });
  return !has_settings && 2 * tensors > members;
}

}  // namespace

void find_emptied_weights(const Json& value, const std::string& path, Losses& losses) {
  const bool is_model = is_state_dict(value);
  each_named(value, [&](const std::string& key, const Json& child) {
    if (!is_model) return find_emptied_weights(child, child_path(path, key), losses);
    const bool may_be = key.find('.') != std::string::npos && !key.ends_with("._extra_state");
    if (!may_be || (!is_emptied(child) && !is_emptied_parameter(key, child))) return;
    losses.push_back({.role = Role::Weight,
                      .name = child_path(path, key),
                      .why = fmt::format("{} in the place of a tensor", what_is(child))});
  });
}

const Json* member(const Json& dict, std::string_view name) {
  if (!dict.is_object()) return nullptr;
  if (!dict.contains("$type")) return dict.contains(name) ? &dict[std::string(name)] : nullptr;
  if (!dict.contains("pairs")) return nullptr;
  for (const Json& pair : dict["pairs"]) {
    if (pair[0] == name) return &pair[1];
  }
  return nullptr;
}

std::set<std::string> tensors_in(const Json& value) {
  if (value.is_object() && value.contains("$tensor") && value["$tensor"].is_string())
    return {value["$tensor"].get<std::string>()};
  std::set<std::string> names;
  if (!value.is_structured()) return names;
  for (const Json& child : value) names.merge(tensors_in(child));
  return names;
}

std::optional<Json> with_all_tensors(const Json& value, const std::string& path,
                                     std::vector<std::string>& dropped) {
  std::optional<Json> kept = Pruner(dropped, write_none).prune(value, path);
  if (kept && tensors_in(*kept).size() < tensors_in(value).size()) kept.reset();
  return kept;
}

std::optional<Json> without_unwritable_parts(const Json& value, const std::string& path,
                                             std::vector<std::string>& dropped,
                                             WriteTensor tensor) {
  return Pruner(dropped, std::move(tensor)).prune(value, path);
}

Json without_unwritable(const Json& object, const std::string& path,
                        std::vector<std::string>& dropped, WriteTensor tensor) {
  return Pruner(dropped, std::move(tensor)).members(object, path);
}

}  // namespace unishard::converters::torch
