#include "formats/dcp/rank_copies.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "formats/dcp/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

namespace unishard::converters::dcp {
namespace {

/// A tensor of which two ranks have different copies.
struct Difference {
  const TensorEntry* tensor = nullptr;
  std::uint32_t first = 0, other = 0;
};

/// Running statistics, counters and masks: what each rank computes for itself.
bool is_buffer(const TensorEntry& tensor) {
  const Kind kind = info(tensor.dtype).kind;
  const bool is_number = kind == Kind::Float || kind == Kind::Complex;
  return is_statistic(tensor.key) || !is_number || tensor.shape.empty();
}

/// "optimizer.state.0.step": all ranks count the same steps.
bool is_step(const TensorEntry& tensor) {
  return tensor.key.find("state.") != std::string::npos && tensor.key.ends_with(".step");
}

/// Whether each rank has a state of its own there: of random generators.
bool is_of_rank(const TensorEntry& tensor) {
  const std::string_view root = std::string_view(tensor.key).substr(0, tensor.key.find('.'));
  return root.find("rng") != root.npos || root.find("random") != root.npos;
}

void require_one_save(const std::string& where, const std::vector<Difference>& differences) {
  const auto step = std::ranges::find_if(
      differences, [](const Difference& each) { return is_step(*each.tensor); });
  if (step == differences.end()) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} differs on ranks {} and {}: the files are not of one save", where,
                    unishard::quote(step->tensor->key), step->first, step->other),
        "bring the files of one save together; another checkpoint may hold them");
}

[[noreturn]] void refuse(const std::string& where, const std::vector<Difference>& differences) {
  const Difference& first = differences.front();
  const bool are_buffers = std::ranges::all_of(
      differences, [](const Difference& each) { return is_buffer(*each.tensor); });
  const std::string looks =
      are_buffers ? "they look like buffers that drifted apart"
                  : "they look like pieces of tensors (of tensor-parallel ranks, or of FSDP1's "
                    "flat parameters) or like models that drifted apart";
  raise(ErrorCode::Unsupported,
        fmt::format("{}: the ranks' copies of {} tensors differ, that of {} on ranks {} and {} "
                    "first: {}",
                    where, differences.size(), unishard::quote(first.tensor->key), first.first,
                    first.other, looks),
        are_buffers
            ? "--from-rank N takes those of rank N"
            : "--like MODEL takes flat parameters of FSDP1 apart by its names and shapes; "
              "--merge-rules RULES puts parts of tensor-parallel ranks together; if they are "
              "copies, --from-rank N takes those of rank N; else save whole tensors, or "
              "with torch.distributed.checkpoint");
}

class Settlement {
 public:
  Settlement(StateDict& state, std::optional<std::uint32_t> from_rank, const std::string& where)
      : state_(state), from_rank_(from_rank), where_(where) {}

  void settle(TensorEntry& tensor) {
    std::vector<Chunk> kept;
    for (std::size_t begin = 0; begin < tensor.chunks.size();) {
      std::size_t end = begin + 1;
      while (end < tensor.chunks.size() && tensor.chunks[end].box == tensor.chunks[begin].box)
        ++end;
      kept.push_back(chosen(tensor, std::span(tensor.chunks).subspan(begin, end - begin)));
      begin = end;
    }
    tensor.chunks = std::move(kept);
  }

  void finish() const {
    for (const Difference& each : of_ranks_)
      state_.notes.push_back(fmt::format("{} differs on ranks {} and {}: that of rank {} was read",
                                         unishard::quote(each.tensor->key), each.first, each.other,
                                         from_rank_.value_or(each.first)));
    require_one_save(where_, differences_);
    if (!differences_.empty() && !from_rank_) refuse(where_, differences_);
    if (!differences_.empty())
      state_.notes.push_back(fmt::format(
          "the ranks' copies of {} tensors differ, {} first: those of rank {} were read",
          differences_.size(), unishard::quote(differences_.front().tensor->key), *from_rank_));
  }

 private:
  Chunk chosen(const TensorEntry& tensor, std::span<const Chunk> copies) {
    const Chunk& first = copies.front();
    const auto other = std::ranges::find_if(
        copies.subspan(1), [&](const Chunk& copy) { return !is_equal(tensor, first, copy); });
    if (other == copies.end()) return first;
    auto& differences = is_of_rank(tensor) ? of_ranks_ : differences_;
    if (differences.empty() || differences.back().tensor != &tensor)
      differences.push_back({&tensor, first.rank, other->rank});
    if (!from_rank_) return first;
    const auto wanted = std::ranges::find(copies, *from_rank_, &Chunk::rank);
    if (wanted != copies.end()) return *wanted;
    raise(ErrorCode::InvalidArgument,
          fmt::format("{}: rank {} has no copy of {}, which differs on ranks {} and {}", where_,
                      *from_rank_, unishard::quote(tensor.key), first.rank, other->rank),
          "name one of these ranks with --from-rank");
  }

  bool is_equal(const TensorEntry& tensor, const Chunk& a, const Chunk& b) const {
    const std::uint64_t bytes = a.box.elements() * size_of(tensor.dtype);
    return a.item == b.item || equal_elements(*state_.items->tensor(a.item, bytes),
                                              *state_.items->tensor(b.item, bytes));
  }

  StateDict& state_;
  const std::optional<std::uint32_t> from_rank_;
  const std::string& where_;
  std::vector<Difference> differences_, of_ranks_;
};

}  // namespace

void settle_copies(StateDict& state, std::optional<std::uint32_t> from_rank,
                   const std::string& where) {
  Settlement settlement(state, from_rank, where);
  for (TensorEntry& tensor : state.tensors) settlement.settle(tensor);
  settlement.finish();
}

}  // namespace unishard::converters::dcp
