// The pickle machine and what is made of its result. Half of the mutations change opcodes.
#include "containers/object_tree.hpp"
#include "fuzz.hpp"
#include "mutators.hpp"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return unishard::fuzz::mutate_half(data, size, max_size, seed, [&](std::string_view program) {
    return unishard::fuzz::mutate_pickle(program, seed);
  });
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace torch = unishard::converters::torch;
  return unishard::fuzz::expect_error_or_success([&] {
    const auto pickle = torch::Pickle::parse(std::string(reinterpret_cast<const char*>(data), size),
                                             "input", {.bytes = 1 << 20, .memory_bytes = 64 << 20});
    torch::describe(pickle->root(), size);
    pickle->globals();
  });
}
