#include "models/rotary_hugging_face.hpp"

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

namespace unishard::trainer::detail {
namespace {

using enum RotaryScaling;

constexpr std::array<std::pair<std::string_view, RotaryScaling>, 6> kNames = {{
    {"default", Default},
    {"linear", Linear},
    {"dynamic", Dynamic},
    {"yarn", Yarn},
    {"longrope", LongRope},
    {"llama3", Llama3},
}};

constexpr double kDefaultTheta = 10000;

/// Version 4 calls the type "type" in old files.
RotaryScaling scaling_of(const HuggingFaceObject& rope) {
  const char* key = rope.find("rope_type") ? "rope_type" : "type";
  const Json* name = rope.find(key);
  if (!name) return Default;
  std::string known;
  for (const auto& [each, scaling] : kNames) {
    if (*name == each) return scaling;
    known += (known.empty() ? "\"" : ", \"") + std::string(each) + "\"";
  }
  rope.refuse(key, "one of " + known);
}

std::vector<double> factors(const HuggingFaceObject& rope, std::string_view key,
                            std::int64_t count) {
  const std::string expected = "a list of " + std::to_string(count) + " numbers greater than 0";
  const Json* list = rope.find(key);
  if (!list || !list->is_array() || list->size() != static_cast<std::size_t>(count))
    rope.refuse(key, expected);
  std::vector<double> values;
  for (const Json& each : *list) {
    const double value = each.is_number() ? each.get<double>() : 0;
    if (!std::isfinite(value) || value <= 0) rope.refuse(key, expected);
    values.push_back(value);
  }
  return values;
}

class RotaryReader {
 public:
  RotaryReader(const HuggingFaceObject& model, const HuggingFaceObject& rope,
               std::int64_t positions, std::int64_t head_width)
      : model_(model), rope_(rope), positions_(positions), frequencies_(head_width / 2) {}

  RotaryConfig read() {
    for (const auto& [key, value] : rope_.json().items()) {
      if (value.is_object()) rope_.refuse(key, "supported: one rotary embedding serves all layers");
    }
    rope_.require("partial_rotary_factor", 1.0);
    model_.require("partial_rotary_factor", 1.0);
    config_.scaling = scaling_of(rope_);
    config_.theta =
        rope_.positive_or("rope_theta", model_.positive_or("rope_theta", kDefaultTheta));
    if (config_.scaling == Linear || config_.scaling == Dynamic)
      config_.factor = rope_.positive("factor");
    if (config_.scaling == Yarn) read_yarn();
    if (config_.scaling == LongRope) read_long_rope();
    if (config_.scaling == Llama3) read_llama3();
    return std::move(config_);
  }

 private:
  /// The model's own key comes first, as in transformers.
  void read_original_positions() {
    constexpr const char* kKey = "original_max_position_embeddings";
    config_.original_positions = model_.size_or(kKey, rope_.size_or(kKey, positions_));
  }

  void read_attention_factor() {
    if (rope_.find("attention_factor"))
      config_.attention_factor = rope_.positive("attention_factor");
  }

  double factor_or_ratio() const {
    return rope_.positive_or("factor", static_cast<double>(positions_) /
                                           static_cast<double>(config_.original_positions));
  }

  void read_yarn() {
    read_original_positions();
    read_attention_factor();
    config_.factor = factor_or_ratio();
    config_.beta_fast = rope_.positive_or("beta_fast", config_.beta_fast);
    config_.beta_slow = rope_.positive_or("beta_slow", config_.beta_slow);
    config_.mscale = rope_.positive_or("mscale", 0);
    config_.mscale_all_dim = rope_.positive_or("mscale_all_dim", 0);
    config_.truncate = rope_.flag_or("truncate", true);
  }

  void read_long_rope() {
    read_original_positions();
    read_attention_factor();
    config_.factor = factor_or_ratio();
    config_.short_factor = factors(rope_, "short_factor", frequencies_);
    config_.long_factor = factors(rope_, "long_factor", frequencies_);
  }

  void read_llama3() {
    read_original_positions();
    config_.factor = rope_.positive("factor");
    config_.low_frequency_factor = rope_.positive("low_freq_factor");
    config_.high_frequency_factor = rope_.positive("high_freq_factor");
    if (config_.high_frequency_factor <= config_.low_frequency_factor)
      rope_.refuse("high_freq_factor", "greater than low_freq_factor");
  }

  const HuggingFaceObject& model_;
  const HuggingFaceObject& rope_;
  std::int64_t positions_, frequencies_;
  RotaryConfig config_;
};

}  // namespace

RotaryConfig rotary_from_hugging_face(const HuggingFaceObject& model, std::int64_t positions,
                                      std::int64_t head_width) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = model.find(key);
    if (!value || value->empty()) continue;
    const HuggingFaceObject rope(*value, model.where() + ": " + key);
    return RotaryReader(model, rope, positions, head_width).read();
  }
  const Json none = Json::object();
  return RotaryReader(model, HuggingFaceObject(none, model.where()), positions, head_width).read();
}

void rotary_to_hugging_face(const RotaryConfig& rotary, Json& model) {
  model["rope_theta"] = rotary.theta;
  model["rope_scaling"] = nullptr;
  if (rotary.scaling == Default) return;
  Json rope = {{"rope_type", kNames[static_cast<std::size_t>(rotary.scaling)].first},
               {"factor", rotary.factor}};
  if (rotary.scaling == Yarn || rotary.scaling == LongRope || rotary.scaling == Llama3)
    rope["original_max_position_embeddings"] = rotary.original_positions;
  if (rotary.attention_factor) rope["attention_factor"] = *rotary.attention_factor;
  if (rotary.scaling == Yarn) {
    rope["beta_fast"] = rotary.beta_fast;
    rope["beta_slow"] = rotary.beta_slow;
    if (rotary.mscale > 0) rope["mscale"] = rotary.mscale;
    if (rotary.mscale_all_dim > 0) rope["mscale_all_dim"] = rotary.mscale_all_dim;
    rope["truncate"] = rotary.truncate;
  }
  if (rotary.scaling == LongRope) {
    rope["short_factor"] = rotary.short_factor;
    rope["long_factor"] = rotary.long_factor;
  }
  if (rotary.scaling == Llama3) {
    rope["low_freq_factor"] = rotary.low_frequency_factor;
    rope["high_freq_factor"] = rotary.high_frequency_factor;
  }
  model["rope_scaling"] = std::move(rope);
}

}  // namespace unishard::trainer::detail
