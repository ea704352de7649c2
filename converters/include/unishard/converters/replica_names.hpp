#pragma once
// The part "module." before all the names of a model. DistributedDataParallel puts it there, and a
// model whose only child is called "module" has it by itself. What is known of the program that
// wrote a file decides; a file of UniShard's records it. A catalog has the names of the model.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

inline constexpr std::string_view kReplica = "module.";

/// Whose the part before all the names of a file is.
enum class ModulePart : std::uint8_t {
  Model,    ///< a module's of the model: the program saves the model itself
  Replica,  ///< DistributedDataParallel's, as far as the file tells
};

/// Returns the name without one leading "module.", unless nothing else is in it.
std::string_view without_replica(std::string_view name);
/// Returns whether all of `names`, at least one, begin with "module.".
bool have_replica_part(const std::vector<std::string>& names);
/// Returns whether the names of all tensors and aliases do; extra states are called by their keys.
bool has_replica_part(const Catalog& catalog);

/// Returns `catalog` without the part if all of its names begin so, those of `other` do not, and no
/// name is in both: as a reader has them that takes it for DistributedDataParallel's.
std::optional<Catalog> without_replica(const Catalog& catalog, const Catalog& other);

}  // namespace unishard::converters
