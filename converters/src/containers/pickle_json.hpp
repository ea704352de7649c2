#pragma once
// JSON as the Python values that it stands for: the way back from object_tree.hpp.
#include "unishard/format/json.hpp"

#include "containers/pickle_writer.hpp"

#include <functional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Writes the tensor that {"$tensor": name} stands for.
using WriteTensor = std::function<void(PickleWriter&, const std::string& name)>;

/// Appends `value`; {"$type": ...} becomes the Python object that object_tree.hpp wrote it for,
/// with the opcodes and globals of torch.load(weights_only=True) only. A defaultdict or Counter
/// becomes a dict. Throws Unsupported naming the type for what has no safe counterpart (objects,
/// globals, persistent ids, frozensets): `pickle` is unusable then, so ask what_python_lacks()
/// first.
void write_json(PickleWriter& pickle, const Json& value, const WriteTensor& tensor);

/// A WriteTensor for values that cannot hold tensors: throws Unsupported naming the tensor.
void refuse_tensor(PickleWriter& pickle, const std::string& name);

/// Why write_json() would refuse `value`; empty when it would not. Tensors count as writable.
std::string what_python_lacks(const Json& value);

/// `object` without the entries that write_json(…, refuse_tensor) would refuse, at any depth of
/// plain JSON objects; adds "<path>: <reason>" to `dropped` for each.
Json without_unwritable(const Json& object, const std::string& path,
                        std::vector<std::string>& dropped);

}  // namespace unishard::converters::torch
