#pragma once
// The way of training state through an update: tiles of units are read ahead, updated, and written
// behind. What is in memory anyway is updated where it is.
#include "unishard/format/huge_buffer.hpp"
#include "unishard/trainer/trace.hpp"

#include "runtime/task_queue.hpp"
#include "state/training_state.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace unishard::trainer::detail {

/// A part of the arrays of a unit. The tensors are views of the arrays, or of a buffer that is
/// filled from a file and written back to it.
struct Tile {
  const UnitRecord* unit = nullptr;
  const UnitArrays* arrays = nullptr;
  std::int64_t begin = 0, count = 0;  ///< elements of the arrays
  bool is_last = false;               ///< of its unit
  at::Tensor weights, gradients;      ///< float32
  std::vector<at::Tensor> states;     ///< float32
  /// What weights and states get before the update; empty where it has their values already.
  std::vector<at::Tensor> previous;

  FlatUnit& flat() const { return *unit->flat; }
};

/// Not thread-safe.
class TilePipeline {
 public:
  using UpdateTile = std::function<void(Tile&)>;

  /// The size of tiles whose arrays are in files, and how many of those are in memory at a time,
  /// follow from the configuration and the size of the model.
  /// Lifetime: `trace`, if there is one, must outlive the pipeline.
  TilePipeline(const TrainingState& state, Trace* trace);
  ~TilePipeline();
  TilePipeline(const TilePipeline&) = delete;
  TilePipeline& operator=(const TilePipeline&) = delete;

  /// Adds all that this rank holds of `unit`: its own arrays, or a draft of them.
  void add(const UnitRecord& unit, UnitArrays arrays);
  /// Returns true when the reads of some tiles have not been asked for.
  bool has_unread() const { return !waiting_.empty(); }
  /// Calls `update` for the next tile, if there is one, while others are read and written.
  /// Throws: what `update`, a read or a write throws. Some tiles are then updated and others not.
  void advance(const UpdateTile& update);
  /// Calls `update` for each tile that is left, in order. Returns when all is written back.
  /// Throws: as advance() does.
  void run(const UpdateTile& update);

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

  std::int64_t elements_of_tile(const FlatUnit& unit, std::int64_t all) const;
  void read_ahead();
  std::unique_ptr<Buffer> take_buffer();
  void load(Coming& coming);
  void write_behind(Coming coming);

  Trace* trace_;  ///< of reads and writes; null: nothing is recorded
  std::int64_t tile_elements_;
  std::size_t most_buffers_;
  std::size_t buffers_ = 0;        ///< made so far
  std::deque<UnitArrays> arrays_;  ///< of the units; they stay where they are
  std::deque<Tile> waiting_;
  std::deque<Coming> coming_;
  std::deque<Leaving> leaving_;
  std::unique_ptr<TaskQueue> reads_, writes_;  ///< last: their tasks use what is above
};

}  // namespace unishard::trainer::detail
