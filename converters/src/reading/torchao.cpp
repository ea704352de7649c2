// The layout is that of torchao.prototype.safetensors.safetensors_support
// .flatten_tensor_state_dict(): the parts of a weight are tensors, and the metadata of the file has
// JSON text under the name of the weight.
#include "unishard/converters/dequantize.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "core/file_records.hpp"
#include "reading/quantizers.hpp"
#include "reading/scaled_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace unishard::converters {
namespace {

constexpr const char* kNames = "tensor_names";  ///< the key by which torchao's metadata are known
constexpr const char* kPlain = "Tensor";        ///< the class of what is not quantized
constexpr std::uint64_t kDescriptionBytes = std::uint64_t{64} << 10;

/// A class of torchao whose numbers are bytes of their own.
struct TensorClass {
  std::string_view name;
  bool is_float8;        ///< its numbers; otherwise they are int8
  bool has_zero_points;  ///< whatever the description lists
};
constexpr std::array<TensorClass, 3> kClasses = {{{"Float8Tensor", true, false},
                                                  {"Int8Tensor", false, false},
                                                  {"IntxUnpackedToInt8Tensor", false, true}}};

/// The parts that weights of these classes may have.
constexpr std::array<std::string_view, 6> kParts = {
    "qdata", "scale", "zero_point", "act_quant_scale", "act_quant_zero_point", "act_pre_scale"};

/// "a.b.weight" and "qdata" -> "a.b._weight_qdata"; empty for a name that lies in no module.
std::string part_name(std::string_view fqn, std::string_view part) {
  const std::string_view module = module_of(fqn);
  if (module.empty()) return {};
  return fmt::format("{}_{}_{}", module, fqn.substr(module.size()), part);
}

[[noreturn]] void raise_weight(ErrorCode code, std::string_view fqn, std::string_view problem) {
  raise(code, fmt::format("{}: {}", quote(fqn), problem));
}

class Flattened {
 public:
  /// Pre: `description` is an object with the text "_type".
  Flattened(const NamedTensors& tensors, std::string fqn, const Json& description)
      : tensors_(tensors), fqn_(std::move(fqn)), class_(description["_type"]) {
    const auto data = description.find("_data");
    if (data != description.end() && data->is_object()) data_ = *data;
    const auto names = description.find("_tensor_data_names");
    if (names != description.end()) listed_ = *names;
  }

  /// A checkpoint that was made of a part of the file's tensors may have none of this weight.
  bool is_there() const {
    return std::ranges::any_of(kParts,
                               [this](std::string_view name) { return part(name).has_value(); });
  }

  QuantizedWeight describe() const {
    const auto known = std::ranges::find(kClasses, class_, &TensorClass::name);
    if (known == kClasses.end())
      raise_weight(ErrorCode::Unsupported, fqn_, fmt::format("torchao's {} is not read", class_));
    require_listed_parts();
    if (part("act_pre_scale"))
      raise_weight(ErrorCode::Unsupported, fqn_,
                   "torchao's weight for activations that are scaled before is not read");
    const std::size_t numbers = required("qdata"), scales = required("scale");
    const TensorInfo& info = tensors_[numbers];
    if (known->is_float8 ? !is_float8(info.dtype) : info.dtype != DType::Int8)
      raise_tensor(info, fmt::format("{} numbers, which torchao's {} does not have",
                                     name_of(info.dtype), class_));
    require_scale_type(tensors_[scales]);
    QuantizedWeight quantized{.tensor = numbers,
                              .fqn = fqn_,
                              .dtype = dtype(),
                              .shape = info.shape,
                              .sides = {scales},
                              .method = fmt::format("torchao {}", class_),
                              .values = nullptr};
    ScaledElements elements{.numbers = numbers,
                            .scales = scales,
                            .zero_points = zero_points(*known, tensors_[scales]),
                            .groups = std::nullopt,
                            .grid = grid(info, tensors_[scales])};
    for (const char* name : {"zero_point", "act_quant_scale", "act_quant_zero_point"}) {
      if (const auto side = part(name)) quantized.sides.push_back(*side);
    }
    quantized.values = make_scaled_elements(std::move(elements));
    return quantized;
  }

 private:
  std::optional<std::size_t> part(std::string_view name) const {
    return tensors_.find(part_name(fqn_, name));
  }

  std::size_t required(std::string_view name) const {
    const auto found = part(name);
    if (!found)
      raise_weight(ErrorCode::Corrupt, fqn_, fmt::format("its {} of torchao is missing", name));
    return *found;
  }

  /// Requires each part that the description lists to be there and to be known.
  void require_listed_parts() const {
    if (listed_.is_discarded()) return;
    const auto is_text = [](const Json& name) { return name.is_string(); };
    if (!listed_.is_array() || !std::ranges::all_of(listed_, is_text))
      raise_weight(ErrorCode::Corrupt, fqn_, "_tensor_data_names is not a list of names");
    for (const Json& name : listed_) {
      const auto text = name.get<std::string>();
      if (std::ranges::count(kParts, text) == 0)
        raise_weight(ErrorCode::Unsupported, fqn_,
                     fmt::format("torchao's part {} is not read", quote(text)));
      required(text);
    }
  }

  std::optional<std::size_t> zero_points(const TensorClass& known, const TensorInfo& scales) const {
    const auto found = known.has_zero_points ? required("zero_point") : part("zero_point");
    if (!found) return std::nullopt;
    const TensorInfo& points = tensors_[*found];
    if (points.shape != scales.shape)
      raise_tensor(points, "zero points of another shape than the scales have");
    const DTypeInfo& type = info(points.dtype);
    if (type.kind != Kind::Signed && (type.kind != Kind::Float || type.bytes == 1))
      raise_tensor(points, fmt::format("zero points of torchao are not {}", type.name));
    return found;
  }

  /// The type that the weight had before; it is {"_type": "torch.dtype", "_data": name}.
  DType dtype() const {
    const auto found = data_.find("dtype");
    if (found == data_.end() || !found->is_object() || !found->contains("_data") ||
        !(*found)["_data"].is_string())
      raise_weight(ErrorCode::Corrupt, fqn_, "torchao's description does not say its type");
    const auto dtype = dtype_from_name((*found)["_data"].get<std::string>());
    if (dtype && info(*dtype).kind == Kind::Float && size_of(*dtype) > 1) return *dtype;
    raise_weight(ErrorCode::Unsupported, fqn_, "torchao's weight of an unknown type");
  }

  ScaleGrid grid(const TensorInfo& numbers, const TensorInfo& scales) const {
    const auto block = data_.find("block_size");
    const auto is_size = [](const Json& size) { return size.is_number_unsigned(); };
    if (block == data_.end() || !block->is_array() || block->empty())
      return scale_grid(numbers, scales.shape, {});
    if (block->size() > limits::kDimensions || !std::ranges::all_of(*block, is_size))
      raise_weight(ErrorCode::Corrupt, fqn_, "block_size is not a list of sizes");
    ScaleGrid grid = block_grid(numbers, block->get<Shape>(), scales.elements());
    if (scales.shape.size() == grid.grid.size() && scales.shape != grid.grid)
      raise_tensor(scales, fmt::format("scales of another shape than the blocks of {} have",
                                       numbers.label()));
    return grid;
  }

  const NamedTensors& tensors_;
  const std::string fqn_, class_;
  Json data_ = Json::object();
  Json listed_ = Json(Json::value_t::discarded);  ///< the names of the parts, where it has them
};

/// Returns the description of a tensor of torchao; null for any other text.
Json description_of(const std::string& text) {
  if (text.size() > kDescriptionBytes || !text.starts_with('{') || !Json::accept(text)) return {};
  Json json = parse_json(text, "the metadata of torchao");
  const bool describes = json.is_object() && json.contains("_type") && json["_type"].is_string();
  return describes ? json : Json();
}

/// The descriptions in the metadata of the files that a catalog was read from, by the names of the
/// tensors; empty where torchao wrote none.
std::map<std::string, Json> descriptions(const Catalog& catalog) {
  std::map<std::string, Json> found;
  const Json metadata = file_record(catalog.producer, kSafetensorsMetadata);
  if (!metadata.is_object() || !metadata.contains(kNames)) return found;
  for (const auto& [fqn, text] : metadata.items()) {
    if (!text.is_string()) continue;
    Json description = description_of(text.get_ref<const std::string&>());
    if (!description.is_null()) found.emplace(fqn, std::move(description));
  }
  return found;
}

/// What a catalog has of the tensors that torchao described.
class Present {
 public:
  Present(const Catalog& catalog, const std::map<std::string, Json>& described) {
    for (const TensorInfo& tensor : catalog.tensors) add(tensor.fqn);
    for (const Alias& alias : catalog.aliases) add(alias.fqn);
    for (const auto& [fqn, description] : described) {
      if (!has(fqn)) continue;
      has_any_ = true;
      kinds_.insert(without_numbers(fqn));
    }
  }

  /// Whether a tensor is missing that the files had when they were made. Adapters have none of what
  /// is described.
  bool lacks(const std::string& fqn, const Json& description) const {
    if (!has_any_ || has(fqn)) return false;
    return description["_type"] != kPlain || is_lost(fqn);
  }

 private:
  void add(std::string_view fqn) {
    names_.insert(fqn);
    modules_.insert(module_of(fqn));
  }
  bool has(const std::string& fqn) const {
    const auto has_part = [&](std::string_view part) {
      return names_.contains(part_name(fqn, part));
    };
    return names_.contains(fqn) || std::ranges::any_of(kParts, has_part);
  }
  /// transformers describes plain tensors first, and then leaves out tied ones, such as the weight
  /// of an output layer, and gives some modules other names. So a plain tensor counts where its
  /// module is there, or the same of another layer; and the weight of a norm, which is never tied,
  /// where no other name ends as its own.
  bool is_lost(const std::string& fqn) const {
    const std::string kind = without_numbers(fqn);
    const std::string_view module = module_of(fqn);
    if (kind != fqn || !fqn.ends_with(".weight"))
      return modules_.contains(module) || kinds_.contains(kind);
    const std::string_view above = module_of(module.substr(0, module.size() - 1));
    const std::string_view own = std::string_view(fqn).substr(above.size());
    return own.find("norm") != std::string_view::npos &&
           std::ranges::none_of(names_, [&](std::string_view name) { return name.ends_with(own); });
  }

  bool has_any_ = false;
  std::unordered_set<std::string_view> names_, modules_;
  std::unordered_set<std::string> kinds_;  ///< without_numbers() of what is there
};

std::vector<std::string> missing_names(const Catalog& catalog) {
  std::vector<std::string> missing;
  const std::map<std::string, Json> described = descriptions(catalog);
  if (described.empty()) return missing;
  const Present present(catalog, described);
  for (const auto& [fqn, description] : described) {
    if (present.lacks(fqn, description)) missing.push_back(fqn);
  }
  return missing;
}

}  // namespace

void find_torchao(const NamedTensors& tensors, const QuantizationConfig& /*config*/,
                  QuantizedWeights& found) {
  for (const auto& [fqn, description] : descriptions(tensors.source().catalog())) {
    if (description["_type"] == kPlain) continue;
    const Flattened weight(tensors, fqn, description);
    if (weight.is_there()) found.push_back(weight.describe());
  }
}

Losses missing_of_torchao(const Catalog& catalog) {
  Losses losses;
  for (std::string& fqn : missing_names(catalog))
    losses.push_back({.role = Role::Weight,
                      .name = std::move(fqn),
                      .why = "torchao's metadata describe it, and it is not in the files"});
  return losses;
}

void copy_descriptions(const Catalog& from, Catalog& to,
                       const std::function<std::string(const std::string&)>& rename) {
  const std::map<std::string, Json> described = descriptions(from);
  if (described.empty()) return;
  Json metadata = file_record(from.producer, kSafetensorsMetadata);
  std::map<std::string, Json> renamed;
  for (const auto& [fqn, description] : described) {
    std::string name = rename(fqn);
    if (name == fqn) continue;
    renamed.emplace(std::move(name), metadata[fqn]);
    metadata.erase(fqn);
  }
  for (const auto& [name, text] : renamed) metadata[name] = text;
  const Json& text = metadata[kNames];
  Json names = text.is_string() ? Json::parse(text.get<std::string>(), nullptr, false) : Json();
  if (!renamed.empty() && names.is_array()) {
    for (Json& name : names) {
      if (name.is_string()) name = rename(name.get<std::string>());
    }
    metadata[kNames] = names.dump();
  }
  to.producer[std::string(kSafetensorsMetadata)] = std::move(metadata);
}

void forget_missing_of_torchao(Catalog& catalog) {
  const std::vector<std::string> missing = missing_names(catalog);
  if (missing.empty()) return;
  Json& metadata = catalog.producer[std::string(kSafetensorsMetadata)];
  for (const std::string& fqn : missing) metadata.erase(fqn);
  Json& text = metadata[kNames];
  const Json names =
      text.is_string() ? Json::parse(text.get<std::string>(), nullptr, false) : Json();
  if (!names.is_array()) return;
  Json left = Json::array();
  std::ranges::copy_if(names, std::back_inserter(left), [&](const Json& name) {
    return !name.is_string() || !std::ranges::binary_search(missing, name.get<std::string>());
  });
  text = left.dump();
}

}  // namespace unishard::converters
