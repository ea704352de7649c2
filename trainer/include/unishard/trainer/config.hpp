#pragma once
// A training configuration, read from DeepSpeed's JSON. A key that is unknown, or known and not
// built, is an error and never ignored; keys that cannot matter here are accepted with a note. A
// value; any thread.
#include "unishard/format/dtype.hpp"
#include "unishard/format/json.hpp"
#include "unishard/trainer/batch_plan.hpp"
#include "unishard/trainer/optimizer.hpp"
#include "unishard/trainer/schedule.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::trainer {

struct Config {
  BatchRequest batch;
  std::string optimizer = "AdamW";
  Hyper hyper;
  Schedule schedule;
  std::uint32_t stage = 0;
  DType compute = DType::Float32;     ///< or BFloat16, with fp32 master weights
  double gradient_clipping = 1.0;     ///< 0: off
  std::int64_t steps_per_print = 10;  ///< 0: never
  /// Extension: sum gradients in global micro-batch order at stages 0 and 1 too, so that every
  /// world size and stage gives the same bits. Stages 2 and 3 always do.
  bool canonical_order = false;
  std::uint64_t seed = 1234;       ///< extension: initial values, dropout
  Json source = Json::object();    ///< the JSON it was read from
  std::vector<std::string> notes;  ///< keys that were accepted and change nothing

  bool folds_every_micro_batch() const { return stage >= 2 || canonical_order; }
};

/// Throws InvalidArgument naming the JSON path, and the nearest known key for an unknown one.
Config parse_config(const Json& json);

}  // namespace unishard::trainer
