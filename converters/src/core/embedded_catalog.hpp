#pragma once
// A catalog in a format that only knows named tensors (safetensors, HDF5, a torch.save file): every
// tensor gets a path, and what paths cannot say goes along as one JSON text.
#include "unishard/format/catalog.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// One path per tensor: `model_prefix` + fqn for the tensor that stands for its parameter (16-bit
/// weights, else fp32, else buffer), "optimizer.state.<fqn>.<state>" for the others, where fp32
/// beside 16-bit weights is called fp32_master.
std::vector<std::string> flat_paths(const Catalog& catalog, std::string_view model_prefix);

/// Where safetensors and HDF5 files keep the text.
inline constexpr std::string_view kCatalogKey = "unishard.catalog";

/// True when paths do not say it all: states other than weights, groups, client state, ... A
/// catalog of plain weights needs no text; its step alone is no reason.
bool needs_text(const Catalog& catalog);

/// Drops the parts of sections that no manifest can hold; each becomes a note.
void drop_unreadable(Catalog& catalog, std::vector<std::string>& notes);

/// `paths`: one per tensor.
std::string catalog_text(const Catalog& catalog, const std::vector<std::string>& paths);

/// The way back: gives the tensors of `catalog`, whose fqns are paths, their fqn, state and group,
/// and takes the other sections from `text`. Returns which tensors the text knows. Throws Corrupt
/// naming `where` for a text that catalog_text() does not write.
std::vector<bool> restore_catalog(std::string_view text, Catalog& catalog,
                                  const std::string& where);

}  // namespace unishard::converters
