#pragma once
// The files beside a checkpoint that go along with a conversion, and what the files of an adapter
// of PEFT and of a model of diffusers are called.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/source.hpp"

#include "workflows/conversion_notes.hpp"
#include "workflows/conversion_plan.hpp"

namespace unishard::tools {

/// Returns the folder in which the small files of the model lie: that of the checkpoint, or the one
/// around it. It is `input` where that is one file.
/// Pre: `input` is what the user named; source.path() is where the checkpoint was found.
Path model_folder(const converters::Source& source, const Path& input);

/// Returns the folder in which the configuration of the model lies: model_folder(), or the folder
/// of the one file that it names.
Path config_folder(const converters::Source& source, const Path& input);

/// Sets output.side_files and output.stem. Model folders get the small files of a model; folders
/// from which a training goes on get those of a Trainer or of accelerate too. A model folder made
/// of an adapter's run gets the adapter alone: `plan` loses the base model and takes PEFT's names.
/// Adds to `notes` what is left out, and removes lines about files that are copied.
/// Pre: `input` is what the user named; source.path() is where the checkpoint was found.
void take_side_files(const converters::Source& source, const Path& input, ConversionPlan& plan,
                     converters::Output& output, ConversionNotes& notes);

}  // namespace unishard::tools
