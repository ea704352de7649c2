#include "unishard/format/error.hpp"

#include "device/tensor_bytes.hpp"
#include "engine/engine_impl.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <numeric>

namespace unishard::trainer {
namespace {

using detail::FlatUnit;
using detail::ModelState;

std::size_t find_parameter(const ModelState& model, const std::string& name) {
  const auto alias = std::ranges::find(model.aliases, name, &Alias::fqn);
  const std::string& own = alias == model.aliases.end() ? name : alias->target;
  const auto found = std::ranges::find(model.parameters, own, &detail::ParameterRecord::fqn);
  if (found == model.parameters.end())
    raise(ErrorCode::NotFound, "the model has no parameter " + quote(name));
  return static_cast<std::size_t>(found - model.parameters.begin());
}

std::vector<std::size_t> find_parameters(const ModelState& model,
                                         const std::vector<std::string>& names) {
  std::vector<std::size_t> found;
  for (const std::string& name : names) found.push_back(find_parameter(model, name));
  return found;
}

std::vector<std::size_t> all_parameters(const ModelState& model) {
  std::vector<std::size_t> all(model.parameters.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

/// Returns the units of parameters, each once, in the model's order.
std::vector<FlatUnit*> units_of(const ModelState& model, const std::vector<std::size_t>& indices) {
  std::vector<FlatUnit*> units;
  for (const detail::UnitRecord& unit : model.units) {
    const bool has_one = std::ranges::any_of(
        indices, [&](std::size_t index) { return model.parameters[index].unit == unit.flat; });
    if (has_one) units.push_back(unit.flat);
  }
  return units;
}

/// Waits for the values: an operation may fail on the device after its function has returned.
void gather(const std::vector<FlatUnit*>& units, const Runtime& runtime,
            detail::TensorCollectives& collectives) {
  for (FlatUnit* unit : units) unit->start_gather_copy();
  for (FlatUnit* unit : units) unit->finish_gather();
  const at::Device device = runtime.device();
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device).synchronize();
  collectives.require_healthy();
}

}  // namespace

GatheredScope::GatheredScope(Engine& engine)
    : engine_(engine), parameters_(all_parameters(engine.impl_->state.model)) {
  Engine::Impl& impl = *engine.impl_;
  gather(units_of(impl.state.model, parameters_), impl.runtime, *impl.collectives);
}

GatheredScope::GatheredScope(Engine& engine, const std::vector<std::string>& names)
    : engine_(engine), parameters_(find_parameters(engine.impl_->state.model, names)) {
  Engine::Impl& impl = *engine.impl_;
  gather(units_of(impl.state.model, parameters_), impl.runtime, *impl.collectives);
}

GatheredScope::~GatheredScope() {
  for (FlatUnit* unit : units_of(engine_.impl_->state.model, parameters_)) unit->release();
}

void GatheredScope::write_back(std::uint32_t rank) {
  const at::NoGradGuard no_grad;
  Engine::Impl& engine = *engine_.impl_;
  for (const std::size_t index : parameters_) {
    const at::Tensor& parameter = engine.state.model.parameters[index].tensor;
    const at::Tensor values = parameter.detach().cpu().contiguous();
    engine.communicator.broadcast(detail::bytes_of(values), rank)->wait();
    if (!values.is_same(parameter) && values.data_ptr() != parameter.data_ptr())
      parameter.detach().copy_(values);
  }
  engine.saver.before_change();
  for (FlatUnit* unit : units_of(engine.state.model, parameters_)) unit->follow_parameters();
}

}  // namespace unishard::trainer
