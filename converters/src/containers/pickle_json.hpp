#pragma once
// Writes the JSON of object_tree.hpp back as Python values.
#include "unishard/format/json.hpp"

#include "containers/pickle_writer.hpp"

#include <functional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Writes the tensor `name`, which JSON represents as {"$tensor": name}.
using WriteTensor = std::function<void(PickleWriter&, const std::string& name)>;

/// Appends `value`. {"$type": ...} becomes the Python object that it represents, with only those
/// opcodes and globals that torch.load(weights_only=True) accepts. A defaultdict or Counter becomes
/// a dict.
/// Throws: Unsupported, naming the type, for values without a safe counterpart (objects, globals,
/// persistent ids, frozensets). `pickle` is then unusable, so call what_python_lacks() first.
void write_json(PickleWriter& pickle, const Json& value, const WriteTensor& tensor);

/// A WriteTensor for places that cannot hold tensors.
/// Throws: Unsupported, naming the tensor.
void refuse_tensor(PickleWriter& pickle, const std::string& name);

/// Returns why write_json() would refuse `value`; empty when it would not. Tensors count as
/// writable.
std::string what_python_lacks(const Json& value);

/// Returns `object` without the entries that write_json(…, refuse_tensor) would refuse, at any
/// depth of plain JSON objects. Adds "<path>: <reason>" to `dropped` for each.
Json without_unwritable(const Json& object, const std::string& path,
                        std::vector<std::string>& dropped);

}  // namespace unishard::converters::torch
