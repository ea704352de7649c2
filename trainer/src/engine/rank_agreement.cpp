#include "engine/rank_agreement.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "device/tensor_bytes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <unordered_map>

namespace unishard::trainer::detail {
namespace {

/// CRC-64 of the initial values of parameters.
using Digests = std::unordered_map<const c10::TensorImpl*, std::uint64_t>;

/// Returns those of frozen parameters that a ConstructionScope has sharded.
Digests sharded_digests(const torch::nn::Module& model) {
  Digests digests;
  for (const auto& module : model.modules()) {
    auto* const unit = dynamic_cast<UnitBase*>(module.get());
    if (!unit || !UnitAccess::flat(*unit)) continue;
    const FrozenParameters& frozen = UnitAccess::flat(*unit)->frozen();
    for (std::size_t i = 0; i < frozen.parameters().size(); ++i)
      digests[frozen.parameters()[i].unsafeGetTensorImpl()] = frozen.initial_crc64(i);
  }
  return digests;
}

std::string describe_tensor(const char* kind, const std::string& name, const at::Tensor& tensor,
                            const Digests& sharded) {
  std::string line = fmt::format("{} {}: {} [{}]", kind, name, c10::toString(tensor.scalar_type()),
                                 fmt::join(tensor.sizes(), ", "));
  if (tensor.requires_grad()) line += ", trained";
  const auto digest = sharded.find(tensor.unsafeGetTensorImpl());
  if (digest != sharded.end()) return line + ", values " + hex64(digest->second);
  if (!has_values(tensor)) return line;
  const at::Tensor values = tensor.detach().contiguous().cpu();
  return line + ", values " + hex64(crc64(bytes_of(values)));
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

std::string first_difference(const std::vector<std::string>& mine,
                             const std::vector<std::string>& first_rank) {
  const auto [own, other] = std::ranges::mismatch(mine, first_rank);
  if (own == mine.end() && other == first_rank.end()) return {};
  const auto shown = [](const auto at, const auto end) {
    return at == end ? std::string("nothing more") : quote(*at);
  };
  return fmt::format("it has {}, and rank 0 has {}", shown(own, mine.end()),
                     shown(other, first_rank.end()));
}

}  // namespace

std::vector<std::string> describe_run(const torch::nn::Module& model, const Config& config,
                                      const EngineOptions& options, at::Device device) {
  std::vector<std::string> lines;
  const Json flat = config.source.flatten();
  for (const auto& [pointer, value] : flat.items())
    lines.push_back(fmt::format("configuration {}: {}", pointer, value.dump()));
  lines.push_back(fmt::format("stage {}, compute dtype {}, optimizer {}, seed {}", config.stage,
                              name_of(config.compute), config.optimizer, config.seed));
  lines.push_back(fmt::format("batch {}, learning rate {}, canonical order {}",
                              config.batch.train.value_or(0), config.hyper.lr,
                              config.canonical_order));
  lines.push_back(fmt::format("seed of the data order {}, samples per epoch {}",
                              options.shuffle_seed, options.samples_per_epoch));
  lines.insert(lines.end(), options.agreed.begin(), options.agreed.end());
  lines.push_back("a device of the type " +
                  c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  for (const ParameterGroup& group : options.groups)
    lines.push_back(fmt::format("parameter group {}: learning rate {}, weight decay {}, Muon {}",
                                group.name, group.hyper.lr, group.hyper.weight_decay,
                                group.hyper.use_muon));
  const Digests sharded = sharded_digests(model);
  for (const auto& each : model.named_parameters())
    lines.push_back(describe_tensor("parameter", each.key(), each.value(), sharded));
  for (const auto& each : model.named_buffers()) {
    if (each.value().defined())
      lines.push_back(describe_tensor("buffer", each.key(), each.value(), sharded));
  }
  return lines;
}

namespace {

/// Returns true when all ranks have the same lines, as far as a digest tells.
bool have_equal(Communicator& communicator, const std::vector<std::string>& lines) {
  if (communicator.size() == 1) return true;
  const std::uint64_t digest = crc64(join_lines(lines));
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 32;  // a double holds it exactly
  const std::vector<double> halves{static_cast<double>(digest / kHalf),
                                   static_cast<double>(digest % kHalf)};
  const std::vector<double> all = gather_doubles(communicator, halves);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != all[i % 2]) return false;
  }
  return true;
}

/// Throws Mismatch when a rank has other lines than rank 0.
void compare_lines(Communicator& communicator, const std::vector<std::string>& lines,
                   const char* problem, const char* hint) {
  const auto first_rank = split_lines(broadcast_text(communicator, join_lines(lines), 0));
  const auto differences = gather_text(communicator, first_difference(lines, first_rank));
  for (std::size_t rank = 0; rank < differences.size(); ++rank) {
    if (differences[rank].empty()) continue;
    raise(ErrorCode::Mismatch,
          fmt::format("rank {} {} rank 0: {}", rank, problem, differences[rank]), hint);
  }
}

}  // namespace

void require_equal_runs(Communicator& communicator, const std::vector<std::string>& lines) {
  if (have_equal(communicator, lines)) return;
  compare_lines(communicator, lines, "differs from",
                "all ranks must construct the same model with the same seed and configuration");
}

void require_equal_order(Communicator& communicator, const CollectiveOrder& order) {
  if (have_equal(communicator, order)) return;
  compare_lines(communicator, order, "used the model's units in another order than",
                "every rank must use the same units, and the same parameters of them, in the same "
                "order in every micro-batch");
}

}  // namespace unishard::trainer::detail
