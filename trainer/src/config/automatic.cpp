// "auto", as the Hugging Face Trainer's integration of DeepSpeed resolves it.
#include "config/automatic.hpp"

#include "config/checked_config.hpp"

#include <fmt/format.h>

namespace unishard::trainer::detail {
namespace {

constexpr const char* kRate = "optimizer.params.lr";

class Automatic {
 public:
  Automatic(FlatConfig& flat, const ConfigInputs& inputs) : flat_(flat), inputs_(inputs) {}

  /// Returns null where "auto" is as if the key were not given.
  Json value_of(const ConfigKey& key) const {
    switch (key.automatic) {
      case AutoRule::Default:
        return nullptr;
      case AutoRule::Value:
        return literal(key);
      case AutoRule::RestOfBatch:
        return has_number("train_batch_size") || key.auto_value.empty() ? Json() : literal(key);
      case AutoRule::LearningRate:
        return has_number(kRate) ? flat_.values.at(kRate) : literal(*find_config_key(kRate));
      case AutoRule::HiddenSquare:
        return hidden([](std::int64_t size) { return size * size; });
      case AutoRule::HiddenSquare0_9:
        return hidden([](std::int64_t size) {  // rounded as Python does it
          const auto width = static_cast<double>(size);
          return static_cast<std::int64_t>(0.9 * width * width);
        });
      case AutoRule::TenHidden:
        return hidden([](std::int64_t size) { return 10 * size; });
      case AutoRule::Steps:
        return inputs_.steps ? Json(*inputs_.steps) : Json();
    }
    return nullptr;
  }

 private:
  static Json literal(const ConfigKey& key) { return Json::parse(key.auto_value); }
  bool has_number(const std::string& path) const {
    const auto found = flat_.values.find(path);
    return found != flat_.values.end() && found->second.is_number();
  }
  template <class Size>
  Json hidden(Size size) const {
    return inputs_.hidden_size ? Json(size(*inputs_.hidden_size)) : Json();
  }

  FlatConfig& flat_;
  const ConfigInputs& inputs_;
};

/// Returns how a value is said in the line about "auto".
std::string said(const ConfigKey& key, const Json& value) {
  const bool is_trainers =
      key.automatic == AutoRule::Value || key.automatic == AutoRule::RestOfBatch;
  if (!is_trainers || key.flag.empty()) return fmt::format("{} {}", path_of(key), value.dump());
  return fmt::format("{} {} ({})", path_of(key), value.dump(), key.flag);
}

}  // namespace

void resolve_automatic(FlatConfig& flat, const ConfigInputs& inputs,
                       std::map<std::string, Origin>& origins, std::vector<std::string>& notes) {
  const Automatic automatic(flat, inputs);
  std::string line;
  // The learning rate comes before what follows from it.
  for (const ConfigKey& key : config_keys()) {
    const std::string path = path_of(key);
    const auto found = flat.values.find(path);
    if (found == flat.values.end() || found->second != "auto") continue;
    const Json value = automatic.value_of(key);
    if (value.is_null()) {
      flat.values.erase(found);
      std::erase(flat.order, path);
      continue;
    }
    found->second = value;
    origins[path] = Origin::Auto;
    line += (line.empty() ? "" : ", ") + said(key, value);
  }
  if (!line.empty()) notes.push_back("\"auto\" is, as for the Hugging Face Trainer: " + line);
}

}  // namespace unishard::trainer::detail
