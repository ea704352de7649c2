#include "models/hugging_face_object.hpp"

#include "unishard/format/error.hpp"

#include <algorithm>
#include <cmath>

namespace unishard::trainer::detail {

HuggingFaceObject::HuggingFaceObject(const Json& json, std::string_view where)
    : json_(json), where_(where) {
  if (!json.is_object())
    raise(ErrorCode::InvalidArgument, where_ + ": the model's configuration is not an object");
}

const Json* HuggingFaceObject::find(std::string_view key) const {
  const auto found = json_.find(std::string(key));
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void HuggingFaceObject::refuse(std::string_view key, const std::string& expected) const {
  constexpr std::size_t kShown = 200;
  const Json* value = find(key);
  std::string is = value ? value->dump() : "";
  if (is.size() > kShown) is = is.substr(0, kShown) + "...";
  is = value ? " is " + is + "," : " is missing,";
  raise(ErrorCode::InvalidArgument, where_ + ": " + std::string(key) + is + " not " + expected);
}

std::int64_t HuggingFaceObject::size(std::string_view key) const {
  const Json* value = find(key);
  const bool is_size =
      value && value->is_number_integer() && *value >= 1 && *value <= kModelSizeMax;
  if (!is_size) refuse(key, "a whole number from 1 to " + std::to_string(kModelSizeMax));
  return value->get<std::int64_t>();
}

std::int64_t HuggingFaceObject::size_or(std::string_view key, std::int64_t missing) const {
  return find(key) ? size(key) : missing;
}

bool HuggingFaceObject::flag_or(std::string_view key, bool missing) const {
  const Json* value = find(key);
  if (value && !value->is_boolean()) refuse(key, "true or false");
  return value ? value->get<bool>() : missing;
}

double HuggingFaceObject::positive(std::string_view key) const {
  const Json* value = find(key);
  const bool is_positive = value && value->is_number() && std::isfinite(value->get<double>()) &&
                           value->get<double>() > 0;
  if (!is_positive) refuse(key, "a number greater than 0");
  return value->get<double>();
}

double HuggingFaceObject::positive_or(std::string_view key, double missing) const {
  return find(key) ? positive(key) : missing;
}

double HuggingFaceObject::probability_or(std::string_view key, double missing) const {
  const Json* value = find(key);
  if (value && (!value->is_number() || *value < 0 || *value >= 1))
    refuse(key, "a number from 0 up to 1");
  return value ? value->get<double>() : missing;
}

void HuggingFaceObject::require(std::string_view key, const Json& only) const {
  if (const Json* value = find(key); value && *value != only) refuse(key, only.dump());
}

void HuggingFaceObject::require_kind(std::string_view model_type, std::string_view causal,
                                     std::string_view base) const {
  if (const Json* type = find("model_type"); !type || *type != model_type)
    refuse("model_type", "\"" + std::string(model_type) + "\"");
  if (find("quantization_config")) refuse("quantization_config", "null");
  const Json* architectures = find("architectures");
  if (!architectures) return;
  const bool is_known =
      architectures->is_array() && std::ranges::all_of(*architectures, [&](const Json& name) {
        return name == causal || name == base;
      });
  if (is_known) return;
  refuse("architectures", "[\"" + std::string(causal) + "\"] or [\"" + std::string(base) + "\"]");
}

}  // namespace unishard::trainer::detail
