#pragma once
// Names of the parameters of an adapter of PEFT. A module calls them
// "q_proj.lora_A.default.weight", where "default" is the adapter; adapter_model.safetensors leaves
// that out, and the marks of modules that are trained as a whole. Thread safety: pure functions.
#include <optional>
#include <string>
#include <string_view>

namespace unishard::converters {

/// Name of the file, without its suffix, by which PEFT finds an adapter.
inline constexpr std::string_view kAdapterStem = "adapter_model";

/// Returns whether the name, of either kind, is that of a LoRA or IA3 parameter.
bool is_adapter_name(std::string_view name);

/// Returns the name in an adapter's file; nullopt for a parameter of the base model.
std::optional<std::string> adapter_file_name(std::string_view module_name);

/// Returns the name in the module, of the adapter "default".
/// Pre: the file has a LoRA or IA3 parameter.
std::string adapter_module_name(std::string_view file_name);

}  // namespace unishard::converters
