#pragma once
// Names of the parameters of an adapter of PEFT. A module calls them
// "q_proj.lora_A.default.weight", where "default" is the adapter; adapter_model.safetensors leaves
// that out, and the marks of modules that are trained as a whole. Everything in that file is the
// adapter's; only where a checkpoint comes from no such file, names have to tell.
// Thread safety: pure functions, and a class without state that changes.
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Name of the file, without its suffix, by which PEFT finds an adapter.
inline constexpr std::string_view kAdapterStem = "adapter_model";

/// Returns the name in an adapter's file, as far as the name tells; nullopt for a parameter of the
/// base model.
std::optional<std::string> adapter_file_name(std::string_view module_name);

/// Returns whether the names of a catalog's tensors are those of an adapter, in a file or in a
/// module: one of them has a part that only an adapter has, or begins as all names of PEFT do.
bool has_adapter_names(const Catalog& catalog);

/// Names in an adapter's file.
using AdapterFileNames = std::set<std::string, std::less<>>;

/// Returns the name in the module, of the adapter "default". A bias whose module has no weight in
/// the file was trained where it is (`bias="all"` of LoRA): it has no other name.
/// Pre: the file has a parameter of LoRA, of IA3, or of trained tokens.
std::string adapter_module_name(std::string_view file_name, const AdapterFileNames& all);

/// How a catalog calls what an adapter's file holds.
enum class AdapterNaming : std::uint8_t { Modules, File };

/// Returns Modules if the adapter is of a kind whose module names are known, and these names give
/// those of the file back.
AdapterNaming adapter_naming(const AdapterFileNames& file_names);

/// Records in `producer` that an adapter's file held the model.
void record_adapter(Json& producer, AdapterNaming naming);

/// Returns whether a catalog records that an adapter's file held its model, also when it was in
/// other formats since.
bool is_of_adapter(const Catalog& catalog);

/// What an adapter's file holds of a catalog: of a model that came from such a file all of it,
/// else the parameters that their names tell, else, if they tell none, all. Of several adapters it
/// is "default", as PEFT has the others in folders of their names.
class AdapterFile {
 public:
  explicit AdapterFile(const Catalog& catalog);

  /// Returns the name in the file; nullopt for a parameter of the base model.
  /// Throws: Unsupported for a part of a prompt encoder whose results the file has (P-tuning, and
  /// prefix tuning with a projection).
  std::optional<std::string> name_of(const std::string& fqn) const;

 private:
  enum class Rule : std::uint8_t { ModuleNames, FileNames, Names };
  Rule rule_;
  bool has_several_ = false;
};

}  // namespace unishard::converters
