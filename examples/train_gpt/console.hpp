#pragma once
// What train_gpt prints. Rank 0 only, save where noted.
#include "unishard/trainer/communicator.hpp"
#include "unishard/trainer/engine.hpp"

#include "options.hpp"

#include <string>

namespace train_gpt {

void print_header(const Options& options, const unishard::trainer::Engine& engine,
                  const unishard::trainer::RankEnvironment& environment);
void print_step(const unishard::trainer::StepStats& stats, double seconds_per_step);
void print_save(const unishard::trainer::SaveReport& report);
void print_load(const unishard::trainer::LoadReport& report);
/// Collective: a line for every rank.
void print_memory(const unishard::trainer::Engine& engine,
                  unishard::trainer::Communicator& communicator);

}  // namespace train_gpt
