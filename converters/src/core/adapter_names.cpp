#include "unishard/converters/adapter_names.hpp"

#include "unishard/format/error.hpp"

#include "core/file_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

namespace unishard::converters {
namespace {

constexpr std::string_view kWhole = "modules_to_save", kAdapter = "default";
/// The module that a layer of PEFT wraps. It is frozen, and saved with embeddings that have grown.
constexpr std::string_view kBaseLayer = "base_layer";
/// A parameter in the module and a tensor in the file.
constexpr std::string_view kMagnitude = "lora_magnitude_vector";

/// Prompt and prefix tuning train one embedding, which the file has under a name of its own.
constexpr std::string_view kPrompt = "prompt_encoder.default.",
                           kPromptModule = "prompt_encoder.default.embedding.weight",
                           kPromptFile = "prompt_embeddings";
/// PEFT wraps the model in a module of this name.
constexpr std::string_view kWrapped = "base_model.";

/// Values of the record kAdapterNames.
constexpr const char *kModuleNames = "modules", *kFileNames = "file";

using Parts = std::vector<std::string>;

Parts split(std::string_view name) {
  Parts parts;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    parts.emplace_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string join(const Parts& parts) {
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : ".") + part;
  return name;
}

bool is_leaf(std::string_view part) { return part == "weight" || part == "bias"; }

Parts::iterator find_mark(Parts& parts) {
  return std::ranges::find_if(parts, [](std::string_view part) {
    return part.starts_with("lora_") || part.starts_with("ia3_") ||
           part.starts_with("trainable_tokens_");
  });
}

bool has_mark(std::string_view name) {
  Parts parts = split(name);
  return find_mark(parts) != parts.end();
}

/// Removes the adapter behind modules that are trained as a whole, or anywhere else.
bool remove_adapter(Parts& parts) {
  const auto whole = std::ranges::find(parts, kWhole);
  if (whole != parts.end()) {
    if (std::distance(whole, parts.end()) < 3) return false;
    parts.erase(whole, whole + 2);
    return true;
  }
  const auto adapter = std::ranges::find(parts, kAdapter);
  if (adapter == parts.end() || parts.size() < 2) return false;
  parts.erase(adapter);
  return true;
}

/// Returns the name of the adapter, which is behind a mark or behind a module that is trained as a
/// whole; empty where the name tells none.
std::string adapter_of(std::string_view module_name) {
  Parts parts = split(module_name);
  auto before = find_mark(parts);
  if (before == parts.end()) before = std::ranges::find(parts, kWhole);
  if (before == parts.end() || std::next(before) == parts.end() || is_leaf(*std::next(before)))
    return {};
  return *std::next(before);
}

}  // namespace

std::optional<std::string> adapter_file_name(std::string_view module_name) {
  if (module_name == kPromptModule) return std::string(kPromptFile);
  Parts parts = split(module_name);
  if (const auto mark = find_mark(parts); mark != parts.end()) {
    const bool is_magnitude = *mark == kMagnitude;
    const auto adapter = std::next(mark);
    if (adapter != parts.end() && !is_leaf(*adapter)) parts.erase(adapter);
    if (is_magnitude && is_leaf(parts.back())) parts.pop_back();
    return join(parts);
  }
  if (!remove_adapter(parts)) return std::nullopt;
  return join(parts);
}

bool has_adapter_names(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const TensorInfo& tensor) {
    return tensor.fqn.starts_with(kWrapped) || tensor.fqn == kPromptFile ||
           adapter_file_name(tensor.fqn).has_value();
  });
}

std::string adapter_module_name(std::string_view file_name, const AdapterFileNames& all) {
  Parts parts = split(file_name);
  if (const auto mark = find_mark(parts); mark != parts.end()) {
    const bool is_magnitude = *mark == kMagnitude;
    parts.insert(std::next(mark), std::string(kAdapter));
    if (is_magnitude && !is_leaf(parts.back())) parts.emplace_back("weight");
    return join(parts);
  }
  const bool is_of_module = parts.size() > 1 && is_leaf(parts.back());
  if (!is_of_module || parts[parts.size() - 2] == kBaseLayer) return std::string(file_name);
  const auto leaf = std::prev(parts.end());
  if (*leaf == "bias" &&
      !all.contains(fmt::format("{}weight", file_name.substr(0, file_name.size() - leaf->size()))))
    return std::string(file_name);
  parts.insert(parts.insert(leaf, std::string(kAdapter)), std::string(kWhole));
  return join(parts);
}

AdapterNaming adapter_naming(const AdapterFileNames& file_names) {
  const auto comes_back = [&](const std::string& name) {
    const std::string module_name = adapter_module_name(name, file_names);
    return adapter_file_name(module_name).value_or(module_name) == name;
  };
  return std::ranges::any_of(file_names, has_mark) && std::ranges::all_of(file_names, comes_back)
             ? AdapterNaming::Modules
             : AdapterNaming::File;
}

void record_adapter(Json& producer, AdapterNaming naming) {
  if (producer.is_null() || producer.is_object())
    producer[std::string(kAdapterNames)] =
        naming == AdapterNaming::Modules ? kModuleNames : kFileNames;
}

bool is_of_adapter(const Catalog& catalog) {
  return !file_record(catalog.producer, kAdapterNames).is_null();
}

AdapterFile::AdapterFile(const Catalog& catalog) : rule_(Rule::FileNames) {
  const Json record = file_record(catalog.producer, kAdapterNames);
  if (record == kModuleNames) {
    rule_ = Rule::ModuleNames;
  } else if (record != kFileNames &&
             std::ranges::any_of(catalog.tensors, [](const TensorInfo& tensor) {
               return adapter_file_name(tensor.fqn).has_value();
             })) {
    rule_ = Rule::Names;
  }
  if (rule_ == Rule::FileNames) return;
  std::set<std::string> adapters;
  for (const TensorInfo& tensor : catalog.tensors) adapters.insert(adapter_of(tensor.fqn));
  adapters.erase("");
  has_several_ = adapters.size() > 1 && adapters.contains(std::string(kAdapter));
}

std::optional<std::string> AdapterFile::name_of(const std::string& fqn) const {
  if (rule_ == Rule::FileNames) return fqn;
  if (fqn.starts_with(kPrompt) && fqn != kPromptModule) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: the adapter's prompt encoder computes the embeddings that its file has",
                      quote(fqn)),
          "load the checkpoint into the model, and call PEFT's save_pretrained()");
  }
  if (has_several_) {
    const std::string adapter = adapter_of(fqn);
    if (!adapter.empty() && adapter != kAdapter) return std::nullopt;
  }
  auto name = adapter_file_name(fqn);
  if (!name && rule_ == Rule::ModuleNames) return fqn;
  return name;
}

}  // namespace unishard::converters
