#include "workflows/run_files.hpp"

#include "unishard/converters/adapter_names.hpp"
#include "unishard/converters/damaged_files.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/manifest.hpp"

#include "workflows/model_config.hpp"
#include "workflows/native_folder.hpp"
#include "workflows/side_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace unishard::tools {
namespace {

using converters::OutputShape;

constexpr std::string_view kDeepSpeedFormats = "deepspeed";
constexpr std::array<std::string_view, 2> kModelConfigs = {"config.json", "adapter_config.json"};

/// Returns the folder of the run in which a checkpoint of DeepSpeed lies, or `path` when it is that
/// folder.
Path run_folder(const Path& path) {
  const Path folder = absolute_folder(path);
  const auto is_tag = [](const converters::TagFolder& each) {
    return each.format.starts_with(kDeepSpeedFormats);
  };
  // The model of a Trainer may lie beside the tag.
  const auto folders = converters::list_sub_folders(posix_storage(), folder);
  return std::ranges::any_of(folders, is_tag) ? folder : folder.parent_path();
}

bool has_file(const Path& folder, std::string_view name) {
  return posix_storage().kind(folder / name) == EntryKind::File;
}

/// Returns the folder in which the files beside the checkpoint lie.
Path folder_beside(const converters::Source& source, const Path& input) {
  const Path& opened = source.path().empty() ? input : source.path();
  if (source.format().starts_with(kDeepSpeedFormats)) return run_folder(opened);
  return source.format() == "native"
             ? converters::folder_of_plug_in(posix_storage(), opened, source.catalog())
             : opened;
}

constexpr std::string_view kFolderOfVerl = "huggingface";

/// The file name, without suffix, under which diffusers looks for the weights of a model.
constexpr std::string_view kDiffusersStem = "diffusion_pytorch_model";

/// Whether a config.json among `files` is one that diffusers has written.
bool is_of_diffusers(const converters::SideFiles& files) {
  return std::ranges::any_of(files, [](const auto& file) {
    if (file.first != kModelConfigs[0]) return false;
    const SortedJson config = SortedJson::parse(file.second, nullptr, false);
    return config.is_object() && config.contains("_diffusers_version");
  });
}

/// Whether the weights that were read have the name that diffusers gives them.
bool has_name_of_diffusers(const Path& opened) {
  const auto is_named = [](const Path& name) { return name.string().starts_with(kDiffusersStem); };
  if (posix_storage().kind(opened) != EntryKind::Directory) return is_named(opened.filename());
  return !has_file(opened, "model.safetensors") &&
         std::ranges::any_of(posix_storage().list(opened), is_named, &Entry::name);
}

bool has_model_config(const Path& folder) {
  return std::ranges::any_of(kModelConfigs,
                             [&](std::string_view name) { return has_file(folder, name); });
}

/// A checkpoint of UniShard's own has its model's files in the folder of the tag, where a
/// conversion put them, or beside `latest`, where users do.
Path model_folder_beside(const converters::Source& source, const Path& beside, const Path& input) {
  if (!source.model_folder().empty()) return source.model_folder();
  if (has_model_config(beside)) return beside;
  // verl keeps configuration and tokenizer in a folder beside the files of the ranks.
  Path within = beside / kFolderOfVerl;
  if (has_model_config(within)) return within;
  return source.format() == "native" ? input : beside;
}

bool is_file_beside(const converters::Loss& loss) {
  return loss.role == converters::Role::SideFile || loss.role == converters::Role::OtherModel;
}

/// Removes the losses of files that are copied, and of the folder `model` where they lie in it.
void forget_copied(const converters::SideFiles& files, const Path& model,
                   converters::Losses& losses) {
  std::erase_if(losses, [&](const converters::Loss& loss) {
    const bool is_their_folder =
        !files.empty() && loss.name == kFolderOfVerl && model.filename() == kFolderOfVerl;
    return is_file_beside(loss) &&
           (is_their_folder ||
            std::ranges::count(files, loss.name, &converters::SideFiles::value_type::first) > 0);
  });
}

/// Removes files that are damaged, which a program would fail to load: the losses name them.
void leave_out_damaged(const converters::Losses& losses, converters::SideFiles& files) {
  std::erase_if(files, [&](const auto& file) {
    return std::ranges::any_of(losses, [&](const converters::Loss& loss) {
      return loss.is_broken && loss.name == file.first;
    });
  });
}

/// A file that is there and cannot be taken is named once: by its loss, if it has one.
void forget_named(const Path& beside, ConversionNotes& notes) {
  std::erase_if(notes.left_out, [&](const std::string& line) {
    return std::ranges::any_of(notes.lost, [&](const converters::Loss& loss) {
      return loss.is_broken && line.starts_with(loss.name + ": ") && has_file(beside, loss.name);
    });
  });
}

/// A model that PEFT has wrapped is none of transformers, which would make the weights anew without
/// an error.
void leave_out_config_of_wrapped(const Catalog& target, converters::SideFiles& files,
                                 std::vector<std::string>& remarks) {
  constexpr std::string_view kWrapped = ".base_layer.";
  const auto wrapped = std::ranges::find_if(target.tensors, [&](const TensorInfo& tensor) {
    return tensor.fqn.find(kWrapped) != std::string::npos;
  });
  if (wrapped == target.tensors.end()) return;
  const auto is_config = [](const auto& file) { return file.first == kModelConfigs[0]; };
  if (std::erase_if(files, is_config) == 0) return;
  remarks.push_back(
      fmt::format("{} and others have the names that PEFT's wrappers give, which from_pretrained() "
                  "does not know: config.json is left out. Load the weights into the model of PEFT "
                  "that was trained, or merge the adapter there (merge_and_unload)",
                  unishard::quote(wrapped->fqn)));
}

/// The states of random generators are files of the ranks, which nobody can divide.
void remark_on_generators(const converters::SideFiles& files, std::uint32_t world_size,
                          std::vector<std::string>& remarks) {
  const auto count = std::ranges::count_if(files, [](const auto& file) {
    return file.first.starts_with("rng_state") || file.first.starts_with("random_states_");
  });
  if (count == 0 || std::cmp_equal(count, world_size)) return;
  remarks.push_back(
      fmt::format("the states of random generators are those of {} ranks and are copied as they "
                  "are: of {} ranks, one that has none goes on with new random numbers",
                  count, world_size));
}

/// Of a Trainer or of accelerate, whose files are those of all ranks together.
void remark_on_ranks(const converters::Output& output, const Catalog& source, const Catalog& target,
                     std::vector<std::string>& remarks) {
  if (output.format != "trainer" && output.format != "accelerate") return;
  if (source.world_size == target.world_size) return;
  remarks.push_back(
      fmt::format("a {} folder is the same for every number of ranks: {} ranks can go on from it, "
                  "and one that has no file of random states does so with new random numbers",
                  output.format, target.world_size));
}

/// The weights that a Trainer stores beside DeepSpeed's files are in those, too, as a rule.
void remark_on_copies(const Path& beside, std::vector<std::string>& remarks) {
  constexpr std::array<const char*, 5> kModels = {
      "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors",
      "adapter_model.bin", "pytorch_model.bin"};
  for (const char* name : kModels) {
    if (has_file(beside, name))
      remarks.push_back(fmt::format(
          "{} is not copied, and was not compared with the checkpoint: zero_to_fp32 writes the "
          "checkpoint's own weights",
          name));
  }
}

/// Returns the names of what lies in a checkpoint's own folder without being a part of it: the
/// meta.pt of Lightning, the configuration of a model. None for a format whose programs look for
/// other files.
std::vector<std::string> names_beside(const converters::Source& source, const Path& beside,
                                      std::string_view format) {
  std::vector<std::string> names;
  if (format != "dcp" && format != "native") return names;
  if (source.format() == "dcp") {
    for (const converters::Loss& loss : source.losses()) {
      if (is_file_beside(loss)) names.push_back(loss.name);
    }
  } else if (source.format() == "native" && has_file(beside, kManifestFile)) {
    for (const Entry& entry : posix_storage().list(beside)) {
      if (entry.kind == EntryKind::File) names.push_back(entry.name);
    }
  }
  return names;
}

/// The files of a Trainer's or accelerate's folder, else those that go with a model.
converters::SideFiles files_to_go_on(const converters::Source& source, const Path& beside,
                                     const Path& input, std::string_view format,
                                     std::vector<std::string>& left_out) {
  const Path model = model_folder_beside(source, beside, input);
  converters::SideFiles files = find_trainer_files(beside, left_out);
  const bool is_named = source.model_folder() == model;
  if (!files.empty() && !is_named) return files;
  if (is_named)  // an adapter at the top is another one
    std::erase_if(files, [](const auto& file) { return file.first == kModelConfigs[1]; });
  if (files.empty())
    files = find_named_files(beside, names_beside(source, beside, format), left_out);
  if (!files.empty() && model == beside) return files;
  // Beside the tags of DeepSpeed lies what users put there, of which a model is only known for sure
  // by its configuration.
  if (source.format().starts_with(kDeepSpeedFormats) && !has_model_config(model)) return {};
  for (auto& file : find_side_files(model, left_out)) {
    if (std::ranges::count(files, file.first, &converters::SideFiles::value_type::first) == 0)
      files.push_back(std::move(file));
  }
  return files;
}

/// Names the files that stay behind because nobody knows what they are.
void note_unknown_files(const converters::Source& source, const Path& beside,
                        std::vector<std::string>& left_out) {
  if (source.format() != "trainer" && source.format() != "accelerate") return;
  const converters::Losses losses = source.losses();
  for (const std::string& name : find_unknown_files(beside)) {
    if (std::ranges::count(losses, name, &converters::Loss::name) > 0) continue;  // named already
    left_out.push_back(
        fmt::format("{}: neither a part of the checkpoint nor a file that a "
                    "training is known to need",
                    name));
  }
}

void take_run_files(const converters::Source& source, const Path& beside, const Path& input,
                    const ConversionPlan& plan, converters::Output& output,
                    ConversionNotes& notes) {
  note_unknown_files(source, beside, notes.left_out);
  output.side_files = files_to_go_on(source, beside, input, output.format, notes.left_out);
  leave_out_damaged(notes.lost, output.side_files);
  if (output.side_files.empty()) return;
  const bool is_deepspeed = output.format.starts_with(kDeepSpeedFormats);
  if (!is_deepspeed)
    std::erase_if(output.side_files,  // scripts of DeepSpeed
                  [](const auto& file) { return file.first.starts_with("zero_to_"); });
  if (output.format != source.format()) adapt_model_config(output.side_files, plan.target);
  if (is_deepspeed) remark_on_generators(output.side_files, plan.target.world_size, notes.remarks);
  remark_on_ranks(output, source.catalog(), plan.target, notes.remarks);
  if (source.format().starts_with(kDeepSpeedFormats) && is_deepspeed)
    remark_on_copies(beside, notes.remarks);
}

/// Whether nothing in the checkpoint counts its steps. SGD does not, and a schedule may be missing.
bool lacks_steps(const Catalog& catalog) {
  const Json& position = catalog.data_position;
  const bool is_counted = position.is_object() && position.contains("global_steps");
  return catalog.step == 0 && !is_counted;
}

/// The Trainer goes on with the intervals of trainer_state.json, whatever its arguments say.
void remark_on_new_progress(const converters::Output& output, const Catalog& target,
                            std::vector<std::string>& remarks) {
  const std::vector<std::string> names = names_of(output.side_files);
  if (output.format != "trainer" || std::ranges::count(names, kTrainerState) > 0) return;
  remarks.push_back(fmt::format(
      "{} is new: the Trainer takes save_steps, logging_steps and eval_steps from it, "
      "500 each, and not from its arguments; write yours into the file before you resume",
      kTrainerState));
  if (lacks_steps(target))
    remarks.push_back(fmt::format(
        "nothing here counts the steps of the run: global_step is 0 in {}, and the Trainer begins "
        "with the first batch; write the number of steps into the file before you resume",
        kTrainerState));
}

/// The Trainer makes an optimizer of two groups, and loads no other number into it. One that did
/// was made by a subclass.
void remark_on_groups(const converters::Output& output, const Catalog& target,
                      std::vector<std::string>& remarks) {
  constexpr std::size_t kGroupsOfTrainer = 2;
  const bool is_of_trainer =
      target.producer.is_object() && target.producer.value("library", Json()) == "transformers";
  if (output.format != "trainer" || is_of_trainer || !target.groups.is_array() ||
      target.groups.size() == kGroupsOfTrainer)
    return;
  remarks.push_back(fmt::format(
      "the optimizer has {} parameter group{}, and the Trainer makes two, with and without weight "
      "decay, and loads no other number: resume with a subclass of Trainer whose "
      "create_optimizer() makes the groups of the run, with the same parameters in each",
      target.groups.size(), target.groups.size() == 1 ? "" : "s"));
}

/// The Trainer looks for its files beside the tag.
void remark_on_files_in_tag(const converters::Output& output, std::vector<std::string>& remarks) {
  const std::vector<std::string> names = names_of(output.side_files);
  if (output.format != "native" || std::ranges::count(names, kTrainerState) == 0) return;
  remarks.push_back(
      fmt::format("{} and the other files of the Trainer are in the folder of the tag: copy them "
                  "beside it before a Trainer with UniShard's plug-in goes on from there",
                  kTrainerState));
}

std::vector<std::string> names_not_taken(const converters::SideFiles& found,
                                         const converters::Output& output) {
  std::vector<std::string> names = names_of(found);
  const std::vector<std::string> taken = names_of(output.side_files);
  std::erase_if(names,
                [&](const std::string& name) { return std::ranges::count(taken, name) > 0; });
  return names;
}

/// Says which files of a model a single file cannot hold.
void remark_on_model_files(const Path& model, const converters::Output& output,
                           std::vector<std::string>& remarks) {
  std::vector<std::string> ignored;
  const auto lost = names_not_taken(find_side_files(model, ignored), output);
  if (!lost.empty())
    remarks.push_back(
        fmt::format("one {} file holds no {}: copy {} yourself, or name a folder of safetensors",
                    output.format, fmt::join(lost, ", "), lost.size() == 1 ? "it" : "them"));
}

/// Says which files of a training run a model folder or file cannot hold.
void note_lost_run_files(const Path& beside, const ConversionPlan& plan,
                         const converters::Output& output, ConversionNotes& notes) {
  if (plan.target.groups.is_null()) return;  // only the model was asked for
  std::vector<std::string> ignored;
  const auto lost = names_not_taken(find_trainer_files(beside, ignored), output);
  if (!lost.empty())
    notes.left_out.push_back(fmt::format("files of the training run: {}", fmt::join(lost, ", ")));
}

/// Keeps the tensors of the adapter, under the names that PEFT reads.
void keep_adapter(const converters::AdapterFile& adapter, ConversionPlan& plan,
                  std::vector<std::string>& left_out) {
  ConversionPlan kept = plan;
  kept.target.tensors.clear();
  kept.tensor_map.clear();
  for (std::size_t i = 0; i < plan.tensor_map.size(); ++i) {
    TensorInfo tensor = plan.target.tensors[i];
    auto name = adapter.name_of(tensor.fqn);
    if (!name) continue;
    tensor.fqn = std::move(*name);
    kept.target.tensors.push_back(std::move(tensor));
    kept.tensor_map.push_back(plan.tensor_map[i]);
  }
  kept.target.aliases.clear();
  const std::size_t base = plan.tensor_map.size() - kept.tensor_map.size();
  if (base > 0)
    left_out.push_back(fmt::format(
        "{} parameters of the base model, or of other adapters than \"default\"", base));
  plan = std::move(kept);
}

/// A Trainer's folder has the tensors of the adapter alone, and no second names of others.
void forget_base_aliases(const converters::AdapterFile& adapter, Catalog& target) {
  std::erase_if(target.aliases, [&](const Alias& alias) { return !adapter.name_of(alias.target); });
}

/// Whether the names are those of modules: in an adapter's folder they are PEFT's already.
/// Throws: as AdapterFile::name_of().
bool has_module_names(const converters::AdapterFile& adapter, const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [&](const TensorInfo& tensor) {
    return adapter.name_of(tensor.fqn).value_or(tensor.fqn) != tensor.fqn;
  });
}

/// Whether every tensor is the only one of its parameter.
bool is_model_alone(const Catalog& catalog) {
  return model_tensors(catalog).size() == catalog.tensors.size();
}

/// PEFT would take a folder with other tensors in its file for an adapter without weights.
void require_adapter_alone(const ConversionPlan& plan, const converters::Output& output) {
  if (is_model_alone(plan.target)) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} would be the folder of an adapter, which has no place for the optimizer",
                    output.path.string()),
        "--weights-only writes the adapter, --to trainer all; a name that ends in .safetensors "
        "makes one file of all tensors; nothing was written");
}

/// Gives one file the names that PEFT reads, where the adapter is all that it holds.
void name_adapter_file(const converters::AdapterFile& adapter, ConversionPlan& plan,
                       ConversionNotes& notes) {
  if (!is_model_alone(plan.target)) return;
  try {
    if (!has_module_names(adapter, plan.target)) return;
    const bool is_all = std::ranges::all_of(plan.target.tensors, [&](const TensorInfo& tensor) {
      return adapter.name_of(tensor.fqn).has_value();
    });
    if (is_all) return keep_adapter(adapter, plan, notes.left_out);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;  // an adapter that has no file of its own
  }
  notes.remarks.push_back(
      "the adapter's parameters have the names of the model's modules, which PEFT does not read: "
      "name a folder of safetensors for PEFT");
}

/// Whether the catalog records an adapter whose names a reader of the result finds again: in the
/// file of an optimizer with states.
bool is_recorded_adapter(const Catalog& catalog) {
  const auto is_state = [](const TensorInfo& tensor) {
    return tensor.state != state::kWeights && tensor.state != state::kBuffer;
  };
  return converters::is_of_adapter(catalog) && std::ranges::any_of(catalog.tensors, is_state);
}

bool is_beside_adapter(const Path& beside, const Path& model) {
  return has_file(beside, fmt::format("{}.safetensors", converters::kAdapterStem)) ||
         has_file(beside, fmt::format("{}.bin", converters::kAdapterStem)) ||
         has_file(model, kModelConfigs[1]);
}

/// Whether the source is the whole model of a folder, beside which an adapter may lie that was
/// merged into it.
bool is_whole_model(const converters::Source& source, const Path& model) {
  constexpr std::array<const char*, 4> kWhole = {
      "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
      "pytorch_model.bin.index.json"};
  return std::ranges::any_of(kWhole, [&](const char* name) { return has_file(model, name); }) &&
         !converters::has_adapter_names(source.catalog());
}

/// Beside a whole model, the configuration of an adapter would make transformers look for one.
void leave_out_config_of_adapter(converters::Output& output, std::vector<std::string>& left_out) {
  const auto removed = std::erase_if(
      output.side_files, [](const auto& file) { return file.first == kModelConfigs[1]; });
  if (removed > 0)
    left_out.push_back(fmt::format(
        "{}: the result is the whole model, and transformers would look for an adapter beside it",
        kModelConfigs[1]));
}

}  // namespace

Path config_folder(const converters::Source& source, const Path& input) {
  const Path folder = model_folder(source, input);
  const bool is_file = posix_storage().kind(folder) == EntryKind::File;
  return is_file ? absolute_folder(folder).parent_path() : folder;
}

Path model_folder(const converters::Source& source, const Path& input) {
  return model_folder_beside(source, folder_beside(source, input), input);
}

void take_side_files(const converters::Source& source, const Path& input, ConversionPlan& plan,
                     converters::Output& output, ConversionNotes& notes) {
  const Path beside = folder_beside(source, input);
  const Path model = model_folder_beside(source, beside, input);
  const bool is_adapter = is_recorded_adapter(source.catalog()) ||
                          (is_beside_adapter(beside, model) && !is_whole_model(source, model));
  const OutputShape shape = converters::format_entry(output.format).shape;
  const bool goes_on = shape == OutputShape::Tags || shape == OutputShape::Folder;
  if (is_adapter) output.stem = converters::kAdapterStem;
  if (output.format == "gguf") {  // takes only the model's configuration
    std::vector<std::string> unused;
    output.side_files = model_side_files(model, source.catalog(), plan.target, unused);
    std::erase_if(output.side_files,
                  [](const auto& file) { return file.first != kModelConfigs[0]; });
  }
  const converters::AdapterFile adapter(source.catalog());
  if (is_adapter && output.max_shard_bytes == 0 && !goes_on)
    name_adapter_file(adapter, plan, notes);
  if (output.max_shard_bytes != 0) {
    if (output.format == "safetensors" && is_adapter) {
      require_adapter_alone(plan, output);
      if (has_module_names(adapter, plan.target)) keep_adapter(adapter, plan, notes.left_out);
    }
    // Those beside a file are its own only where a model's configuration is among them.
    const Path folder = config_folder(source, input);
    const bool is_its_own =
        has_file(folder, kModelConfigs[0]) && !has_file(folder, kModelConfigs[1]);
    output.side_files = model_side_files(is_its_own ? folder : model, source.catalog(), plan.target,
                                         notes.left_out);
    const Path& opened = source.path().empty() ? input : source.path();
    if (is_of_diffusers(output.side_files) || has_name_of_diffusers(opened))
      output.stem = kDiffusersStem;
  }
  if (is_adapter && (output.format == "trainer" || output.format == "accelerate"))
    forget_base_aliases(adapter, plan.target);
  if (goes_on) {
    take_run_files(source, beside, input, plan, output, notes);
    remark_on_new_progress(output, plan.target, notes.remarks);
    remark_on_groups(output, plan.target, notes.remarks);
    remark_on_files_in_tag(output, notes.remarks);
  } else {
    note_lost_run_files(beside, plan, output, notes);
    if (output.max_shard_bytes == 0) remark_on_model_files(model, output, notes.remarks);
  }
  if (output.max_shard_bytes != 0)
    leave_out_config_of_wrapped(plan.target, output.side_files, plan.remarks);
  if (!is_adapter) leave_out_config_of_adapter(output, notes.left_out);
  forget_copied(output.side_files, model, notes.lost);
  forget_named(beside, notes);
}

}  // namespace unishard::tools
