#include "checkpoint/local_state.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "checkpoint/rounded_weights.hpp"
#include "device/tensor_bytes.hpp"

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

/// Returns what this rank's 16-bit parameters of a unit are read from: at stage 3, where it may not
/// keep them, the master.
StateArray weights_of(const FlatUnit& unit) {
  const StateArray resident = unit.resident_shard();
  return resident.defined() ? resident : unit.master();
}

/// Returns a copy in host memory of its own.
at::Tensor host_copy(const at::Tensor& tensor) {
  return tensor.detach()
      .to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

LocalTensor local_tensor(ElementRange held, const at::Tensor& values, DType dtype) {
  const at::ScalarType stored = scalar_type(dtype);
  if (!values.is_cpu() || values.scalar_type() != stored)
    return {.held = held, .bytes = {}, .on_device = values, .stored = stored};
  return {.held = held, .bytes = bytes_of(values), .keep = values};
}

/// Returns elements of an array, of which `first` is the first.
LocalTensor local_tensor(ElementRange held, const StateArray& array, std::int64_t first,
                         DType dtype) {
  if (array.is_in_file()) {
    return {
        .held = held, .bytes = {}, .stored = scalar_type(dtype), .in_file = array, .first = first};
  }
  return local_tensor(held, array.values(first, static_cast<std::int64_t>(held.size())), dtype);
}

}  // namespace

LocalTensor LocalTensor::part(ElementRange range) const {
  LocalTensor out = *this;
  const std::uint64_t first_element = range.begin - held.begin;
  out.held = range;
  if (in_file.defined()) {
    out.first += static_cast<std::int64_t>(first_element);
  } else if (on_device.defined()) {
    out.on_device = on_device.narrow(0, static_cast<std::int64_t>(first_element),
                                     static_cast<std::int64_t>(range.size()));
  } else {
    const std::uint64_t width = held.empty() ? 0 : bytes.size() / held.size();
    out.bytes = bytes.subspan(first_element * width, range.size() * width);
  }
  return out;
}

LocalTensor LocalTensor::on_host() const {
  if (in_file.defined()) {
    const at::Tensor copy =
        in_file.values(first, static_cast<std::int64_t>(held.size())).to(stored);
    return {.held = held, .bytes = bytes_of(copy), .keep = copy};
  }
  if (!on_device.defined()) return *this;
  const at::Tensor copy = on_device.to(at::kCPU, stored);
  return {.held = held, .bytes = bytes_of(copy), .keep = copy};
}

LocalState::LocalState(const TrainingState& state) : state_(state) {
  const auto& parameters = state.model.parameters;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const ParameterRecord& parameter = parameters[p];
    if (parameter.is_frozen) {
      add_frozen(p);
      continue;
    }
    add(parameter, state::kFp32, DType::Float32, {Kind::Master, p, 0});
    const auto& names = state.optimizer_of(parameter).state_names();
    for (std::size_t s = 0; s < names.size(); ++s) {
      add(parameter, names[s], DType::Float32, {Kind::State, p, s});
    }
    if (state.config.compute != DType::Float32) {
      add(parameter, state::kWeights, state.config.compute, {Kind::Weights, p, 0});
    }
  }
  for (const NamedTensor& buffer : state.model.buffers) {
    add_untrained(buffer.name, buffer.tensor, state::kBuffer, {Kind::Replica, replicas_.size(), 0});
    replicas_.push_back(buffer.tensor);
  }
}

std::vector<std::string> LocalState::take_buffers_of_rank0(Communicator& communicator) {
  std::vector<std::string> names;
  for (const std::size_t tensor : different_buffers(communicator)) {
    at::Tensor& values = replicas_[origins_[tensor].source];
    values = host_copy(values);
    communicator.broadcast(bytes_of(values), 0)->wait();
    names.push_back(tensors_[tensor].fqn);
  }
  return names;
}

/// Returns the buffers whose values differ between the ranks. Collective.
std::vector<std::size_t> LocalState::different_buffers(Communicator& communicator) const {
  if (communicator.size() == 1) return {};
  std::vector<std::size_t> buffers;
  std::string digests;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].state != state::kBuffer) continue;
    buffers.push_back(t);
    digests += hex64(crc64(bytes_of(host_copy(replicas_[origins_[t].source]))));
  }
  if (buffers.empty()) return {};
  const std::size_t width = digests.size() / buffers.size();
  const std::vector<std::string> all = gather_text(communicator, digests);
  std::vector<std::size_t> different;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto digest_in = [&](const std::string& each) { return each.substr(i * width, width); };
    const bool are_equal = std::ranges::all_of(
        all, [&](const std::string& each) { return digest_in(each) == digest_in(all.front()); });
    if (!are_equal) different.push_back(buffers[i]);
  }
  return different;
}

void LocalState::add(const ParameterRecord& parameter, std::string_view state_name, DType dtype,
                     Origin origin) {
  tensors_.push_back({.fqn = parameter.fqn,
                      .state = std::string(state_name),
                      .dtype = dtype,
                      .shape = shape_of(parameter.tensor),
                      .group = static_cast<std::int32_t>(parameter.group),
                      .crc64 = {},
                      .stats = {}});
  origins_.push_back(origin);
}

void LocalState::add_frozen(std::size_t index) {
  const ParameterRecord& parameter = state_.model.parameters[index];
  const bool is_whole = parameter.unit == nullptr;
  add_untrained(
      parameter.fqn, parameter.tensor, state::kWeights,
      is_whole ? Origin{Kind::Replica, replicas_.size(), 0} : Origin{Kind::Frozen, index, 0});
  tensors_.back().frozen = true;
  if (is_whole) replicas_.push_back(parameter.tensor);
}

void LocalState::add_untrained(const std::string& fqn, const at::Tensor& tensor,
                               std::string_view state_name, Origin origin) {
  tensors_.push_back(
      {.fqn = fqn,
       .state = std::string(state_name),
       .dtype = tensor.is_floating_point() ? state_.config.compute : dtype_of(tensor),
       .shape = shape_of(tensor),
       .crc64 = {},
       .stats = {}});
  origins_.push_back(origin);
}

LocalTensor LocalState::replica(std::size_t tensor) const {
  const at::Tensor& values = replicas_[origins_[tensor].source];
  if (!values.is_contiguous())
    raise(ErrorCode::Unsupported, tensors_[tensor].label() + ": not contiguous in memory");
  return local_tensor({0, tensors_[tensor].elements()}, values.detach().reshape({-1}),
                      tensors_[tensor].dtype);
}

LocalTensor LocalState::local(std::size_t tensor) const {
  const Origin& origin = origins_[tensor];
  if (origin.kind == Kind::Replica) return replica(tensor);
  const ParameterRecord& parameter = state_.model.parameters[origin.source];
  const FlatUnit& unit = *parameter.unit;
  if (origin.kind == Kind::Frozen) {
    const auto [shard, first] = unit.frozen().place_of(parameter.slot);
    return local_tensor(unit.frozen().held(parameter.slot), shard, first, tensors_[tensor].dtype);
  }
  const ElementRange held = unit.layout().held(parameter.slot);
  if (held.empty()) return {.held = held, .bytes = {}};
  const StateArray all = origin.kind == Kind::Weights ? weights_of(unit)
                         : origin.kind == Kind::State ? unit.states()[origin.state]
                                                      : unit.master();
  return local_tensor(held, all,
                      static_cast<std::int64_t>(unit.layout().held_offset(parameter.slot)),
                      tensors_[tensor].dtype);
}

bool LocalState::is_own(std::size_t tensor) const {
  const Origin& origin = origins_[tensor];
  if (origin.kind != Kind::Master) return origin.kind == Kind::State;
  return !state_.model.parameters[origin.source].unit->store().master_is_parameters();
}

at::Tensor LocalState::differs_from_master(std::size_t tensor) const {
  const ParameterRecord& parameter = state_.model.parameters[origins_[tensor].source];
  const UnitLayout& layout = parameter.unit->layout();
  const ElementRange held = layout.held(parameter.slot);
  const std::size_t first = held.empty() ? 0 : layout.held_offset(parameter.slot);
  return any_is_not_rounded(*parameter.unit, static_cast<std::int64_t>(first),
                            static_cast<std::int64_t>(held.size()));
}

std::optional<std::size_t> LocalState::master_of(std::size_t tensor) const {
  if (origins_[tensor].kind != Kind::Weights) return std::nullopt;
  while (origins_[tensor].kind != Kind::Master) --tensor;
  return tensor;
}

}  // namespace unishard::trainer::detail
