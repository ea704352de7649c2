#pragma once
// What an engine is told about its checkpoints, and what it reports of them.
#include "unishard/format/commit.hpp"
#include "unishard/format/compression.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/trainer/foreign_names.hpp"
#include "unishard/trainer/optimizer.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace unishard::trainer {

/// One checkpoint to save.
struct SaveRequest {
  Path folder;        ///< the same for all ranks or, with Config::node_local_checkpoints, of a node
  std::string tag{};  ///< empty: "global_step<N>"
  Json client_state = nullptr;
  std::uint32_t keep_last = 0;
  bool move_latest = true;
  bool replace = true;  ///< allow to replace a UniShard checkpoint with this tag
  /// Return from save_checkpoint() once the state is copied, and write the copy in the background.
  bool asynchronous = false;
  Compression compression{};
  /// Do not write chunks again that the checkpoint named by `latest` already holds; the new
  /// checkpoint links to its files. Everything is written when that checkpoint has another world
  /// size or the file system has no hard links. A damaged byte on the disk then affects all
  /// checkpoints that share it.
  bool incremental = false;
};

/// A checkpoint that was loaded.
struct LoadReport {
  std::string tag;
  std::int64_t step = 0;
  std::uint32_t saved_world_size = 0;
  std::uint32_t saved_stage = 0;
  Json client_state;
  /// For example, reasons why bits may differ from the saved run's.
  std::vector<std::string> notes;
};

class Runtime;

/// Parameters with the same hyperparameters.
struct ParameterGroup {
  std::string name;
  Hyper hyper;
};

/// What an engine is told once: where its memory and its checkpoints are, and what they record.
struct EngineOptions {
  /// Device and streams; null: the host, with a stream of its own for communication.
  Runtime* runtime = nullptr;
  Storage* storage = nullptr;  ///< null: posix_storage()
  /// Groups of the optimizer, and the index of the group of each trained parameter. Empty: "decay",
  /// and "no_decay" for parameters of one dimension.
  std::vector<ParameterGroup> groups{};
  std::function<std::size_t(const std::string& fqn, const at::Tensor& parameter)> group_of{};
  /// The launcher's name of this rank's node (RankEnvironment::node), for
  /// Config::node_local_checkpoints; empty: the host's name.
  std::string node{};
  /// Called on each rank before each of its steps of a save; tests use it to fail or to kill the
  /// process. In an asynchronous save, the background thread calls it for all steps but
  /// CreateStaging.
  std::function<void(CommitStep)> on_save_step{};
  /// Seed of the data order; recorded in checkpoints.
  std::uint64_t shuffle_seed = 0;
  /// Samples per epoch, recorded in checkpoints; 0: not known.
  std::uint64_t samples_per_epoch = 0;
  /// What else of the program all ranks must have in common, a line each, for example its data.
  std::vector<std::string> agreed{};
  /// Names and layouts of the model in files of other programs, for load_checkpoint().
  ForeignNames foreign_names = {};
  /// Called on each rank at the end of each training step, whose message carries the bits that it
  /// returns to the other ranks: see StepStats::flags. So a program needs no message of its own for
  /// what its ranks decide after each step, as on a signal. Null: no bits.
  std::function<std::uint32_t()> flags{};
};

}  // namespace unishard::trainer
