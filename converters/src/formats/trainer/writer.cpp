// The model is a safetensors file, as save_pretrained writes it; the optimizer is numbered in the
// order of its groups and lists its parameters' names (param_names), by which UniShard reads it
// again. What neither expresses is the embedded catalog beside the optimizer's state; torch ignores
// it. Work is split by whole files.
#include "unishard/converters/adapter_names.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/converters/parameter_groups.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "containers/archive_draft.hpp"
#include "containers/inline_tensors.hpp"
#include "containers/pickle_json.hpp"
#include "containers/placed_sink.hpp"
#include "containers/safetensors_header.hpp"
#include "containers/written_scalars.hpp"
#include "core/adam_settings.hpp"
#include "core/embedded_catalog.hpp"
#include "core/file_split.hpp"
#include "core/model_tensors.hpp"
#include "core/nested_states.hpp"
#include "core/partial_output.hpp"
#include "core/wrapped_names.hpp"
#include "formats/dcp/embedded_catalog.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/trainer/folder.hpp"
#include "formats/trainer/further_parts.hpp"
#include "formats/trainer/trainer_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace unishard::converters {
namespace trainer {
namespace {

using torch::ArchiveDraft;
using torch::OutputPlan;
using torch::PickleWriter;

constexpr std::uint64_t kShardBytes = 5'000'000'000;

class Planner {
 public:
  Planner(const Catalog& catalog, Program program, const TrainerOptions& options,
          torch::TorchOutput& output)
      : catalog_(catalog),
        program_(program),
        names_(file_names(program)),
        options_(options),
        adapter_(catalog),
        compiled_(catalog, names_.library),
        output_(output),
        scalars_(catalog),
        stands_(catalog.tensors.size()),
        states_() {}

  OutputPlan plan() {
    if (program_ == Program::Accelerate) further_ = further_parts(catalog_, plan_.notes);
    sort_tensors();
    find_adapter_naming();
    add_optimizer();
    add_model();
    for (const FurtherPart& part : further_) add_further(part);
    add_schedule();
    add_side_files();
    std::ranges::sort(plan_.left_out);
    return std::move(plan_);
  }
  /// The small files of the folder: name and content.
  const SideFiles& texts() const { return texts_; }

 private:
  /// Decides which tensor stands for its parameter and which are states.
  void sort_tensors() {
    std::size_t halves = 0, base = 0;
    std::vector<std::string> others;
    std::set<std::size_t> further;
    for (const FurtherPart& part : further_) {
      for (const auto& [fqn, index] : part.tensors) further.insert(index);
    }
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorInfo& tensor = catalog_.tensors[i];
      if (!is_of_model(tensor)) continue;
      const auto [found, is_new] = model_.emplace(tensor.fqn, i);
      if (!is_new && tensor.state == state::kFp32) found->second = i;
    }
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorInfo& tensor = catalog_.tensors[i];
      if (is_of_model(tensor)) {
        const bool is_base = is_adapter() && !adapter_.name_of(tensor.fqn);
        stands_[i] = !is_base && model_.at(tensor.fqn) == i;
        if (stands_[i]) continue;
        ++(is_base ? base : halves);
        plan_.left_out.push_back(i);
      } else if (further.contains(i)) {
        continue;
      } else if (tensor.state == kExtraState) {
        others.push_back(tensor.fqn);
        plan_.left_out.push_back(i);
      } else {
        states_[tensor.fqn].push_back(i);
      }
    }
    if (is_adapter()) require_trained_adapter();
    require_model_of_states();
    if (states_.empty() && catalog_.groups.is_null()) refuse_model_alone();  // SGD has groups
    if (halves > 0) plan_.notes.push_back(fmt::format("16-bit copies of {} parameters", halves));
    if (base > 0)
      plan_.notes.push_back(fmt::format(
          "{} parameters of the base model, or of other adapters than \"default\"", base));
    if (!others.empty())
      plan_.notes.push_back(
          fmt::format("{} tensors of neither model nor optimizer ({} first), with the values that "
                      "they are in",
                      others.size(), quote(others.front())));
  }

  /// The reader finds the parameters of the optimizer among the tensors of the model by their
  /// names. Throws: Unsupported when some of them are not there.
  void require_model_of_states() const {
    std::vector<std::string> lonely;
    for (const auto& [fqn, states] : states_) {
      if (!model_.contains(fqn) && !dcp::is_numbered(fqn)) lonely.push_back(fqn);
    }
    if (lonely.empty()) return;
    std::ranges::sort(lonely);
    raise(ErrorCode::Unsupported,
          fmt::format("the optimizer has states of {} parameters that the model lacks ({} first), "
                      "and this format has no place for them",
                      lonely.size(), quote(lonely.front())),
          "native, dcp and torch keep them; pass --to safetensors for the model alone");
  }

  [[noreturn]] void refuse_model_alone() const {
    bool is_set_aside = false;
    for (const auto& [key, value] : catalog_.client_state.items())
      is_set_aside |= key.starts_with("optim") && value.is_structured() && !value.empty();
    raise(ErrorCode::Unsupported,
          is_set_aside ? "nothing tells for certain of which parameters the states of its "
                         "optimizers are, which are kept as values: no training could go on from "
                         "this format"
                       : "this checkpoint holds no optimizer, from which a training could go on",
          is_set_aside
              ? "native, dcp and torch keep them; pass --to safetensors for the model alone"
              : "pass --to safetensors for the model alone");
  }

  /// Throws: Unsupported when the optimizer trains what the adapter's file has no place for.
  void require_trained_adapter() const {
    for (const auto& [fqn, states] : states_) {
      if (!model_.contains(fqn) || adapter_.name_of(fqn)) continue;
      raise(ErrorCode::Unsupported,
            fmt::format("{} is trained, and is no part of the adapter \"default\", which the "
                        "folder's file would hold",
                        quote(fqn)),
            "native, dcp and torch keep everything");
    }
  }

  /// Of an adapter, the reader may know its parameters by the names in the file only.
  void find_adapter_naming() {
    if (!is_adapter()) return;
    AdapterFileNames names;
    for (std::size_t i = 0; i < stands_.size(); ++i) {
      if (stands_[i]) names.insert(own_name(i));
    }
    is_read_by_file_names_ = adapter_naming(names) == AdapterNaming::File;
  }

  /// Returns the name by which the reader finds a parameter before it has the embedded catalog.
  std::string read_name(const std::string& fqn) const {
    return is_read_by_file_names_ ? adapter_.name_of(fqn).value_or(fqn) : fqn;
  }

  void add_optimizer() {
    ArchiveDraft file(plan_, catalog_, output_.size());
    const auto contents = dcp::KeyedContents::match(options_.layout, catalog_);
    const bool is_read_alike = !has_numbered_states() || has_side_file("config.json");
    if (contents && is_read_alike &&
        contents->has_all(torch::tensors_in(options_.layout["object"]))) {
      if (const auto object = torch::with_all_tensors(options_.layout["object"], {}, plan_.notes)) {
        contents->write(*object, file);
        take_own_names();
        return finish(file, names_.optimizer);
      }
    }
    write_optimizer(file);
    finish(file, names_.optimizer);
  }

  /// Whether some states have numbers. A reader names those of a folder without config.json by
  /// every model that it knows, unless the embedded catalog says that they have none.
  bool has_numbered_states() const {
    return std::ranges::any_of(
        states_, [](const auto& state) { return parameter_number(state.first).has_value(); });
  }

  bool has_side_file(std::string_view name) const {
    return std::ranges::any_of(options_.side_files,
                               [&](const auto& file) { return file.first == name; });
  }

  /// The names that the model's file had, where they differ from the catalog's. Of the names of a
  /// tied weight it is the one by which the optimizer's parameter is found.
  void take_own_names() {
    constexpr std::string_view kBelow = "model.";
    std::map<std::pair<std::string, std::string>, std::string> own;
    for (const Json& row : options_.layout["tensors"]) {
      const auto& key = row[0].get_ref<const std::string&>();
      if (!key.starts_with(kBelow)) continue;
      const auto fqn = row[2].get<std::string>();
      const auto [known, is_new] = own.try_emplace({fqn, row[3].get<std::string>()}, key);
      if (!is_new && without_wrappers(key).ends_with("." + fqn)) known->second = key;
    }
    for (const TensorInfo& tensor : catalog_.tensors) {
      const auto found = own.find({tensor.fqn, std::string(tensor.state)});
      if (found != own.end()) own_names_.emplace(tensor.fqn, found->second.substr(kBelow.size()));
    }
  }

  void write_optimizer(ArchiveDraft& file) {
    const AdamGroups adam(catalog_);
    const std::vector<std::vector<std::string>> groups = params_of_groups();
    // torch has names in all groups, or in none.
    const bool has_names =
        std::ranges::all_of(groups, [&](const auto& params) { return are_parameters(params); });
    PickleWriter& p = file.pickle;
    p.begin_dict();
    p.str("state");
    p.begin_dict();
    const std::vector<std::vector<std::int64_t>> numbers = numbers_of(groups);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t i = 0; i < groups[g].size(); ++i)
        write_states(file, numbers[g][i], groups[g][i]);
    }
    p.end_dict();
    p.str("param_groups");
    p.begin_list();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const bool is_adam = adam.is_adam(groups[g]);
      Json settings = is_adam ? adamw_defaults() : Json::object();
      if (catalog_.groups.is_array()) {
        settings.update(catalog_.groups[g]);
        if (is_adam) note(note_assumed_settings(catalog_.groups[g], g));
      }
      settings = with_tuples(std::move(settings));
      settings["params"] = numbers[g];
      settings.erase("param_names");
      if (has_names) {
        settings["param_names"] = Json::array();
        for (const std::string& fqn : groups[g]) settings["param_names"].push_back(read_name(fqn));
      }
      torch::write_json(
          p, torch::without_unwritable(settings, fmt::format("parameter group {}", g), plan_.notes),
          torch::refuse_tensor);
    }
    p.end_list();
    p.str(kCatalogKey);
    p.str(embedded_text());
    p.end_dict();
  }

  void note(std::string line) {
    if (!line.empty()) plan_.notes.push_back(std::move(line));
  }

  /// Returns the number of each parameter: its own where all have one, else those of their order.
  static std::vector<std::vector<std::int64_t>> numbers_of(
      const std::vector<std::vector<std::string>>& groups) {
    std::vector<std::vector<std::int64_t>> own, counted;
    std::set<std::int64_t> different;
    std::int64_t count = 0;
    for (const auto& params : groups) {
      own.emplace_back();
      counted.emplace_back();
      for (const std::string& fqn : params) {
        counted.back().push_back(count++);
        own.back().push_back(parameter_number(fqn).value_or(-1));
        different.insert(own.back().back());
      }
    }
    const bool have_own =
        std::cmp_equal(different.size(), count) && count > 0 && *different.begin() >= 0;
    return have_own ? own : counted;
  }

  void write_states(ArchiveDraft& file, std::int64_t number, const std::string& fqn) {
    const auto found = states_.find(fqn);
    const bool has_tensors = found != states_.end();
    const Json step = scalars_.step(fqn);
    if (!has_tensors && !scalars_.knows(fqn)) return;  // it was never updated
    file.pickle.integer(number);
    file.pickle.begin_dict();
    torch::write_step(file, step);
    Json::object_t members = torch::writable_scalars(scalars_, fqn, plan_.notes);
    for (const std::size_t index : has_tensors ? found->second : std::vector<std::size_t>())
      members.push_back({catalog_.tensors[index].state, {{"$tensor", std::to_string(index)}}});
    const Json nested = nest_states(members);
    for (const auto& [state, value] : nested.items()) {
      file.pickle.str(state);
      torch::write_json(file.pickle, value, [&](PickleWriter&, const std::string& index) {
        file.tensor(std::stoull(index));
      });
    }
    file.pickle.end_dict();
  }

  /// Whether the model's file has all of them. Numbered states of unknown parameters have no names.
  bool are_parameters(const std::vector<std::string>& fqns) const {
    return std::ranges::all_of(fqns, [&](const std::string& fqn) { return model_.contains(fqn); });
  }

  /// Returns the parameters of each group. Those with states that no group lists are left out.
  std::vector<std::vector<std::string>> params_of_groups() {
    std::vector<std::vector<std::string>> groups;
    std::unordered_map<std::string_view, bool> is_listed;
    for (const auto& [fqn, indices] : states_) is_listed.emplace(fqn, false);
    if (!catalog_.groups.is_array() || catalog_.groups.empty()) {
      groups.emplace_back();
      for (const TensorInfo& tensor : catalog_.tensors) {
        const auto found = is_listed.find(tensor.fqn);
        if (found == is_listed.end() || found->second) continue;
        found->second = true;
        groups.back().push_back(tensor.fqn);
      }
      return groups;
    }
    for (std::size_t g = 0; g < catalog_.groups.size(); ++g) {
      groups.push_back(listed_params(g));
      for (const std::string& fqn : groups.back()) {
        if (const auto found = is_listed.find(fqn); found != is_listed.end()) found->second = true;
      }
    }
    for (const auto& [fqn, lost] : states_) {
      if (is_listed.at(fqn)) continue;
      plan_.notes.push_back(
          fmt::format("{}: {} optimizer states (in no parameter group)", fqn, lost.size()));
      plan_.left_out.insert(plan_.left_out.end(), lost.begin(), lost.end());
    }
    return groups;
  }

  std::vector<std::string> listed_params(std::size_t group) const {
    const Json& settings = catalog_.groups[group];
    if (auto listed = listed_parameters(settings)) return *std::move(listed);
    std::vector<std::string> fqns;
    for (const TensorInfo& tensor : catalog_.tensors) {
      if (tensor.group == static_cast<std::int32_t>(group) && states_.contains(tensor.fqn) &&
          std::ranges::count(fqns, tensor.fqn) == 0)
        fqns.push_back(tensor.fqn);
    }
    return fqns;
  }

  /// Removes the values whose tensors are left out, of which a reader could make nothing.
  static void forget_values_of(const std::set<std::string>& lost, Json& client_state) {
    if (!client_state.is_object() || client_state.contains("$type")) return;
    std::vector<std::string> keys;
    for (const auto& [key, value] : client_state.items()) {
      if (std::ranges::any_of(torch::tensors_in(value),
                              [&](const std::string& fqn) { return lost.contains(fqn); }))
        keys.push_back(key);
    }
    for (const std::string& key : keys) client_state.erase(key);
  }

  std::string embedded_text() const {
    Catalog kept = catalog_;
    kept.tensors.clear();
    std::vector<bool> is_left_out(catalog_.tensors.size());
    for (const std::size_t i : plan_.left_out) is_left_out[i] = true;
    std::set<std::string> lost_values;
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorInfo& tensor = catalog_.tensors[i];
      if (!is_left_out[i]) kept.tensors.push_back(tensor);
      if (is_left_out[i] && tensor.state == kExtraState) lost_values.insert(tensor.fqn);
    }
    forget_values_of(lost_values, kept.client_state);
    Catalog read = kept;
    for (TensorInfo& tensor : read.tensors) tensor.fqn = read_name(tensor.fqn);
    return catalog_text(kept, flat_paths(read, "model."));
  }

  void add_model() {
    std::vector<std::size_t> model;
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = 0; i < stands_.size(); ++i) {
      if (!stands_[i]) continue;
      model.push_back(i);
      sizes.push_back(catalog_.tensors[i].bytes());
    }
    const std::uint64_t most =
        options_.max_shard_bytes == 0 ? kShardBytes : options_.max_shard_bytes;
    const auto split = safetensors::split_files(sizes, most);
    std::map<std::string, std::string> file_of;
    for (std::size_t i = 0; i < split.size(); ++i) {
      const std::string name = safetensors::model_file_name(i, split.size(), options_.stem);
      std::vector<NamedTensor> tensors;
      for (const std::size_t each : split[i]) {
        tensors.emplace_back(own_name(model[each]), model[each]);
        file_of[tensors.back().first] = name;
      }
      add_model_file(name, tensors);
    }
    if (split.size() == 1) return;
    const std::uint64_t total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    const SortedJson index = {{"metadata", {{"total_size", total}}}, {"weight_map", file_of}};
    texts_.emplace_back(fmt::format("{}.safetensors.index.json", options_.stem),
                        index.dump(2) + "\n");
  }

  bool is_adapter() const { return options_.stem == kAdapterStem; }

  std::string own_name(std::size_t tensor) const {
    const std::string& fqn = catalog_.tensors[tensor].fqn;
    if (is_adapter()) return adapter_.name_of(fqn).value_or(fqn);
    const auto found = own_names_.find(fqn);
    return found == own_names_.end() ? compiled_.name_of(fqn) : found->second;
  }

  using NamedTensor = std::pair<std::string, std::size_t>;  // name in the file, catalog tensor

  void add_model_file(const std::string& name, const std::vector<NamedTensor>& tensors) {
    std::vector<safetensors::HeaderEntry> entries;
    std::unordered_map<std::string, std::size_t> by_name;
    std::uint64_t bytes = 0;
    for (const auto& [own, index] : tensors) {
      const TensorInfo& tensor = catalog_.tensors[index];
      by_name.emplace(own, index);
      entries.push_back({.name = own, .dtype = tensor.dtype, .shape = tensor.shape});
      bytes += tensor.bytes();
    }
    std::string head = safetensors::encode_header(entries, {{"format", "pt"}});
    const std::size_t number = output_.add({name, std::move(head), bytes});
    for (const safetensors::HeaderEntry& entry : entries) {
      const auto index = static_cast<std::uint32_t>(by_name.at(entry.name));
      const std::uint64_t elements = catalog_.tensors[index].elements();
      if (elements == 0) continue;
      plan_.placements.push_back({index, {0, elements}, number, 0, entry.begin, entry.dtype});
    }
  }

  void add_further(const FurtherPart& part) {
    if (auto tensors = model_tensors(part))
      return add_model_file(fmt::format("{}.safetensors", part.key), *tensors);
    ArchiveDraft file(plan_, catalog_, output_.size());
    torch::write_json(file.pickle, part.value, [&](PickleWriter&, const std::string& fqn) {
      file.tensor(part.tensors.at(fqn));
    });
    finish(file, fmt::format("{}{}.bin", is_further_model(part.key) ? "pytorch_" : "", part.key));
  }

  /// Returns the tensors of a further model; nullopt for what a safetensors file cannot hold.
  static std::optional<std::vector<NamedTensor>> model_tensors(const FurtherPart& part) {
    if (!is_further_model(part.key) || !part.value.is_object() || part.value.contains("$type"))
      return std::nullopt;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, value] : part.value.items()) {
      if (torch::tensors_in(value).size() != 1 || !value.contains("$tensor")) return std::nullopt;
      tensors.emplace_back(name, part.tensors.at(value["$tensor"].get<std::string>()));
    }
    return tensors;
  }

  /// Whether the side files hold the schedule, under the name that either program gives it.
  bool has_schedule() const {
    return std::ranges::any_of(options_.side_files,
                               [](const auto& file) { return is_schedule(file.first); });
  }
  static bool is_schedule(const std::string& name) {
    return name == file_names(Program::Trainer).scheduler ||
           name == file_names(Program::Accelerate).scheduler;
  }

  void add_schedule() {
    if (has_schedule()) return;
    Json schedule = catalog_.scheduler;
    const bool is_torch = schedule.is_object() && schedule.contains("last_epoch");
    if (!is_torch) {
      if (program_ == Program::Accelerate) return;  // it needs none
      schedule = schedule_at_step();
    }
    torch::make_numbers(schedule);
    ArchiveDraft file(plan_, catalog_, output_.size());
    torch::write_json(file.pickle, torch::without_unwritable(schedule, "scheduler", plan_.notes),
                      torch::refuse_tensor);
    finish(file, names_.scheduler);
  }

  /// The state of the Trainer's own schedules, all of which depend on the step alone. The Trainer
  /// loads no optimizer without a schedule.
  Json schedule_at_step() const {
    Json rates = Json::array(), lambdas = Json::array();
    const std::size_t count = catalog_.groups.is_array() ? catalog_.groups.size() : 1;
    for (std::size_t g = 0; g < count; ++g) {
      const bool has_rate = catalog_.groups.is_array() && catalog_.groups[g].contains("lr");
      rates.push_back(has_rate ? catalog_.groups[g]["lr"] : adamw_defaults()["lr"]);
      lambdas.push_back(nullptr);
    }
    return {{"last_epoch", catalog_.step},
            {"_step_count", catalog_.step + 1},
            {"_last_lr", std::move(rates)},
            {"lr_lambdas", std::move(lambdas)}};
  }

  void add_side_files() {
    bool has_progress = program_ == Program::Accelerate;
    for (const auto& [name, content] : options_.side_files) {
      has_progress |= name == kTrainerState;
      texts_.emplace_back(is_schedule(name) ? std::string(names_.scheduler) : name, content);
    }
    if (!has_progress) texts_.emplace_back(kTrainerState, progress_text(catalog_));
  }

  void finish(ArchiveDraft& file, std::string_view name) {
    output_.add(file.finish(std::string(name)));
  }

  const Catalog& catalog_;
  const Program program_;
  const FileNames names_;
  const TrainerOptions& options_;
  const AdapterFile adapter_;
  const WrappedNames compiled_;
  torch::TorchOutput& output_;
  const OptimizerScalars scalars_;
  OutputPlan plan_;
  SideFiles texts_;
  std::vector<FurtherPart> further_;
  std::unordered_map<std::string_view, std::size_t> model_;  // fqn -> what stands for it
  std::vector<bool> stands_;  // one per tensor: it is in the model's file
  std::map<std::string, std::vector<std::size_t>> states_;  // by fqn
  std::unordered_map<std::string, std::string> own_names_;  // fqn -> name in the file
  bool is_read_by_file_names_ = false;
};

}  // namespace
}  // namespace trainer

std::unique_ptr<Sink> make_trainer_sink(Storage& storage, const Path& folder, Catalog catalog,
                                        const TrainerOptions& options, const WorkSplit& share) {
  auto partial =
      std::make_shared<PartialOutput>(storage, folder, PartialOutput::Shape::Folder, share);
  auto output = std::make_unique<torch::TorchOutput>(storage, partial->path());
  const auto program =
      options.is_accelerate ? trainer::Program::Accelerate : trainer::Program::Trainer;
  trainer::Planner planner(catalog, program, options, *output);
  torch::OutputPlan plan = planner.plan();
  auto complete = [&storage, partial, texts = planner.texts()] {
    for (const auto& [name, content] : texts)
      replace_text(storage, partial->path() / name, content);
  };
  return std::make_unique<torch::PlacedSink>(
      std::move(catalog), std::move(plan),
      torch::Ending{.partial = partial, .complete = std::move(complete)}, std::move(output), share);
}

}  // namespace unishard::converters
