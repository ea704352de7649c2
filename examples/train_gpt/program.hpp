#pragma once
// The whole program, so that a test can start it with a probe of its own.
#include "training.hpp"

namespace train_gpt {

/// Runs the program and returns its exit status.
/// Pre: this is the first thing that main() does.
int run_program(
    int argc, char** argv, const SaveProbe& probe = [](int, unishard::CommitStep) {});

}  // namespace train_gpt
