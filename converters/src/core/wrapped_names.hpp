#pragma once
// Names in the state dict of a model of which wrappers took modules: torch.compile, FSDP1,
// checkpoint_wrapper and DistributedDataParallel add parts to the names ("_orig_mod.h.0.weight",
// "module.h.0.weight"). A catalog has the names without them. replica_names.hpp tells of "module.".
// Thread safety: pure functions, and a class without state that changes.
#include "unishard/converters/replica_names.hpp"
#include "unishard/format/catalog.hpp"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters {

/// Returns the name without "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.",
/// "_fpw_module." (fairscale) and "_forward_module." (Lightning), which no module is called.
std::string without_wrappers(std::string name);
/// Returns whether the last part of a prefix, with a dot, is one of these.
bool ends_with_wrapper(std::string_view prefix);

/// The modules that wrappers took, and what these add behind the name of each module ("" is the
/// model as a whole).
class WrappedNames {
 public:
  /// Finds them in names: fqn, and name in the file. There are none if that does not explain all
  /// the names.
  explicit WrappedNames(const std::vector<std::pair<std::string, std::string>>& names);
  /// Takes those of which a catalog records that they had other names in the files of `library`.
  WrappedNames(const Catalog& catalog, std::string_view library);

  bool empty() const { return wrappers_.empty(); }
  /// Returns whether DistributedDataParallel took the model.
  bool has_replica() const;
  /// Returns the name in the file.
  std::string name_of(const std::string& fqn) const;
  /// Records in Catalog::producer that they had other names in the files of `library`.
  void record(std::string_view library, Json& producer) const;

 private:
  std::map<std::string, std::string> wrappers_;  ///< by module
};

/// Returns whose the part "module." is in a file of `library` whose embedded catalog has this
/// producer: the names are the catalog's own, unless it records that the file has the name of a
/// replica.
ModulePart module_part_of(const Json& producer, std::string_view library);

/// Removes the wrappers from all names of a catalog that was read from a file of `library`, and
/// records them. `part` is whose "module." is, unless the catalog records that a replica's is
/// there. A catalog in which two tensors would get one name stays as it is.
void unwrap_names(Catalog& catalog, std::string_view library,
                  ModulePart part = ModulePart::Replica);
/// Does so to a catalog that an embedded text restored: names are the catalog's own, unless it
/// records that wrap_names() has changed them.
void unwrap_restored(Catalog& catalog, std::string_view library);
/// Puts the recorded wrappers back for a file of `library`.
void wrap_names(Catalog& catalog, std::string_view library);

}  // namespace unishard::converters
