// The layout is that of the file that was read, if it still fits. Else it depends on the catalog.
// One state per parameter: a state dict, in one file or in shards with an index as Hugging Face
// stores them. The tensors of a torch.save object: the same object. A training state: {"model":
// ..., "optimizer": {"state": {fqn: ...}, "param_groups": ...}}, with everything else as JSON under
// "unishard", from which UniShard's source restores it.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "containers/pickle_writer.hpp"
#include "containers/placed_sink.hpp"
#include "core/embedded_catalog.hpp"
#include "core/file_split.hpp"
#include "core/partial_output.hpp"
#include "formats/torch/training_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace unishard::converters {
namespace {

using torch::OutputPlan;
using torch::PickleWriter;

/// The pickle and storages of a file that is being assembled.
class FilePlan {
 public:
  explicit FilePlan(const Catalog& catalog) : catalog_(catalog) {}

  /// Writes the tensor into the pickle. Its bytes get a storage of their own, once.
  void tensor(std::size_t index) {
    const TensorInfo& info = catalog_.tensors[index];
    const auto [found, is_new] = storages_.emplace(index, bytes.size());
    if (is_new) bytes.push_back(info.bytes());
    pickle.tensor(info.dtype, info.shape, std::to_string(found->second), info.elements());
  }
  /// A float32 scalar that no tensor of the catalog holds.
  void scalar(float value) {
    pickle.tensor(DType::Float32, {}, std::to_string(bytes.size()), 1);
    std::vector<std::byte> raw(sizeof value);
    std::memcpy(raw.data(), &value, sizeof value);
    scalars.emplace_back(bytes.size(), std::move(raw));
    bytes.push_back(sizeof value);
  }

  /// Adds this file to the output. From then on its tensors have placements.
  void finish(std::string name, std::string root, torch::TorchOutput& output, OutputPlan& plan) {
    const std::size_t archive =
        output.add({std::move(name), std::move(root), pickle.finish(), bytes});
    for (const auto& [index, storage] : storages_) {
      const TensorInfo& info = catalog_.tensors[index];
      if (info.elements() == 0) continue;
      plan.placements.push_back({static_cast<std::uint32_t>(index),
                                 {0, info.elements()},
                                 archive,
                                 storage,
                                 0,
                                 info.dtype});
    }
    for (auto& [storage, raw] : scalars)
      plan.constants.push_back({archive, storage, 0, std::move(raw)});
  }

  PickleWriter pickle;
  std::vector<std::uint64_t> bytes;
  std::vector<std::pair<std::size_t, std::vector<std::byte>>> scalars;

 private:
  const Catalog& catalog_;
  std::map<std::size_t, std::size_t> storages_;  // tensor -> storage
};

using NameMap = std::unordered_map<std::string, std::size_t>;

NameMap tensors_by_name(const Catalog& catalog) {
  NameMap names;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) names.emplace(catalog.tensors[i].fqn, i);
  for (const Alias& alias : catalog.aliases) {
    if (const auto target = names.find(alias.target); target != names.end())
      names.emplace(alias.fqn, target->second);
  }
  return names;
}

bool is_one_state_each(const Catalog& catalog) {
  std::unordered_map<std::string_view, int> counts;
  return std::ranges::all_of(catalog.tensors,
                             [&](const TensorInfo& tensor) { return ++counts[tensor.fqn] == 1; });
}

/// Collects the tensor names inside a JSON tree; returns false when one of them is not in `names`.
bool all_known(const Json& tree, const NameMap& names) {
  if (tree.is_object() && tree.contains("$tensor"))
    return names.contains(tree["$tensor"].get<std::string>());
  if (!tree.is_structured()) return true;
  return std::ranges::all_of(tree, [&](const Json& child) { return all_known(child, names); });
}

/// Writes None in the place of a tensor.
void write_none(PickleWriter& pickle, const std::string&) { pickle.none(); }

/// Notes why not.
bool can_be_pickled(const Json& object, std::vector<std::string>& notes) {
  PickleWriter scratch;
  try {
    torch::write_json(scratch, object, write_none);
    return true;
  } catch (const Error& error) {
    notes.emplace_back(error.what());
    return false;
  }
}

void write_state_dict(const Catalog& catalog, const std::vector<std::size_t>& tensors,
                      FilePlan& file) {
  std::unordered_map<std::string_view, std::vector<std::string_view>> aliases;
  for (const Alias& alias : catalog.aliases) aliases[alias.target].push_back(alias.fqn);
  file.pickle.begin_ordered_dict();
  for (const std::size_t index : tensors) {
    const std::string& fqn = catalog.tensors[index].fqn;
    file.pickle.str(fqn);
    file.tensor(index);
    for (const std::string_view alias : aliases[fqn]) {
      file.pickle.str(alias);
      file.tensor(index);
    }
  }
  file.pickle.end_dict();
}

void write_training_state(const Catalog& catalog, FilePlan& file) {
  const torch::TrainingLayout layout = torch::plan_training_layout(catalog);
  PickleWriter& p = file.pickle;
  p.begin_dict();
  p.str("model");
  p.begin_ordered_dict();
  for (const auto& [fqn, index] : layout.model) {
    p.str(fqn);
    file.tensor(index);
  }
  p.end_dict();
  p.str("optimizer");
  p.begin_dict();
  p.str("state");
  p.begin_dict();
  for (const auto& [fqn, states] : layout.optimizer) {
    p.str(fqn);
    p.begin_dict();
    p.str("step");
    file.scalar(static_cast<float>(catalog.step));
    for (const auto& [state, index] : states) {
      p.str(state);
      file.tensor(index);
    }
    p.end_dict();
  }
  p.end_dict();
  p.str("param_groups");
  torch::write_json(p, layout.param_groups, write_none);
  p.end_dict();
  p.str("unishard");
  torch::write_json(p, layout.rest, {});
  p.end_dict();
}

/// Writes the object as another file of this format had it; returns false, and writes nothing, when
/// the catalog is no longer what that file held.
bool write_as_it_was(const Catalog& catalog, const Json& layout, FilePlan& file,
                     std::vector<std::string>& notes) {
  if (!layout.is_object()) return false;
  std::unordered_map<std::string, std::size_t> by_label;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    by_label.emplace(catalog.tensors[i].fqn + '\n' + catalog.tensors[i].state, i);
  NameMap tensors;
  std::unordered_set<std::size_t> used;
  for (const Json& row : layout["tensors"]) {
    const auto found = by_label.find(row[1].get<std::string>() + '\n' + row[2].get<std::string>());
    if (found == by_label.end()) return false;
    tensors.emplace(row[0].get<std::string>(), found->second);
    used.insert(found->second);
  }
  std::unordered_map<std::string, float> scalars;
  NameMap known = tensors;
  for (const Json& row : layout["scalars"]) {
    scalars.emplace(row[0].get<std::string>(), row[1].get<float>());
    known.emplace(row[0].get<std::string>(), 0);
  }
  const Json& object = layout["object"];
  if (used.size() != catalog.tensors.size() || !all_known(object, known)) return false;
  if (!can_be_pickled(object, notes)) return false;
  torch::write_json(file.pickle, object, [&](PickleWriter&, const std::string& name) {
    const auto scalar = scalars.find(name);
    scalar == scalars.end() ? file.tensor(tensors.at(name)) : file.scalar(scalar->second);
  });
  return true;
}

/// Returns the archive's root folder: the stem of the path, as torch names it.
std::string root_of(const Path& file) { return file.stem().string(); }

void plan_single_file(const Catalog& catalog, const Json& layout, const Path& output,
                      torch::TorchOutput& files, OutputPlan& plan) {
  FilePlan file(catalog);
  if (write_as_it_was(catalog, layout, file, plan.notes))
    return file.finish("", root_of(output), files, plan);
  const NameMap names = tensors_by_name(catalog);
  const bool is_object =
      catalog.client_state.is_object() && catalog.client_state.contains("object");
  const Json object = is_object ? catalog.client_state["object"] : Json();
  const bool object_fits =
      is_object && all_known(object, names) && can_be_pickled(object, plan.notes);
  if (object_fits && is_one_state_each(catalog)) {
    torch::write_json(file.pickle, object,
                      [&](PickleWriter&, const std::string& name) { file.tensor(names.at(name)); });
  } else if (!is_one_state_each(catalog) || (!is_object && needs_text(catalog))) {
    write_training_state(catalog, file);
  } else {
    if (is_object)
      plan.notes.push_back("the object around the tensors; a flat state dict is written");
    std::vector<std::size_t> all(catalog.tensors.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    write_state_dict(catalog, all, file);
  }
  file.finish("", root_of(output), files, plan);
}

std::string index_json(const Catalog& catalog, const std::vector<std::string>& file_of) {
  std::uint64_t total = 0;
  SortedJson weight_map = SortedJson::object();
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    total += catalog.tensors[i].bytes();
    weight_map[catalog.tensors[i].fqn] = file_of[i];
    by_name.emplace(catalog.tensors[i].fqn, i);
  }
  for (const Alias& alias : catalog.aliases)
    weight_map[alias.fqn] = file_of[by_name.at(alias.target)];
  return SortedJson{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(2) +
         "\n";
}

/// Returns the text of the index, empty for a single file.
std::string plan_folder(const Catalog& catalog, std::uint64_t max_shard_bytes,
                        torch::TorchOutput& files, OutputPlan& plan) {
  if (!is_one_state_each(catalog)) {
    raise(ErrorCode::InvalidArgument,
          "a folder of pytorch_model.bin holds one state per parameter, and this checkpoint has "
          "several",
          "take `zero_to_fp32`, or name a .pt file");
  }
  std::vector<std::uint64_t> sizes;
  sizes.reserve(catalog.tensors.size());
  for (const TensorInfo& tensor : catalog.tensors) sizes.push_back(tensor.bytes());
  const auto split = safetensors::split_files(sizes, max_shard_bytes);
  std::vector<std::string> file_of(catalog.tensors.size());
  for (std::size_t i = 0; i < split.size(); ++i) {
    const std::string name = safetensors::model_file_name(i, split.size(), "pytorch_model", ".bin");
    FilePlan file(catalog);
    write_state_dict(catalog, split[i], file);
    file.finish(name, root_of(name), files, plan);
    for (const std::size_t index : split[i]) file_of[index] = name;
  }
  return split.size() > 1 ? index_json(catalog, file_of) : std::string();
}

}  // namespace

std::unique_ptr<Sink> make_torch_sink(Storage& storage, const Path& output, Catalog catalog,
                                      TorchOptions options, const WorkSplit& share) {
  const bool is_folder = options.max_shard_bytes != 0;
  auto partial = std::make_shared<PartialOutput>(
      storage, output, is_folder ? PartialOutput::Shape::Folder : PartialOutput::Shape::File,
      share);
  auto files = std::make_unique<torch::TorchOutput>(storage, partial->path());
  OutputPlan plan;
  std::string index;
  if (is_folder) {
    index = plan_folder(catalog, options.max_shard_bytes, *files, plan);
  } else {
    plan_single_file(catalog, options.layout, partial->output(), *files, plan);
  }
  auto complete = [&storage, partial, index, side_files = std::move(options.side_files)] {
    for (const auto& [name, content] : side_files)
      replace_text(storage, partial->path() / name, content);
    if (!index.empty())
      replace_text(storage, partial->path() / "pytorch_model.bin.index.json", index);
  };
  return std::make_unique<torch::PlacedSink>(
      std::move(catalog), std::move(plan),
      torch::Ending{.partial = partial, .complete = std::move(complete)}, std::move(files), share);
}

}  // namespace unishard::converters
