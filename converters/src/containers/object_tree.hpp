#pragma once
// The object of a torch.save file as names and JSON. Every tensor is named by its path, parts
// joined with "." and, where that names two, "#2" (positions and keys that are not strings as
// Python prints them); a tensor at top level is called "tensor". The rest is JSON: what JSON lacks
// is {"$type": ...}, a tensor
// {"$tensor": name}.
#include "unishard/format/json.hpp"

#include "containers/pickle.hpp"

#include <string>
#include <vector>

namespace unishard::converters::torch {

struct NamedTensor {
  std::string name;
  Value value;
};

struct ObjectTree {
  std::vector<NamedTensor> tensors;  ///< in order of appearance; no name twice
  Json content;
  std::vector<std::string>
      opaque;  ///< "path: module.Class" of objects that are kept as their parts only
  std::vector<std::string> renamed;  ///< a line for each name that is not the path alone
};

/// `pickle_bytes` bounds the work. Throws Corrupt for objects nested deeper than 200 levels, with
/// cycles, or that expand beyond measure through sharing.
ObjectTree describe(Value root, std::uint64_t pickle_bytes);

/// One value as JSON; tensors inside become {"$tensor": path} below `path`.
Json to_json(Value value, const std::string& path = {});

/// A dict key as it stands in a path: strings as they are, the rest as Python's repr.
std::string path_part(Value key);

}  // namespace unishard::converters::torch
