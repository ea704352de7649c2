#pragma once
// The way of training state through an update: tiles of units are read ahead, updated, and written
// behind. What is in memory anyway is updated where it is.
#include "unishard/format/huge_buffer.hpp"

#include "runtime/task_queue.hpp"
#include "state/model_state.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace unishard::trainer::detail {

/// A part of what this rank holds of a unit. The tensors are views of the unit's arrays, or of a
/// buffer that is filled from a file and written back to it.
struct Tile {
  const UnitRecord* unit = nullptr;
  std::int64_t begin = 0, count = 0;  ///< elements of the unit's arrays
  bool is_last = false;               ///< of its unit
  at::Tensor weights, gradients;      ///< float32
  std::vector<at::Tensor> states;     ///< float32

  FlatUnit& flat() const { return *unit->flat; }
};

/// Not thread-safe.
class TilePipeline {
 public:
  /// `tile_elements` is the size of tiles whose arrays are in files, `buffers` how many of those
  /// are in memory at a time.
  TilePipeline(std::int64_t tile_elements, std::int64_t buffers);
  ~TilePipeline();
  TilePipeline(const TilePipeline&) = delete;
  TilePipeline& operator=(const TilePipeline&) = delete;

  /// Adds all that this rank holds of `unit`.
  void add(const UnitRecord& unit);
  /// Calls `update` for each tile, in order. Returns when all is written back.
  /// Throws: what `update`, a read or a write throws. Some tiles are then updated and others not.
  void run(const std::function<void(Tile&)>& update);

 private:
  class Buffer;
  /// A tile whose reads have been asked for.
  struct Coming {
    Tile tile;
    std::unique_ptr<Buffer> buffer;  ///< null when all of it is in memory
    std::uint64_t reads = 0;         ///< tasks of `reads_` after which it is there
  };
  /// A buffer that is being written.
  struct Leaving {
    std::unique_ptr<Buffer> buffer;
    std::uint64_t writes = 0;  ///< tasks of `writes_` after which it is free
  };

  void read_ahead();
  std::unique_ptr<Buffer> take_buffer();
  void load(Coming& coming);
  void write_behind(Coming coming);

  std::int64_t tile_elements_;
  std::size_t most_buffers_;
  std::size_t buffers_ = 0;  ///< made so far
  std::deque<Tile> waiting_;
  std::deque<Coming> coming_;
  std::deque<Leaving> leaving_;
  std::unique_ptr<TaskQueue> reads_, writes_;  ///< last: their tasks use what is above
};

}  // namespace unishard::trainer::detail
