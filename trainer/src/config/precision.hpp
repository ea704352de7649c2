#pragma once
#include "unishard/trainer/config.hpp"

#include "config/object_reader.hpp"

namespace unishard::trainer::detail {

/// Reads the sections bf16, bfloat16 and fp16 into `config.compute` and `config.fp16`. As in
/// DeepSpeed, the settings of dynamic scaling are only checked where they are used.
/// Throws: InvalidArgument.
void read_precision(const ObjectReader& top, Config& config);

}  // namespace unishard::trainer::detail
