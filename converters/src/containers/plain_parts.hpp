#pragma once
// Objects of classes as plain containers, for files that hold no objects.
// Thread safety: a pure function.
#include "unishard/format/json.hpp"

#include <functional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Returns the JSON `value` of object_tree.hpp with plain containers in the place of the objects
/// that hold tensors and that write_json() refuses: a module becomes its state dict, another object
/// the dict of its attributes or what it was made of. Objects with a tensor that `is_known` denies
/// stay, and so do optimizers. Adds "<path>: <what became of it>" to `lines` for each.
Json with_plain_parts(Json value, const std::string& path,
                      const std::function<bool(const std::string& tensor)>& is_known,
                      std::vector<std::string>& lines);

}  // namespace unishard::converters::torch
