#pragma once
// Inputs in Meta's form of which a model of transformers is made: `--layout llama`.
#include "unishard/converters/source.hpp"

#include <memory>
#include <string_view>

namespace unishard::tools {

/// Calls converters::in_order_of_transformers() with the heads that params.json beside `input`
/// tells if `layout` is Meta's; returns `source` itself for every other layout. Pre: nothing was
/// read from `source` yet. Throws: NotFound where there is no params.json.
std::unique_ptr<converters::Source> llama_input(std::unique_ptr<converters::Source> source,
                                                const Path& input, std::string_view layout);

}  // namespace unishard::tools
