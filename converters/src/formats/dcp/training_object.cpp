#include "formats/dcp/training_object.hpp"

#include "containers/object_tree.hpp"
#include "formats/dcp/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::converters::dcp {
namespace {

using torch::is_module;
using torch::NodeKind;
using torch::path_part;
using torch::TorchFile;
using torch::Value;

/// Optimizers lie at most this deep: "optimizer_states", 0 in Lightning's files.
constexpr int kDepth = 3;

/// What has more members is a model or a data set, and holds no optimizer.
constexpr std::uint64_t kMostMembers = 1024;

/// Upper bound on the members that are looked at.
constexpr std::uint64_t kMostLooks = 1 << 20;

bool has_string_keys(Value dict) {
  for (std::size_t i = 0; i < dict.pair_count(); ++i) {
    if (!dict.key(i).is(NodeKind::Str)) return false;
  }
  return true;
}

/// Returns whether the dict has the keys of an optimizer that was flattened
/// (flatten_optimizer_state_dict), as dcp_to_torch_save writes those of torchtitan.
bool has_flat_optimizer(Value dict) {
  bool has_states = false, has_groups = false;
  for (std::size_t i = 0; i < dict.pair_count(); ++i) {
    if (!dict.key(i).is(NodeKind::Str)) continue;
    has_states |= dict.key(i).text().starts_with("state.");
    has_groups |= dict.key(i).text().starts_with("param_groups.");
  }
  return has_states && has_groups;
}

/// Looks for optimizers. A pickle may use one list a thousand times, so the work is bounded; beyond
/// the bound nothing is found.
class OptimizerSearch {
 public:
  /// `most` is the number of members up to which the members of `value` are looked at.
  bool finds(Value value, int depth, std::uint64_t most = kMostMembers) {
    if (value.is_dict()) {
      if (is_flat(value)) return true;
      if (!may_enter(value.pair_count(), most)) return false;
      if (is_optimizer(value)) return true;
      for (std::size_t i = 0; depth > 0 && i < value.pair_count(); ++i) {
        if (finds(value.value(i), depth - 1)) return true;
      }
    } else if (value.is_sequence() && may_enter(value.size(), most)) {
      for (std::size_t i = 0; depth > 0 && i < value.size(); ++i) {
        if (finds(value[i], depth - 1)) return true;
      }
    }
    return false;
  }

 private:
  bool is_flat(Value dict) {
    if (dict.pair_count() > keys_left_) return false;
    keys_left_ -= dict.pair_count();
    return has_flat_optimizer(dict);
  }
  bool may_enter(std::uint64_t members, std::uint64_t most) {
    if (members > std::min(left_, most)) return false;
    left_ -= members;
    return true;
  }
  std::uint64_t left_ = kMostLooks, keys_left_ = 1 << 22;
};

bool is_model(Value value) {
  if (value.is(NodeKind::Object) && is_module(value)) return true;
  if (!value.is_dict() || value.pair_count() == 0 || !has_string_keys(value)) return false;
  for (std::size_t i = 0; i < value.pair_count(); ++i) {
    if (TorchFile::is_tensor(value.value(i))) return true;
  }
  return false;
}

/// Adds the members of the object; those above an optimizer are taken apart, so that it becomes an
/// object of its own.
class Parts {
 public:
  Parts(StateDictBuilder& builder, const TorchFile& file, std::uint64_t rank)
      : builder_(builder), file_(file), rank_(rank) {}

  void add(const std::string& key, const KeyPath& path, Value value, int depth) {
    const bool is_split = is_counter_of_torchtitan(path, value) || are_models(path, value) ||
                          search_.finds(value, depth);
    if (depth == 0 || is_optimizer(value) || !is_split) {
      builder_.finds_second_keys = !is_optimizer(value);  // two parameters may share no state
      return builder_.add_part(key, path, file_, value, rank_);
    }
    const auto descend = [&](const std::string& part, bool is_position, Value child) {
      KeyPath longer = path;
      longer.push_back({part, is_position});
      add(fmt::format("{}.{}", key, part), longer, child, depth - 1);
    };
    if (value.is_sequence()) {
      for (std::size_t i = 0; i < value.size(); ++i) descend(std::to_string(i), true, value[i]);
    } else {
      for (std::size_t i = 0; i < value.pair_count(); ++i)
        descend(path_part(value.key(i)), false, value.value(i));
    }
  }

 private:
  /// A DCP folder has a key for each of its members, and UniShard reads one of them as the step.
  static bool is_counter_of_torchtitan(const KeyPath& path, Value value) {
    return path.size() == 1 && path[0].text == "train_state" && value.is_dict() &&
           has_string_keys(value) && value.find("step");
  }

  /// Returns whether the value holds several models, each with an optimizer of its own perhaps.
  static bool are_models(const KeyPath& path, Value value) {
    constexpr std::array<std::string_view, 4> kNames = {"models", "nets", "networks",
                                                        "state_dicts"};
    constexpr std::size_t kMost = 64;
    if (std::ranges::count(kNames, path.back().text) == 0) return false;
    if (value.is_sequence()) {
      bool are_all = value.size() > 0 && value.size() <= kMost;
      for (std::size_t i = 0; are_all && i < value.size(); ++i) are_all = is_model(value[i]);
      return are_all;
    }
    if (!value.is_dict() || !has_string_keys(value)) return false;
    bool are_all = value.pair_count() > 0 && value.pair_count() <= kMost;
    for (std::size_t i = 0; are_all && i < value.pair_count(); ++i)
      are_all = is_model(value.value(i));
    return are_all;
  }

  StateDictBuilder& builder_;
  const TorchFile& file_;
  std::uint64_t rank_;
  OptimizerSearch search_;
};

}  // namespace

bool is_optimizer(Value value) {
  if (!value.is_dict() || !has_string_keys(value)) return false;
  const auto groups = value.find("param_groups"), state = value.find("state");
  return groups && state && groups->is_sequence() && state->is_dict();
}

bool has_optimizer(Value root) { return OptimizerSearch().finds(root, kDepth, kMostLooks); }

bool is_training_object(Value root) {
  if (!root.is_dict()) return false;
  // A model's state dict may lie beside its optimizer, however many tensors it has.
  if (has_optimizer(root)) return true;
  return std::ranges::any_of(kUsualNames, [&](std::string_view name) {
    const auto model = root.find(name);
    return model && is_model(*model);
  });
}

void add_training_object(const TorchFile& file, std::uint64_t rank, StateDictBuilder& builder) {
  const Value root = file.root();
  Parts parts(builder, file, rank);
  for (std::size_t i = 0; i < root.pair_count(); ++i) {
    const std::string key = path_part(root.key(i));
    parts.add(key, {{key, false}}, root.value(i), kDepth);
  }
}

}  // namespace unishard::converters::dcp
