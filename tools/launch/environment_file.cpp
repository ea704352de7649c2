#include "launch/environment_file.hpp"

#include "unishard/format/error.hpp"

#include "support/descriptor.hpp"
#include "support/text_parts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

namespace unishard::tools {
namespace {

constexpr std::string_view kAroundValues = " \t\r";
constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;
/// Among them are those that choose how matrix products are computed: with others on some hosts,
/// the bits of a run would depend on where its ranks are.
constexpr std::array kSharedNames = std::to_array<std::string_view>(
    {"NCCL", "GLOO_", "TORCH_", "OMP_", "OPENBLAS_", "MKL_", "CUBLAS_", "ATEN_", "UCX", "MV2",
     "MLFLOW", "PYTHON", "UNISHARD_"});

bool is_variable_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  return !name.empty() && is_letter(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

std::vector<std::string> candidates(const EnvironmentLookup& lookup) {
  const std::string name = lookup("DS_ENV_FILE").value_or(".deepspeed_env");
  if (name.starts_with('/')) return {name};
  std::vector<std::string> paths;
  if (const auto home = lookup("HOME"); home && !home->empty()) paths.push_back(*home + "/" + name);
  paths.push_back("./" + name);
  return paths;
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (file.get() < 0) raise_errno("opening", path, errno);
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) raise_errno("reading", path, errno);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > kFileBytesMax)
      raise(ErrorCode::InvalidArgument, fmt::format("{} is longer than 1 MiB", quote(path)));
  }
}

Variables parse_environment_file(std::string_view text, std::string_view path) {
  Variables found;
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end), kAroundValues);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals), kAroundValues);
    if (equals == std::string_view::npos || !is_variable_name(name) ||
        line.find('\0') != std::string_view::npos) {
      // The value may be a secret, so the line is not quoted.
      raise(ErrorCode::InvalidArgument,
            fmt::format("{}, line {}: not `NAME=VALUE`", path, line_number));
    }
    found.emplace_back(name, trimmed(line.substr(equals + 1), kAroundValues));
  }
  return found;
}

Variables read_environment_files(const EnvironmentLookup& lookup) {
  Variables found;
  bool is_there = false;
  for (const std::string& path : candidates(lookup)) {
    const auto text = read_small_file(path);
    is_there |= text.has_value();
    const Variables read = parse_environment_file(text.value_or(""), path);
    found.insert(found.end(), read.begin(), read.end());
  }
  if (const auto name = lookup("DS_ENV_FILE"); name && !is_there) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("DS_ENV_FILE names {}, which is not there", quote(*name)));
  }
  return found;
}

Variables shared_variables() {
  Variables found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const bool is_shared = std::ranges::any_of(
        kSharedNames, [&](std::string_view name) { return text.starts_with(name); });
    if (is_shared) found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

}  // namespace unishard::tools
