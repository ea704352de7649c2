// The layout is that of the torch.save file that was read, also when the checkpoint was in other
// formats in between, if it still fits. Else it depends on the catalog.
// One state per parameter: a state dict, in one file or in shards with an index as Hugging Face
// stores them. The tensors of a torch.save object: the same object. A training state: {"model":
// ..., "optimizer": {"state": {fqn: ...}, "param_groups": ...}}, with everything else as JSON under
// "unishard", from which UniShard's source restores it.
#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/archive_draft.hpp"
#include "containers/pickle_json.hpp"
#include "containers/pickle_writer.hpp"
#include "containers/placed_sink.hpp"
#include "core/embedded_catalog.hpp"
#include "core/file_split.hpp"
#include "core/partial_output.hpp"
#include "core/wrapped_names.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/torch/recorded_file.hpp"
#include "formats/torch/training_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace unishard::converters {
namespace {

using torch::ArchiveDraft;
using torch::OutputPlan;
using torch::PickleWriter;

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

/// Returns whether `names` has every tensor of the object.
bool all_known(const Json& object, const NameMap& names) {
  return std::ranges::all_of(torch::tensors_in(object),
                             [&](const std::string& name) { return names.contains(name); });
}

/// Writes a state dict. `wrapped` tells the names of the file.
void write_state_dict(const Catalog& catalog, const std::vector<std::size_t>& tensors,
                      const WrappedNames& wrapped, ArchiveDraft& file) {
  std::unordered_map<std::string_view, std::vector<std::string_view>> aliases;
  for (const Alias& alias : catalog.aliases) aliases[alias.target].push_back(alias.fqn);
  file.pickle.begin_ordered_dict();
  for (const std::size_t index : tensors) {
    const std::string& fqn = catalog.tensors[index].fqn;
    file.pickle.str(wrapped.name_of(fqn));
    file.tensor(index);
    for (const std::string_view alias : aliases[fqn]) {
      file.pickle.str(wrapped.name_of(std::string(alias)));
      file.tensor(index);
    }
  }
  file.pickle.end_dict();
}

void write_training_state(const Catalog& catalog, ArchiveDraft& file,
                          std::vector<std::string>& notes) {
  const torch::TrainingLayout layout = torch::plan_training_layout(catalog, notes);
  torch::write_json(file.pickle, layout.object, [&](PickleWriter& pickle, const std::string& name) {
    if (const auto step = layout.steps.find(name); step != layout.steps.end())
      return file.scalar(step->second);
    if (const auto known = layout.constants.find(name); known != layout.constants.end())
      return file.constant(known->second.dtype, known->second.shape, known->second.bytes);
    const auto tensor = layout.tensors.find(name);
    if (tensor == layout.tensors.end()) return pickle.none();
    file.tensor(tensor->second);
  });
}

/// Writes the object as another file of this format had it; returns false, and writes nothing, when
/// the catalog is no longer what that file held.
bool write_as_it_was(const Catalog& catalog, const Json& layout, ArchiveDraft& file,
                     std::vector<std::string>& notes) {
  const auto contents = dcp::KeyedContents::match(layout, catalog);
  if (!contents) return false;
  const auto object = contents->writable(layout["object"], notes);
  if (object) contents->write(*object, file);
  return object.has_value();
}

/// Adds the first key of each tensor in `value` to `names`, which has one entry per catalog tensor.
void find_names(const Json& value, const dcp::KeyedContents& contents,
                std::vector<std::string>& names) {
  if (value.is_object() && value.contains("$tensor")) {
    const auto& key = value["$tensor"].get_ref<const std::string&>();
    const auto index = contents.tensor(key);
    if (index && names[*index].empty()) names[*index] = key;
  } else if (value.is_structured()) {
    for (const Json& child : value) find_names(child, contents, names);
  }
}

/// Writes the object that the catalog records, with the catalog beside it unless the object says
/// all of it; returns false, and writes nothing, when there is none.
bool write_as_recorded(const Catalog& catalog, ArchiveDraft& file,
                       std::vector<std::string>& notes) {
  const auto recorded = torch::recorded_file(catalog);
  if (!recorded) return false;
  auto object = recorded->contents.writable(recorded->object, notes);
  if (!object) return false;
  if (!is_plain_model(catalog)) {
    std::vector<std::string> names(catalog.tensors.size());
    find_names(*object, recorded->contents, names);
    object = torch::with_member(std::move(*object), torch::kOurKey,
                                {{"catalog", catalog_text(catalog, names)}});
  }
  recorded->contents.write(*object, file);
  return true;
}

void plan_single_file(const Catalog& catalog, const Json& layout, const Path& output,
                      torch::TorchOutput& files, OutputPlan& plan) {
  ArchiveDraft file(plan, catalog, files.size());
  const auto finish = [&] { files.add(file.finish("", output.stem().string())); };
  if (write_as_it_was(catalog, layout, file, plan.notes) ||
      write_as_recorded(catalog, file, plan.notes))
    return finish();
  if (torch::had_several_parts(catalog))
    plan.notes.emplace_back(
        "the arrangement of the torch.save file that was read: all is written as one model and one "
        "optimizer under the usual keys, with the names that this program gives the parameters");
  const NameMap names = tensors_by_name(catalog);
  const bool is_object =
      catalog.client_state.is_object() && catalog.client_state.contains("object");
  std::optional<Json> object;
  if (is_object && is_one_state_each(catalog) && all_known(catalog.client_state["object"], names))
    object = torch::with_all_tensors(catalog.client_state["object"], {}, plan.notes);
  if (object) {
    torch::write_json(file.pickle, *object,
                      [&](PickleWriter&, const std::string& name) { file.tensor(names.at(name)); });
  } else if (!is_one_state_each(catalog) || (!is_object && !is_plain_model(catalog))) {
    write_training_state(catalog, file, plan.notes);
  } else {
    if (is_object)
      plan.notes.push_back("the object around the tensors; a flat state dict is written");
    std::vector<std::size_t> all(catalog.tensors.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    note_metadata(catalog, plan.notes);
    write_state_dict(catalog, all, WrappedNames(catalog, "torch"), file);
  }
  finish();
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
std::string plan_folder(const Catalog& catalog, const TorchOptions& options,
                        torch::TorchOutput& files, OutputPlan& plan) {
  if (!is_one_state_each(catalog)) {
    raise(ErrorCode::InvalidArgument,
          "a folder of pytorch_model.bin holds one state per parameter, and this checkpoint has "
          "several",
          "take `zero_to_fp32`, or name a .pt file");
  }
  const auto extra = std::ranges::find(catalog.tensors, kExtraState, &TensorInfo::state);
  if (extra != catalog.tensors.end()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("a folder of pytorch_model.bin holds a model, and {} is no part of one",
                      unishard::quote(extra->fqn)),
          "add --weights-only, or name a .pt file");
  }
  note_metadata(catalog, plan.notes);
  std::vector<std::uint64_t> sizes;
  sizes.reserve(catalog.tensors.size());
  for (const TensorInfo& tensor : catalog.tensors) sizes.push_back(tensor.bytes());
  const auto split = safetensors::split_files(sizes, options.max_shard_bytes);
  std::vector<std::string> file_of(catalog.tensors.size());
  for (std::size_t i = 0; i < split.size(); ++i) {
    const std::string name = safetensors::model_file_name(i, split.size(), options.stem, ".bin");
    ArchiveDraft file(plan, catalog, files.size());
    write_state_dict(catalog, split[i], WrappedNames({}), file);
    files.add(file.finish(name));
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
    index = plan_folder(catalog, options, *files, plan);
  } else {
    plan_single_file(catalog, options.layout, partial->output(), *files, plan);
  }
  auto complete = [&storage, partial, index, stem = options.stem,
                   side_files = std::move(options.side_files)] {
    for (const auto& [name, content] : side_files)
      replace_text(storage, partial->path() / name, content);
    if (!index.empty())
      replace_text(storage, partial->path() / fmt::format("{}.bin.index.json", stem), index);
  };
  return std::make_unique<torch::PlacedSink>(
      std::move(catalog), std::move(plan),
      torch::Ending{.partial = partial, .complete = std::move(complete)}, std::move(files), share);
}

}  // namespace unishard::converters
