#pragma once
// In which order models of transformers register their parameters. A safetensors file sorts its
// tensors, so a folder of the Trainer does not record that order, by which the optimizer numbers
// its states. The order of a model is stable, since the Trainer itself resumes by it.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::trainer {

/// The place of a parameter in the order of its model: compare two of one model.
using OrderKey = std::vector<std::uint32_t>;

/// The modules of a model, in the order in which they are registered. Immutable.
class ModelOrder {
 public:
  /// `text` lists modules; "name(...)" has modules below it, and "name*(...)" is a numbered list of
  /// such modules.
  explicit ModelOrder(std::string_view text);

  /// Returns the place of the parameter `name`, which may lack the name of the base model, and may
  /// be one of an adapter of PEFT; nullopt where the model has no such parameter.
  std::optional<OrderKey> place_of(std::string_view name) const;

 private:
  struct Module {
    std::string name;
    bool is_list = false;
    std::vector<Module> below = {};
  };
  static std::vector<Module> parse(std::string_view& text);
  static std::optional<OrderKey> walk(const std::vector<Module>& modules, bool is_list,
                                      std::span<const std::string_view> parts, OrderKey key);

  std::vector<Module> top_;
};

/// Returns the order of a `model_type` of config.json; nullopt for an unknown one.
std::optional<ModelOrder> known_order(std::string_view model_type);
/// Returns the orders of all known models.
std::vector<ModelOrder> known_orders();

}  // namespace unishard::converters::trainer
