#include "reading/state_doubts.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/guessed_ties.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "core/adam_settings.hpp"
#include "core/model_tensors.hpp"
#include "core/nested_states.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_set>

namespace unishard::converters {
namespace {

/// Moments that have the shape of their parameter in every optimizer that keeps whole moments.
constexpr std::array<std::string_view, 6> kMoments = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "state1", "state2"};

struct Parameter {
  const TensorInfo* weight = nullptr;  ///< master or weight; null where there is neither
  std::map<std::string_view, const TensorInfo*> states;
  std::int32_t group = -1;
  bool has_step = false;
};

bool is_part_of_object(const TensorInfo& tensor) { return state_levels(tensor.state).size() > 1; }

/// Whether nothing tells of which parameter the state is.
bool is_numbered(std::string_view fqn) {
  constexpr std::string_view kNumbered = "state.";
  return fqn.starts_with(kNumbered) && fqn.size() > kNumbered.size() &&
         fqn.find_first_not_of("0123456789", kNumbered.size()) == std::string_view::npos;
}

class Doubts {
 public:
  Doubts(const Catalog& catalog, const Losses& losses)
      : catalog_(catalog),
        // GaLore keeps an object beside moments of low rank.
        has_objects_(std::ranges::count(losses, Role::State, &Loss::role) > 0 ||
                     std::ranges::any_of(catalog.tensors, is_part_of_object)),
        has_lost_states_(std::ranges::count(losses, Role::Optimizer, &Loss::role) > 0),
        has_lost_weights_(std::ranges::count(losses, Role::Weight, &Loss::role) > 0) {
    const OptimizerScalars scalars(catalog);
    for (const TensorInfo& tensor : catalog.tensors) {
      if (tensor.state == kExtraState) continue;
      Parameter& parameter = parameters_[tensor.fqn];
      parameter.group = std::max(parameter.group, tensor.group);
      if (is_of_model(tensor)) {
        parameter.weight = &tensor;
      } else {
        parameter.states.emplace(tensor.state, &tensor);
      }
    }
    for (auto& [fqn, parameter] : parameters_)
      parameter.has_step = !parameter.states.empty() && !scalars.step(std::string(fqn)).is_null();
  }

  std::vector<std::string> take() {
    if (!has_objects_) other_shapes();
    if (!has_objects_) foreign_numbers();
    if (!has_objects_ && !has_lost_states_) moments_of_adam();
    missing_moments();
    missing_scales();
    missing_steps();
    groups();
    if (!has_surplus_) surplus_in_groups();
    if (!has_lost_weights_) missing_weights();
    return std::move(lines_);
  }

 private:
  void say(const std::vector<std::string>& names, std::string_view what) {
    if (names.empty()) return;
    const std::string count =
        names.size() > kFirstNames ? fmt::format(" ({})", names.size()) : std::string();
    lines_.push_back(fmt::format("{}{}: {}", what, count, first_names(names)));
  }

  void other_shapes() {
    std::vector<std::string> names;
    for (const auto& [fqn, parameter] : parameters_) {
      const TensorInfo* const whole = whole_of(parameter);
      if (whole == nullptr) continue;
      const Shape& shape = whole->shape;
      for (const auto& [name, tensor] : parameter.states) {
        if (std::ranges::count(kMoments, name) == 0 || tensor->shape == shape) continue;
        names.push_back(fmt::format("{} ({} beside {})", tensor->label(),
                                    fmt::join(tensor->shape, " x "), fmt::join(shape, " x ")));
      }
    }
    say(names,
        "moments of the optimizer have other shapes than their parameters, as those of low-rank "
        "optimizers have; else the model and the optimizer are of two saves");
  }

  /// Returns what has the parameter's shape: its weight, else its first moment.
  static const TensorInfo* whole_of(const Parameter& parameter) {
    if (parameter.weight != nullptr) return parameter.weight;
    for (const std::string_view moment : {kMoments[0], kMoments[4]}) {
      const auto found = parameter.states.find(moment);
      if (found != parameter.states.end()) return found->second;
    }
    return nullptr;
  }

  void foreign_numbers() {
    constexpr std::array<std::string_view, 3> kOfParametersSize = {"exp_avg", "momentum_buffer",
                                                                   "square_avg"};
    std::set<Shape> model;
    for (const TensorInfo& tensor : catalog_.tensors) {
      if (!is_numbered(tensor.fqn) && tensor.state != kExtraState) model.insert(tensor.shape);
    }
    std::vector<std::string> names;
    for (const TensorInfo& tensor : catalog_.tensors) {
      if (is_numbered(tensor.fqn) && std::ranges::count(kOfParametersSize, tensor.state) > 0 &&
          !model.contains(tensor.shape))
        names.push_back(fmt::format("{} ({})", tensor.label(), fmt::join(tensor.shape, " x ")));
    }
    say(names,
        "states of the optimizer have the size of no parameter of the model: of modules that the "
        "model's files leave out, or one of the files is another's");
    has_surplus_ = !names.empty();
    if (names.empty()) surplus_numbers();
  }

  /// Each number is a parameter of its own.
  void surplus_numbers() {
    constexpr std::array<std::string_view, 2> kFirst = {"exp_avg", "momentum_buffer"};
    std::map<Shape, std::pair<std::size_t, std::size_t>> counts;  // states, parameters
    for (const auto& [fqn, parameter] : parameters_) {
      if (is_numbered(fqn)) {
        for (const std::string_view state : kFirst) {
          if (const auto found = parameter.states.find(state); found != parameter.states.end())
            ++counts[found->second->shape].first;
        }
      } else if (parameter.weight != nullptr && parameter.states.empty()) {
        ++counts[parameter.weight->shape].second;
      }
    }
    std::vector<std::string> names;
    for (const auto& [shape, count] : counts) {
      if (count.first > count.second)
        names.push_back(fmt::format("{} of size ({}), of which the model has {}", count.first,
                                    fmt::join(shape, " x "), count.second));
    }
    say(names,
        "the optimizer has states of more parameters than the model has: a tensor of the model "
        "has lost a part, or one of the files is another's");
    has_surplus_ = !names.empty();
  }

  /// Each number in a group is a parameter of its own, also where it has no state, as with plain
  /// SGD. Buffers count as parameters here, since nothing tells them apart.
  void surplus_in_groups() {
    const auto model = static_cast<std::size_t>(
        std::ranges::count_if(std::views::values(parameters_), &is_in_model));
    const std::set<std::string> trained = listed_parameters();
    const bool has_numbers = std::ranges::any_of(trained, is_numbered);
    if (!has_numbers || model == 0 || trained.size() <= model + guessed_ties()) return;
    lines_.push_back(fmt::format(
        "the optimizer's groups list {} parameters, and the model has {} tensors: a tensor of the "
        "model is missing, the model's files leave a module out, {}or one of the files is "
        "another's",
        trained.size(), model, catalog_.aliases.empty() ? "" : "two parameters share a tensor, "));
  }

  void missing_weights() {
    std::vector<std::string> names;
    for (const auto& [fqn, parameter] : parameters_) {
      const bool has_moment = std::ranges::any_of(parameter.states, [](const auto& each) {
        return std::ranges::count(kMoments, each.first) > 0;
      });
      if (has_moment && !is_in_model(parameter) && !is_numbered(fqn)) names.emplace_back(fqn);
    }
    say(names,
        "the optimizer has states of parameters that have no weights here: the model is in another "
        "file or folder, or its file is another's");
  }

  static bool is_in_model(const Parameter& parameter) { return parameter.weight != nullptr; }

  /// Returns how many parameters may have been taken for second names of others.
  std::size_t guessed_ties() const {
    const Json& producer = catalog_.producer;
    return producer.is_object() ? producer.value(kGuessedTies, Json::array()).size() : 0;
  }

  /// Returns the names that the groups list.
  std::set<std::string> listed_parameters() const {
    std::set<std::string> names;
    if (!catalog_.groups.is_array()) return names;
    for (const Json& group : catalog_.groups) {
      const auto params = group.is_object() ? group.find("params") : group.end();
      if (!group.is_object() || params == group.end() || !params->is_array()) continue;
      for (const Json& name : *params) {
        if (name.is_string()) names.insert(name.get<std::string>());
      }
    }
    return names;
  }

  /// Parameters of one group with as many dimensions.
  using Kind = std::tuple<std::int32_t, std::size_t>;
  std::map<Kind, std::vector<std::string_view>> kinds() const {
    std::map<Kind, std::vector<std::string_view>> kinds;
    for (const auto& [fqn, parameter] : parameters_) {
      if (parameter.weight != nullptr && !parameter.states.empty())
        kinds[{parameter.group, parameter.weight->shape.size()}].push_back(fqn);
    }
    return kinds;
  }

  void missing_moments() {
    std::vector<std::string> names;
    for (const auto& [group, fqns] : groups_of_adam()) {
      for (const std::string_view moment : {state::kExpAvg, state::kExpAvgSq}) {
        for (const std::string_view fqn : fqns) {
          if (!parameters_.at(fqn).states.contains(moment))
            names.push_back(fmt::format("{} [{}]", fqn, moment));
        }
      }
    }
    if (names.empty()) {
      for (const auto& [kind, fqns] : kinds()) {
        for (const std::string_view moment : kMoments) missing_moments(fqns, moment, names);
      }
    }
    say(names, "moments of the optimizer are missing that the other parameters like theirs have");
  }

  /// Returns the parameters with states of the groups in which no parameter has another state than
  /// Adam's two or three moments, and both moments are there.
  std::map<std::int32_t, std::vector<std::string_view>> groups_of_adam() const {
    std::map<std::int32_t, std::set<std::string_view>> states;
    std::map<std::int32_t, std::vector<std::string_view>> groups;
    for (const auto& [fqn, parameter] : parameters_) {
      if (parameter.states.empty()) continue;
      groups[parameter.group].push_back(fqn);
      for (const auto& [name, tensor] : parameter.states) {
        if (!is_renamed_moment(parameter, name)) states[parameter.group].insert(name);
      }
    }
    std::erase_if(groups, [&](const auto& each) {
      std::set<std::string_view> others = states.at(each.first);
      const bool has_both = others.erase(state::kExpAvg) + others.erase(state::kExpAvgSq) == 2;
      others.erase("max_exp_avg_sq");
      return !has_both || !others.empty();
    });
    return groups;
  }

  /// Returns the moment whose name a state's begins with: that of "exp_avg_sqx" is exp_avg_sq.
  static std::string_view moment_in(std::string_view name) {
    if (name.starts_with(state::kExpAvgSq)) return state::kExpAvgSq;
    return name.starts_with(state::kExpAvg) ? state::kExpAvg : std::string_view();
  }

  /// Returns whether a state stands for a moment that its parameter lacks. Factored moments have
  /// other shapes.
  static bool is_renamed_moment(const Parameter& parameter, std::string_view name) {
    const std::string_view moment = moment_in(name);
    const TensorInfo* const whole = whole_of(parameter);
    return !moment.empty() && !parameter.states.contains(moment) && whole != nullptr &&
           parameter.states.at(name)->shape == whole->shape;
  }

  /// Returns a state of a group that begins with the name of a moment that the group lacks; empty
  /// where there is none.
  static std::string_view renamed_moment(const std::set<std::string_view>& states) {
    const auto found = std::ranges::find_if(states, [&](std::string_view name) {
      const std::string_view moment = moment_in(name);
      return !moment.empty() && !states.contains(moment);
    });
    return found == states.end() ? std::string_view() : *found;
  }

  /// A parameter with a state that those with the moment lack has another kind of optimizer, unless
  /// it has exp_avg_sq: no optimizer keeps that for some parameters alone and exp_avg for others.
  void missing_moments(const std::vector<std::string_view>& fqns, std::string_view moment,
                       std::vector<std::string>& names) const {
    std::set<std::string_view> usual;  // states of those that have the moment
    std::vector<std::string_view> without;
    for (const std::string_view fqn : fqns) {
      const auto& states = parameters_.at(fqn).states;
      if (!states.contains(moment)) {
        without.push_back(fqn);
      } else {
        for (const auto& [name, tensor] : states) usual.insert(name);
      }
    }
    if (2 * without.size() >= fqns.size()) return;
    for (const std::string_view fqn : without) {
      const auto& states = parameters_.at(fqn).states;
      const bool is_alike =
          std::ranges::all_of(states, [&](const auto& each) { return usual.contains(each.first); });
      const bool is_half = moment == state::kExpAvg && states.contains(state::kExpAvgSq) &&
                           usual.contains(state::kExpAvgSq);
      if (is_alike || is_half) names.push_back(fmt::format("{} [{}]", fqn, moment));
    }
  }

  /// Says which moments no parameter of a group of Adam has. A group of which no parameter has a
  /// state is frozen where another one has states.
  void moments_of_adam() {
    if (!catalog_.groups.is_array() || !has_stepped()) return;
    std::map<std::int32_t, std::set<std::string_view>> states;
    for (const auto& [fqn, parameter] : parameters_) {
      for (const auto& [name, tensor] : parameter.states) states[parameter.group].insert(name);
    }
    std::vector<std::string> names;
    std::int32_t number = 0;
    bool has_adam = false;
    for (const Json& group : catalog_.groups) {
      std::set<std::string_view> known = states[number];
      known.erase("max_exp_avg_sq");
      const bool is_half = known.size() == 1 &&
                           (*known.begin() == state::kExpAvg || *known.begin() == state::kExpAvgSq);
      if (has_settings_of_adam(group)) has_adam = true;
      const std::string_view renamed = renamed_moment(known);
      if (has_settings_of_adam(group) && is_half)
        names.push_back(fmt::format("group {} has {} alone", number, *known.begin()));
      else if (has_settings_of_adam(group) && !renamed.empty())
        names.push_back(fmt::format("group {} has {} instead of {}", number, quote(renamed),
                                    moment_in(renamed)));
      ++number;
    }
    say(names, "Adam keeps exp_avg and exp_avg_sq, and one of them is gone for all parameters");
    const bool has_states =
        std::ranges::any_of(states, [](const auto& each) { return !each.second.empty(); });
    if (has_adam && !has_states)
      lines_.push_back(
          fmt::format("Adam has no states of any parameter, and the checkpoint counts {} steps",
                      catalog_.step));
  }

  /// Whether the optimizer did a step: DeepSpeed counts those too that an overflow made it skip.
  bool has_stepped() const {
    const Json& progress = catalog_.data_position;
    const Json skipped = progress.is_object() ? progress.value("skipped_steps", Json(0)) : Json(0);
    return !skipped.is_number() || static_cast<double>(catalog_.step) > skipped.get<double>();
  }

  /// Names the 8-bit moments of bitsandbytes without a scale (`absmax1`; `max1` where there are no
  /// blocks) or without the table of their values (`qmap1`).
  void missing_scales() {
    std::vector<std::string> names;
    for (const auto& [fqn, parameter] : parameters_) {
      std::map<std::string, const TensorInfo*> members;
      for (const auto& [name, tensor] : parameter.states)
        members.emplace(state_levels(std::string(name)).back(), tensor);
      for (const std::string number : {"1", "2"}) {
        const auto moment = members.find("state" + number);
        if (moment == members.end() || moment->second->dtype != DType::UInt8) continue;
        if (!members.contains("absmax" + number) && !members.contains("max" + number))
          names.push_back(fmt::format("{} [absmax{}]", fqn, number));
        if (!members.contains("qmap" + number))
          names.push_back(fmt::format("{} [qmap{}]", fqn, number));
      }
    }
    say(names, "8-bit moments of the optimizer have no value without these tables");
  }

  void missing_steps() {
    std::map<std::vector<std::string_view>, std::vector<std::string>> with, without;
    for (const auto& [fqn, parameter] : parameters_) {
      if (parameter.states.empty()) continue;
      std::vector<std::string_view> states;
      std::ranges::copy(std::views::keys(parameter.states), std::back_inserter(states));
      (parameter.has_step ? with : without)[std::move(states)].emplace_back(fqn);
    }
    std::vector<std::string> names;
    for (const auto& [states, fqns] : without) {
      if (const auto found = with.find(states);
          found != with.end() && fqns.size() < found->second.size())
        names.insert(names.end(), fqns.begin(), fqns.end());
    }
    say(names, "parameters have no step of the optimizer, and others with the same states have");
  }

  void groups() {
    if (!catalog_.groups.is_array()) return;
    std::unordered_set<std::string_view> known, listed;
    for (const auto& [fqn, parameter] : parameters_) known.insert(fqn);
    for (const Alias& alias : catalog_.aliases) known.insert(alias.fqn);
    std::vector<std::string> twice, unknown, unlisted, idle;
    for (const Json& group : catalog_.groups) {
      const auto params = group.is_object() ? group.find("params") : group.end();
      if (!group.is_object() || params == group.end() || !params->is_array()) return;
      for (const Json& name : *params) {
        if (!name.is_string()) return;
        const auto& fqn = name.get_ref<const std::string&>();
        if (!listed.insert(fqn).second) twice.push_back(fqn);
        if (!known.contains(fqn)) (is_numbered(fqn) ? idle : unknown).push_back(fqn);
      }
    }
    if (listed.empty()) return;
    for (const auto& [fqn, parameter] : parameters_) {
      if (!parameter.states.empty() && !listed.contains(fqn)) unlisted.emplace_back(fqn);
    }
    say(twice, "names are in two groups of the optimizer, or twice in one");
    if (idle.size() < listed.size())
      say(idle, "the optimizer has no states of these, as of frozen and unused parameters");
    if (unknown.size() < listed.size())
      say(unknown, "names in the optimizer's groups have neither a weight nor a state here");
    say(unlisted, "parameters have states of the optimizer, and are in none of its groups");
  }

  const Catalog& catalog_;
  const bool has_objects_;
  const bool has_lost_states_, has_lost_weights_;
  bool has_surplus_ = false;  ///< a line tells of states of more parameters than there are
  std::map<std::string_view, Parameter> parameters_;
  std::vector<std::string> lines_;
};

/// Returns the most steps that the optimizer counts for a parameter; nullopt where it counts none.
std::optional<double> steps_of_optimizer(const Catalog& catalog) {
  const OptimizerScalars scalars(catalog);
  std::optional<double> most;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor) || tensor.state == kExtraState) continue;
    const Json step = scalars.step(tensor.fqn);
    if (step.is_number()) most = std::max(most.value_or(0), step.get<double>());
  }
  return most;
}

/// Returns the first three numbers of a version; zeros for what has none.
std::array<unsigned, 3> numbers_of_version(std::string_view version) {
  std::array<unsigned, 3> numbers = {};
  for (unsigned& number : numbers) {
    const auto [end, error] =
        std::from_chars(version.data(), version.data() + version.size(), number);
    if (error != std::errc()) break;
    version.remove_prefix(static_cast<std::size_t>(end - version.data()));
    if (!version.starts_with('.')) break;
    version.remove_prefix(1);
  }
  return numbers;
}

bool is_enabled(const Json& config, const char* type) {
  const Json section = config.is_object() ? config.value(type, Json()) : Json();
  return section.is_object() && section.value("enabled", Json()) == true;
}

}  // namespace

bool counts_the_start(const Catalog& catalog) {
  constexpr std::array<unsigned, 3> kWithout = {0, 13, 2};
  const Json& producer = catalog.producer;
  if (!producer.is_object() || producer.value("library", Json()) != "deepspeed") return false;
  const Json version = producer.value("version", Json());
  if (numbers_of_version(version.is_string() ? version.get<std::string>() : "") < kWithout)
    return true;
  const auto is_master = [](const TensorInfo& tensor) { return tensor.state == state::kFp32; };
  const auto is_half = [](const TensorInfo& tensor) {
    return tensor.state == state::kWeights && !tensor.frozen;
  };
  return catalog.stage == 0 && std::ranges::any_of(catalog.tensors, is_master) &&
         (std::ranges::any_of(catalog.tensors, is_half) || is_enabled(catalog.config, "bf16") ||
          is_enabled(catalog.config, "fp16"));
}

std::vector<std::string> doubts_about_states(const Catalog& catalog, const Losses& losses) {
  return Doubts(catalog, losses).take();
}

std::vector<std::string> doubts_about_settings(const Catalog& catalog) {
  std::set<std::int32_t> used;  // groups with states
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!is_of_model(tensor) && tensor.state != kExtraState) used.insert(tensor.group);
  }
  if (used.empty()) return {};
  std::vector<std::string> lines;
  if (!catalog.groups.is_array() || catalog.groups.empty()) {
    lines.emplace_back(
        "the optimizer has states and no parameter groups: their settings, the learning rate "
        "among them, are lost, and a result that needs some has AdamW's defaults");
    return lines;
  }
  const auto lists_none = [](const Json& group) {
    return group.contains("params") && group["params"].is_array() && group["params"].empty();
  };
  if (std::ranges::all_of(catalog.groups, lists_none))
    lines.emplace_back("the optimizer has states, and its parameter groups list no parameter");
  std::vector<std::size_t> without;
  for (std::size_t g = 0; g < catalog.groups.size(); ++g) {
    const bool is_used = used.contains(static_cast<std::int32_t>(g));
    if (is_used && !catalog.groups[g].contains("lr")) without.push_back(g);
  }
  if (!without.empty())
    lines.push_back(fmt::format(
        "parameter groups have no lr: {}. A result that needs one has AdamW's default, 0.001",
        fmt::join(without, ", ")));
  return lines;
}

std::optional<double> steps_of_schedule(const Json& schedule) {
  if (!schedule.is_object() || !schedule.contains("_step_count")) return std::nullopt;
  const Json last = schedule.value("last_epoch", Json());
  if (!last.is_number() || schedule.contains("num_bad_epochs")) return std::nullopt;
  return last.get<double>();
}

std::vector<std::string> doubts_about_steps(const Catalog& catalog, std::int64_t steps,
                                            std::optional<std::uint64_t> number,
                                            bool has_one_process) {
  std::vector<std::string> lines;
  if (number && std::cmp_not_equal(steps, *number))
    lines.push_back(fmt::format("trainer_state.json counts {} steps, and the folder's name {}",
                                steps, *number));
  const auto done = steps_of_optimizer(catalog);
  const auto wanted = static_cast<double>(steps);
  const Json& position = catalog.data_position;
  const Json skipped = position.is_object() ? position.value("skipped_steps", Json()) : Json();
  const double made = wanted - (skipped.is_number() ? skipped.get<double>() : 0);
  const bool is_counted =
      done == wanted || done == made || (done == made + 1 && counts_the_start(catalog));
  if (done && !is_counted)
    lines.push_back(
        fmt::format("trainer_state.json counts {} steps, and the optimizer {}: some "
                    "steps were skipped, or the two files are of two saves",
                    steps, *done));
  const auto scheduled = steps_of_schedule(catalog.scheduler);
  // accelerate's schedules count every process.
  const bool is_multiple = scheduled && wanted > 0 && std::fmod(*scheduled, wanted) == 0;
  const bool is_usual = has_one_process ? scheduled == wanted : is_multiple;
  if (scheduled && !is_usual && scheduled != done)
    lines.push_back(fmt::format(
        "trainer_state.json counts {} steps, and the schedule {}: some steps were skipped, or the "
        "two files are of two saves",
        steps, *scheduled));
  return lines;
}

}  // namespace unishard::converters
