// train_gpt: a language model on a text or a file of tokens, sharded over any number of ranks,
// saved and resumed on any other number.
#include "program.hpp"

int main(int argc, char** argv) { return train_gpt::run_program(argc, argv); }
