#pragma once
// One maker per optimizer; make_optimizer() holds the table of names.
#include "unishard/trainer/optimizer.hpp"

#include <memory>

namespace unishard::trainer::detail {

std::unique_ptr<Optimizer> make_adam(const Hyper& hyper);
std::unique_ptr<Optimizer> make_sgd(const Hyper& hyper);
std::unique_ptr<Optimizer> make_lion(const Hyper& hyper);
std::unique_ptr<Optimizer> make_adagrad(const Hyper& hyper);

}  // namespace unishard::trainer::detail
