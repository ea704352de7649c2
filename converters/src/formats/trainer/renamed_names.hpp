#pragma once
// Finds the names that transformers 5 gives to tensors of a model's files only. For some types of
// models it keeps the names of the hub in files, and the module has others. `from_pretrained`
// translates them. The Trainer does not when it resumes: it passes the file to
// load_state_dict(strict=False), which leaves such parameters as they were initialised.
// Thread safety: pure functions.
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unishard::converters::trainer {

/// Returns the first of `names` that no parameter of the module has, if `config`, the text of a
/// config.json, is one that transformers 5 wrote of a type known to be renamed; nullopt otherwise,
/// also for a text that is no configuration.
std::optional<std::string> find_renamed(std::string_view config,
                                        std::span<const std::string> names);

}  // namespace unishard::converters::trainer
