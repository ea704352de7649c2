#pragma once
// Writes the JSON of object_tree.hpp back as Python values.
#include "unishard/converters/loss.hpp"
#include "unishard/format/json.hpp"

#include "containers/pickle.hpp"
#include "containers/pickle_writer.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::torch {

/// Writes the tensor `name`, which JSON represents as {"$tensor": name}.
using WriteTensor = std::function<void(PickleWriter&, const std::string& name)>;

/// Appends `value`. {"$type": ...} becomes the Python object that it represents, with only those
/// opcodes and globals that torch.load(weights_only=True) accepts, unless it is one of the plain
/// objects of plain_objects.hpp or a frozenset. A defaultdict or Counter becomes a dict.
/// Throws: Unsupported, naming the type, for values without a safe counterpart (other objects,
/// globals, persistent ids). `pickle` is then unusable, so call with_all_tensors() first.
void write_json(PickleWriter& pickle, const Json& value, const WriteTensor& tensor);

/// A WriteTensor for places that cannot hold tensors.
/// Throws: Unsupported, naming the tensor.
void refuse_tensor(PickleWriter& pickle, const std::string& name);

/// Returns a pickle of `value`, which messages call `what`.
/// Throws: what write_json() and refuse_tensor() throw.
std::unique_ptr<Pickle> pickle_of(const Json& value, std::string_view what);

/// A WriteTensor for places in which tensors do not matter: writes None.
void write_none(PickleWriter& pickle, const std::string& name);

/// Returns true for one number of numpy.
bool is_numpy_scalar(const Json& value);
/// Returns true for an array of numpy.
bool is_numpy_array(const Json& value);
/// Returns true for numbers that are no tensor here: an array of numpy, a storage of torch.
bool is_unread_data(const Json& value);
/// Appends a loss of a weight for each such thing in `value`, which is at `path`: another program
/// may take it for a weight, and here it is a value (arrays of numpy), or lost (storages).
void find_unread_data(const Json& value, const std::string& path, Losses& losses);

/// Appends a loss of a weight for each member of a state dict in `value` that is nothing, a number
/// or a list of numbers, where the others are tensors.
void find_emptied_weights(const Json& value, const std::string& path, Losses& losses);

/// Returns the member of a dict with texts as keys; nullptr without it and for other values.
const Json* member(const Json& dict, std::string_view name);

/// Returns the tensors that `value` names.
std::set<std::string> tensors_in(const Json& value);

/// Returns `value`, the object around tensors, without what write_json() would refuse, at any depth
/// of dicts. Adds "<path>: <reason>" to `dropped` for each. Nullopt when a tensor would be lost.
std::optional<Json> with_all_tensors(const Json& value, const std::string& path,
                                     std::vector<std::string>& dropped);

/// Returns `value` without what write_json() would refuse, at any depth of dicts, lists, tuples and
/// namespaces, and without the tensors that `tensor` refuses. An item of a list becomes null. Adds
/// "<path>: <reason>" to `dropped` for each. Nullopt when nothing is left.
std::optional<Json> without_unwritable_parts(const Json& value, const std::string& path,
                                             std::vector<std::string>& dropped, WriteTensor tensor);

/// Returns `object` without the entries that write_json() would refuse, at any depth of dicts,
/// and without the tensors that `tensor` refuses. Adds "<path>: <reason>" to `dropped` for each.
Json without_unwritable(const Json& object, const std::string& path,
                        std::vector<std::string>& dropped, WriteTensor tensor = refuse_tensor);

}  // namespace unishard::converters::torch
