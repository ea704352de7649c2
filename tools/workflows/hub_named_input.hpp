#pragma once
// Inputs of which a model is made that others load from a folder of the Hugging Face hub.
#include "unishard/converters/hub_names.hpp"

#include <memory>

namespace unishard::tools {

/// Calls converters::hub_named() with the config.json beside `input`, else with the configuration
/// in the client state.
/// Pre: nothing was read from `source` yet.
converters::HubNamed hub_named_input(std::unique_ptr<converters::Source> source, const Path& input);

}  // namespace unishard::tools
