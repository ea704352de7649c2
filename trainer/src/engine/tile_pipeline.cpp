#include "engine/tile_pipeline.hpp"

#include "unishard/trainer/memory_plan.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

namespace unishard::trainer::detail {

/// Memory for the arrays of one tile, in pages that the disk can be read to directly.
class TilePipeline::Buffer {
 public:
  Buffer(std::int64_t tile_elements, std::size_t arrays)
      : tile_elements_(tile_elements),
        memory_(static_cast<std::size_t>(tile_elements) * sizeof(float) * arrays) {}

  /// Returns array `index`, of `count` elements.
  at::Tensor array(std::size_t index, std::int64_t count) const {
    auto* const begin = reinterpret_cast<float*>(memory_.bytes().data());
    return at::from_blob(begin + static_cast<std::int64_t>(index) * tile_elements_, {count},
                         at::device(at::kCPU).dtype(at::kFloat));
  }
  bool has_room(std::size_t arrays) const {
    return memory_.bytes().size() >=
           static_cast<std::size_t>(tile_elements_) * sizeof(float) * arrays;
  }

 private:
  std::int64_t tile_elements_;
  HugeBuffer memory_;
};

namespace {

std::int64_t held_elements(const ModelState& model) {
  std::int64_t elements = 0;
  for (const UnitRecord& unit : model.units) elements += unit.flat->layout().length();
  return elements;
}

}  // namespace

TilePipeline::TilePipeline(const TrainingState& state, Trace* trace)
    : trace_(trace),
      tile_elements_(elements_of_file_update(state.config, held_elements(state.model))),
      most_buffers_(static_cast<std::size_t>(file_updates_in_memory(state.config))) {}

TilePipeline::~TilePipeline() = default;

void TilePipeline::add(const UnitRecord& unit, UnitArrays arrays) {
  arrays_.push_back(std::move(arrays));
  const std::int64_t all = arrays_.back().master.elements();
  const std::int64_t most = elements_of_tile(*unit.flat, all);
  for (std::int64_t begin = 0; begin < all; begin += most) {
    Tile tile;
    tile.unit = &unit;
    tile.arrays = &arrays_.back();
    tile.begin = begin;
    tile.count = std::min(most, all - begin);
    tile.is_last = begin + tile.count == all;
    waiting_.push_back(std::move(tile));
  }
}

/// Returns how many of the `all` elements of a unit are updated at a time.
std::int64_t TilePipeline::elements_of_tile(const FlatUnit& unit, std::int64_t all) const {
  if (unit.store().is_in_files()) return tile_elements_;
  // What the host updates goes back to a device while the next tile is updated.
  if (unit.store().is_offloaded()) return kElementsOfHostUpdate;
  return std::max<std::int64_t>(all, 1);
}

void TilePipeline::advance(const UpdateTile& update) {
  read_ahead();
  if (coming_.empty()) return;
  Coming now = std::move(coming_.front());
  coming_.pop_front();
  if (now.buffer) reads_->wait(now.reads);
  update(now.tile);
  if (now.buffer || now.tile.arrays->rounded.is_in_file()) write_behind(std::move(now));
}

void TilePipeline::run(const UpdateTile& update) {
  while (!waiting_.empty() || !coming_.empty()) advance(update);
  while (!leaving_.empty()) {
    writes_->wait(leaving_.front().writes);
    leaving_.pop_front();
  }
}

void TilePipeline::read_ahead() {
  while (!waiting_.empty() && coming_.size() + 1 < most_buffers_) {
    Coming next{.tile = std::move(waiting_.front()), .buffer = nullptr};
    waiting_.pop_front();
    load(next);
    coming_.push_back(std::move(next));
  }
}

/// Returns a new buffer, or the one whose writes were asked for first.
std::unique_ptr<TilePipeline::Buffer> TilePipeline::take_buffer() {
  if (leaving_.empty() || buffers_ < most_buffers_) {
    ++buffers_;
    return nullptr;
  }
  writes_->wait(leaving_.front().writes);
  std::unique_ptr<Buffer> buffer = std::move(leaving_.front().buffer);
  leaving_.pop_front();
  return buffer;
}

void TilePipeline::load(Coming& coming) {
  Tile& tile = coming.tile;
  const UnitArrays& unit = *tile.arrays;
  std::vector<std::pair<StateArray, at::Tensor>> reads;
  std::size_t used = 0;
  const std::size_t arrays = 2 + unit.states.size();
  const auto bring = [&](const StateArray& array) {
    if (!array.is_in_file()) return array.values(tile.begin, tile.count);
    if (!coming.buffer) coming.buffer = take_buffer();
    if (!coming.buffer || !coming.buffer->has_room(arrays))
      coming.buffer = std::make_unique<Buffer>(tile_elements_, arrays);
    reads.emplace_back(array, coming.buffer->array(used++, tile.count));
    return reads.back().second;
  };
  tile.weights = bring(unit.master);
  tile.gradients = bring(unit.gradients);
  for (const StateArray& state : unit.states) tile.states.push_back(bring(state));
  for (const StateArray& array : unit.previous)
    tile.previous.push_back(array.values(tile.begin, tile.count));
  if (reads.empty()) return;
  if (!reads_) reads_ = std::make_unique<TaskQueue>();
  reads_->push([this, reads = std::move(reads), begin = tile.begin, &flat = tile.flat()] {
    const TraceScope scope(trace_, "reads of files", "read " + flat.name());
    for (const auto& [array, into] : reads) array.read(begin, into);
  });
  coming.reads = reads_->pushed();
}

void TilePipeline::write_behind(Coming coming) {
  if (!writes_) writes_ = std::make_unique<TaskQueue>();
  writes_->push([this, tile = std::move(coming.tile)] {
    const TraceScope scope(trace_, "writes of files", "write " + tile.flat().name());
    const UnitArrays& unit = *tile.arrays;
    if (unit.master.is_in_file()) unit.master.write(tile.begin, tile.weights);
    for (std::size_t i = 0; i < tile.states.size(); ++i)
      if (unit.states[i].is_in_file()) unit.states[i].write(tile.begin, tile.states[i]);
    if (unit.rounded.is_in_file()) unit.round(tile.begin, tile.weights);
  });
  leaving_.push_back({std::move(coming.buffer), writes_->pushed()});
}

}  // namespace unishard::trainer::detail
