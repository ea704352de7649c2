// train_gpt: a GPT on bytes of a text, sharded over any number of ranks, saved and resumed on any
// other number.
#include "program.hpp"

int main(int argc, char** argv) { return train_gpt::run_program(argc, argv); }
