#include "run_identity.hpp"

#include "unishard/format/crc64.hpp"

#include <fmt/format.h>

namespace train_gpt {
namespace {

using unishard::Json;

constexpr const char *kModel = "hf_config", *kData = "data_digest";

bool is_dropout(const std::string& key) {
  return key.ends_with("drop") || key.ends_with("dropout");
}

}  // namespace

Json run_identity(const Options& options, const unishard::trainer::TokenFile& tokens) {
  return {{kModel, model_to_hugging_face(options.model)},
          {kData, unishard::hex64(tokens.digest())}};
}

std::vector<std::string> identity_lines(const Json& identity) {
  std::vector<std::string> lines{fmt::format("--data with digest {}", identity.at(kData).dump())};
  const Json model = identity.at(kModel).flatten();
  for (const auto& [pointer, value] : model.items())
    lines.push_back(fmt::format("model {}: {}", pointer, value.dump()));
  return lines;
}

std::vector<std::string> compare_identity(const Json& saved, const Json& mine) {
  std::vector<std::string> notes;
  if (!saved.is_object()) return notes;
  const Json theirs = saved.value(kModel, Json());
  const Json ours = mine.at(kModel).flatten();
  for (const auto& [key, value] : ours.items()) {
    const Json::json_pointer at(key);
    if (is_dropout(key) || !theirs.is_object() || !theirs.contains(at)) continue;
    if (theirs.at(at) != value) {
      notes.push_back(fmt::format("the model's {} was {}, this run's {} is used", key.substr(1),
                                  theirs.at(at).dump(), value.dump()));
    }
  }
  if (saved.contains(kData) && saved[kData] != mine.at(kData))
    notes.emplace_back("--data is another file, or has other content, than that of the checkpoint");
  return notes;
}

}  // namespace train_gpt
