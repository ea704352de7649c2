#pragma once
// How Hugging Face spreads tensors over files: the split of huggingface_hub's serialization. Pure.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::safetensors {

/// Which tensors go to which file, given their sizes in order. A tensor above `max_file_bytes` gets
/// a file of its own, placed before the file in progress. No tensors give one empty file.
std::vector<std::vector<std::size_t>> split_files(std::span<const std::uint64_t> tensor_bytes,
                                                  std::uint64_t max_file_bytes);

/// "<stem><extension>", or "<stem>-00002-of-00003<extension>" for file `index` (from 0) of several.
std::string model_file_name(std::size_t index, std::size_t count, std::string_view stem = "model",
                            std::string_view extension = ".safetensors");

}  // namespace unishard::converters::safetensors
