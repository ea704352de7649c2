#include "core/file_split.hpp"

#include <fmt/format.h>

namespace unishard::converters::safetensors {

std::vector<std::vector<std::size_t>> split_files(std::span<const std::uint64_t> tensor_bytes,
                                                  std::uint64_t max_file_bytes) {
  std::vector<std::vector<std::size_t>> files;
  std::vector<std::size_t> current;
  std::uint64_t current_bytes = 0;
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (tensor_bytes[i] > max_file_bytes) {
      files.push_back({i});
      continue;
    }
    if (tensor_bytes[i] > max_file_bytes - current_bytes) {
      files.push_back(std::move(current));
      current.clear();
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += tensor_bytes[i];
  }
  if (!current.empty() || files.empty()) files.push_back(std::move(current));
  return files;
}

std::string model_file_name(std::size_t index, std::size_t count, std::string_view stem,
                            std::string_view extension) {
  if (count == 1) return fmt::format("{}{}", stem, extension);
  return fmt::format("{}-{:05}-of-{:05}{}", stem, index + 1, count, extension);
}

}  // namespace unishard::converters::safetensors
