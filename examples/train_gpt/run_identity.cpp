#include "run_identity.hpp"

#include "unishard/format/crc64.hpp"

#include <fmt/format.h>

namespace train_gpt {
namespace {

using unishard::Json;

constexpr const char *kModel = "hf_config", *kData = "data_digest", *kTokens = "sample_tokens";

}  // namespace

Json run_identity(const Options& options, const unishard::trainer::TokenFile& tokens) {
  return {{kModel, model_to_hugging_face(options.model)},
          {kData, unishard::hex64(tokens.digest())},
          {kTokens, options.context}};
}

std::vector<std::string> identity_lines(const Json& identity) {
  std::vector<std::string> lines{fmt::format("--data with digest {}", identity.at(kData).dump()),
                                 fmt::format("--context {}", identity.at(kTokens).dump())};
  const Json model = identity.at(kModel).flatten();
  for (const auto& [pointer, value] : model.items())
    lines.push_back(fmt::format("model {}: {}", pointer, value.dump()));
  return lines;
}

std::vector<std::string> compare_identity(const Json& saved, const Json& mine) {
  std::vector<std::string> notes;
  if (!saved.is_object()) return notes;
  const Json theirs = saved.value(kModel, Json());
  for (const auto& [key, value] : mine.at(kModel).items()) {
    if (!theirs.is_object() || !theirs.contains(key) || theirs[key] == value) continue;
    notes.push_back(fmt::format("the model's {} was {}, this run's {} is used", key,
                                theirs[key].dump(), value.dump()));
  }
  if (saved.contains(kTokens) && saved[kTokens] != mine.at(kTokens))
    notes.push_back(fmt::format("samples had {} tokens, this run's have {}", saved[kTokens].dump(),
                                mine.at(kTokens).dump()));
  if (saved.contains(kData) && saved[kData] != mine.at(kData))
    notes.emplace_back("--data is another file, or has other content, than that of the checkpoint");
  return notes;
}

}  // namespace train_gpt
