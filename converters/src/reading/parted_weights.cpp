#include "unishard/converters/dequantize.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "reading/quantizers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace unishard::converters {
namespace {

/// The modules that two names have in common, with the dot behind them.
std::size_t common_modules(std::string_view a, std::string_view b) {
  const auto ends = std::ranges::mismatch(a, b);
  const std::size_t dot = a.substr(0, static_cast<std::size_t>(ends.in1 - a.begin())).rfind('.');
  return dot == std::string_view::npos ? 0 : dot + 1;
}

/// The tensors of one weight, in a result that may lack some or call them otherwise.
class Parting {
 public:
  Parting(const NamedTensors& tensors, const QuantizedWeight& weight, const ResultNames& result)
      : tensors_(tensors), weight_(weight), result_(result) {
    all_ = weight.sides;
    all_.push_back(weight.tensor);
  }

  /// Returns a sentence, or nothing where they are together.
  std::string describe() const {
    std::vector<std::string> absent;
    for (const std::size_t tensor : all_) {
      if (!result_.has(tensor)) absent.push_back(tensors_[tensor].fqn);
    }
    if (absent.size() == all_.size()) return {};
    if (!absent.empty())
      return fmt::format("{} has no value without {}, which --only leaves out", weight_.fqn,
                         first_names(absent));
    return describe_names();
  }

 private:
  /// What differs between the names must stay as it is: the reader finds one by the other.
  std::string describe_names() const {
    std::size_t shared = weight_.fqn.size();
    for (const std::size_t tensor : all_)
      shared = std::min(shared, common_modules(weight_.fqn, tensors_[tensor].fqn));
    const auto modules = renamed_modules(weight_.fqn, shared);
    for (const std::size_t tensor : all_) {
      const std::string& name = tensors_[tensor].fqn;
      if (!modules || renamed_modules(name, shared) != modules) return changed(name);
    }
    return {};
  }
  std::string changed(const std::string& name) const {
    const std::string now = result_.rename(weight_.fqn), part = result_.rename(name);
    return fmt::format("{} has no value without {}, and --rename makes {} and {} of them",
                       weight_.fqn, name, now, part);
  }
  /// Returns the new name of what `name` has up to `shared`; nullopt where the rest of it changes.
  std::optional<std::string> renamed_modules(const std::string& name, std::size_t shared) const {
    const std::string now = result_.rename(name);
    const std::string_view rest = std::string_view(name).substr(shared);
    if (!now.ends_with(rest)) return std::nullopt;
    return now.substr(0, now.size() - rest.size());
  }

  const NamedTensors& tensors_;
  const QuantizedWeight& weight_;
  const ResultNames& result_;
  std::vector<std::size_t> all_;
};

}  // namespace

std::vector<std::string> parted_weights(const Source& source, const Json& quantization_config,
                                        const ResultNames& result) {
  const NamedTensors tensors(source, [](const TensorInfo&) { return false; });
  std::vector<std::string> sentences;
  try {
    const QuantizedModel model =
        find_quantized(tensors, parse_quantization_config(quantization_config));
    for (const QuantizedWeight& weight : model.weights) {
      if (std::string sentence = Parting(tensors, weight, result).describe(); !sentence.empty())
        sentences.push_back(std::move(sentence));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt && error.code() != ErrorCode::Unsupported) throw;
  }
  return sentences;
}

}  // namespace unishard::converters
