#pragma once
// The names and shapes that the files of a model have on the Hugging Face hub, where transformers
// has others in memory: it stacks the experts of a layer in one parameter (MAPPING.md, section
// "Fused experts").
#include "unishard/converters/source.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace unishard::converters {

struct HubNamed {
  std::unique_ptr<Source> source;
  std::size_t experts = 0;  ///< parameters of stacked experts that `source` gives in parts
  std::string remark = {};  ///< a sentence on them, where there are some
};

/// Returns a source that gives each tensor of `source` as the files of the hub have it; all states
/// of a parameter are cut in the same way. The source returned is `source` itself where
/// config.json, whose text is `config`, is of no model with stacked experts, or where `source` has
/// none of them.
/// The result reads as thread-safely as `source` does, in bounded memory.
HubNamed hub_named(std::unique_ptr<Source> source, std::string_view config);

}  // namespace unishard::converters
