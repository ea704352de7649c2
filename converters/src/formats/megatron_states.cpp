#include "formats/megatron_states.hpp"

#include "unishard/converters/dtype_cast.hpp"
#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"

#include "containers/torch_file.hpp"
#include "core/forwarding_source.hpp"
#include "core/model_tensors.hpp"
#include "core/rounded_elements.hpp"
#include "formats/megatron_run.hpp"
#include "formats/torch/reader.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

constexpr std::string_view kMasters = "optimizer.fp32_from_fp16_params.";
/// Elements at an end of a master that are compared with the weights. Many parameters tell enough
/// together.
constexpr std::uint64_t kCompared = 64;

bool is_16_bit(const TensorInfo& tensor) {
  return tensor.dtype == DType::BFloat16 || tensor.dtype == DType::Float16;
}

/// Returns what the groups of an optimizer have alike on all ranks: all but the parameters, and the
/// names of the states.
std::vector<Json> group_settings(const Catalog& catalog) {
  std::vector<Json> settings(catalog.groups.begin(), catalog.groups.end());
  std::vector<std::set<std::string>> states(settings.size());
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.group >= 0) states[static_cast<std::size_t>(tensor.group)].insert(tensor.state);
  }
  for (std::size_t g = 0; g < settings.size(); ++g) settings[g]["params"] = states[g];
  return settings;
}

/// Finds which tensor of the file is which state of which parameter.
class StateNames {
 public:
  explicit StateNames(const Source& part) : part_(part), catalog_(part.catalog()) {
    const std::vector<TensorInfo>& tensors = part.catalog().tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (is_of_model(tensors[i])) model_.emplace(tensors[i].fqn, i);
    }
  }

  /// Returns why the states have no names; empty where they have.
  std::string find() {
    catalog_.tensors.clear();
    const std::vector<TensorInfo>& tensors = part_.catalog().tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo& tensor = tensors[i];
      if (tensor.fqn.starts_with(kMasters)) continue;
      if (tensor.state == kExtraState)
        left_out_.insert(value_of(tensor.fqn));
      else if (model_.contains(tensor.fqn))
        add(tensor, i);
      else
        return "nothing tells of which parameters they are";
    }
    std::string why_not = name_masters();
    if (why_not.empty()) why_not = find_missing_state();
    sort();
    forget_places();
    return why_not;
  }

  /// Gives the groups the order of those of another rank. Returns why they are not of one save;
  /// empty where they may be.
  std::string follow(const Catalog& first) {
    if (catalog_.step != first.step)
      return fmt::format("it has done {} steps, and that of another rank {}", catalog_.step,
                         first.step);
    const std::vector<Json> own = group_settings(catalog_), settings = group_settings(first);
    if (!std::ranges::is_permutation(own, settings))
      return "its parameter groups have other settings or states than those of another rank";
    const Json groups = catalog_.groups;
    std::vector<std::int32_t> places;
    for (const Json& group : own) {
      std::int32_t place = 0;
      while (settings[static_cast<std::size_t>(place)] != group ||
             std::ranges::count(places, place) > 0)
        ++place;
      catalog_.groups[static_cast<std::size_t>(place)] = groups[places.size()];
      places.push_back(place);
    }
    for (TensorInfo& tensor : catalog_.tensors)
      if (tensor.group >= 0) tensor.group = places[static_cast<std::size_t>(tensor.group)];
    return {};
  }

  Catalog take_catalog() { return std::move(catalog_); }
  std::vector<std::size_t> numbers() const { return numbers_; }
  std::set<std::string> left_out() const { return left_out_; }

 private:
  /// Returns the key of the file, or of its optimizer, that holds a tensor of this name.
  static std::string value_of(const std::string& name) {
    constexpr std::string_view kOptimizer = "optimizer.";
    const std::size_t from = name.starts_with(kOptimizer) ? kOptimizer.size() : 0;
    return name.substr(0, name.find('.', from));
  }

  void add(TensorInfo tensor, std::size_t number) {
    catalog_.tensors.push_back(std::move(tensor));
    numbers_.push_back(number);
  }

  /// The client state says where the file has the tensors of the model and the optimizer, which
  /// have other names now, and those that are left out.
  void forget_places() {
    if (!catalog_.client_state.is_object()) return;
    for (const char* key : {"model", "optimizer"}) catalog_.client_state.erase(key);
    for (const std::string& name : left_out_) catalog_.client_state.erase(name);
  }

  /// The masters of a group are those of its 16-bit parameters, in their order.
  std::string name_masters() {
    std::map<std::string, std::size_t> masters;
    const std::vector<TensorInfo>& tensors = part_.catalog().tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].fqn.starts_with(kMasters)) masters.emplace(tensors[i].fqn, i);
    }
    if (masters.empty() && has_frozen())
      return "some parameters have no states, and no fp32 masters tell which";
    const std::size_t count = masters.size();
    std::size_t used = 0;
    for (std::size_t g = 0; g < catalog_.groups.size(); ++g) {
      std::size_t at = 0;
      for (const Json& name : catalog_.groups[g]["params"]) {
        const auto weights = model_.find(name.get<std::string>());
        if (weights == model_.end()) return "a group lists what is no parameter";
        if (!is_16_bit(tensors[weights->second])) continue;
        const auto master = masters.find(fmt::format("{}{}.{}", kMasters, g, at++));
        if (master == masters.end())
          return fmt::format("{} has no fp32 master", quote(weights->first));
        if (std::string why_not = name_master(weights->second, master->second); !why_not.empty())
          return why_not;
        ++used;
      }
    }
    return used == count ? std::string() : "there are more fp32 masters than 16-bit parameters";
  }

  bool has_frozen() const {
    std::size_t trained = 0, parameters = 0;
    for (const Json& group : catalog_.groups) trained += group["params"].size();
    for (const auto& [name, number] : model_)
      if (!name.ends_with(kModuleState)) ++parameters;
    return trained != parameters;
  }

  /// All parameters of a group have the same states.
  std::string find_missing_state() const {
    std::map<std::int32_t, std::map<std::string, std::size_t>> counts;
    for (const TensorInfo& tensor : catalog_.tensors)
      if (tensor.group >= 0) ++counts[tensor.group][tensor.state];
    for (const auto& [group, states] : counts) {
      const Json& parameters = catalog_.groups[static_cast<std::size_t>(group)]["params"];
      for (const auto& [state, count] : states) {
        if (count != parameters.size())
          return fmt::format("{} parameters of group {} lack {}", parameters.size() - count, group,
                             state);
      }
    }
    return {};
  }

  std::string name_master(std::size_t weights, std::size_t master) {
    const TensorInfo& parameter = part_.catalog().tensors[weights];
    TensorInfo named = part_.catalog().tensors[master];
    if (is_16_bit(named))
      return fmt::format("the master of {} has 16 bits too", quote(parameter.fqn));
    if (named.shape != parameter.shape || !rounds_to(master, weights))
      return fmt::format("the fp32 master in the place of {} is another one's",
                         quote(parameter.fqn));
    named.fqn = parameter.fqn;
    named.state = state::kFp32;
    named.group = parameter.group;
    add(std::move(named), master);
    return {};
  }

  /// Whether both ends of the master, rounded, are those of the weights.
  bool rounds_to(std::size_t master, std::size_t weights) const {
    const std::uint64_t all = part_.catalog().tensors[weights].elements();
    const std::uint64_t count = std::min(kCompared, all);
    return rounds_to(master, weights, {0, count}) && rounds_to(master, weights, {all - count, all});
  }

  bool rounds_to(std::size_t master, std::size_t weights, ElementRange range) const {
    const TensorInfo& from = part_.catalog().tensors[master];
    const TensorInfo& to = part_.catalog().tensors[weights];
    std::vector<std::byte> values(range.size() * size_of(from.dtype)),
        wanted(range.size() * size_of(to.dtype));
    part_.read(master, range, values);
    part_.read(weights, range, wanted);
    return convertible(from.dtype, to.dtype) && are_rounded(from.dtype, values, to.dtype, wanted);
  }

  /// Puts the states of a parameter behind each other, in the model's order, the master first.
  void sort() {
    const auto place = [&](std::size_t i) {
      const TensorInfo& tensor = catalog_.tensors[i];
      return std::tuple(model_.at(tensor.fqn), tensor.state != state::kFp32, numbers_[i]);
    };
    std::vector<std::size_t> order(numbers_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, place);
    std::vector<TensorInfo> tensors;
    std::vector<std::size_t> numbers;
    for (const std::size_t i : order) {
      tensors.push_back(std::move(catalog_.tensors[i]));
      numbers.push_back(numbers_[i]);
    }
    catalog_.tensors = std::move(tensors);
    numbers_ = std::move(numbers);
  }

  const Source& part_;
  Catalog catalog_;
  std::vector<std::size_t> numbers_;          ///< of each tensor in the file's catalog
  std::map<std::string, std::size_t> model_;  ///< numbers of the parameters and buffers
  std::set<std::string> left_out_;
};

/// The model and its states under the names of the parameters.
class NamedStates final : public ForwardingSource {
 public:
  NamedStates(std::unique_ptr<Source> part, Catalog catalog, std::vector<std::size_t> numbers)
      : ForwardingSource(std::move(part)),
        catalog_(std::move(catalog)),
        numbers_(std::move(numbers)) {}

  const Catalog& catalog() const override { return catalog_; }
  std::uint64_t read_boundary(std::size_t tensor, std::uint64_t element) const override {
    return source().read_boundary(numbers_[tensor], element);
  }
  bool is_in_order(std::size_t tensor) const override {
    return source().is_in_order(numbers_[tensor]);
  }
  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    return source().stored_ranges(numbers_[tensor]);
  }

 private:
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    source().read(numbers_[tensor], range, out);
  }

  Catalog catalog_;
  std::vector<std::size_t> numbers_;
};

/// Returns why the optimizer of a file has no states with names; empty where there is none.
std::string why_unnamed(torch::Value root, bool has_groups) {
  const auto optimizer = root.is_dict() ? root.find("optimizer") : std::nullopt;
  if (optimizer && optimizer->is(torch::NodeKind::List)) return "it has several optimizers";
  if (!optimizer || !optimizer->is_dict()) return {};
  return has_groups ? "its optimizer has no states of any parameter"
                    : "its optimizer has no parameter groups, which tell whose the states are";
}

/// A run that does not save its optimizer saves no schedule of it either.
bool has_schedule(torch::Value root) {
  const auto schedule = root.is_dict() ? root.find("opt_param_scheduler") : std::nullopt;
  return schedule && !schedule->is_none();
}

}  // namespace

std::string find_different_value(const Catalog& first, const Catalog& other) {
  const OptimizerScalars values(first), others(other);
  const auto own = [](const OptimizerScalars& scalars, const std::string& name) {
    Json all = Json::object();
    for (const auto& [state, value] : scalars.of(name)) all[state] = *value;
    all["step"] = scalars.step(name);
    return all;
  };
  for (const TensorInfo& tensor : other.tensors) {
    if (tensor.group >= 0 && own(values, tensor.fqn) != own(others, tensor.fqn))
      return fmt::format("{} has other steps or values than on the first rank of the stage",
                         quote(tensor.fqn));
  }
  return {};
}

MegatronStates open_with_states(Storage& storage, const Path& file, const Catalog* first) {
  const torch::TorchFile archive(torch::whole_file(storage, file));
  require_written_name(file, archive.archive_name());
  OpenOptions options;
  options.assume_model_order = true;
  MegatronStates out;
  std::unique_ptr<Source> part = open_torch_file(storage, file, archive, options);
  const Catalog& catalog = part->catalog();
  const bool has_states = std::ranges::any_of(catalog.tensors, [](const TensorInfo& tensor) {
    return !is_of_model(tensor) && tensor.state != kExtraState;
  });
  const bool has_masters = std::ranges::any_of(
      catalog.tensors, [](const auto& tensor) { return tensor.fqn.starts_with(kMasters); });
  if (!has_states && has_masters)
    out.why_not = "its fp32 masters have no states beside them, which would tell whose they are";
  const bool has_groups = catalog.groups.is_array() && !catalog.groups.empty();
  if (!has_groups || !has_states) {
    if (out.why_not.empty()) out.why_not = why_unnamed(archive.root(), has_groups);
    out.has_lone_schedule = out.why_not.empty() && has_schedule(archive.root());
    return out;
  }
  StateNames names(*part);
  out.why_not = names.find();
  out.left_out = names.left_out();
  if (out.why_not.empty() && first != nullptr) out.why_not = names.follow(*first);
  if (out.why_not.empty())
    out.part =
        std::make_unique<NamedStates>(std::move(part), names.take_catalog(), names.numbers());
  return out;
}

}  // namespace unishard::converters
