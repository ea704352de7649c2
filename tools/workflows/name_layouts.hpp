#pragma once
// Names of Hugging Face models for the layers of a DeepSpeed pipeline, which have numbers and no
// names, and for the parameters of Meta's Llama: `--layout`.
#include "unishard/format/catalog.hpp"

#include "workflows/rename_rules.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

/// Returns the names of the layouts, in the order of help texts.
std::vector<std::string> name_layouts();

/// Returns rules that give the catalog's parameters, "<layer>.<local>" and
/// "tied_modules.<key>.<local>", or Meta's, the names of the Hugging Face model of the layout.
/// Throws: InvalidArgument when there is no such layout; Mismatch, naming the parameter or layer,
/// when the layout has no place for it, or a block is missing, whose place another would take.
std::vector<RenameRule> layout_rules(std::string_view layout, const Catalog& catalog);

/// Returns whether a layout also changes the order of rows (llama_input()), so that names alone do
/// not tell what it does.
bool changes_values(std::string_view layout);

}  // namespace unishard::tools
