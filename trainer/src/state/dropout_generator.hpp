#pragma once
#include <ATen/core/Generator.h>

namespace unishard::trainer::detail {

/// Returns the generator from which dropout() draws on this thread; null: LibTorch's default one.
at::Generator* dropout_generator();
/// Sets it, and returns the former one.
/// Lifetime: `generator` must live until it is replaced.
at::Generator* exchange_dropout_generator(at::Generator* generator);

}  // namespace unishard::trainer::detail
