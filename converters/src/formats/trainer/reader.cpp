#include "formats/trainer/reader.hpp"

#include "unishard/converters/adapter_names.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "containers/equal_elements.hpp"
#include "containers/object_tree.hpp"
#include "core/embedded_catalog.hpp"
#include "core/file_records.hpp"
#include "core/later_changes.hpp"
#include "core/model_tensors.hpp"
#include "core/wrapped_names.hpp"
#include "formats/dcp/distributed_tensor.hpp"
#include "formats/dcp/groups.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/raw_names.hpp"
#include "formats/dcp/safetensors_pieces.hpp"
#include "formats/dcp/schedule_files.hpp"
#include "formats/dcp/state_dict_source.hpp"
#include "formats/dcp/state_files.hpp"
#include "formats/safetensors/model_folder.hpp"
#include "formats/torch/weight_index.hpp"
#include "formats/trainer/folder.hpp"
#include "formats/trainer/further_parts.hpp"
#include "formats/trainer/known_models.hpp"
#include "formats/trainer/listed_tensors.hpp"
#include "formats/trainer/module_shapes.hpp"
#include "formats/trainer/parameter_names.hpp"
#include "formats/trainer/renamed_names.hpp"
#include "formats/trainer/trainer_state.hpp"
#include "formats/trainer/whole_model.hpp"
#include "reading/completeness.hpp"
#include "reading/folder_names.hpp"
#include "reading/model_type.hpp"
#include "reading/state_doubts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <utility>

namespace unishard::converters {
namespace trainer {
namespace {

using dcp::StateDictBuilder;
using torch::TorchFile;

constexpr const char *kModel = "model", *kOptimizer = "optimizer";

std::optional<Program> program_of(Storage& storage, const Path& path) {
  try {
    return find_program(storage, path);
  } catch (const Error&) {
    return std::nullopt;  // another reader reports what cannot be examined
  }
}

using Pieces = std::vector<dcp::SafetensorsPiece>;

constexpr std::string_view kSplitExperts =
    "the model's file has the experts one by one, and the optimizer has them stacked: the "
    "Trainer of transformers 5.23 does not load them when it resumes from this folder, and "
    "reports no error. It does load them from one that `unishard convert --to trainer` writes";

/// The remark on a model whose files have the tensor `name`, and whose module does not.
std::string renamed_remark(std::string_view name) {
  return fmt::format(
      "the model's file has names of the hub, such as {}, which transformers 5 does not use for "
      "its modules: the Trainer of transformers 5.23 loads no such tensor when it resumes, and "
      "reports no error. AutoModel's from_pretrained() loads them",
      quote(name));
}

/// Adds a piece of the tensor `name` below `key`.
void add_piece(StateDictBuilder& builder, const std::string& key, const std::string& name,
               const Shape& shape, dcp::SafetensorsPiece piece) {
  builder.add_piece(fmt::format("{}.{}", key, name), {{key, false}, {name, false}}, shape,
                    std::move(piece.box), std::move(piece.view));
}

/// What was read of a model.
struct ReadModel {
  std::vector<std::string> files;                    ///< their names
  std::optional<AdapterNaming> adapter_naming = {};  ///< of an adapter's file
  AdapterFileNames adapter_names = {};
  bool splits_experts = false;  ///< which the module has stacked
  bool has_all_listed = false;  ///< there is an index, and the files have its tensors and no others
};

bool is_adapter_file(std::string_view name) { return name.starts_with(kAdapterStem); }

/// Returns the name in the catalog.
std::string fqn_of(const ReadModel& model, const std::string& key) {
  return model.adapter_naming == AdapterNaming::Modules
             ? adapter_module_name(key, model.adapter_names)
             : key;
}

/// Makes a tensor of the files the piece of a parameter that `place` says: one of a stack.
void put_in_place(const ModulePlace& place, dcp::SafetensorsPiece& piece) {
  if (piece.view.shape.size() < place.box.sizes.size())
    piece.view.strides.insert(piece.view.strides.begin(), piece.view.elements());
  piece.view.shape = place.box.sizes;
  piece.box = place.box;
}

/// Adds the tensors of the model's files. They are sorted there, so nothing depends on their order.
void add_model(StateDictBuilder& builder, Pieces pieces, const ModuleShapes& module,
               ReadModel& read) {
  const std::vector<std::optional<ModulePlace>> places = module.places(pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    dcp::SafetensorsPiece& piece = pieces[i];
    if (places[i]) {
      read.splits_experts = true;
      put_in_place(*places[i], piece);
      add_piece(builder, kModel, places[i]->parameter, places[i]->shape, std::move(piece));
    } else {
      const Shape shape = piece.box.sizes;
      const std::string fqn = fqn_of(read, piece.key);
      add_piece(builder, kModel, fqn, shape, std::move(piece));
    }
  }
}

/// Says where the index of the model and its files differ.
void compare_with_index(const ListedTensors& listed, StateDictBuilder& builder, ReadModel& read) {
  Losses missing = listed.missing();
  std::vector<std::string> doubts = listed.doubts();
  read.has_all_listed = !listed.empty() && missing.empty() && doubts.empty();
  std::ranges::move(missing, std::back_inserter(builder.out.losses));
  std::ranges::move(doubts, std::back_inserter(builder.out.remarks));
}

ReadModel read_safetensors(Storage& storage, const Path& folder, StateDictBuilder& builder,
                           const ModuleShapes& module) {
  const safetensors::ModelFolder model = safetensors::read_model_folder(storage, folder);
  ReadModel read{model.files};
  builder.out.notes.insert(builder.out.notes.end(), model.notes.begin(), model.notes.end());
  ListedTensors listed(folder / model.index.value_or(""), model.weight_map);
  std::map<std::string, torch::TensorView> found;
  Pieces all;
  for (const std::string& name : model.files) {
    Pieces pieces = dcp::read_pieces(builder.open(folder / name)).pieces;
    std::erase_if(pieces, [&](const dcp::SafetensorsPiece& piece) {
      const auto [earlier, is_new] = found.emplace(piece.key, piece.view);
      listed.add_tensor(piece.key, name);
      if (is_new) return false;
      if (model.is_joined_by_names() && equal_elements(earlier->second, piece.view)) return true;
      raise(ErrorCode::Corrupt, fmt::format("{}: tensor {} is in another file too",
                                            (folder / name).string(), quote(piece.key)));
    });
    if (is_adapter_file(name)) {
      for (const dcp::SafetensorsPiece& piece : pieces) read.adapter_names.insert(piece.key);
      read.adapter_naming = adapter_naming(read.adapter_names);
    }
    std::ranges::move(pieces, std::back_inserter(all));
  }
  compare_with_index(listed, builder, read);
  add_model(builder, std::move(all), module, read);
  return read;
}

/// Returns the names in a state dict; nullopt for another object.
std::optional<std::vector<std::string>> names_in(torch::Value root) {
  if (!root.is_dict()) return std::nullopt;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < root.pair_count(); ++i) {
    if (!root.key(i).is(torch::NodeKind::Str)) return std::nullopt;
    names.emplace_back(root.key(i).text());
  }
  return names;
}

/// Adds an adapter that torch.save wrote, which keeps the order of the module.
AdapterNaming add_adapter(StateDictBuilder& builder, const TorchFile& file) {
  const torch::Value root = file.root();
  const auto names = names_in(root);
  if (!names) {
    builder.add_object(kModel, {{kModel, false}}, file);
    return AdapterNaming::File;
  }
  const AdapterFileNames all(names->begin(), names->end());
  const ReadModel read{.files = {}, .adapter_naming = adapter_naming(all), .adapter_names = all};
  for (std::size_t i = 0; i < names->size(); ++i) {
    const std::string fqn = fqn_of(read, (*names)[i]);
    builder.add_part(fmt::format("{}.{}", kModel, fqn), {{kModel, false}, {fqn, false}}, file,
                     root.value(i));
  }
  return *read.adapter_naming;
}

/// Returns what the index lists of the files that torch.save wrote.
ListedTensors listed_tensors(Storage& storage, const Path& folder) {
  const auto index = torch_model_index(storage, folder);
  if (!index) return {folder, {}};
  ListedTensors::WeightMap weight_map;
  for (const auto& [file, names] : torch::read_weight_index(storage, *index)) {
    for (const std::string& name : names) weight_map.emplace(name, file);
  }
  return {*index, std::move(weight_map)};
}

/// Adds the names in a shard.
void add_names(torch::Value root, const std::string& file, ListedTensors& listed) {
  for (std::size_t i = 0; root.is_dict() && i < root.pair_count(); ++i) {
    if (!root.key(i).is(torch::NodeKind::Str)) continue;
    const std::string name(root.key(i).text());
    const bool is_tensor =
        TorchFile::is_tensor(root.value(i)) || dcp::is_distributed_tensor(root.value(i));
    is_tensor ? listed.add_tensor(name, file) : listed.add_other(name);
  }
}

ReadModel read_torch_model(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  ReadModel read;
  ListedTensors listed = listed_tensors(storage, folder);
  for (const std::string& name : torch_model_files(storage, folder, builder.out.notes)) {
    const std::shared_ptr<const File> opened = builder.open(folder / name);
    const TorchFile file({opened, 0, opened->size()});
    if (const std::string other = dcp::other_name(storage, folder / name, file); !other.empty())
      raise_written_as(folder / name, other);
    if (dcp::is_optimizer_state(file.root()))
      raise(
          ErrorCode::Corrupt,
          fmt::format("{} holds the state of an optimizer, and no model", (folder / name).string()),
          "give each file the name that it was written with");
    read.files.push_back(name);
    add_names(file.root(), name, listed);
    builder.finds_second_keys = true;
    if (is_adapter_file(name)) {
      read.adapter_naming = add_adapter(builder, file);
    } else {
      builder.add_object(kModel, {{kModel, false}}, file);
    }
    builder.finds_second_keys = false;
  }
  compare_with_index(listed, builder, read);
  return read;
}

/// Whether the name is that of a model, an adapter or an optimizer, or of a folder of such.
bool may_hold_states(const Entry& entry) {
  if (entry.kind == EntryKind::Directory) return true;
  const std::string_view name = entry.name;
  return role_of_unread_file(name) == Role::OtherModel ||
         (name.ends_with(".bin") && name.starts_with("optim"));
}

/// Returns the text of config.json; an empty text for one that cannot be read.
std::optional<std::string> model_config(Storage& storage, const Path& folder) {
  constexpr std::uint64_t kConfigBytes = std::uint64_t{16} << 20;
  const Path path = folder / "config.json";
  if (storage.kind(path) != EntryKind::File) return std::nullopt;
  try {
    return read_text(storage, path, kConfigBytes);
  } catch (const Error&) {
    return std::string();  // there is a configuration, and its model is not known
  }
}

/// The embedded catalog that UniShard's sink adds to the optimizer's file.
std::string embedded_text(const Json& optimizer) {
  const std::string key(kCatalogKey);
  if (!optimizer.is_object() || !optimizer.contains(key) || !optimizer[key].is_string()) return {};
  return optimizer[key].get<std::string>();
}

/// Returns the producer of an embedded catalog; null where it has none.
Json producer_in(const std::string& text) {
  const Json saved = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return saved.is_object() ? saved.value("producer", Json()) : Json();
}

/// Returns what was not known of the folder that this one was made of: which of several adapters
/// its optimizer has trained. Empty where nothing was.
/// `producer` is that of the embedded catalog.
std::string doubt_of_original(const Json& producer) {
  std::vector<std::string> names;
  for (const Json& name : file_record(producer, kOtherAdapters)) {
    if (name.is_string()) names.push_back(quote(name.get<std::string>()));
  }
  if (names.empty()) return {};
  return fmt::format(
      "the folder that it was made of had the adapter{} {} too, and nothing told that this one was "
      "trained; --assume-model-order says that it was",
      names.size() == 1 ? "" : "s", first_names(names));
}

/// Restores what the files' names and groups do not express. Returns false, with a note, where
/// another program has changed the model or the optimizer: then the text does not count.
bool restore(const std::string& text, const dcp::StateDict& state, dcp::Arrangement& arranged) {
  constexpr std::string_view kStates = "optimizer.state.";
  Catalog saved;
  for (std::size_t i = 0; i < arranged.catalog.tensors.size(); ++i) {
    TensorInfo tensor = arranged.catalog.tensors[i];
    const std::string key = without_wrappers(state.tensors[arranged.entries[i]].key);
    const bool is_state = key.starts_with(kStates) || tensor.state == kExtraState;
    tensor.fqn = is_state ? fmt::format("{}{}.{}", kStates, tensor.fqn, tensor.state) : key;
    saved.tensors.push_back(std::move(tensor));
  }
  try {
    const std::vector<bool> known = restore_catalog(text, saved, std::string(kCatalogKey));
    if (std::ranges::count(known, false) > 0)
      raise(ErrorCode::Corrupt, "it lacks tensors that are there");
  } catch (const Error& error) {
    arranged.losses.push_back(
        {Role::Metadata, fmt::format("{} of the optimizer's file", kCatalogKey), error.what()});
    return false;
  }
  std::ranges::move(take_later_changes(scalars_of(arranged.catalog), saved),
                    std::back_inserter(arranged.remarks));
  arranged.catalog = std::move(saved);
  return true;
}

/// Returns the names of the model's tensors.
std::vector<std::string> model_names(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor)) names.push_back(tensor.fqn);
  }
  return names;
}

/// Records which modules of the model were compiled.
void record_compiled(const dcp::StateDict& state, std::string_view library,
                     dcp::Arrangement& arranged) {
  const std::string prefix = fmt::format("{}.", kModel);
  std::vector<std::pair<std::string, std::string>> names;
  for (std::size_t i = 0; i < arranged.catalog.tensors.size(); ++i) {
    const std::string& key = state.tensors[arranged.entries[i]].key;
    if (key.starts_with(prefix))
      names.emplace_back(arranged.catalog.tensors[i].fqn, key.substr(prefix.size()));
  }
  const WrappedNames modules(names);
  if (!modules.empty()) modules.record(library, arranged.catalog.producer);
}

/// Whether the user's word that the order is the model's names the parameters.
bool would_fit(OrderSource order, const dcp::NumberedParameters& parameters,
               const std::vector<dcp::NamedShape>& model) {
  order.is_assumed = true;
  return name_parameters(order, parameters, model).has_value();
}

/// What the user may do where nothing tells of which parameters the numbers are.
std::string undecided_hint(const OrderSource& order, bool would_fit) {
  constexpr std::string_view kTorchFile =
      "a pytorch_model.bin in place of model.safetensors, which torch.save() writes of the model's "
      "state_dict(), keeps the order";
  const bool is_known =
      order.is_file_order || !order.model_type || known_order(*order.model_type).has_value();
  if (!is_known)
    return fmt::format(
        "model.safetensors does not keep the order of the model's parameters, and that of this "
        "model_type is not known; {}",
        kTorchFile);
  if (!would_fit && order.is_file_order) return "the order of the file fits no shapes of them";
  if (!would_fit)
    return fmt::format("no order that is known of the model fits their shapes; {}", kTorchFile);
  constexpr std::string_view kAssume =
      "if the optimizer was given the parameters in the model's order, --assume-model-order names "
      "them";
  if (order.is_file_order) return std::string(kAssume);
  return fmt::format("{}; {}", kAssume, kTorchFile);
}

class Reader {
 public:
  Reader(Storage& storage, Path folder, Program program, const OpenOptions& options)
      : storage_(storage),
        folder_(std::move(folder)),
        names_(file_names(program)),
        builder_(storage) {
    builder_.out.assumes_model_order = options.assume_model_order;
  }

  std::unique_ptr<Source> open() {
    ModelPlace place = find_model(storage_, folder_);
    const Path& weights = place.folder;
    const bool is_torch =
        has_torch_model(storage_, weights) && !safetensors::is_model_folder(storage_, weights);
    const std::optional<std::string> config = model_config(storage_, folder_);
    const std::optional<std::string> type =
        config ? std::optional(model_type_of(*config)) : std::nullopt;
    const std::optional<TorchFile> states =
        dcp::open_state(storage_, builder_, folder_ / names_.optimizer, Role::Optimizer);
    const ModuleShapes shapes(type.value_or(""), states ? &*states : nullptr);
    const ReadModel read = is_torch ? read_torch_model(storage_, weights, builder_)
                                    : read_safetensors(storage_, weights, builder_, shapes);
    if (weights == folder_) {
      read_ = read.files;
    } else {
      take_named_adapter(weights);
    }
    read_.emplace_back(names_.optimizer);
    if (states) read_optimizer(*states, is_torch);
    read_schedule();
    // UniShard's own sink has written the step.
    if (text_.empty()) dcp::add_likely_steps(storage_, folder_, builder_);
    if (names_.format == file_names(Program::Accelerate).format) read_further_parts();
    note_unread();
    builder_.out.may_train_others = read.adapter_naming || has_other_modules();
    const auto progress = read_progress(storage_, folder_, builder_.out.losses);
    builder_.out.step = progress;
    builder_.out.producer = {{"library", names_.library}};
    const OrderSource order{is_torch, type, builder_.out.assumes_model_order};
    if (place.doubt.empty()) place.doubt = doubt_of_original(producer_);
    // UniShard's own sink lists the names that it knows, as the catalog has them.
    const bool is_ours = !text_.empty();
    builder_.out.module_part =
        is_ours ? module_part_of(producer_, names_.library) : module_part_of_program();
    const bool is_undecided = !place.doubt.empty() && !order.is_assumed;
    // A copy of the object alone would not tell of the other adapters.
    if (is_undecided) builder_.out.layout = {};
    Json others = is_undecided ? Json(place.others) : Json();
    builder_.out.number_names = {
        .fit =
            [order, has_names = is_ours || is_undecided, is_known = has_known_order()](
                const auto& parameters, const auto& model) {
              if (has_names) return std::optional<std::vector<std::string>>();
              return is_known
                         ? name_parameters(order, parameters, model)
                         : dcp::fit_different_shapes(parameters, model, parameters.numbers.size());
            },
        .decided =
            "by their shapes and, where several have one, in the order in which the Trainer "
            "takes the model's parameters. If a script took them in another order, save "
            "with their names (get_state_dict)",
        .undecided =
            [order, is_undecided, doubt = place.doubt](const auto& parameters, const auto& model) {
              if (is_undecided) return doubt;
              return undecided_hint(order, would_fit(order, parameters, model));
            }};
    const bool is_trainer = names_.format == file_names(Program::Trainer).format;
    const bool may_be_renamed = is_trainer && config && !is_torch && !read.adapter_naming;
    builder_.out.complete =
        [&storage = storage_, folder = folder_, type = type.value_or(""),
         has_index = read.has_all_listed, progress,
         number = checkpoint_number(folder_.filename().string()),
         is_alone = has_one_process(storage_, folder_), missing = missing_, text = text_,
         naming = read.adapter_naming, splits_experts = read.splits_experts,
         config = may_be_renamed ? *config : std::string(), library = names_.library,
         others = std::move(others)](const dcp::StateDict& state, dcp::Arrangement& arranged) {
          const bool has_own_names = !text.empty() && restore(text, state, arranged);
          if (has_index || has_all_of_type(type, arranged.catalog))
            pass_whole_model(storage, folder, arranged);
          if (naming && !has_own_names) record_adapter(arranged.catalog.producer, *naming);
          record_compiled(state, library, arranged);
          if (!others.empty()) arranged.catalog.producer[std::string(kOtherAdapters)] = others;
          if (!missing.empty()) arranged.remark_on_states(missing);
          if (splits_experts) arranged.remark_on_states(std::string(kSplitExperts));
          if (const auto name = find_renamed(config, model_names(arranged.catalog)))
            arranged.remark_on_states(renamed_remark(*name));
          if (progress) {
            arranged.catalog.data_position["global_steps"] = *progress;
            std::ranges::move(doubts_about_steps(arranged.catalog, *progress, number, is_alone),
                              std::back_inserter(arranged.remarks));
          }
          if (!state.values.empty())
            arranged.remarks.push_back(
                fmt::format("{}: kept as values, which only accelerate gets back as files: the "
                            "checkpoint's model and optimizer are the first ones of the folder",
                            fmt::join(state.values, ", ")));
        };
    auto source = dcp::make_state_dict_source(std::string(names_.format),
                                              builder_.finish(folder_.string()), folder_.string());
    if (weights != folder_) source->set_model_folder(weights);
    return source;
  }

 private:
  /// The model is the adapter in a folder of its name.
  void take_named_adapter(const Path& folder) {
    const std::string name = folder.filename().string();
    read_.push_back(name);
    builder_.out.remarks.push_back(
        fmt::format("the adapter is called {} in the run, and its parameters have the name "
                    "\"default\" here: a Trainer's folder has it at the top then, and resumes from "
                    "there under any name",
                    unishard::quote(name)));
  }

  /// The Trainer makes the optimizer of the model's parameters in their order. Scripts with
  /// accelerate make their own.
  bool has_known_order() const {
    return names_.format == file_names(Program::Trainer).format || builder_.out.assumes_model_order;
  }

  /// `is_ordered`: the model's file has the order by which the optimizer numbers parameters. The
  /// file of a copy does not keep it, so the copy's optimizer lists the names.
  void read_optimizer(const TorchFile& file, bool is_ordered) {
    if (!dcp::is_in_place(storage_, builder_, folder_ / names_.optimizer, file, Role::Optimizer))
      return;
    builder_.add_object(kOptimizer, {{kOptimizer, false}}, file);
    // A copy in the same format repeats the object as it is.
    auto object = std::make_shared<Json>();
    for (const dcp::ObjectEntry& entry : builder_.out.objects) {
      if (entry.key == kOptimizer) *object = entry.value;
    }
    text_ = embedded_text(*object);
    producer_ = producer_in(text_);
    if (builder_.out.assumes_model_order && !doubt_of_original(producer_).empty()) {
      // The user knows what was not known when the catalog was written.
      text_.clear();
      producer_ = nullptr;
      object->erase(std::string(kCatalogKey));
    }
    if (!text_.empty()) return;
    builder_.out.layout = [object, is_ordered, assumes = builder_.out.assumes_model_order](
                              const dcp::StateDict& state, const dcp::Arrangement& arranged) {
      Json layout = dcp::describe_keys(state, arranged);
      layout["object"] = *object;
      if (is_ordered || assumes) dcp::list_names(layout["object"], arranged.catalog);
      return layout;
    };
  }

  /// The Trainer saves the model itself. accelerate saves what DistributedDataParallel made of it
  /// where the job had several processes, of which each has a file.
  ModulePart module_part_of_program() {
    const auto has_state_of = [&](int process) {
      return storage_.kind(folder_ / fmt::format("random_states_{}.pkl", process)) ==
             EntryKind::File;
    };
    const bool is_alone = has_state_of(0) && !has_state_of(1);
    return is_of_trainer() || is_alone ? ModulePart::Model : ModulePart::Replica;
  }

  void read_further_parts() {
    for (const auto& [key, name] : find_further_files(storage_, folder_)) {
      if (is_further_model(key) && std::ranges::count(read_, name) > 0) raise_no_first_model(name);
      if (is_further_optimizer(key)) builder_.out.has_other_optimizers = true;
      builder_.out.values.insert(key);
      read_.push_back(name);
      if (is_further_optimizer(key)) {
        read_further_optimizer(key, name);
        continue;
      }
      const std::shared_ptr<const File> file = builder_.open(folder_ / name);
      if (name.ends_with(".safetensors")) {
        for (dcp::SafetensorsPiece& piece : dcp::read_pieces(file).pieces) {
          const std::string tensor = piece.key;
          const Shape shape = piece.box.sizes;
          add_piece(builder_, key, tensor, shape, std::move(piece));
        }
      } else {
        const TorchFile object({file, 0, file->size()});
        if (dcp::is_in_place(storage_, builder_, folder_ / name, object, Role::OtherModel))
          builder_.add_object(key, {{key, false}}, object);
      }
    }
    for (Loss& loss : missing_further_files(storage_, folder_))
      builder_.out.losses.push_back(std::move(loss));
    std::vector<std::string> scheduled;
    for (const dcp::ObjectEntry& object : builder_.out.objects) {
      const bool is_optimizer = object.key == kOptimizer || is_further_optimizer(object.key);
      if (is_optimizer && dcp::has_schedule(object)) scheduled.push_back(object.key + ".bin");
    }
    for (Loss& loss : dcp::missing_schedules(storage_, folder_, scheduled))
      builder_.out.losses.push_back(std::move(loss));
    // UniShard's own sink writes none where the run had none.
    const bool is_doubted = !scheduled.empty() && text_.empty() && !is_of_trainer() &&
                            builder_.out.scheduler.is_null() &&
                            !dcp::has_schedule_files(storage_, folder_);
    if (is_doubted) missing_ = dcp::doubt_about_schedule(scheduled);
  }

  void read_further_optimizer(const std::string& key, const std::string& name) {
    const std::optional<TorchFile> object =
        dcp::open_state(storage_, builder_, folder_ / name, Role::Optimizer);
    if (object && dcp::is_in_place(storage_, builder_, folder_ / name, *object, Role::Optimizer))
      builder_.add_object(key, {{key, false}}, *object);
  }

  [[noreturn]] void raise_no_first_model(const std::string& name) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} is one of several models, and the first, model.safetensors or "
                      "pytorch_model.bin, is missing",
                      folder_.string(), unishard::quote(name)),
          "bring the file back, or name the other file itself");
  }

  void note_unread() {
    for (const Entry& entry : list_content(storage_, folder_)) {
      if (storage_.kind(folder_ / entry.name / ".metadata") == EntryKind::File)
        continue;  // files_beside() names a distributed save
      if (may_hold_states(entry) && std::ranges::count(read_, entry.name) == 0)
        builder_.out.losses.push_back({role_of_unread_file(entry.name), entry.name});
    }
  }

  /// Whether the folder may have parameters in other files: those of sentence-transformers, whose
  /// Trainer also trains the weights of a loss, and objects that a script registered.
  bool has_other_modules() {
    return std::ranges::any_of(storage_.list(folder_), [](const Entry& entry) {
      return entry.name == "modules.json" || entry.name.starts_with("custom_checkpoint_");
    });
  }

  void read_schedule() {
    const std::string_view of_trainer = file_names(Program::Trainer).scheduler;
    for (const std::string_view name : {names_.scheduler, of_trainer}) {
      if (storage_.kind(folder_ / name) == EntryKind::File)
        return dcp::read_schedule_file(storage_, builder_, folder_ / name);
    }
    if (storage_.kind(folder_ / names_.optimizer) != EntryKind::File) return;
    const bool is_trainers = names_.format == file_names(Program::Trainer).format;
    // UniShard's own sink writes none for accelerate where the run had none.
    if (is_trainers || (is_of_trainer() && text_.empty()))
      missing_ = dcp::missing_schedule(of_trainer, names_.optimizer);
  }

  /// Whether a Trainer saved. Under FSDP accelerate writes model and optimizer for it.
  bool is_of_trainer() {
    return names_.format == file_names(Program::Trainer).format ||
           storage_.kind(folder_ / kTrainerState) == EntryKind::File;
  }

  Storage& storage_;
  const Path folder_;
  const FileNames names_;
  StateDictBuilder builder_;
  std::vector<std::string> read_;  // names of files
  std::string text_;               ///< the embedded catalog
  Json producer_;                  ///< of that
  std::string missing_;            ///< a remark on a schedule that is not there
};

}  // namespace
}  // namespace trainer

bool is_trainer(Storage& storage, const Path& path) {
  return trainer::program_of(storage, path) == trainer::Program::Trainer;
}

bool is_accelerate(Storage& storage, const Path& path) {
  return trainer::program_of(storage, path) == trainer::Program::Accelerate;
}

std::unique_ptr<Source> open_trainer(Storage& storage, const Path& path,
                                     const OpenOptions& options) {
  const auto program = trainer::find_program(storage, path);
  if (!program)
    raise(ErrorCode::NotFound,
          fmt::format("{} holds no model with an optimizer beside it", path.string()));
  return trainer::Reader(storage, path, *program, options).open();
}

}  // namespace unishard::converters
