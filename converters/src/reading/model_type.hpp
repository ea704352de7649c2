#pragma once
// Tells which model of transformers a config.json describes.
// Thread safety: pure functions.
#include <string>
#include <string_view>

namespace unishard::converters {

/// Returns whether `class_name` is that of a model of transformers with this `model_type`, and not
/// of another program's, which may register its parameters in another order.
bool is_known_class(std::string_view model_type, std::string_view class_name);

/// Returns `model_type` of the text of a config.json; empty for a text that is none, and for a
/// model whose class is another program's.
std::string model_type_of(std::string_view config);

/// Returns whether `types`, values of `model_type` separated by blanks, has this one.
bool is_listed(std::string_view model_type, std::string_view types);

}  // namespace unishard::converters
