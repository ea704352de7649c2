#include "formats/deepspeed/module_files.hpp"

#include "unishard/format/error.hpp"

#include "reading/completeness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

namespace unishard::converters::deepspeed {

namespace {

FileName told_name(const TorchFile& file) { return parse_file_name(file.archive_name() + ".pt"); }

/// The layers that have the same tensors.
struct LayerKind {
  const TensorShapes* shapes = nullptr;
  std::vector<const ModuleFile*> layers;
};

/// Returns the kinds, those of most layers first.
std::vector<LayerKind> kinds_of(const std::map<TensorShapes, std::vector<const ModuleFile*>>& all) {
  std::vector<LayerKind> kinds;
  for (const auto& [shapes, layers] : all) kinds.push_back({&shapes, layers});
  std::ranges::sort(kinds, [](const LayerKind& a, const LayerKind& b) {
    if (a.layers.size() != b.layers.size()) return a.layers.size() > b.layers.size();
    return a.layers.front()->numbers.layer < b.layers.front()->numbers.layer;
  });
  return kinds;
}

/// Notes the layers of `odd` when they lack a few tensors of `kind`, and returns whether. A layer
/// that differs in more than a quarter is of another kind, and in a layer of few tensors (a norm, a
/// projection) a bias is a choice.
bool doubt_kind(const LayerKind& odd, const LayerKind& kind, Notes& notes) {
  const std::size_t few = kind.shapes->size() / 4;
  const std::vector<std::string> found = differences(*odd.shapes, *kind.shapes, few + 1);
  if (found.empty() || found.size() > few) return false;
  std::string usual = file_name(*kind.layers.front());
  if (kind.layers.size() > 1) usual += fmt::format(" and {} more", kind.layers.size() - 1);
  for (const ModuleFile* layer : odd.layers)
    notes.add(fmt::format("{} {}, unlike {}: the file is damaged, or the model is made so",
                          file_name(*layer), fmt::join(found, ", "), usual));
  return true;
}

}  // namespace

std::string file_name(const ModuleFile& file) { return Path(file.name).filename().string(); }

bool tells_its_name(const TorchFile& file) { return told_name(file).role != FileRole::Other; }

TorchFile open_rank_file(const std::shared_ptr<FilePool>& pool, const Path& path) {
  TorchFile file(open_window(pool, path));
  const FileName told = told_name(file);
  if (told.role != FileRole::Other && told != parse_file_name(path.filename().string()))
    raise_written_as(path, file.archive_name() + ".pt");
  return file;
}

ModuleFile read_module_file(const std::shared_ptr<FilePool>& pool, const NumberedFile& file,
                            Notes& notes) {
  const TorchFile torch_file = open_rank_file(pool, file.path);
  if (!torch_file.root().is_dict()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: not a part of a module: it holds no names", torch_file.name()));
  }
  return {file.name, torch_file.name(),
          named_views(torch_file, torch_file.root(), "module entry", notes)};
}

std::vector<std::string> differences(const TensorShapes& odd, const TensorShapes& kind,
                                     std::size_t count) {
  std::vector<std::string> found;
  for (const auto& [name, shape] : kind) {
    if (found.size() == count) break;
    const auto other = odd.find(name);
    if (other == odd.end()) {
      found.push_back(fmt::format("has no {}", unishard::quote(name)));
    } else if (other->second != shape) {
      found.push_back(fmt::format("has {} of shape ({}) and not ({})", unishard::quote(name),
                                  fmt::join(other->second, ", "), fmt::join(shape, ", ")));
    }
  }
  return found;
}

void doubt_odd_layers(const std::vector<ModuleFile>& layers, Notes& notes) {
  constexpr std::size_t kCompared = 64;  // of a hostile folder each layer may be another kind
  std::map<TensorShapes, std::vector<const ModuleFile*>> by_shapes;
  for (const ModuleFile& layer : layers) {
    TensorShapes shapes;
    for (const NamedView& entry : layer.entries) shapes.emplace(entry.name, entry.view.shape);
    by_shapes[std::move(shapes)].push_back(&layer);
  }
  const std::vector<LayerKind> kinds = kinds_of(by_shapes);
  for (std::size_t i = 1; i < kinds.size(); ++i) {
    bool is_noted = false;
    for (std::size_t k = 0; !is_noted && k < std::min(i, kCompared); ++k) {
      is_noted = doubt_kind(kinds[i], kinds[k], notes);
      if (!is_noted && kinds[i].layers.size() == kinds[k].layers.size())
        is_noted = doubt_kind(kinds[k], kinds[i], notes);
    }
  }
}

void check_against_masters(const ModuleFile& file, const ParameterTable& parameters, bool is_exact,
                           const std::string& where) {
  const WeightComparison compared = compare_weights(file.entries, parameters, is_exact);
  const bool is_foreign = is_exact
                              ? !compared.differing.empty()
                              : compared.telling > 0 && 2 * compared.foreign >= compared.telling;
  if (!is_foreign) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} does not hold what the optimizer's fp32 copy rounds to ({} parameters "
                    "differ, first {}): the file is in another's place, or of another save",
                    where, unishard::quote(file_name(file)), compared.differing.size(),
                    unishard::quote(compared.differing.front())),
        "copy the files of one save again from the nodes that wrote them");
}

}  // namespace unishard::converters::deepspeed
