#pragma once
// What our own sink keeps in a folder beside the keys that PyTorch knows: the catalog as text, one
// object under kTextKey.
#include "formats/dcp/state_dict_to_catalog.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {

inline constexpr std::string_view kTextKey = "unishard.catalog";
/// The 16-bit weights of a parameter that the model has in fp32, among its optimizer states.
inline constexpr std::string_view kHalfState = "weights_16bit";
/// Tensors beside model and optimizer.
inline constexpr std::string_view kExtraState = "extra";

/// The key of each tensor of a catalog in a folder of ours.
std::vector<std::string> own_keys(const Catalog& catalog);
/// The catalog that was written; nullopt for a folder of another writer.
std::optional<Arrangement> arrange_own(const StateDict& state, const std::string& where);

}  // namespace unishard::converters::dcp
