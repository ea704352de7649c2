#include "formats/trainer/trained_adapter.hpp"

#include "unishard/converters/adapter_names.hpp"
#include "unishard/format/error.hpp"

#include "containers/torch_file.hpp"
#include "formats/dcp/safetensors_pieces.hpp"
#include "formats/trainer/module_shapes.hpp"
#include "reading/parameter_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

namespace unishard::converters::trainer {
namespace {

using torch::TorchFile;
using torch::Value;

/// The parameters of an optimizer: how many, and the shapes of those that have states.
struct Trained {
  std::size_t count = 0;
  std::vector<Shape> shapes;  ///< ascending
};

Trained read_trained(Storage& storage, const Path& path) {
  const TorchFile file(torch::whole_file(storage, path));
  Trained trained{count_parameters(file.root()), {}};
  const Value all = file.root().at("state");
  for (std::size_t i = 0; i < all.pair_count(); ++i) {
    const Value states = all.value(i);
    std::map<std::string, Shape> shapes;
    for (std::size_t j = 0; states.is_dict() && j < states.pair_count(); ++j) {
      if (!TorchFile::is_tensor(states.value(j))) continue;
      Shape shape = file.tensor(states.value(j)).shape;
      if (!shape.empty()) shapes.emplace(states.key(j).string(), std::move(shape));
    }
    if (!shapes.empty()) trained.shapes.push_back(parameter_shape(shapes));
  }
  std::ranges::sort(trained.shapes);
  return trained;
}

/// Returns the shapes of the adapter's tensors, ascending.
std::vector<Shape> read_adapter(Storage& storage, const Path& folder) {
  std::vector<Shape> shapes;
  const Path safe = folder / fmt::format("{}.safetensors", kAdapterStem);
  if (storage.kind(safe) == EntryKind::File) {
    for (const auto& piece : dcp::read_pieces(storage.open(safe)).pieces)
      shapes.push_back(piece.box.sizes);
  } else {
    const TorchFile file(torch::whole_file(storage, folder / fmt::format("{}.bin", kAdapterStem)));
    for (std::size_t i = 0; i < file.root().pair_count(); ++i)
      shapes.push_back(file.tensor(file.root().value(i)).shape);
  }
  std::ranges::sort(shapes);
  return shapes;
}

/// An adapter that cannot be read may be the one: nothing else is taken in its place.
bool may_fit(Storage& storage, const Trained& trained, const Path& folder) {
  try {
    const std::vector<Shape> shapes = read_adapter(storage, folder);
    return shapes.size() == trained.count && std::ranges::includes(shapes, trained.shapes);
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

std::optional<std::vector<Path>> fitting_adapters(Storage& storage, const Path& optimizer,
                                                  const std::vector<Path>& folders) {
  try {
    const Trained trained = read_trained(storage, optimizer);
    if (trained.shapes.empty()) return std::nullopt;
    std::vector<Path> fitting;
    std::ranges::copy_if(folders, std::back_inserter(fitting),
                         [&](const Path& folder) { return may_fit(storage, trained, folder); });
    return fitting;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace unishard::converters::trainer
