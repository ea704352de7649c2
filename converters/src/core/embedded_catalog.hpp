#pragma once
// Stores a catalog in a format that knows only named tensors (safetensors, HDF5, torch.save): each
// tensor gets a path, and one JSON text, the embedded catalog, holds everything that paths cannot
// express.
// Thread safety: pure functions.
#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/loss.hpp"
#include "unishard/format/catalog.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Returns one path per tensor: `model_prefix` + fqn for the tensor that represents its parameter
/// (16-bit weights, else fp32, else buffer), and "optimizer.state.<fqn>.<state>" for the others.
/// fp32 beside 16-bit weights is called fp32_master.
std::vector<std::string> flat_paths(const Catalog& catalog, std::string_view model_prefix);

/// Metadata key of the embedded catalog in safetensors and HDF5 files.
inline constexpr std::string_view kCatalogKey = "unishard.catalog";

/// Returns true for weights without groups, client state and other sections of a run; a producer,
/// which holds the metadata of a file, may be there.
bool is_plain_model(const Catalog& catalog);

/// Returns true for a plain model without second names whose producer says no more than the
/// "format" of safetensors: names and types express all of it.
bool is_bare_model(const Catalog& catalog);

/// Returns true when paths do not express the whole catalog: states other than weights, groups,
/// client state and so on, or names that a reader would take for a replica's. Else a catalog of
/// plain weights needs no text; its step alone is no reason for one.
bool needs_text(const Catalog& catalog);

/// Appends a line to `notes` that names the metadata of the file that was read, for a format that
/// has no place for them. UniShard's own are not named.
void note_metadata(const Catalog& catalog, std::vector<std::string>& notes);

/// Removes the unreadable_parts() of the catalog and appends each to `losses`.
void drop_unreadable(Catalog& catalog, Losses& losses);

/// Returns the embedded catalog. `paths` has one entry per tensor.
std::string catalog_text(const Catalog& catalog, const std::vector<std::string>& paths);

/// Restores a catalog from `text`: gives the tensors of `catalog`, whose fqns are paths, their fqn,
/// state and group, and takes the other sections from the text. Returns for each tensor whether the
/// text knows it.
/// Throws: Corrupt or Unsupported, naming `where`, for a text that catalog_text() does not write.
std::vector<bool> restore_catalog(std::string_view text, Catalog& catalog,
                                  const std::string& where);

}  // namespace unishard::converters
