#pragma once
// What a run computes, beside the configuration: its model and its data. Checkpoints keep both.
#include "unishard/format/json.hpp"
#include "unishard/trainer/token_file.hpp"

#include "options.hpp"

#include <string>
#include <vector>

namespace train_gpt {

/// Returns the client state of a checkpoint: the model's config.json and a digest of the data.
unishard::Json run_identity(const Options& options, const unishard::trainer::TokenFile& tokens);

/// Returns a line for each part of an identity.
std::vector<std::string> identity_lines(const unishard::Json& identity);

/// Returns a note for each key of `mine`, this run's identity, that the client state of a resumed
/// checkpoint has with another value. Dropout may be changed without a note.
std::vector<std::string> compare_identity(const unishard::Json& saved, const unishard::Json& mine);

}  // namespace train_gpt
