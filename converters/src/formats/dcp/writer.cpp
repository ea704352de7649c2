// Writes a folder as torch.distributed.checkpoint does for FSDP2: tensors split into rows for
// catalog.world_size ranks. The keys are those of the folder that was read, if they still fit. Else
// optimizer states have parameter names, groups are objects, and the embedded catalog has a key of
// its own. `.metadata` is written last.
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/converters/parameter_groups.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/archive_draft.hpp"
#include "containers/inline_tensors.hpp"
#include "containers/pickle_json.hpp"
#include "containers/pickle_writer.hpp"
#include "containers/placed_sink.hpp"
#include "core/adam_settings.hpp"
#include "core/embedded_catalog.hpp"
#include "core/key_text.hpp"
#include "core/nested_states.hpp"
#include "core/partial_output.hpp"
#include "formats/dcp/embedded_catalog.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/dcp/metadata_writer.hpp"
#include "formats/dcp/own_layout.hpp"
#include "formats/dcp/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters {
namespace {

using dcp::KeyPath;
using torch::ArchiveDraft;
using torch::PickleWriter;

constexpr std::string_view kItemRoot = "archive";
constexpr std::string_view kMetadataFile = ".metadata";

/// Returns the rows and elements of a tensor that a rank holds, by FSDP2's rule.
std::uint64_t rows_per_rank(const Shape& shape, std::uint32_t world_size) {
  return (shape[0] + world_size - 1) / world_size;
}

class Planner {
 public:
  /// `takes_recorded_keys`: the keys of a recorded state dict come before those of `layout`.
  Planner(const Catalog& catalog, torch::TorchOutput& output, const dcp::OwnLayout& layout,
          bool takes_recorded_keys)
      : catalog_(catalog),
        output_(output),
        layout_(layout),
        takes_recorded_keys_(takes_recorded_keys),
        scalars_(catalog),
        keys_(dcp::own_keys(catalog, layout)) {}

  /// `layout` is that of dcp::describe_folder(), or null.
  torch::OutputPlan plan(const Json& layout) {
    keeps_keys_ =
        plan_as_it_was(layout) || (layout.is_null() && takes_recorded_keys_ && plan_as_recorded());
    if (keeps_keys_) return std::move(plan_);
    find_trees();
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i)
      add_tensor(i, keys_[i], path_of(i, keys_[i]));
    add_second_names();
    find_optimizer();
    add_steps();
    add_scalar_states();
    add_groups();
    if (catalog_.client_state.is_object()) add_client_state(catalog_.client_state, {});
    if (layout_.has_train_state && !used_.contains("train_state.step"))
      add_object({{"train_state", false}, {"step", false}}, catalog_.step);
    add_object({{"unishard", false}, {"catalog", false}}, catalog_text(catalog_, keys_));
    return std::move(plan_);
  }
  /// Only after all items have their places, which plan() gives them.
  std::string metadata() const { return dcp::encode_metadata(tensors_, objects_); }
  /// Returns whether plan() took the keys of the state dict that was read.
  bool keeps_keys() const { return keeps_keys_; }

 private:
  /// Plans the keys of another folder; returns false, and plans nothing, when the catalog is no
  /// longer what that folder held.
  bool plan_as_it_was(const Json& layout) {
    const auto contents = dcp::KeyedContents::match(layout, catalog_);
    if (!contents || !layout.contains("objects")) return false;
    std::set<std::string> inside;  // keys of tensors that lie in objects
    std::vector<std::optional<Json>> objects;
    std::vector<std::string> notes;
    for (const Json& row : layout["objects"]) {
      std::set<std::string> keys = torch::tensors_in(row[2]);
      objects.push_back(torch::with_all_tensors(row[2], row[0].get<std::string>(), notes));
      const bool is_lost = !objects.back() && !keys.empty();
      if (is_lost || !contents->has_all(keys)) return false;
      inside.merge(keys);
    }
    plan_.notes = std::move(notes);
    for (const char* kind : {"tensors", "constants"}) {
      for (const Json& row : layout[kind]) {
        const auto& key = row[0].get_ref<const std::string&>();
        if (inside.contains(key)) continue;
        if (const auto index = contents->tensor(key)) {
          add_tensor(*index, key, dcp::path_of_row(row));
        } else {
          add_constant(key, dcp::path_of_row(row), *contents->constant(key));
        }
      }
    }
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const Json& row = layout["objects"][i];
      if (!objects[i]) continue;
      add_object(row[0].get<std::string>(), dcp::path_of_row(row),
                 [&](ArchiveDraft& item) { contents->write(*objects[i], item); });
    }
    return true;
  }

  /// Plans the keys of the state dict that the catalog records, and what its client state has
  /// beside them; returns false, and plans nothing, when it records none that fits.
  bool plan_as_recorded() {
    const Json recorded = dcp::recorded_state_dict(catalog_);
    if (!plan_as_it_was(recorded)) return false;
    std::unordered_set<std::string> known;
    for (const char* kind : {"tensors", "constants", "objects"}) {
      for (const Json& row : recorded[kind]) {
        const KeyPath path = dcp::path_of_row(row);
        known.insert(path.empty() ? row[0].get<std::string>() : path.front().text);
      }
    }
    if (!catalog_.client_state.is_object() || catalog_.client_state.contains("$type")) return true;
    for (const auto& [key, value] : catalog_.client_state.items()) {
      if (key != kOptimizerScalars && !known.contains(key)) add_client_state(value, {{key, false}});
    }
    return true;
  }

  using ExtraPaths = std::unordered_map<std::string, KeyPath>;

  bool is_of_model(std::size_t index, const std::string& key) const {
    return key == layout_.model_key(catalog_.tensors[index].fqn) &&
           catalog_.tensors[index].state != dcp::kExtraState;
  }

  KeyPath path_of(std::size_t index, const std::string& key) const {
    const TensorInfo& tensor = catalog_.tensors[index];
    if (tensor.state == dcp::kExtraState) {
      const auto known = extra_paths().find(key);
      return known == extra_paths().end() ? KeyPath{{key, false}} : known->second;
    }
    if (is_of_model(index, key)) return extended(layout_.model, {tensor.fqn, false});
    const std::string prefix = layout_.optimizer_key(fmt::format("state.{}.", tensor.fqn));
    if (const auto place = tree_paths_.find(key); place != tree_paths_.end()) return place->second;
    const std::string state = key.substr(prefix.size());
    return state_path(tensor.fqn, state == dotted_state(tensor.state) ? tensor.state : state);
  }

  KeyPath state_path(const std::string& fqn, const std::string& state) const {
    if (layout_.is_flat)
      return extended(layout_.optimizer, {fmt::format("state.{}.{}", fqn, state), false});
    KeyPath path = extended(layout_.optimizer, {"state", false});
    path.push_back({fqn, false});
    for (std::string& level : state_levels(state)) path.push_back({std::move(level), false});
    return path;
  }

  /// Paths of the tensors that client_state mentions.
  const ExtraPaths& extra_paths() const {
    if (!extra_paths_) {
      find_extras(catalog_.client_state, {}, extra_paths_.emplace());
    }
    return *extra_paths_;
  }
  static void find_extras(const Json& value, const KeyPath& path, ExtraPaths& found) {
    if (value.is_object() && value.contains("$tensor") && value["$tensor"].is_string()) {
      auto key = value["$tensor"].get<std::string>();
      // At another place it is a second name of the tensor.
      if (dcp::joined(path) == key) found.emplace(std::move(key), path);
    } else if (value.is_object() && !value.contains("$type")) {
      for (const auto& [key, child] : value.items())
        find_extras(child, extended(path, {key, false}), found);
    } else if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i)
        find_extras(value[i], extended(path, {std::to_string(i), true}), found);
    }
  }

  static KeyPath extended(const KeyPath& path, dcp::PathPart part) {
    KeyPath longer = path;
    longer.push_back(std::move(part));
    return longer;
  }
  static std::string file_of(std::uint64_t rank) { return fmt::format("__{}_0.distcp", rank); }
  dcp::WrittenItem item_of(std::uint64_t rank, std::size_t archive) const {
    const torch::TorchOutput::Extent extent = output_.extent(archive);
    return {file_of(rank), extent.offset, extent.bytes};
  }

  /// Adds a box of `elements` elements of a tensor as an item of a rank's file. Returns the item's
  /// archive, in which the elements begin at byte 0.
  std::size_t add_item(dcp::WrittenTensor& tensor, std::uint64_t rank, Box box,
                       std::uint64_t elements) {
    PickleWriter pickle;
    pickle.tensor(tensor.dtype, box.sizes, "0", elements);
    const std::size_t archive = output_.add({file_of(rank),
                                             std::string(kItemRoot),
                                             pickle.finish(),
                                             {elements * size_of(tensor.dtype)}});
    tensor.chunks.emplace_back(std::move(box), item_of(rank, archive));
    return archive;
  }

  void add_tensor(std::size_t index, const std::string& key, KeyPath path) {
    const TensorInfo& info = catalog_.tensors[index];
    check_free(key);
    dcp::WrittenTensor tensor{key, std::move(path), info.dtype, info.shape, {}};
    const bool is_whole = info.state == state::kBuffer || info.state == dcp::kExtraState ||
                          info.shape.empty() || info.elements() == 0;
    const std::uint64_t rows = info.shape.empty() ? 1 : info.shape[0];
    const std::uint64_t step = is_whole ? std::max<std::uint64_t>(rows, 1)
                                        : rows_per_rank(info.shape, catalog_.world_size);
    const std::uint64_t row = rows == 0 ? 0 : info.elements() / rows;
    for (std::uint64_t begin = 0, rank = 0; begin < std::max<std::uint64_t>(rows, 1);
         begin += step, ++rank) {
      const std::uint64_t end = std::min(begin + step, rows);
      Box box{Shape(info.shape.size(), 0), info.shape};
      if (!info.shape.empty()) {
        box.offsets[0] = begin;
        box.sizes[0] = end - begin;
      }
      const ElementRange range{begin * row, end * row};
      const std::size_t archive = add_item(tensor, rank, std::move(box), range.size());
      if (!range.empty())
        plan_.placements.push_back(
            {static_cast<std::uint32_t>(index), range, archive, 0, 0, tensor.dtype});
    }
    tensors_.push_back(std::move(tensor));
  }

  /// A module's state dict has a tied parameter under each of its names.
  void add_second_names() {
    std::unordered_map<std::string_view, std::size_t> model;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (is_of_model(i, keys_[i])) model.emplace(catalog_.tensors[i].fqn, i);
    }
    for (const Alias& alias : catalog_.aliases) {
      const auto target = model.find(alias.target);
      if (target == model.end()) continue;
      add_tensor(target->second, layout_.model_key(alias.fqn),
                 extended(layout_.model, {alias.fqn, false}));
    }
  }

  void find_optimizer() {
    std::unordered_set<std::string_view> seen;
    for (const TensorInfo& tensor : catalog_.tensors) {
      const bool is_weight = tensor.state == state::kFp32 || tensor.state == state::kWeights ||
                             tensor.state == state::kBuffer || tensor.state == dcp::kExtraState;
      if (is_weight) continue;
      if (seen.insert(tensor.fqn).second) trained_.push_back(tensor.fqn);
    }
  }

  void add_steps() {
    for (const std::string& fqn : trained_) add_step(fqn);
  }

  void add_step(const std::string& fqn) {
    const Json step = scalars_.step(fqn);
    if (step.is_number_float() || (!step.is_null() && adam_.is_adam({&fqn, 1}))) {
      add_step(fqn, step.get<float>());
    } else if (!step.is_null()) {
      add_writable_object(state_path(fqn, "step"), step);
    }
  }

  void add_step(const std::string& fqn, float step) {
    const KeyPath path = state_path(fqn, "step");
    const std::string key = dcp::joined(path);
    if (used_.contains(key)) return;
    std::vector<std::byte> bytes(sizeof step);
    std::memcpy(bytes.data(), &step, sizeof step);
    add_constant(key, path, {DType::Float32, {}, std::move(bytes)});
  }

  /// Adds states that are no tensors as objects, as torch does.
  void add_scalar_states() {
    for (const std::string& fqn : scalars_.fqns()) {
      for (const auto& [state, value] : scalars_.of(fqn)) {
        const KeyPath path = state_path(fqn, state);
        has_state_marks(*value) ? add_tree(path, *value) : add_writable_object(path, *value);
      }
      add_step(fqn);
    }
  }

  /// Calls `take` with each state that a tree mentions, and its path.
  template <class Take>
  static void each_in_tree(const KeyPath& path, const Json& value, const Take& take) {
    if (const std::string* const state = marked_state(value)) return take(path, value, state);
    if (!has_state_marks(value)) return take(path, value, nullptr);
    const bool is_typed = value.is_object() && value.contains("$type");
    if (value.is_array() || (is_typed && value.contains("items"))) {
      const Json& items = value.is_array() ? value : value["items"];
      for (std::size_t i = 0; i < items.size(); ++i)
        each_in_tree(extended(path, {std::to_string(i), true}), items[i], take);
    } else if (!is_typed) {
      for (const auto& [key, child] : value.items())
        each_in_tree(extended(path, {key, false}), child, take);
    } else if (value.contains("pairs")) {
      for (const Json& pair : value["pairs"]) {
        const Json& key = pair[0];
        each_in_tree(extended(path, {key_text(key), false}), pair[1], take);
      }
    }
  }

  /// Finds the paths of the tensors in states that are lists.
  void find_trees() {
    if (layout_.is_flat) return;
    for (const std::string& fqn : scalars_.fqns()) {
      for (const auto& [state, value] : scalars_.of(fqn)) {
        if (!has_state_marks(*value)) continue;
        each_in_tree(state_path(fqn, state), *value,
                     [&](const KeyPath& path, const Json&, const std::string* name) {
                       if (name != nullptr) tree_paths_.emplace(dcp::joined(path), path);
                     });
      }
    }
  }

  /// Adds what a tree has beside its tensors.
  void add_tree(const KeyPath& path, const Json& value) {
    if (layout_.is_flat) {
      plan_.notes.push_back(
          fmt::format("{}: in unishard.catalog only, not under its own key (the keys of this "
                      "layout have no lists)",
                      dcp::joined(path)));
      return;
    }
    each_in_tree(path, value, [&](const KeyPath& at, const Json& part, const std::string* name) {
      if (name == nullptr) add_writable_object(at, part);
    });
  }

  /// Adds a tensor whose values are known.
  void add_constant(const std::string& key, KeyPath path,
                    const dcp::KeyedContents::Constant& constant) {
    check_free(key);
    dcp::WrittenTensor tensor{key, std::move(path), constant.dtype, constant.shape, {}};
    Box box{Shape(constant.shape.size(), 0), constant.shape};
    const std::size_t archive = add_item(tensor, 0, std::move(box), element_count(constant.shape));
    plan_.constants.push_back({archive, 0, 0, constant.bytes});
    tensors_.push_back(std::move(tensor));
  }

  void add_groups() {
    const bool has_groups = catalog_.groups.is_array() && !catalog_.groups.empty();
    if (trained_.empty() && !has_groups) return;  // SGD has groups and no states
    Json groups = has_groups ? catalog_.groups : Json::array({Json::object()});
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const Json& own = groups[g];
      const Json params = own.contains("params") ? own["params"] : params_of(g, groups.size());
      const bool is_adam = adam_.is_adam(params.get<std::vector<std::string>>());
      Json settings = is_adam ? adamw_defaults() : Json::object();
      if (std::string line = is_adam ? note_assumed_settings(own, g) : ""; !line.empty())
        plan_.notes.push_back(std::move(line));
      for (const auto& [key, value] : own.items()) settings[key] = value;
      settings["params"] = params;
      settings = with_tuples(std::move(settings));
      layout_.is_flat ? add_flat_group(settings) : add_group(g, settings);
    }
  }

  void add_group(std::size_t number, const Json& settings) {
    for (const auto& [key, value] : settings.items()) {
      KeyPath path = extended(layout_.optimizer, {"param_groups", false});
      path.push_back({std::to_string(number), true});
      path.push_back({key, false});
      add_object(path, value);
    }
  }
  void add_flat_group(const Json& settings) {
    for (const Json& fqn : settings["params"]) {
      for (const auto& [key, value] : settings.items()) {
        if (key == "params") continue;
        const std::string name =
            fmt::format("param_groups.{}.{}", fqn.get_ref<const std::string&>(), key);
        add_object(extended(layout_.optimizer, {name, false}), value);
      }
    }
  }

  Json params_of(std::size_t group, std::size_t groups) const {
    std::unordered_map<std::string_view, std::int32_t> group_of;
    for (const TensorInfo& tensor : catalog_.tensors) {
      if (tensor.group >= 0) group_of.emplace(tensor.fqn, tensor.group);
    }
    Json params = Json::array();
    for (const std::string& fqn : trained_) {
      const auto found = group_of.find(fqn);
      if (groups == 1 ||
          (found != group_of.end() && found->second == static_cast<std::int32_t>(group)))
        params.push_back(fqn);
    }
    return params;
  }

  /// A dict of tensors that is kept as a value: the states of an optimizer, which have numbers, or
  /// a model of which a module has a state of its own.
  static bool holds_tensors_by_key(const Json& value) {
    return value.is_object() && value.contains("pairs") && value["pairs"].is_array() &&
           !torch::tensors_in(value).empty() &&
           std::ranges::all_of(value["pairs"], [](const Json& pair) {
             return pair.is_array() && pair.size() == 2 &&
                    (pair[0].is_number_integer() || pair[0].is_string());
           });
  }

  /// Flattens as torch does: mappings always, lists if they contain a tensor or a container.
  void add_client_state(const Json& value, const KeyPath& path) {
    if (value.is_object() && value.contains("$tensor")) return add_second_place(value, path);
    if (const auto tensor = torch::inline_tensor_in(value)) {
      if (!used_.contains(dcp::joined(path))) add_constant(dcp::joined(path), path, *tensor);
      return;
    }
    const auto is_plain = [](const Json& child) {
      return !child.is_structured() || (child.contains("$type") && !torch::inline_tensor_in(child));
    };
    if (value.is_object() && !value.contains("$type")) {
      for (const auto& [key, child] : value.items()) {
        if (!path.empty() || key != kOptimizerScalars)
          add_client_state(child, extended(path, {key, false}));
      }
    } else if (value.is_array() && !std::ranges::all_of(value, is_plain)) {
      for (std::size_t i = 0; i < value.size(); ++i)
        add_client_state(value[i], extended(path, {std::to_string(i), true}));
    } else if (holds_tensors_by_key(value)) {
      for (const Json& pair : value["pairs"])
        add_client_state(pair[1], extended(path, {key_text(pair[0]), false}));
    } else {
      add_writable_object(path, value);
    }
  }

  /// Stores a tensor of the catalog once more where the client state has it at a second place.
  void add_second_place(const Json& value, const KeyPath& path) {
    const std::string key = dcp::joined(path);
    if (!value["$tensor"].is_string() || used_.contains(key)) return;
    const auto found = std::ranges::find_if(catalog_.tensors, [&](const TensorInfo& tensor) {
      return tensor.state == dcp::kExtraState && value["$tensor"] == tensor.fqn;
    });
    if (found != catalog_.tensors.end())
      add_tensor(static_cast<std::size_t>(found - catalog_.tensors.begin()), key, path);
  }

  void add_writable_object(const KeyPath& path, const Json& value) {
    if (used_.contains(dcp::joined(path))) return;
    try {
      add_object(path, value);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
      plan_.notes.push_back(fmt::format("{}: in unishard.catalog only, not under its own key ({})",
                                        dcp::joined(path), error.what()));
    }
  }

  void add_object(const KeyPath& path, Json value) {
    const auto tensors = torch::take_inline_tensors(value);
    add_object(dcp::joined(path), path, [&](ArchiveDraft& item) {
      torch::write_json(item.pickle, value, [&](PickleWriter& pickle, const std::string& name) {
        const auto tensor = tensors.find(name);
        if (tensor == tensors.end()) return torch::refuse_tensor(pickle, name);
        item.constant(tensor->second.dtype, tensor->second.shape, tensor->second.bytes);
      });
    });
  }

  void add_object(const std::string& key, const KeyPath& path,
                  const std::function<void(ArchiveDraft&)>& write) {
    ArchiveDraft item(plan_, catalog_, output_.size());
    write(item);
    check_free(key);
    const std::size_t archive = output_.add(item.finish(file_of(0), std::string(kItemRoot)));
    objects_.push_back({key, path, item_of(0, archive)});
  }

  void check_free(const std::string& key) {
    if (!used_.insert(key).second) {
      raise(ErrorCode::Unsupported,
            fmt::format("two values would have the key {} in a DCP folder", unishard::quote(key)),
            "convert to another format, or rename one of them");
    }
  }

  const Catalog& catalog_;
  torch::TorchOutput& output_;
  const dcp::OwnLayout& layout_;
  const bool takes_recorded_keys_;
  const OptimizerScalars scalars_;
  const std::vector<std::string> keys_;
  torch::OutputPlan plan_;
  bool keeps_keys_ = false;
  std::vector<dcp::WrittenTensor> tensors_;
  std::vector<dcp::WrittenObject> objects_;
  std::vector<std::string> trained_;  // parameters with optimizer states
  const AdamGroups adam_{catalog_};
  std::unordered_set<std::string> used_;
  mutable std::optional<ExtraPaths> extra_paths_;
  std::unordered_map<std::string, KeyPath> tree_paths_;  // by key
};

void write_file(Storage& storage, const Path& path, std::string_view text) {
  const std::unique_ptr<File> file = storage.create(path);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
  file->close();
}

}  // namespace

std::unique_ptr<Sink> make_dcp_sink(Storage& storage, const Path& folder, Catalog catalog,
                                    const WorkSplit& share, const Json& layout,
                                    std::string_view key_layout, SideFiles side_files) {
  std::string layout_name(key_layout);
  if (layout_name.empty()) layout_name = dcp::own_layout_in(layout);
  if (layout_name.empty()) layout_name = dcp::recorded_layout(catalog);
  const dcp::OwnLayout& own = dcp::own_layout(layout_name);
  auto partial =
      std::make_shared<PartialOutput>(storage, folder, PartialOutput::Shape::Folder, share);
  auto output = std::make_unique<torch::TorchOutput>(storage, partial->path());
  Planner planner(catalog, *output, own, key_layout.empty());
  torch::OutputPlan plan = planner.plan(layout);
  if (layout_name.empty() && !planner.keeps_keys())
    plan.remarks.push_back(fmt::format("keys are {}, {} and {} (--dcp-layout chooses others)",
                                       own.model_key("NAME"), own.optimizer_key("state.NAME.STATE"),
                                       own.optimizer_key("param_groups.NUMBER.SETTING")));
  auto complete = [partial, &storage, metadata = planner.metadata(),
                   side_files = std::move(side_files)] {
    for (const auto& [name, content] : side_files)
      replace_text(storage, partial->path() / name, content);
    write_file(storage, partial->path() / kMetadataFile, metadata);
  };
  return std::make_unique<torch::PlacedSink>(
      std::move(catalog), std::move(plan),
      torch::Ending{.partial = partial, .complete = std::move(complete)}, std::move(output), share);
}

}  // namespace unishard::converters
