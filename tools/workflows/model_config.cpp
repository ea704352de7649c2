#include "workflows/model_config.hpp"

#include "workflows/side_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace unishard::tools {
namespace {

constexpr std::string_view kConfigFile = "config.json";
constexpr std::size_t kConfigBytes = std::size_t{1} << 20;

/// Returns the dtype of all floating-point tensors; nullopt when they have several.
std::optional<DType> floating_dtype(const Catalog& catalog) {
  std::optional<DType> common;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (info(tensor.dtype).kind != Kind::Float) continue;
    if (common && *common != tensor.dtype) return std::nullopt;
    common = tensor.dtype;
  }
  return common;
}

}  // namespace

void add_model_config(converters::SideFiles& files, const Catalog& source, const Catalog& target,
                      std::vector<std::string>& notes) {
  const bool has_one = std::ranges::find(files, kConfigFile, [](const auto& file) {
                         return std::string_view(file.first);
                       }) != files.end();
  const Json& client = source.client_state;
  if (has_one || !client.is_object() || !client.contains(kModelConfigKey)) return;
  Json config = client[std::string(kModelConfigKey)];
  if (!config.is_object()) {
    notes.push_back(fmt::format("client_state.{}: not an object, so there is no {}",
                                kModelConfigKey, kConfigFile));
    return;
  }
  if (const auto dtype = floating_dtype(target)) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (config.contains(key)) config[key] = name_of(*dtype);
    }
  }
  std::string text = config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (text.size() > kConfigBytes) {
    notes.push_back(fmt::format("client_state.{}: {} bytes, more than {}, so there is no {}",
                                kModelConfigKey, text.size(), kConfigBytes, kConfigFile));
    return;
  }
  files.emplace_back(kConfigFile, std::move(text));
}

converters::SideFiles model_side_files(const Path& input, const Catalog& source,
                                       const Catalog& target, std::vector<std::string>& notes) {
  converters::SideFiles files = find_side_files(input, notes);
  add_model_config(files, source, target, notes);
  return files;
}

}  // namespace unishard::tools
