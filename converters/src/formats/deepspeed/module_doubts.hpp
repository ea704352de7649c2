#pragma once
// What the module in a model file contradicts of the lists beside it: param_shapes,
// frozen_param_shapes, buffer_names and shared_params.
// Thread safety: pure functions, apart from what they read and note.
#include "formats/deepspeed/parameter_table.hpp"

#include <optional>
#include <string>

namespace unishard::converters::deepspeed {

/// Checks the names in shared_params. A second name of which the module has other values than of
/// the first becomes a note, and so does one that the module lacks.
/// Throws: Corrupt, naming both names, where the module has them in two shapes, and for a second
/// name that is listed as a frozen parameter itself.
void check_ties(const ModelFile& model, const ParameterTable& parameters, Notes& notes);

/// Notes tensors that no list has, where the lists are complete, and trained parameters that the
/// module lacks: a program may have changed its state_dict(), or the files. A tied module of a
/// pipeline may have no layer file.
void doubt_module(const ModelFile& model, const ParameterTable& parameters, Notes& notes);

/// Notes that a run of stage 0 with an optimizer of its configuration has none in the file of its
/// model: the masters of one in 16 bits would be there, and after a step the states of any.
void doubt_missing_masters(const ModelFile& model, Notes& notes);

/// Returns a line where the name of a tag's folder, as DeepSpeed gives it (`global_step5`), has
/// another number than its files count; nullopt for a name of another form.
std::optional<std::string> doubt_about_tag(const Path& folder, const Catalog& catalog);

}  // namespace unishard::converters::deepspeed
