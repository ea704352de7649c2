#pragma once
// A model that is whole, whatever its optimizer trains beside it.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"
#include "unishard/format/storage.hpp"

#include "formats/dcp/state_dict_to_catalog.hpp"

#include <string_view>

namespace unishard::converters::trainer {

/// Returns whether a model of transformers with this `model_type` has nothing but tensors that are
/// known of the type, and several layers, all with the same tensors.
bool has_all_of_type(std::string_view type, const Catalog& catalog);

/// Makes a remark of the loss of a weight without a name: the model is whole, so what its optimizer
/// trains more is of another module, such as a value model, which was not saved. Changes nothing
/// where the files in `folder` are in doubt about the model.
void pass_whole_model(Storage& storage, const Path& folder, dcp::Arrangement& arranged);

}  // namespace unishard::converters::trainer
