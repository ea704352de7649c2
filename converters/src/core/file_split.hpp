#pragma once
// Splits tensors among files as huggingface_hub's serialization does.
// Thread safety: pure functions.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::safetensors {

/// Returns the tensors of each file. `tensor_bytes` are the tensors' sizes in order. A tensor
/// larger than `max_file_bytes` gets a file of its own, placed before the file in progress. Without
/// tensors there is one empty file.
std::vector<std::vector<std::size_t>> split_files(std::span<const std::uint64_t> tensor_bytes,
                                                  std::uint64_t max_file_bytes);

/// Returns "<stem><extension>" for a single file, or "<stem>-00002-of-00003<extension>" for file
/// `index` (from 0) of several.
std::string model_file_name(std::size_t index, std::size_t count, std::string_view stem = "model",
                            std::string_view extension = ".safetensors");

}  // namespace unishard::converters::safetensors
