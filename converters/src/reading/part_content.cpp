#include "reading/part_content.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <vector>

namespace unishard::converters {
namespace {

/// Where programs keep the arguments of the training: Megatron-LM and forks, NeMo
/// (hyper_parameters, cfg), Nanotron and others (config).
constexpr std::array<std::string_view, 5> kPlaces = {"args", "hyper_parameters", "cfg", "config",
                                                     "model"};
constexpr int kDegreeDepth = 3;

/// Degrees of parallelism that divide a model among files. Data and context parallelism do not.
constexpr std::array<std::string_view, 5> kDegrees = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
    "model_parallel_size", "tensor_parallel_degree"};

/// Returns a member of a dict, or a field of an object such as a Namespace.
std::optional<torch::Value> member(torch::Value value, std::string_view name) {
  if (value.is_dict()) return value.find(name);
  return value.is(torch::NodeKind::Object) ? value.field(name) : std::nullopt;
}

bool is_container(torch::Value value) {
  return value.is_dict() || value.is(torch::NodeKind::Object);
}

/// Collects "tensor_model_parallel_size 2" of the first place that has degrees.
std::vector<std::string> degrees_in(torch::Value value, int depth) {
  std::vector<std::string> found;
  for (const std::string_view name : kDegrees) {
    const auto degree = member(value, name);
    if (!degree || !degree->is(torch::NodeKind::Int) || degree->integer() < 2) continue;
    found.push_back(fmt::format("{} {}", name, degree->integer()));
  }
  for (const std::string_view name : kPlaces) {
    if (depth == 0 || !found.empty()) break;
    const auto place = member(value, name);
    if (place && is_container(*place)) found = degrees_in(*place, depth - 1);
  }
  return found;
}

}  // namespace

std::optional<std::string> describe_part(torch::Value root) {
  if (!root.is_dict()) return std::nullopt;
  const std::vector<std::string> degrees = degrees_in(root, kDegreeDepth);
  if (degrees.empty()) return std::nullopt;
  return fmt::format("part of a parallel model: it was saved with {}", fmt::join(degrees, ", "));
}

}  // namespace unishard::converters
