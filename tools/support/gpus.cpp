#include "support/gpus.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace unishard::tools {
namespace {

/// Returns the entries of a folder, sorted by name; none when it cannot be read.
std::vector<std::filesystem::path> entries(const char* folder) {
  std::vector<std::filesystem::path> found;
  std::error_code code;
  for (std::filesystem::directory_iterator each(folder, code), end; !code && each != end;
       each.increment(code)) {
    found.push_back(each->path());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::vector<std::uint32_t> gpu_numbers() {
  constexpr std::string_view kPrefix = "nvidia";
  std::vector<std::uint32_t> found;
  for (const auto& path : entries("/dev")) {
    const std::string name = path.filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::uint32_t number = 0;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
    if (error == std::errc() && at == end) found.push_back(number);
  }
  std::ranges::sort(found);
  return found;
}

std::vector<std::string> gpu_models() {
  std::vector<std::string> found;
  for (const auto& path : entries("/proc/driver/nvidia/gpus")) {
    std::ifstream file(path / "information");
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("Model:")) continue;
      const std::size_t begin = line.find_first_not_of(" \t", 6);
      if (begin != std::string::npos) found.push_back(line.substr(begin));
    }
  }
  return found;
}

std::string gpu_driver() {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..."
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool is_version = std::ranges::count(word, '.') >= 1 &&
                            word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) return word;
  }
  return {};
}

}  // namespace unishard::tools
