#include "formats/deepspeed/model_file.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include "containers/inline_tensors.hpp"
#include "containers/module_names.hpp"
#include "containers/object_tree.hpp"
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/model_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

namespace unishard::converters::deepspeed {
namespace {

/// Returns true when a number, or a number in a list, is greater than zero.
bool any(std::optional<Value> value) {
  if (!value) return false;
  return value->is_sequence() ? value->size() > 0
                              : value->is(NodeKind::Int) && value->integer() > 0;
}

using Aliases = std::vector<std::pair<std::string, std::string>>;

/// Returns the names that are listed beside the module: of trained and frozen parameters.
std::set<std::string_view> listed_parameters(const ModelFile& model) {
  std::set<std::string_view> names;
  if (model.param_shapes) {
    for (const auto& group : *model.param_shapes)
      for (const NamedShape& shape : group) names.insert(shape.fqn);
  }
  for (const NamedShape& shape : model.frozen_shapes) names.insert(shape.fqn);
  return names;
}

/// Finds the second names that shared_params does not have: those of a module that its parent has
/// registered twice (DeepSpeed's search takes them for the same), and all of them in old files. The
/// parameters share a storage, also the empty ones of stage 3. `names` are those of parameters with
/// a first name; where there are none, the first entry with a storage has it.
Aliases ties_by_storage(const ModelFile& model, const std::set<std::string_view>& names,
                        bool placeholders) {
  std::set<std::string_view> others;
  if (model.buffer_names) others.insert(model.buffer_names->begin(), model.buffer_names->end());
  for (const auto& [second, first] : model.aliases) others.insert(second);
  std::map<torch::ViewIdentity, std::optional<std::string_view>> firsts;
  Aliases ties;
  const auto visit = [&](auto&& use) {
    for (const auto& [name, view] : model.module) {
      const bool has_storage = view.storage && (placeholders || view.elements() > 0);
      if (has_storage && !others.contains(name)) use(name, torch::identity_of(view));
    }
  };
  visit([&](std::string_view name, torch::ViewIdentity place) {
    if (!names.contains(name)) return;
    const auto [known, is_new] = firsts.emplace(std::move(place), name);
    if (!is_new) known->second.reset();  // it is not the storage that tells
  });
  visit([&](const std::string& name, torch::ViewIdentity place) {
    if (names.contains(name)) return;
    if (names.empty()) {
      const auto [known, is_new] = firsts.emplace(std::move(place), name);
      if (!is_new) ties.emplace_back(name, *known->second);
    } else if (const auto known = firsts.find(place); known != firsts.end() && known->second) {
      ties.emplace_back(name, *known->second);
    }
  });
  return ties;
}

void read_aliases(Value root, bool placeholders, ModelFile& model) {
  if (const auto shared = present(root, "shared_params")) {
    for (std::size_t i = 0; i < shared->pair_count(); ++i)
      model.aliases.emplace_back(shared->key(i).string(), shared->value(i).string());
  }
  const std::set<std::string_view> names = listed_parameters(model);
  if (placeholders && names.empty()) return;
  for (auto& tie : ties_by_storage(model, names, placeholders))
    model.aliases.push_back(std::move(tie));
}

/// Returns whether the module has the scales of a quantized weight beside it, as bitsandbytes keeps
/// them: "w.absmax", "w.quant_state.bitsandbytes__nf4", or "SCB" of the same layer.
bool has_scales(Value root, const std::string& weight) {
  const Value module = root.at("module");
  const std::string scb = weight.substr(0, weight.rfind('.') + 1) + "SCB";
  for (std::size_t i = 0; i < module.pair_count(); ++i) {
    const std::string_view key = module.key(i).is(NodeKind::Str) ? module.key(i).text() : "";
    if (key == scb || key.starts_with(weight + ".absmax") ||
        key.starts_with(weight + ".quant_state."))
      return true;
  }
  return false;
}

std::vector<NamedView> read_frozen(const TorchFile& file, Value root, Notes& notes) {
  const auto fragments = present(root, "frozen_param_fragments");
  if (!fragments) return {};
  std::vector<NamedView> views = named_views(file, *fragments, "frozen parameter", notes);
  for (const NamedView& frozen : views) {
    const Kind kind = info(frozen.view.dtype).kind;
    const bool is_integer = kind == Kind::Signed || kind == Kind::Unsigned;
    if (!is_integer || is_scale(frozen.name) || has_scales(root, frozen.name)) continue;
    notes.lose(
        {.role = Role::Scale,
         .name = frozen.name,
         .why = fmt::format("it is quantized ({}), and its scales are not in the files: save "
                            "without zero_quantized_nontrainable_weights",
                            name_of(frozen.view.dtype)),
         .is_frozen = true});
  }
  return views;
}

Json read_position(const TorchFile& file, Value root, Notes& notes) {
  Json position = Json::object();
  for (const char* key : {"global_steps", "skipped_steps", "global_samples"}) {
    if (const auto count = present(root, key)) position[key] = count->integer();
  }
  for (const char* key : {"data_sampler", "random_ltd"}) {
    if (const auto state = present(root, key))
      position[key] = exact_json(*state, key, file.pickle().bytes().size(), notes);
  }
  return position;
}

constexpr const char* kOwnSection = "unishard";

/// As exact_json(), and small tensors stay.
Json user_value(const TorchFile& file, Value value, const std::string& path, Notes& notes) {
  torch::ObjectTree tree = torch::describe(value, file.pickle().bytes().size());
  for (const std::string& name : torch::inline_tensors(file, tree))
    notes.lose({Role::ClientValue, fmt::format("{}.{}", path, name), "a large tensor in a value"});
  for (const std::string& line : tree.opaque)
    notes.add(fmt::format("kept as its parts, not as an object: {} in {}", line, path));
  for (const auto& [at, why] : tree.left_out)
    notes.lose({Role::ClientValue, fmt::format("{}.{}", path, at), why});
  return std::move(tree.content);
}

Json read_client_state(const TorchFile& file, Value root, Notes& notes) {
  Json client;
  for (std::size_t i = 0; i < root.pair_count(); ++i) {
    if (!root.key(i).is(NodeKind::Str)) {
      notes.lose({Role::ClientValue, path_part(root.key(i)), "its key is not a text"});
      continue;
    }
    const std::string key(root.key(i).string());
    if (is_deepspeed_key(key) || key == kOwnSection) continue;
    const std::string path = fmt::format("client_state.{}", key);
    try {
      client[key] = key == kCutPatterns ? plain_json(file, root.value(i), path, notes)
                                        : user_value(file, root.value(i), path, notes);
    } catch (const torch::EndlessObject& error) {
      client.erase(key);
      notes.lose({Role::ClientValue, path, error.what()});
    }
  }
  if (client.contains(kCutPatterns) && client[kCutPatterns].empty()) client.erase(kCutPatterns);
  return client.empty() ? Json() : client;
}

/// Reads the section of UniShard's own sink. Its position and schedule hold more than DeepSpeed's.
void read_own(const TorchFile& file, Value root, ModelFile& model, Notes& notes) {
  const auto section = present(root, kOwnSection);
  if (!section || !section->is_dict()) return;
  model.own = exact_json(*section, kOwnSection, file.pickle().bytes().size(), notes);
  if (!model.own.is_object()) model.own = Json::object();
  if (model.own.contains("data_position")) model.data_position = model.own["data_position"];
  if (model.own.contains("scheduler")) model.scheduler = model.own["scheduler"];
}

void note_sparse(Value root, Notes& notes) {
  for (const char* key : {"sparse_tensor_module_names", "csr_tensor_module_names"}) {
    const auto names = present(root, key);
    if (!names) continue;
    const Value list =
        names->calls("builtins.set") && names->args().size() == 1 ? names->args()[0] : *names;
    if ((list.is_sequence() || list.is(NodeKind::Set)) && list.size() > 0)
      notes.lose({Role::Setting, key, fmt::format("the names of {} modules", list.size())});
  }
}

void require_model_file(const TorchFile& file) {
  if (file.root().is_dict() && file.root().find("module")) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: not a model file of DeepSpeed: it has no module", file.name()));
}

/// Everything but the tensors.
void read_facts(const TorchFile& file, ModelFile& model, Notes& notes) {
  const Value root = file.root();
  model.name = file.name();
  if (const auto names = present(root, "buffer_names")) {
    model.buffer_names.emplace();
    for (std::size_t i = 0; i < names->size(); ++i)
      model.buffer_names->emplace_back((*names)[i].string());
  }
  if (const auto shapes = present(root, "param_shapes")) model.param_shapes = shape_groups(*shapes);
  if (const auto size = present(root, "dp_world_size")) model.world_size = size->unsigned_int();
  model.data_position = read_position(file, root, notes);
  model.global_steps = model.data_position.value("global_steps", std::int64_t{0});
  model.skipped_steps = model.data_position.value("skipped_steps", std::int64_t{0});
  if (const auto version = present(root, "ds_version")) model.version = version->string();
  const std::uint64_t bytes = file.pickle().bytes().size();
  if (const auto state = present(root, "lr_scheduler"))
    model.scheduler = exact_json(*state, "lr_scheduler", bytes, notes);
  if (const auto config = present(root, "ds_config"))
    model.config = plain_json(file, *config, "ds_config", notes);
  model.client_state = read_client_state(file, root, notes);
  read_own(file, root, model, notes);
  note_sparse(root, notes);
}

}  // namespace

std::string ParallelDegrees::text() const {
  return is_told ? fmt::format("checkpoint_parallel_dimensions says pp_degree {}, tp_degree {}",
                               pipeline, tensor)
                 : fmt::format("mp_world_size is {}", tensor);
}

ParallelDegrees degrees_of(const TorchFile& file) {
  require_model_file(file);
  const Value root = file.root();
  const auto degree = [](std::optional<Value> holder, std::string_view key) {
    const auto found = holder ? present(*holder, key) : std::nullopt;
    return found ? found->unsigned_int() : 1;
  };
  const auto told = present(root, "checkpoint_parallel_dimensions");
  ParallelDegrees degrees;
  degrees.is_told = told.has_value();
  degrees.pipeline = degree(told, "pp_degree");
  degrees.tensor = told ? degree(told, "tp_degree") : degree(root, "mp_world_size");
  degrees.has_layer_files = root.at("module").is_none();
  degrees.has_experts = any(present(root, "num_experts"));
  degrees.has_auto_experts = any(present(root, "ds_autoep_layers"));
  return degrees;
}

ModelFile read_model_file(const TorchFile& file, bool placeholders, Notes& notes) {
  require_model_file(file);
  const Value root = file.root();
  ModelFile model;
  read_facts(file, model, notes);
  const auto module = present(root, "module");
  model.has_module = module.has_value();
  if (module) {
    model.module = named_views(file, *module, "module entry", notes);
    if (auto doubt = torch::doubt_about_names(*module)) notes.add(*std::move(doubt));
  }
  if (const auto shapes = present(root, "frozen_param_shapes")) {
    model.frozen_shapes = named_shapes(*shapes);
    model.lists_frozen = true;
  } else if (root.is_dict() && root.find("frozen_param_shapes")) {
    model.excludes_frozen = true;
  }
  model.frozen_fragments = read_frozen(file, root, notes);
  read_aliases(root, placeholders, model);
  return model;
}

ModelFile read_parallel_model_file(const TorchFile& file, Notes& notes) {
  require_model_file(file);
  ModelFile model;
  read_facts(file, model, notes);
  return model;
}

bool is_scale(std::string_view name) {
  constexpr std::array<std::string_view, 6> kEnds = {
      ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".SCB", ".weight_format"};
  return name.find(".quant_state.") != std::string_view::npos ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

Json zero_setting(const Json& config, const char* key) {
  if (!config.is_object() || !config.contains("zero_optimization")) return nullptr;
  const Json& zero = config["zero_optimization"];
  return zero.is_object() && zero.contains(key) ? zero[key] : Json();
}

}  // namespace unishard::converters::deepspeed
