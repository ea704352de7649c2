#pragma once
// The place of the model and of the optimizer in the object of a training file. Everything else in
// it is client state.
#include "unishard/format/catalog.hpp"

#include "formats/dcp/state_dict_to_catalog.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::torch {

/// The start of the names in the state dict of a model that torch.compile has wrapped.
inline constexpr std::string_view kCompiled = "_orig_mod.";

struct FileArrangement {
  std::vector<std::string> keys = {};  ///< those of the object, in its order
  dcp::KeyPath model = {{"model", false}};
  std::optional<dcp::KeyPath> optimizer = dcp::KeyPath{{"optimizer", false}};  ///< if there is one
  bool is_numbered = false;  ///< the optimizer knows parameters by numbers, not by names
  bool is_compiled = false;  ///< names in the model start with kCompiled
};

/// Returns the arrangement of a file as JSON: `object` is the file's, with {"$tensor": key} for
/// each tensor. An empty object where the model or the optimizer consists of several parts.
Json describe_arrangement(const Json& object, const dcp::StateDict& state,
                          const dcp::Arrangement& arrangement);

/// Adds the catalog's names of the parameters to the optimizer in the object of a file. Returns
/// false, and changes nothing, where it has no name for each, or there are several optimizers.
bool name_parameters(Json& object, const Catalog& catalog);

/// Returns the arrangement of the file from which a catalog comes, and the usual one where none, or
/// none that can be used, is recorded.
FileArrangement arrangement_of(const Catalog& catalog);

}  // namespace unishard::converters::torch
