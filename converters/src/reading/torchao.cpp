// The layout is that of torchao.prototype.safetensors.safetensors_support
// .flatten_tensor_state_dict(): the parts of a weight are tensors, and the metadata of the file has
// JSON text under the name of the weight.
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "core/file_records.hpp"
#include "reading/quantizers.hpp"
#include "reading/scaled_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace unishard::converters {
namespace {

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
  /// "a.b.weight" -> "a.b._weight_qdata".
  std::optional<std::size_t> part(std::string_view name) const {
    const std::size_t dot = fqn_.rfind('.');
    if (dot == std::string::npos) return std::nullopt;
    return tensors_.find(fmt::format("{}._{}_{}", fqn_.substr(0, dot), fqn_.substr(dot + 1), name));
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
    if (points.elements() != scales.elements())
      raise_tensor(points, "not as many zero points as scales");
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
    return block_grid(numbers, block->get<Shape>(), scales.elements());
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

}  // namespace

void find_torchao(const NamedTensors& tensors, const QuantizationConfig& /*config*/,
                  QuantizedWeights& found) {
  const Json& producer = tensors.source().catalog().producer;
  if (!producer.is_object()) return;
  const auto metadata = producer.find(std::string(kSafetensorsMetadata));
  if (metadata == producer.end() || !metadata->is_object() || !metadata->contains("tensor_names"))
    return;
  for (const auto& [fqn, text] : metadata->items()) {
    if (!text.is_string()) continue;
    const Json description = description_of(text.get_ref<const std::string&>());
    if (description.is_null() || description["_type"] == "Tensor") continue;
    const Flattened weight(tensors, fqn, description);
    if (weight.is_there()) found.push_back(weight.describe());
  }
}

}  // namespace unishard::converters
