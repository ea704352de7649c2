#include "formats/deepspeed/bias_fit.hpp"

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace unishard::converters::deepspeed {

std::vector<BiasMisfit> bias_misfits(const Catalog& catalog) {
  constexpr std::string_view kWeight = ".weight", kBias = ".bias";
  std::map<std::pair<std::string_view, std::string_view>, std::uint64_t> sizes;  // of biases
  for (const TensorInfo& bias : catalog.tensors) {
    if (bias.fqn.ends_with(kBias) && bias.shape.size() == 1)
      sizes.emplace(std::pair{std::string_view(bias.fqn), std::string_view(bias.state)},
                    bias.shape[0]);
  }
  std::vector<BiasMisfit> misfits;
  for (const TensorInfo& weight : catalog.tensors) {
    if (weight.state != state::kWeights && weight.state != state::kFp32) continue;
    if (!weight.fqn.ends_with(kWeight) || weight.shape.size() != 2) continue;
    const std::string stem = weight.fqn.substr(0, weight.fqn.size() - kWeight.size());
    const auto found = sizes.find({stem + std::string(kBias), weight.state});
    if (found == sizes.end()) continue;
    if (weight.shape[0] != found->second && weight.shape[1] != found->second)
      misfits.push_back({&weight, found->second});
  }
  return misfits;
}

}  // namespace unishard::converters::deepspeed
