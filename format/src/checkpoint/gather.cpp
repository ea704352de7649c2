// Own elements of a fragment have the order of the tensor, and so have those of the reader's part:
// the elements that both have are a sequence of runs in the same order on both sides.
#include "checkpoint/gather.hpp"

#include "unishard/format/batched_read.hpp"

namespace unishard::detail {

void gather(const ShardReader& shard, std::size_t row, const ElementMap& wanted,
            std::span<std::byte> out) {
  const ElementMap stored = shard.map_of(row);
  const std::uint64_t width = size_of(shard.entry().data_sets[shard.rows()[row].data_set].dtype);
  const auto read = [&](std::uint64_t begin, std::span<std::byte> to) {
    shard.read(row, {begin, begin + to.size() / width}, to);
  };
  // Whole chunks are read anyway.
  const auto is_near = [&](std::uint64_t end, std::uint64_t begin) {
    return shard.chunk_start(row, begin) <= end;
  };
  BatchedRead batched(width, out, read, is_near);
  // The part with the longer runs is walked over; within each run the other part is.
  const bool by_stored = stored.run_elements() >= wanted.run_elements();
  const ElementMap &outer = by_stored ? stored : wanted, &inner = by_stored ? wanted : stored;
  outer.each_run(outer.own_in(inner.bounds()), [&](std::uint64_t first, ElementRange run) {
    inner.each_run(inner.own_in(run), [&](std::uint64_t inner_first, ElementRange both) {
      const std::uint64_t outer_first = first + (both.begin - run.begin);
      batched.add({by_stored ? outer_first : inner_first, by_stored ? inner_first : outer_first,
                   both.size()});
    });
  });
  batched.flush();
}

}  // namespace unishard::detail
