#include "config_options.hpp"

#include "unishard/format/storage.hpp"
#include "unishard/format/text.hpp"
#include "unishard/trainer/batch_plan.hpp"
#include "unishard/trainer/config_keys.hpp"

#include <fmt/format.h>

#include <charconv>
#include <variant>

namespace train_gpt {
namespace {

using unishard::Json;
using namespace unishard::trainer;

/// The Trainer's own names of the options, which its users type from memory.
const std::map<std::string_view, std::string_view> kTrainerNames{
    {"--micro-batch", "--per_device_train_batch_size"},
    {"--accumulation", "--gradient_accumulation_steps"},
    {"--batch", "--train_batch_size"},
    {"--clip", "--max_grad_norm"},
    {"--lr", "--learning_rate"},
    {"--eps", "--adam_epsilon"},
    {"--weight-decay", "--weight_decay"},
    {"--warmup-steps", "--warmup_steps"}};

/// Returns the value of an option; null for a text that is no value of the key's type. CLI11 takes
/// the nearest number for one that does not fit, so the text is read here.
Json parse_flag(const ConfigKey& key, const std::string& text) {
  const char* const end = text.data() + text.size();
  if (key.type == KeyType::Integer) {
    std::int64_t value = 0;
    const auto [last, error] = std::from_chars(text.data(), end, value);
    const bool is_least = static_cast<double>(value) >= key.least;
    return error == std::errc() && last == end && is_least ? Json(value) : Json();
  }
  if (key.type == KeyType::Pair) {
    const std::size_t comma = text.find(',');
    const Json pair = Json::parse(fmt::format("[{}]", text), nullptr, /*allow_exceptions=*/false);
    return comma != text.npos && pair.is_array() ? pair : Json();
  }
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_number() ? value : Json();
}

std::string flag_type(const ConfigKey& key) {
  if (key.type == KeyType::Integer) return "INT";
  return key.type == KeyType::Pair ? "NUMBER,NUMBER" : "NUMBER";
}

void add_flag_of(CLI::App& app, const ConfigKey& key, std::map<std::string, Json>& flags) {
  const std::string path = path_of(key);
  std::string names(key.flag);
  if (const auto other = kTrainerNames.find(key.flag); other != kTrainerNames.end())
    names += fmt::format(",{}", other->second);
  const std::string help = fmt::format("sets {} of the configuration", path);
  if (key.type == KeyType::Boolean) {
    app.add_flag_callback(
        names, [path, &flags] { flags[path] = true; }, help);
    return;
  }
  app.add_option_function<std::string>(
         names,
         [path, &key, &flags](const std::string& text) { flags[path] = parse_flag(key, text); },
         help)
      ->check([&key](const std::string& text) {
        return parse_flag(key, text).is_null() ? fmt::format("{} is not {}", text, values_text(key))
                                               : std::string();
      })
      ->type_name(flag_type(key));
}

std::int64_t hidden_size_of(const ModelConfig& model) {
  return std::visit([](const auto& each) { return each.width; }, model);
}

}  // namespace

void ConfigOptions::add_to(CLI::App& app) {
  app.add_option("--config", path, "DeepSpeed configuration (JSON)")->required();
  for (const ConfigKey& key : config_keys())
    if (!key.flag.empty()) add_flag_of(app, key, flags);
}

Config ConfigOptions::read(const ModelConfig& model, std::int64_t steps) const {
  return parse_config(read_config_file(path),
                      {.flags = flags, .hidden_size = hidden_size_of(model), .steps = steps});
}

std::string config_text(const Config& config, std::uint32_t world_size) {
  std::string text;
  for (const ConfigValue& value : config_values(config))
    text += fmt::format("{:<58} {:<14} {}\n", value.path, unishard::printable(value.value.dump()),
                        value.from);
  const BatchPlan plan = plan_batch(config.batch, world_size);
  text +=
      fmt::format("world size {}: batch {} = {} micro-batches of {}, {} micro-steps per rank\n",
                  world_size, plan.train, plan.global_micro_batches, plan.micro, plan.accumulation);
  for (const std::string& note : config.notes)
    text += fmt::format("note: {}\n", unishard::printable(note));
  return text;
}

}  // namespace train_gpt
