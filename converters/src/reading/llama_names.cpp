#include "unishard/converters/llama_names.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "core/forwarding_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

constexpr std::string_view kQueries = ".attention.wq.weight", kKeys = ".attention.wk.weight",
                           kFrequencies = "rope.freqs";

/// A tensor of the result.
struct OrderedTensor {
  std::size_t tensor = 0;       ///< of the source
  std::uint64_t head_rows = 0;  ///< of each head; 0: the rows stay where they are
};

struct OrderedContents {
  Catalog catalog;
  std::vector<OrderedTensor> tensors;  ///< for each tensor of the catalog
};

/// transformers pairs row i of a head with row i + half, Meta row 2i with row 2i + 1.
std::uint64_t row_of_meta(std::uint64_t row, std::uint64_t head_rows) {
  const std::uint64_t half = head_rows / 2, in_head = row % head_rows;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

class OrderedSource final : public ForwardingSource {
 public:
  OrderedSource(std::unique_ptr<Source> source, OrderedContents contents)
      : ForwardingSource(std::move(source)), contents_(std::move(contents)) {}

  const Catalog& catalog() const override { return contents_.catalog; }
  std::uint64_t read_boundary(std::size_t tensor, std::uint64_t element) const override {
    const OrderedTensor& from = contents_.tensors[tensor];
    return from.head_rows == 0 ? source().read_boundary(from.tensor, element) : element;
  }
  bool is_in_order(std::size_t tensor) const override {
    const OrderedTensor& from = contents_.tensors[tensor];
    return from.head_rows == 0 && source().is_in_order(from.tensor);
  }
  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    const OrderedTensor& from = contents_.tensors[tensor];
    return from.head_rows == 0 ? source().stored_ranges(from.tensor) : std::vector<StoredRange>();
  }

 private:
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const OrderedTensor& from = contents_.tensors[tensor];
    if (from.head_rows == 0) return source().read(from.tensor, range, out);
    const TensorInfo& info = contents_.catalog.tensors[tensor];
    const std::uint64_t width = info.elements() / info.shape[0];
    for (std::uint64_t at = range.begin; at < range.end;) {
      const std::uint64_t row = at / width, end = std::min(range.end, (row + 1) * width);
      const std::uint64_t first = row_of_meta(row, from.head_rows) * width + at % width;
      source().read(
          from.tensor, {first, first + (end - at)},
          out.subspan((at - range.begin) * size_of(info.dtype), (end - at) * size_of(info.dtype)));
      at = end;
    }
  }

  const OrderedContents contents_;
};

/// Returns the rows of each head; 0 for a tensor without heads.
std::uint64_t head_rows_of(const TensorInfo& tensor, AttentionHeads heads) {
  const bool is_query = tensor.fqn.ends_with(kQueries);
  if (!is_query && !tensor.fqn.ends_with(kKeys)) return 0;
  const std::uint64_t count = is_query ? heads.queries : heads.keys;
  const std::uint64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
  if (tensor.elements() == 0 || rows % (2 * count) != 0)
    raise(ErrorCode::Mismatch, fmt::format("{}: {} rows are not those of the {} heads that "
                                           "params.json tells",
                                           tensor.label(), rows, count));
  return rows / count;
}

}  // namespace

AttentionHeads parse_attention_heads(std::string_view params, std::string_view where) {
  constexpr std::uint64_t kMost = 1 << 20;
  const Json json = parse_json(params, std::string(where));
  const auto number = [&](const char* key) -> std::uint64_t {
    const auto found = json.is_object() ? json.find(key) : json.end();
    if (found == json.end() || found->is_null()) return 0;
    if (!found->is_number_unsigned() || *found == 0 || *found > kMost)
      raise(ErrorCode::Corrupt, fmt::format("{}: {} is no number of heads", where, key));
    return found->get<std::uint64_t>();
  };
  const std::uint64_t queries = number("n_heads"), keys = number("n_kv_heads");
  if (queries == 0) raise(ErrorCode::Corrupt, fmt::format("{}: it has no n_heads", where));
  return {queries, keys == 0 ? queries : keys};
}

std::unique_ptr<Source> in_order_of_transformers(std::unique_ptr<Source> source,
                                                 AttentionHeads heads) {
  const Catalog& from = source->catalog();
  OrderedContents contents{.catalog = from, .tensors = {}};
  contents.catalog.tensors.clear();
  bool has_heads = false;
  for (std::size_t i = 0; i < from.tensors.size(); ++i) {
    TensorInfo tensor = from.tensors[i];
    if (tensor.fqn == kFrequencies) continue;
    const std::uint64_t head_rows = head_rows_of(tensor, heads);
    has_heads |= head_rows > 0;
    if (head_rows > 0) {
      tensor.crc64.reset();
      tensor.stats.reset();
    }
    contents.catalog.tensors.push_back(std::move(tensor));
    contents.tensors.push_back({i, head_rows});
  }
  if (!has_heads)
    raise(ErrorCode::Mismatch,
          "--layout llama: no tensor is called layers.<n>.attention.wq.weight, "
          "as in Meta's files",
          "see `unishard inspect` for the names");
  return std::make_unique<OrderedSource>(std::move(source), std::move(contents));
}

}  // namespace unishard::converters
