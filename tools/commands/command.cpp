#include "commands/command.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/io.hpp"

#include "lib/machine.hpp"
#include "lib/size_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::cli {
namespace {

/// The program, its libraries, tables of ordinary checkpoints and the cache of chunks.
constexpr std::uint64_t kMemoryMin = std::uint64_t{48} << 20;

/// Some wait for the disk while others work.
constexpr unsigned kThreadsMin = 4;

}  // namespace

void Resources::add_to(CLI::App& command) {
  command
      .add_option("--threads", threads, "Threads (default: one per hardware thread, at least 4)")
      ->check(CLI::Range(1u, 1024u));
  command
      .add_option("--memory-limit,--memory_limit", memory_limit,
                  "Most memory to use, such as 64MiB or 2GB")
      ->capture_default_str();
  command
      .add_option("--io", io,
                  "How payload is read and written: past the page cache (direct), through it "
                  "(buffered), or what suits the file system and what is cached (auto)")
      ->check(CLI::IsMember({"auto", "direct", "buffered"}))
      ->capture_default_str();
  command.add_flag("-q,--quiet", quiet, "No progress and no summary on standard error");
}

std::uint64_t Resources::memory_bytes() const {
  const std::uint64_t bytes = tools::parse_bytes(memory_limit, "--memory-limit");
  if (bytes < kMemoryMin) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--memory-limit {} is below the {} that the program itself may need",
                      memory_limit, tools::format_bytes(kMemoryMin)));
  }
  return bytes;
}

void Resources::apply() const {
  configure_io(IoOptions::within(memory_bytes(), io_mode_from_name(io).value_or(IoMode::Auto)));
}

TransferOptions Resources::transfer(Progress& progress) const {
  TransferOptions options = TransferOptions::within(
      memory_bytes(), threads != 0 ? threads : std::max(kThreadsMin, tools::hardware_threads()));
  options.observer = &progress;
  return options;
}

std::optional<DType> parse_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "fp32") return DType::Float32;
  return text == "bf16" ? DType::BFloat16 : DType::Float16;
}

void add_tag(CLI::App& command, std::optional<std::string>& tag) {
  command.add_option("-t,--tag", tag, "The checkpoint's tag (default: what `latest` names)");
}

}  // namespace unishard::cli
