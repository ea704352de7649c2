// Opens a UniShard checkpoint and prints its tensors and the first elements of the first one.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include <algorithm>
#include <cstring>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: inspect_from_cpp CHECKPOINT\n";
    return 2;
  }
  try {
    const auto checkpoint = unishard::open_checkpoint(unishard::posix_storage(), argv[1], {});
    const auto& tensors = checkpoint->catalog().tensors;
    for (const unishard::TensorInfo& tensor : tensors)
      std::cout << tensor.label() << ": " << tensor.elements() << " elements of "
                << unishard::name_of(tensor.dtype) << "\n";
    if (tensors.empty() || tensors[0].dtype != unishard::DType::Float32) return 0;

    std::vector<float> values(std::min<std::uint64_t>(4, tensors[0].elements()));
    checkpoint->read(0, {0, values.size()}, std::as_writable_bytes(std::span(values)));
    std::cout << "the first elements of " << tensors[0].label() << ":";
    for (const float value : values) std::cout << " " << value;
    std::cout << "\n";
  } catch (const unishard::Error& error) {
    std::cerr << error.what() << "\n" << error.hint() << "\n";
    return unishard::exit_status(error.code());
  }
}
