#pragma once
// The object of a torch.save file as named tensors and JSON. A tensor's name is its path, with
// parts joined by "."; keys that are not strings appear as Python prints them, a repeated path gets
// "#2", and a tensor at top level is called "tensor". Everything else becomes JSON: {"$type": ...}
// for what JSON lacks, {"$tensor": name} for a tensor, with "parameter": true for an nn.Parameter
// and "requires_grad": true where it requires gradients. Thread safety: pure functions.
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/pickle.hpp"

#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::torch {

/// What is said of ObjectTree::attributes.
inline constexpr const char* kTensorAttributes = "attributes of the tensor";
/// What is said of ObjectTree::unregistered.
inline constexpr const char* kUnregistered =
    "its module holds it outside of parameters and buffers, and the state dict would not have it";

struct NamedTensor {
  std::string name;
  Value value;
};

struct ObjectTree {
  std::vector<NamedTensor> tensors;  ///< in order of appearance; names are unique
  Json content;
  /// "path: module.Class" of each object of which only the parts are kept, because it does not make
  /// a plain object (plain_objects.hpp); also of a member of an enumeration and of OmegaConf's
  /// containers, in whose places their values are.
  std::vector<std::string> opaque;
  /// "path: names" of each ordinary tensor that has attributes of the user's, which are not read.
  std::vector<std::string> attributes;
  std::vector<std::string> renamed;  ///< one line for each name that differs from its path
  /// The path of each member near the root that is left out, because it is an EndlessObject, and
  /// the problem.
  std::vector<std::pair<std::string, std::string>> left_out;
  /// The path of each parameter or quantized tensor that a module holds where its state dict does
  /// not look, or that has no data yet, and what it is: weights that are left out.
  std::vector<std::pair<std::string, std::string>> lost_weights;
  /// The path of each optimizer that was saved as an object, "" for the root, and its class.
  std::vector<std::pair<std::string, std::string>> optimizers;
  /// The path of each other tensor that a module holds there: in an attribute, or in a list.
  std::vector<std::string> unregistered;
};

/// What is said of ObjectTree::optimizers.
inline constexpr const char* kOptimizerObject =
    "an optimizer that was saved as an object and not as its state_dict(): load the file in Python "
    "and save optimizer.state_dict() in its place";

/// A value that cannot be written out: it is nested deeper than 200 levels, contains itself, or
/// expands excessively because its parts are shared.
class EndlessObject : public Error {
 public:
  using Error::Error;
};

/// Describes `root`. `pickle_bytes` is the size of the pickle and limits the work.
/// Lifetime: the tensors' values are valid as long as the Pickle of `root`.
/// Throws: EndlessObject, which is Corrupt, when `root` itself is such a value, or has many of
/// them.
ObjectTree describe(Value root, std::uint64_t pickle_bytes);

/// Returns one value as JSON; a tensor inside becomes {"$tensor": name} with a name below `path`.
Json to_json(Value value, const std::string& path = {});

/// Returns whether it is a pickled torch.nn.Module.
bool is_module(Value value);

/// Returns a dict key as a part of a path: a string unchanged but for lone surrogates, which are
/// escaped, and any other key as Python's repr.
std::string path_part(Value key);

}  // namespace unishard::converters::torch
