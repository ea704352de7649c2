#include "state/model_state.hpp"

#include "unishard/format/error.hpp"

#include <algorithm>
#include <unordered_map>

namespace unishard::trainer::detail {
namespace {

using Impl = const c10::TensorImpl*;

struct Placed {
  std::string fqn;
  FlatUnit* unit;
  std::size_t slot;
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
    state_.root = place_root(std::move(left_root));
    for (std::size_t i = 0; i < unit_modules_.size(); ++i) {
      adopt(*unit_modules_[i].first, *state_.modules[i], unit_modules_[i].second);
    }
    list_tensors();
    return std::move(state_);
  }

 private:
  bool model_is_unit() const { return dynamic_cast<UnitBase*>(&model_) != nullptr; }

  void find_units() {
    visit_all(model_, "", [&](torch::nn::Module& module, const std::string& path) {
      if (auto* unit = dynamic_cast<UnitBase*>(&module)) {
        state_.modules.push_back(unit);
        unit_modules_.emplace_back(&module, path);
        const auto& flat = UnitAccess::flat(*unit);
        if (flat && !state_.meter) state_.meter = flat->meter();
      }
    });
    if (!state_.meter) state_.meter = std::make_shared<MemoryMeter>();
  }

  std::unique_ptr<FlatUnit> place_root(std::unique_ptr<FlatUnit> left) {
    const bool fits = left && left->placement() == placement_ &&
                      has_parameters(*left, unit_parameters(model_, ""));
    // Below stage 3 the parameters hold the values too.
    if (!left || (!fits && left->placement().stage < 3))
      return place(model_is_unit() ? nullptr : &model_, "");
    require_placement(*left, "");
    record(*left, unit_parameters(model_, ""), "");
    return left;
  }

  std::unique_ptr<FlatUnit> place(torch::nn::Module* module, const std::string& name) {
    if (!module) return nullptr;
    auto flat = shard_unit(*module, placement_, state_.meter);
    record(*flat, unit_parameters(*module, name), name);
    return flat;
  }

  void adopt(torch::nn::Module& module, UnitBase& unit, const std::string& name) {
    std::unique_ptr<FlatUnit>& flat = UnitAccess::flat(unit);
    if (!flat) {
      flat = place(&module, name);
      return;
    }
    require_placement(*flat, name);
    record(*flat, unit_parameters(module, name), name);
  }

  void require_placement(const FlatUnit& flat, const std::string& name) const {
    if (flat.placement() == placement_) return;
    raise(ErrorCode::InvalidArgument, "unit " + quote(name) +
                                          " was constructed for another rank, world size, stage, "
                                          "dtype or seed than the engine's");
  }

  static bool has_parameters(const FlatUnit& flat, const std::vector<NamedTensor>& named) {
    return std::ranges::equal(
        named, flat.parameters(),
        [](const NamedTensor& a, const at::Tensor& b) { return a.tensor.is_same(b); });
  }

  void record(FlatUnit& flat, const std::vector<NamedTensor>& named, const std::string& name) {
    if (!has_parameters(flat, named)) {
      raise(ErrorCode::InvalidArgument,
            "unit " + quote(name) + ": its parameters changed after it was constructed");
    }
    if (named.empty()) return;
    UnitRecord unit{.name = name, .fqns = {}, .parameters = {}, .flat = &flat};
    for (std::size_t slot = 0; slot < named.size(); ++slot) {
      const auto [at, fresh] = placed_.emplace(named[slot].tensor.unsafeGetTensorImpl(),
                                               Placed{named[slot].name, &flat, slot});
      if (!fresh) {
        raise(ErrorCode::InvalidArgument,
              "parameter " + quote(named[slot].name) + " of a unit is shared with " +
                  quote(at->second.fqn),
              "tie parameters outside of units");
      }
      unit.fqns.push_back(named[slot].name);
    }
    state_.units.push_back(std::move(unit));
  }

  void list_tensors() {
    std::unordered_map<Impl, std::string> seen;
    visit_all(model_, "", [&](torch::nn::Module& module, const std::string& path) {
      for (const auto& each : module.named_parameters(/*recurse=*/false)) {
        const std::string fqn = join_names(path, each.key());
        const Impl impl = each.value().unsafeGetTensorImpl();
        if (const auto [first, fresh] = seen.emplace(impl, fqn); !fresh) {
          state_.aliases.push_back({.fqn = fqn, .target = first->second});
          continue;
        }
        ParameterRecord record{.fqn = fqn, .tensor = each.value()};
        if (const auto where = placed_.find(impl); where != placed_.end()) {
          record.unit = where->second.unit;
          record.slot = where->second.slot;
          const auto unit = std::ranges::find(state_.units, record.unit, &UnitRecord::flat);
          unit->parameters.push_back(state_.parameters.size());
        }
        state_.parameters.push_back(std::move(record));
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
  std::vector<std::pair<torch::nn::Module*, std::string>> unit_modules_;
  std::unordered_map<Impl, Placed> placed_;
};

}  // namespace

ModelState take_over(torch::nn::Module& model, const Placement& placement,
                     std::unique_ptr<FlatUnit> left_root) {
  return TakeOver(model, placement).run(std::move(left_root));
}

}  // namespace unishard::trainer::detail
