#pragma once
// What UniShard's own sink stores in a DCP folder beside the keys that PyTorch knows: the embedded
// catalog, as one object under kTextKey.
#include "core/embedded_catalog.hpp"
#include "formats/dcp/own_layout.hpp"
#include "formats/dcp/state_dict_to_catalog.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {

inline constexpr std::string_view kTextKey = "unishard.catalog";
/// Optimizer state under which the sink stores the 16-bit weights of a parameter whose model
/// weights are fp32.
inline constexpr std::string_view kHalfState = "weights_16bit";
using converters::kExtraState;

/// Returns the key that UniShard's sink gives each tensor of a catalog.
std::vector<std::string> own_keys(const Catalog& catalog, const OwnLayout& layout);
/// Returns the embedded catalog; nullopt for a folder of another writer.
/// Throws: Corrupt or Unsupported, naming `where`, as restore_catalog() does.
std::optional<Arrangement> arrange_own(const StateDict& state, const std::string& where);

}  // namespace unishard::converters::dcp
