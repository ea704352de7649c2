#pragma once
// How Meta's programs, and Mistral's, cut the tensors of a model among `consolidated.00.pth`,
// `consolidated.01.pth`, ...: their names tell it, and params.json beside them.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Returns the rules by which `parts` files make whole tensors, with the keys of
/// universal_checkpoint_info. `first` describes the first file, `params` is what params.json holds,
/// `where` the folder that messages name.
/// Throws: Unsupported, naming the tensor, for one that is none of Llama's, and where several files
/// have the same heads of keys, or where params.json lacks a size; Corrupt where it does not fit
/// the tensors.
Json meta_rules(const Catalog& first, const Json& params, std::size_t parts,
                const std::string& where);

/// Returns the tensors of a Llama that the files lack: of the layers that params.json counts
/// (n_layers), and those outside of them.
std::vector<std::string> missing_meta_tensors(const Catalog& first, const Json& params);

/// Returns a sentence on the first tensor of the whole model whose shape contradicts params.json,
/// or another tensor.
/// Pre: meta_rules() has taken `params`.
std::optional<std::string> find_wrong_meta_shape(const Catalog& whole, const Json& params);

}  // namespace unishard::converters
