#pragma once
// Models in Meta's form (`consolidated.00.pth` beside params.json, also Mistral's) in the form of
// transformers. Both have the same numbers under other names; the rows of each head of queries and
// keys are in another order, because the two rotate other pairs of them.
#include "unishard/converters/source.hpp"

#include <cstdint>
#include <memory>
#include <string_view>

namespace unishard::converters {

/// What params.json says of the attention.
struct AttentionHeads {
  std::uint64_t queries = 0, keys = 0;
};

/// Returns the heads that the text of a params.json tells.
/// Throws: Corrupt, beginning with `where`, when it does not.
AttentionHeads parse_attention_heads(std::string_view params, std::string_view where);

/// Returns a source that has the rows of Meta's `attention.wq.weight` and `attention.wk.weight` in
/// the order of transformers, under Meta's names, and that lacks `rope.freqs`, which transformers
/// computes. All states of a parameter are reordered.
/// The result reads as thread-safely as `source` does, in bounded memory.
/// Throws: Mismatch where `source` has none of these tensors, or where their rows are not those of
/// `heads`.
std::unique_ptr<Source> in_order_of_transformers(std::unique_ptr<Source> source,
                                                 AttentionHeads heads);

}  // namespace unishard::converters
