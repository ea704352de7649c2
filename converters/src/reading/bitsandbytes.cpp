// The layouts are those of bitsandbytes.functional.QuantState.as_dict(packed=True) and of
// Linear8bitLt._save_to_state_dict().
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "reading/packed_nibbles.hpp"
#include "reading/quantizers.hpp"
#include "reading/scaled_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

namespace unishard::converters {
namespace {

/// Bytes of a quant_state, of which a real one has about 200.
constexpr std::uint64_t kStateBytes = std::uint64_t{64} << 10;
constexpr std::array<std::string_view, 2> kTypes = {"nf4", "fp4"};

/// The members of a quant_state.
class State {
 public:
  State(const NamedTensors& tensors, std::size_t tensor) : tensor_(tensors[tensor]) {
    const std::vector<std::byte> bytes = tensors.bytes(tensor, kStateBytes);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    json_ = parse_json(text, tensor_.label());
    if (!json_.is_object()) raise_tensor(tensor_, "not a JSON object");
  }

  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) raise_tensor(tensor_, fmt::format("{} is missing", key));
    return *found;
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) raise_tensor(tensor_, fmt::format("{} is not text", key));
    return at(key).get<std::string>();
  }
  std::uint64_t number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() == 0)
      raise_tensor(tensor_, fmt::format("{} is not a positive number", key));
    return value.get<std::uint64_t>();
  }
  /// One of the types in which bitsandbytes computes.
  DType dtype(const char* key) const {
    const auto dtype = dtype_from_name(text(key));
    if (dtype == DType::Float32 || dtype == DType::BFloat16 || dtype == DType::Float16)
      return *dtype;
    raise_tensor(tensor_,
                 fmt::format("{} {} is not float32, bfloat16 or float16", key, quote(text(key))));
  }
  Shape shape() const {
    const Json& sizes = at("shape");
    const auto is_size = [](const Json& size) { return size.is_number_unsigned(); };
    if (!sizes.is_array() || sizes.size() > limits::kDimensions ||
        !std::ranges::all_of(sizes, is_size))
      raise_tensor(tensor_, "shape is not a list of sizes");
    return sizes.get<Shape>();
  }
  float offset() const {
    const Json& value = at("nested_offset");
    const double number = value.is_number() ? value.get<double>() : HUGE_VAL;
    if (!(std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max())))
      raise_tensor(tensor_, "nested_offset is not a number of float32");
    return static_cast<float>(number);
  }

 private:
  const TensorInfo& tensor_;
  Json json_;
};

/// Finds the tensors of one 4-bit weight, and checks that they fit each other.
class FourBit {
 public:
  FourBit(const NamedTensors& tensors, std::size_t weight, std::size_t state, std::string_view type)
      : tensors_(tensors), weight_(tensors[weight]), state_(tensors, state), type_(type) {
    nibbles_.numbers = weight;
    quantized_ = {.tensor = weight,
                  .fqn = weight_.fqn,
                  .dtype = state_.dtype("dtype"),
                  .shape = state_.shape(),
                  .sides = {state},
                  .method = fmt::format("bitsandbytes {}", type),
                  .values = nullptr};
  }

  QuantizedWeight describe() {
    if (state_.text("quant_type") != type_)
      raise_tensor(weight_, "its quant_state has the name of another type");
    nibbles_.table = type_ == "nf4" ? kNf4 : kFp4;
    require_table("quant_map", nibbles_.table);
    const std::uint64_t elements = element_count(quantized_.shape);
    if (weight_.bytes() != elements / 2 + elements % 2)
      raise_tensor(weight_, fmt::format("{} bytes do not hold {} numbers of 4 bits",
                                        weight_.bytes(), elements));
    nibbles_.block = state_.number("blocksize");
    nibbles_.scales = side("absmax", blocks_of(elements, nibbles_.block));
    if (tensors_.find(weight_.fqn + ".nested_absmax")) {
      add_nested();
    } else if (info(tensors_[nibbles_.scales].dtype).kind != Kind::Float) {
      raise_tensor(weight_, "its absmax has no nested_absmax and is not floating-point");
    }
    quantized_.values = make_packed_nibbles(std::move(nibbles_));
    return std::move(quantized_);
  }

 private:
  static std::uint64_t blocks_of(std::uint64_t elements, std::uint64_t block) {
    return elements / block + (elements % block == 0 ? 0 : 1);
  }

  /// Returns the tensor `<weight>.<name>`, which must have so many elements.
  std::size_t side(std::string_view name, std::uint64_t elements) {
    const auto found = tensors_.find(fmt::format("{}.{}", weight_.fqn, name));
    if (!found) raise_tensor(weight_, fmt::format("its {} is missing", name));
    if (tensors_[*found].elements() != elements)
      raise_tensor(tensors_[*found],
                   fmt::format("{} elements instead of {}", tensors_[*found].elements(), elements));
    quantized_.sides.push_back(*found);
    return *found;
  }

  std::vector<float> small(std::string_view name, std::uint64_t elements) {
    const std::size_t tensor = side(name, elements);
    if (info(tensors_[tensor].dtype).kind != Kind::Float)
      raise_tensor(tensors_[tensor], "not floating-point");
    std::vector<float> values(elements);
    read_floats(tensors_.source(), tensor, {0, elements}, values);
    return values;
  }

  /// bitsandbytes computes with its own table, whatever the file has.
  void require_table(std::string_view name, const NibbleTable& table) {
    const std::vector<float> stored = small(name, table.size());
    for (std::size_t i = 0; i < table.size(); ++i) {
      constexpr float kTolerance = 1e-4F;
      if (!(stored[i] - table[i] < kTolerance && table[i] - stored[i] < kTolerance))
        raise(ErrorCode::Unsupported,
              fmt::format("{}: its {} is not that of {}", weight_.label(), name, type_));
    }
  }

  /// The scales are 8-bit numbers themselves.
  void add_nested() {
    if (state_.dtype("nested_dtype") != DType::Float32)
      raise(ErrorCode::Unsupported,
            fmt::format("{}: nested scales that are not float32 are not read", weight_.label()));
    if (tensors_[nibbles_.scales].dtype != DType::UInt8)
      raise_tensor(tensors_[nibbles_.scales], "nested scales that are not uint8");
    NestedScales nested{.table = {}, .offset = state_.offset()};
    std::ranges::copy(small("nested_quant_map", nested.table.size()), nested.table.begin());
    nested.block = state_.number("nested_blocksize");
    nested.scales =
        side("nested_absmax", blocks_of(tensors_[nibbles_.scales].elements(), nested.block));
    if (info(tensors_[nested.scales].dtype).kind != Kind::Float)
      raise_tensor(tensors_[nested.scales], "not floating-point");
    nibbles_.nested = std::move(nested);
  }

  const NamedTensors& tensors_;
  const TensorInfo& weight_;
  const State state_;
  const std::string_view type_;
  PackedNibbles nibbles_;
  QuantizedWeight quantized_;
};

/// LLM.int8(): value = number * SCB of the row / 127, as int8_vectorwise_dequant() computes it.
QuantizedWeight describe_int8(const NamedTensors& tensors, std::size_t tensor, std::size_t scb) {
  constexpr float kReciprocal = 7.874015718698502e-3F;
  const TensorInfo& weight = tensors[tensor];
  if (info(tensors[scb].dtype).kind != Kind::Float)
    raise_tensor(tensors[scb], "not floating-point");
  QuantizedWeight quantized{.tensor = tensor,
                            .fqn = weight.fqn,
                            .dtype = DType::Float32,
                            .shape = weight.shape,
                            .sides = {scb},
                            .method = "bitsandbytes LLM.int8()",
                            .values = nullptr};
  const auto format = tensors.find(fmt::format("{}weight_format", module_of(weight.fqn)));
  if (format) {
    const std::vector<std::byte> bytes = tensors.bytes(*format, sizeof(std::uint64_t));
    if (std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; }))
      raise(ErrorCode::Unsupported,
            fmt::format("{}: only weights in the format \"row\" are read", weight.label()));
    quantized.sides.push_back(*format);
  }
  if (weight.shape.size() != 2 || tensors[scb].elements() != weight.shape[0])
    raise_tensor(tensors[scb], fmt::format("{} elements do not fit the rows of {}",
                                           tensors[scb].elements(), weight.label()));
  quantized.values =
      make_scaled_elements({.numbers = tensor,
                            .scales = scb,
                            .zero_points = std::nullopt,
                            .groups = std::nullopt,
                            .grid = {.block = {1, std::max<std::uint64_t>(weight.shape[1], 1)},
                                     .grid = {weight.shape[0], 1}},
                            .factor = kReciprocal});
  return quantized;
}

}  // namespace

void find_bitsandbytes(const NamedTensors& tensors, const QuantizationConfig& /*config*/,
                       QuantizedWeights& found) {
  for (const std::size_t tensor : tensors.candidates()) {
    const TensorInfo& weight = tensors[tensor];
    for (const std::string_view type : kTypes) {
      const auto state =
          tensors.find(fmt::format("{}.quant_state.bitsandbytes__{}", weight.fqn, type));
      if (state) found.push_back(FourBit(tensors, tensor, *state, type).describe());
    }
    if (weight.dtype != DType::Int8) continue;
    if (const auto scb = tensors.find(fmt::format("{}SCB", module_of(weight.fqn))))
      found.push_back(describe_int8(tensors, tensor, *scb));
  }
}

}  // namespace unishard::converters
