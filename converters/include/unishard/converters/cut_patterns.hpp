#pragma once
// How tensor parallelism cuts the parameters of a model, as lists of patterns of names. A catalog
// holds them in its client state as DeepSpeed does, whose universal loader cuts whole tensors.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

namespace unishard::converters {

/// Key in the client state. Source: DeepSpeed's universal_checkpoint_info, whose lists hold regular
/// expressions of Python's re.match(). ds_to_universal looks for it in every model file; an empty
/// value is that of a run without tensor parallelism.
inline constexpr const char* kCutPatterns = "universal_checkpoint_info";

/// Removes the patterns, which tell parameters by their names, and returns whether there were any.
/// A client state without anything else becomes null.
bool erase_cut_patterns(Json& client_state);

/// Gives a catalog of whole tensors the user's rules, for ranks that are to cut them.
/// Throws: InvalidArgument, naming key, pattern or parameter, for rules that do not fit it.
void set_cut_patterns(Catalog& catalog, const Json& rules);

}  // namespace unishard::converters
