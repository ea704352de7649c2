#include "unishard/converters/dequantize.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "containers/sub_byte_types.hpp"
#include "core/file_records.hpp"
#include "core/forwarding_source.hpp"
#include "reading/quantizers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

namespace unishard::converters {
namespace {

/// A tensor of the result: one of the source, or the values of a quantized one.
struct Given {
  std::size_t tensor = 0;  ///< of the source
  std::shared_ptr<const QuantizedValues> values;
};

struct Contents {
  Catalog catalog;
  std::vector<Given> tensors;  ///< for each tensor of the catalog
  std::string remark;
};

class DequantizedSource final : public ForwardingSource {
 public:
  DequantizedSource(std::unique_ptr<Source> source, Contents contents)
      : ForwardingSource(std::move(source)), contents_(std::move(contents)) {}

  const Catalog& catalog() const override { return contents_.catalog; }
  std::uint64_t read_boundary(std::size_t tensor, std::uint64_t element) const override {
    const Given& given = contents_.tensors[tensor];
    return given.values ? given.values->read_boundary(source(), element)
                        : source().read_boundary(given.tensor, element);
  }
  bool is_in_order(std::size_t tensor) const override {
    return source().is_in_order(contents_.tensors[tensor].tensor);
  }
  std::vector<std::string> own_remarks() const override {
    std::vector<std::string> lines = source().remarks();
    lines.push_back(contents_.remark);
    return lines;
  }
  /// What the elements of packed numbers are ranks' parts of, are not the weight's elements.
  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    const Given& given = contents_.tensors[tensor];
    return given.values ? std::vector<StoredRange>() : source().stored_ranges(given.tensor);
  }

 private:
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const Given& given = contents_.tensors[tensor];
    if (!given.values) return source().read(given.tensor, range, out);
    const DType dtype = contents_.catalog.tensors[tensor].dtype;
    std::vector<float> values(std::min(range.size(), kStepElements));
    for (std::uint64_t at = range.begin; at < range.end;) {
      const std::uint64_t count = std::min(range.end - at, kStepElements);
      const std::span<float> step(values.data(), count);
      given.values->read(source(), {at, at + count}, step);
      convert_elements(DType::Float32, std::as_bytes(step), dtype,
                       out.subspan((at - range.begin) * size_of(dtype), count * size_of(dtype)));
      at += count;
    }
  }

  const Contents contents_;
};

/// Whether the catalog is that of a training run, and not of a model alone.
bool is_training(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const TensorInfo& tensor) {
    return tensor.state != state::kWeights && tensor.state != state::kBuffer;
  });
}

/// Whether a weight of a training checkpoint has the type that its run gave it.
class Keeping {
 public:
  Keeping(const Catalog& catalog, FrozenWeights frozen)
      : is_wanted_(frozen == FrozenWeights::Keep), is_training_(is_training(catalog)) {}

  /// Packed bytes may be buffers, which nothing casts unless they are floating-point.
  bool operator()(const TensorInfo& tensor) const {
    const bool is_packed_buffer =
        is_training_ && tensor.state == state::kBuffer && info(tensor.dtype).kind != Kind::Float;
    return is_wanted_ && (tensor.frozen || is_packed_buffer);
  }

 private:
  bool is_wanted_, is_training_;
};

std::size_t count_kept(const NamedTensors& tensors, const Keeping& keeps) {
  const auto& all = tensors.source().catalog().tensors;
  return static_cast<std::size_t>(std::ranges::count_if(
      all, [&](const TensorInfo& tensor) { return keeps(tensor) && has_scales(tensors, tensor); }));
}

/// Returns the tensors that have served their purpose once the weights are numbers.
/// `of_activations` are some of them.
std::unordered_set<std::size_t> used_up(const NamedTensors& tensors,
                                        const QuantizedWeights& weights,
                                        const std::vector<std::size_t>& of_activations) {
  std::unordered_set<std::size_t> used;
  for (const QuantizedWeight& weight : weights) {
    for (const std::size_t side : weight.sides) {
      if (!tensors.serves_kept(tensors[side].fqn)) used.insert(side);
    }
  }
  used.insert(of_activations.begin(), of_activations.end());
  return used;
}

/// Nothing trains quantized numbers: a run that has them keeps them frozen, if only as buffers.
TensorInfo described(const TensorInfo& numbers, const QuantizedWeight& weight, bool is_of_run) {
  TensorInfo tensor = numbers;
  tensor.frozen = numbers.frozen || is_of_run;
  tensor.fqn = weight.fqn;
  tensor.state = state::kWeights;
  tensor.dtype = weight.dtype;
  tensor.shape = weight.shape;
  tensor.derived = false;
  tensor.crc64.reset();
  tensor.stats.reset();
  return tensor;
}

/// The metadata of a safetensors file describes the tensors of torchao.
void forget_metadata(Json& producer, const QuantizedWeights& weights) {
  const std::string key(kSafetensorsMetadata);
  if (!producer.is_object() || !producer.contains(key) || !producer[key].is_object()) return;
  Json& metadata = producer[key];
  if (!metadata.contains("tensor_names")) return;
  for (const QuantizedWeight& weight : weights) metadata.erase(weight.fqn);
  const Json text = metadata["tensor_names"];
  const Json names = text.is_string() ? Json::parse(text.get<std::string>(), nullptr, false) : text;
  metadata.erase("tensor_names");
  if (!names.is_array()) return;
  for (const Json& name : names) {
    if (name.is_string()) metadata.erase(name.get<std::string>());
  }
}

/// Second names and units of tensors that are gone go, too.
void forget_names(Catalog& catalog) {
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : catalog.tensors) names.insert(tensor.fqn);
  std::erase_if(catalog.aliases, [&](const Alias& alias) { return !names.contains(alias.target); });
  for (UnitLayout& unit : catalog.units)
    std::erase_if(unit.fqns, [&](const std::string& fqn) { return !names.contains(fqn); });
  std::erase_if(catalog.units, [](const UnitLayout& unit) { return unit.fqns.empty(); });
}

/// "12 weights are dequantized (10 by bitsandbytes nf4, 2 by MXFP4)".
/// Scales of activations are gone, too, and named.
std::string remark_on(const NamedTensors& tensors, const QuantizedWeights& weights,
                      const std::vector<std::size_t>& of_activations) {
  std::map<std::string_view, std::size_t> methods;
  for (const QuantizedWeight& weight : weights) ++methods[weight.method];
  std::string text;
  for (const auto& [method, count] : methods)
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", count, method);
  std::string remark =
      fmt::format("{} quantized weights become numbers of their own ({})", weights.size(), text);
  if (of_activations.empty()) return remark;
  std::vector<std::string> names;
  names.reserve(of_activations.size());
  for (const std::size_t tensor : of_activations) names.push_back(tensors[tensor].fqn);
  return fmt::format("{}; {} scales of their activations are not in the result: {}", remark,
                     names.size(), first_names(names));
}

Contents dequantized_contents(const NamedTensors& tensors, const QuantizedWeights& weights,
                              const QuantizationConfig& config) {
  const Catalog& from = tensors.source().catalog();
  const std::vector<std::size_t> of_activations = activation_scales(tensors, weights, config);
  const std::unordered_set<std::size_t> gone = used_up(tensors, weights, of_activations);
  const bool is_of_run = is_training(from);
  std::map<std::size_t, const QuantizedWeight*> quantized;
  for (const QuantizedWeight& weight : weights) quantized.emplace(weight.tensor, &weight);
  Contents contents{
      .catalog = from, .tensors = {}, .remark = remark_on(tensors, weights, of_activations)};
  contents.catalog.tensors.clear();
  for (std::size_t i = 0; i < from.tensors.size(); ++i) {
    if (gone.contains(i)) continue;
    const auto found = quantized.find(i);
    const bool is_quantized = found != quantized.end();
    contents.catalog.tensors.push_back(
        is_quantized ? described(from.tensors[i], *found->second, is_of_run) : from.tensors[i]);
    contents.tensors.push_back({i, is_quantized ? found->second->values : nullptr});
  }
  forget_metadata(contents.catalog.producer, weights);
  forget_names(contents.catalog);
  validate(contents.catalog, tensors.source().path().string());
  return contents;
}

constexpr const char* kHint =
    "convert without --dtype copies the weights, their scales and the configuration as they are";

/// Throws: Unsupported, naming the tensor, when a quantized weight has no value.
QuantizedWeights weights_of(QuantizedModel model, const NamedTensors& tensors) {
  if (model.obstacles.empty()) return std::move(model.weights);
  const Obstacle& first = model.obstacles.front();
  raise(ErrorCode::Unsupported, fmt::format("{}: {}", tensors[first.tensor].label(), first.problem),
        kHint);
}

/// Throws: Unsupported for elements below a byte, which are kept packed in bytes: without the
/// scales of the model they are no numbers.
void require_whole_bytes(const Catalog& catalog) {
  const auto types = safetensors::recorded_types(catalog);
  const auto packed =
      std::ranges::find_if(types, [](const auto& type) { return type.has_value(); });
  if (packed == types.end()) return;
  const TensorInfo& tensor = catalog.tensors[static_cast<std::size_t>(packed - types.begin())];
  raise(ErrorCode::Unsupported,
        fmt::format("{}: elements of type {}, which are not read as numbers", tensor.label(),
                    (*packed)->dtype),
        kHint);
}

}  // namespace

Dequantized dequantized(std::unique_ptr<Source> source, const Json& quantization_config,
                        FrozenWeights frozen) {
  require_whole_bytes(source->catalog());
  const Keeping keeps(source->catalog(), frozen);
  const NamedTensors tensors(*source, keeps);
  const QuantizationConfig config = parse_quantization_config(quantization_config);
  const QuantizedWeights weights = weights_of(find_quantized(tensors, config), tensors);
  const std::size_t kept = count_kept(tensors, keeps);
  const std::size_t count = weights.size();
  // Of what does not stay packed, nothing is incomplete here.
  std::vector<std::string> incomplete;
  if (tensors.keeps_any()) incomplete = incomplete_weights(*source, quantization_config);
  if (count == 0)
    return {.source = std::move(source),
            .weights = 0,
            .kept = kept,
            .incomplete = std::move(incomplete)};
  Contents contents = dequantized_contents(tensors, weights, config);
  return {.source = std::make_unique<DequantizedSource>(std::move(source), std::move(contents)),
          .weights = count,
          .kept = kept,
          .incomplete = std::move(incomplete)};
}

QuantizedProblems quantized_problems(const Source& source, const Json& quantization_config) {
  const NamedTensors tensors(source, [](const TensorInfo&) { return false; });
  QuantizedProblems problems;
  try {
    const QuantizedModel model =
        find_quantized(tensors, parse_quantization_config(quantization_config));
    for (const Obstacle& obstacle : model.obstacles) {
      auto& sentences =
          obstacle.kind == Obstacle::Kind::Incomplete ? problems.incomplete : problems.not_read;
      sentences.push_back(
          fmt::format("{}: {}", tensors[obstacle.tensor].label(), obstacle.problem));
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Corrupt) {
      problems.incomplete.emplace_back(error.what());
    } else if (error.code() == ErrorCode::Unsupported) {
      problems.not_read.emplace_back(error.what());
    } else {
      throw;
    }
  }
  return problems;
}

std::vector<std::string> incomplete_weights(const Source& source, const Json& quantization_config) {
  return quantized_problems(source, quantization_config).incomplete;
}

}  // namespace unishard::converters
