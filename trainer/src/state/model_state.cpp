#include "state/model_state.hpp"

#include "unishard/format/error.hpp"

#include <algorithm>
#include <unordered_map>

namespace unishard::trainer::detail {
namespace {

using Impl = const c10::TensorImpl*;

/// A module whose parameters are one unit.
struct Candidate {
  torch::nn::Module* module;
  std::string name;
  UnitParameters parameters;
  std::size_t unit = 0;  ///< index in ModelState::units, if it has parameters
};

/// The unit of a parameter.
struct Placed {
  std::string fqn;
  std::size_t candidate;
  std::size_t slot;  ///< among its trained or its frozen parameters
};

template <class Visit>
void visit_all(torch::nn::Module& module, const std::string& path, const Visit& visit) {
  visit(module, path);
  for (const auto& child : module.named_children()) {
    visit_all(*child.value(), join_names(path, child.key()), visit);
  }
}

class TakeOver {
 public:
  TakeOver(torch::nn::Module& model, const Placement& placement)
      : model_(model), placement_(placement) {}

  ModelState run(std::unique_ptr<FlatUnit> left_root) {
    find_units();
    for (std::size_t i = 0; i < candidates_.size(); ++i) claim(i);
    if (has_root()) {
      state_.root = place_root(std::move(left_root));
      record(candidates_[0], *state_.root);
    }
    const std::size_t first = candidates_.size() - state_.modules.size();
    for (std::size_t i = 0; i < state_.modules.size(); ++i)
      adopt(candidates_[first + i], *state_.modules[i]);
    list_tensors();
    return std::move(state_);
  }

 private:
  /// A model that is a unit has no parameters outside of units.
  bool has_root() const { return dynamic_cast<UnitBase*>(&model_) == nullptr; }

  void find_units() {
    if (has_root()) candidates_.push_back({&model_, "", unit_parameters(model_, "")});
    visit_all(model_, "", [&](torch::nn::Module& module, const std::string& path) {
      if (auto* unit = dynamic_cast<UnitBase*>(&module)) {
        state_.modules.push_back(unit);
        candidates_.push_back({&module, path, unit_parameters(module, path)});
        const auto& flat = UnitAccess::flat(*unit);
        if (flat && !state_.meter) state_.meter = flat->meter();
      }
    });
    if (!state_.meter) state_.meter = std::make_shared<MemoryMeter>();
  }

  /// Below stage 3, units may share frozen parameters, which are ordinary tensors there.
  void claim(std::size_t number) {
    const auto claim_all = [&](const std::vector<NamedTensor>& named, bool may_be_shared) {
      for (std::size_t slot = 0; slot < named.size(); ++slot) {
        const auto [at, fresh] = placed_.emplace(named[slot].tensor.unsafeGetTensorImpl(),
                                                 Placed{named[slot].name, number, slot});
        if (fresh || may_be_shared) continue;
        raise(ErrorCode::InvalidArgument,
              "parameter " + quote(named[slot].name) + " of a unit is shared with " +
                  quote(at->second.fqn),
              "tie parameters outside of units");
      }
    };
    claim_all(candidates_[number].parameters.trained, false);
    claim_all(candidates_[number].parameters.frozen, placement_.stage < 3);
  }

  std::unique_ptr<FlatUnit> place_root(std::unique_ptr<FlatUnit> left) {
    const bool fits =
        left && left->placement() == placement_ && holds(*left, candidates_[0].parameters);
    // Below stage 3 the parameters hold the values too.
    if (!left || (!fits && left->placement().stage < 3))
      return shard_unit(model_, placement_, state_.meter);
    require_placement(*left, "");
    return left;
  }

  void adopt(Candidate& candidate, UnitBase& unit) {
    std::unique_ptr<FlatUnit>& flat = UnitAccess::flat(unit);
    if (flat) {
      require_placement(*flat, candidate.name);
    } else {
      flat = shard_unit(*candidate.module, placement_, state_.meter);
    }
    record(candidate, *flat);
  }

  void require_placement(const FlatUnit& flat, const std::string& name) const {
    if (flat.placement() == placement_) return;
    raise(ErrorCode::InvalidArgument, "unit " + quote(name) +
                                          " was constructed for another rank, world size, stage, "
                                          "dtype or seed than the engine's");
  }

  static bool are_same(const std::vector<NamedTensor>& named,
                       const std::vector<at::Tensor>& tensors) {
    return std::ranges::equal(named, tensors, [](const NamedTensor& a, const at::Tensor& b) {
      return a.tensor.is_same(b);
    });
  }

  static bool holds(const FlatUnit& flat, const UnitParameters& named) {
    return are_same(named.trained, flat.parameters()) &&
           (flat.placement().stage < 3 || are_same(named.frozen, flat.frozen().parameters()));
  }

  void record(Candidate& candidate, FlatUnit& flat) {
    if (!holds(flat, candidate.parameters)) {
      raise(ErrorCode::InvalidArgument,
            "unit " + quote(candidate.name) + ": its parameters changed after it was constructed",
            "decide which parameters are trained before the unit is constructed");
    }
    if (candidate.parameters.empty()) return;
    candidate.unit = state_.units.size();
    UnitRecord unit{.name = candidate.name, .fqns = {}, .flat = &flat};
    for (const NamedTensor& each : candidate.parameters.trained) unit.fqns.push_back(each.name);
    state_.units.push_back(std::move(unit));
  }

  void list_parameter(const std::string& fqn, const at::Tensor& tensor) {
    ParameterRecord record{.fqn = fqn, .tensor = tensor, .is_frozen = !tensor.requires_grad()};
    const auto where = placed_.find(tensor.unsafeGetTensorImpl());
    if (where != placed_.end()) {
      UnitRecord& unit = state_.units[candidates_[where->second.candidate].unit];
      record.slot = where->second.slot;
      if (!record.is_frozen || placement_.stage == 3) record.unit = unit.flat;
      if (record.is_frozen) {
        unit.frozen_fqns.push_back(fqn);
      } else {
        unit.parameters.push_back(state_.parameters.size());
      }
    }
    state_.parameters.push_back(std::move(record));
  }

  void list_tensors() {
    std::unordered_map<Impl, std::string> seen;
    visit_all(model_, "", [&](torch::nn::Module& module, const std::string& path) {
      for (const auto& each : module.named_parameters(/*recurse=*/false)) {
        const std::string fqn = join_names(path, each.key());
        const auto [first, fresh] = seen.emplace(each.value().unsafeGetTensorImpl(), fqn);
        if (fresh) {
          list_parameter(fqn, each.value());
        } else {
          state_.aliases.push_back({.fqn = fqn, .target = first->second});
        }
      }
      for (const auto& each : module.named_buffers(/*recurse=*/false)) {
        if (each.value().defined())
          state_.buffers.push_back({join_names(path, each.key()), each.value()});
      }
    });
  }

  torch::nn::Module& model_;
  const Placement& placement_;
  ModelState state_;
  std::vector<Candidate> candidates_;  ///< the root first, then state_.modules
  std::unordered_map<Impl, Placed> placed_;
};

}  // namespace

ModelState take_over(torch::nn::Module& model, const Placement& placement,
                     std::unique_ptr<FlatUnit> left_root) {
  return TakeOver(model, placement).run(std::move(left_root));
}

}  // namespace unishard::trainer::detail
