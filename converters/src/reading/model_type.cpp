#include "reading/model_type.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

namespace unishard::converters {
namespace {

/// Whether the classes that config.json names are not those of transformers.
bool has_own_class(const SortedJson& config, const std::string& model_type) {
  const auto classes = config.find("architectures");
  if (config.contains("auto_map")) return true;
  return classes != config.end() && classes->is_array() &&
         std::ranges::any_of(*classes, [&](const SortedJson& name) {
           return name.is_string() &&
                  !is_known_class(model_type, name.get_ref<const std::string&>());
         });
}

}  // namespace

bool is_known_class(std::string_view model_type, std::string_view class_name) {
  constexpr std::array<std::string_view, 16> kHeads = {"Model",
                                                       "LMHeadModel",
                                                       "DoubleHeadsModel",
                                                       "MTModel",
                                                       "EncoderModel",
                                                       "ForCausalLM",
                                                       "ForMaskedLM",
                                                       "ForPreTraining",
                                                       "ForSequenceClassification",
                                                       "ForTokenClassification",
                                                       "ForQuestionAnswering",
                                                       "ForMultipleChoice",
                                                       "ForNextSentencePrediction",
                                                       "ForConditionalGeneration",
                                                       "ForAudioClassification",
                                                       "WithLMHeadModel"};
  constexpr std::string_view kText = "_text";  // of the text model in one with images
  const bool is_text = model_type.ends_with(kText);
  if (is_text) model_type.remove_suffix(kText.size());
  if (model_type == "hunyuan_v1_moe") model_type = "hunyuan_moe_v1";  // HunYuanMoEV1ForCausalLM
  std::size_t at = 0;  // "gpt_neox" is called GPTNeoX
  for (const char c : model_type) {
    if (c == '_' || c == '-') continue;
    while (at < class_name.size() && class_name[at] == '_') ++at;  // Ernie4_5_MoeForCausalLM
    if (at == class_name.size() || std::tolower(static_cast<unsigned char>(class_name[at])) != c)
      return false;
    ++at;
  }
  std::string_view head = class_name.substr(at);
  if (is_text && head.starts_with("Text")) head.remove_prefix(4);  // some classes say it too
  return std::ranges::count(kHeads, head) > 0;
}

std::string model_type_of(std::string_view config) {
  try {
    const SortedJson json = parse_sorted_json(std::string(config), "config");
    if (!json.is_object() || !json.contains("model_type") || !json["model_type"].is_string())
      return {};
    std::string type = json["model_type"].get<std::string>();
    return has_own_class(json, type) ? std::string() : type;
  } catch (const Error&) {
    return {};
  }
}

bool is_listed(std::string_view model_type, std::string_view types) {
  if (model_type.empty() || model_type.find(' ') != model_type.npos) return false;
  for (std::size_t at = types.find(model_type); at != types.npos;
       at = types.find(model_type, at + 1)) {
    const std::size_t end = at + model_type.size();
    if ((at == 0 || types[at - 1] == ' ') && (end == types.size() || types[end] == ' '))
      return true;
  }
  return false;
}

}  // namespace unishard::converters
