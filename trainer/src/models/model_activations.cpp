#include "unishard/trainer/model_activations.hpp"

#include "models/attention.hpp"

#include <algorithm>

namespace unishard::trainer {
namespace {

constexpr std::int64_t kFloatBytes = 4;

/// What a block of the model needs, in bytes.
struct BlockBytes {
  std::int64_t kept = 0;     ///< from the forward pass until the block's own backward pass
  std::int64_t written = 0;  ///< at once, beside them, in the backward pass
};

/// Counts one micro-batch. Sizes are in elements, results in bytes.
class Counter {
 public:
  explicit Counter(const ActivationPlan& plan)
      : plan_(plan), element_(plan.compute == DType::Float32 ? kFloatBytes : 2) {}

  std::int64_t peak(std::int64_t layers, std::int64_t width, std::int64_t vocabulary,
                    const BlockBytes& block) const {
    const std::int64_t stream = tokens() * width * element_;
    const std::int64_t blocks = layers * (plan_.recomputes ? stream : block.kept);
    const std::int64_t last_norm = 2 * stream;
    const std::int64_t again = plan_.recomputes ? block.kept : 0;
    return blocks + last_norm + std::max(loss(vocabulary), again + block.written);
  }

  std::int64_t tokens() const { return plan_.samples * plan_.tokens; }
  std::int64_t bytes(std::int64_t elements) const { return elements * element_; }

  /// Adds the weights of attention, where they are a matrix: of softmax, and what dropout leaves of
  /// them, with its mask.
  void add_attention(BlockBytes& block, std::int64_t heads, std::int64_t keys, double p) const {
    if (detail::has_fused_attention(plan_.on_cuda, p)) return;
    const std::int64_t weights = tokens() * heads * keys;
    block.kept += bytes(weights) + plan_.tokens * keys;
    if (p > 0) block.kept += bytes(weights) + weights;
    block.written = std::max(block.written, 2 * bytes(weights));
  }

 private:
  /// Logits and their gradient, and in fp32 the rows of which the loss is computed at a time.
  std::int64_t loss(std::int64_t vocabulary) const {
    constexpr std::int64_t kPart = std::int64_t{64} << 20;
    const std::int64_t logits = tokens() * vocabulary;
    const std::int64_t part = std::min(logits, kPart);
    const std::int64_t of_part = (element_ == kFloatBytes ? 2 : 3) * kFloatBytes * part;
    return 2 * bytes(logits) + of_part;
  }

  const ActivationPlan& plan_;
  std::int64_t element_;
};

std::int64_t bytes_of(const GptConfig& model, const ActivationPlan& plan) {
  const Counter counter(plan);
  const std::int64_t stream = counter.tokens() * model.width;
  // The inputs of two norms and of four matrices, of which two are 1 and 4 wide; queries, keys and
  // values; the input of GELU.
  BlockBytes block{.kept = counter.bytes(16 * stream), .written = counter.bytes(9 * stream)};
  if (model.dropout > 0) block.kept += 2 * stream;
  counter.add_attention(block, model.heads, plan.tokens, model.dropout);
  return counter.peak(model.layers, model.width, model.vocabulary, block);
}

std::int64_t bytes_of(const LlamaConfig& model, const ActivationPlan& plan) {
  const Counter counter(plan);
  const std::int64_t heads = model.heads * model.width_of_head();
  const std::int64_t kv_heads = model.kv_heads * model.width_of_head();
  std::int64_t blocks = 0;
  BlockBytes block;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    // The inputs of two norms and of the matrices; queries, keys and values; both sides of the
    // gate and its product.
    const std::int64_t of_norms = model.qk_norm ? heads + kv_heads : 0;
    const std::int64_t of_token = 4 * model.width + of_norms + 4 * heads + 4 * model.inner;
    block = {.kept = counter.bytes(counter.tokens() * of_token),
             .written = counter.bytes(counter.tokens() * (model.width + 2 * model.inner))};
    const std::int64_t window = model.window_of(layer);
    counter.add_attention(block, model.heads,
                          window == 0 ? plan.tokens : std::min(window, plan.tokens), model.dropout);
    blocks += block.kept;
  }
  block.kept = blocks / std::max<std::int64_t>(model.layers, 1);
  return counter.peak(model.layers, model.width, model.vocabulary, block);
}

}  // namespace

std::int64_t activation_bytes(const ModelConfig& model, const ActivationPlan& plan) {
  return std::visit([&](const auto& config) { return bytes_of(config, plan); }, model);
}

}  // namespace unishard::trainer
