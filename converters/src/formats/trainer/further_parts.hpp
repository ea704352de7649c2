#pragma once
// accelerate numbers what a run has several of: model_1.safetensors, optimizer_1.bin. A catalog
// describes the first model and the first optimizer. Further ones are values: `model_1` and
// `optimizer_1` of the client state, whose tensors have the state `extra`.
#include "unishard/converters/loss.hpp"
#include "unishard/format/catalog.hpp"
#include "unishard/format/storage.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::trainer {

/// Returns whether this is the key of a further model ("model_1") or of a further optimizer.
bool is_further_model(std::string_view key);
bool is_further_optimizer(std::string_view key);

/// Returns the file of each further model and optimizer in `folder`, by key. Of a model in two
/// files it is the one that accelerate loads.
std::map<std::string, std::string> find_further_files(Storage& storage, const Path& folder);

/// Returns those that the numbers of others, or those of the schedules, say there must be.
Losses missing_further_files(Storage& storage, const Path& folder);

/// A further model or optimizer that a catalog holds as a value.
struct FurtherPart {
  std::string key;
  Json value;  ///< {"$tensor": fqn} represents a tensor with the state `extra`
  std::map<std::string, std::size_t> tensors;  ///< fqn -> catalog tensor
};
/// Returns those that can be written whole, by key. Adds a line to `notes` for each other one, and
/// for each value in one that cannot be written.
std::vector<FurtherPart> further_parts(const Catalog& catalog, std::vector<std::string>& notes);

}  // namespace unishard::converters::trainer
