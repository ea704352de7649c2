#include "commands/command.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/io.hpp"
#include "unishard/format/memory.hpp"

#include "support/heap_limit.hpp"
#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "workflows/name_layouts.hpp"
#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unishard::cli {
namespace {

/// The program, its libraries, tables of ordinary checkpoints and the cache of chunks.
constexpr std::uint64_t kMemoryMin = std::uint64_t{48} << 20;

/// Upper bound on metadata bytes per tensor: of the source, of the plan and of the result.
constexpr std::uint64_t kBytesPerTensor = 2560;
/// Number of tensors whose tables must always fit.
constexpr std::uint64_t kBuffersMin = std::uint64_t{14} << 20;

/// At least this many threads: some wait for the disk while others work.
constexpr unsigned kThreadsMin = 4;
/// Bytes that a thread needs beside the shared buffers. When memory is short, the number of threads
/// is reduced.
constexpr std::uint64_t kBytesPerThread = std::uint64_t{16} << 20;
/// A thread that compresses also holds incomplete chunks.
constexpr std::uint64_t kBytesPerCompressingThread = 2 * kBytesPerThread;

/// Address space of a thread's stack, by default.
constexpr std::uint64_t kStackBytes = std::uint64_t{8} << 20;
/// Memory of libraries: libhdf5's tables and lists of freed blocks.
constexpr std::uint64_t kLibraryBytes = std::uint64_t{24} << 20;

}  // namespace

void Resources::add_to(CLI::App& command) {
  command
      .add_option("--threads", threads,
                  "Threads of a process (default: one per hardware thread, at least 4)")
      ->check(CLI::Range(1u, 1024u));
  command
      .add_option("--memory-limit,--memory_limit", memory_limit,
                  "Most memory that a process uses, such as 64MiB or 2GB")
      ->capture_default_str();
  command
      .add_option("--io", io,
                  "How payload is read and written: past the page cache (direct), through it "
                  "(buffered), or what suits the file system and what is cached (auto)")
      ->check(CLI::IsMember({"auto", "direct", "buffered"}))
      ->capture_default_str();
  command.add_flag("-q,--quiet", quiet, "No progress and no summary on standard error");
}

unsigned Resources::wanted_threads() const {
  return threads != 0 ? threads : std::max(kThreadsMin, tools::hardware_threads());
}

std::uint64_t Resources::memory_bytes() const {
  const std::uint64_t bytes = tools::parse_bytes(memory_limit, "--memory-limit");
  if (bytes < kMemoryMin) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--memory-limit {} is below the {} that the program itself may need",
                      memory_limit, tools::format_bytes(kMemoryMin)));
  }
  // libhdf5 crashes when memory is exhausted, so the program's own limit is lower. Stacks take
  // address space of which little is used.
  static const std::uint64_t mappable = tools::mappable_bytes();
  const std::uint64_t kept = kLibraryBytes + (wanted_threads() + 1) * kStackBytes;
  if (mappable < kept + kMemoryMin) {
    raise(
        ErrorCode::Io,
        fmt::format("the limit of this process (ulimit -v, ulimit -d) leaves {} of memory, and {} "
                    "threads need {}",
                    tools::format_bytes(mappable), wanted_threads(),
                    tools::format_bytes(kept + kMemoryMin)),
        "raise the limit, or use fewer --threads");
  }
  return std::min(bytes, mappable - kept);
}

void refuse_empty_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (std::ranges::count(option->results(), "") == 0) continue;
    const bool is_path = option->get_positional();
    const bool is_hidden = option->get_name().empty();
    raise(ErrorCode::InvalidArgument,
          is_path
              ? fmt::format("the argument {} is an empty text", option->get_name())
              : fmt::format("the value of {} is an empty text",
                            is_hidden ? "--" + option->get_lnames().front() : option->get_name()),
          fmt::format("{}; perhaps a shell variable is not set",
                      is_path ? "name a file or folder" : "give a value, or leave the option out"));
  }
}

void Resources::apply() const {
  const std::uint64_t bytes = memory_bytes();
  set_io(bytes);
  set_description_limit(bytes / 2);  // the objects made from a description take as much again
  set_heap_limit(bytes);
}

void Resources::set_io(std::uint64_t bytes) const {
  configure_io(IoOptions::within(bytes, io_mode_from_name(io).value_or(IoMode::Auto)));
}

TransferOptions Resources::transfer(Observer& progress, std::uint64_t tensors,
                                    const Compression& compression) const {
  const std::uint64_t all = memory_bytes();
  const std::uint64_t bytes = all - std::min(tensors * kBytesPerTensor, all - kBuffersMin);
  set_io(bytes);
  const bool compresses = compression.mode != Compression::Mode::None;
  const std::uint64_t most = std::max<std::uint64_t>(
      1, bytes / (compresses ? kBytesPerCompressingThread : kBytesPerThread));
  TransferOptions options = TransferOptions::within(
      bytes, static_cast<unsigned>(std::min<std::uint64_t>(wanted_threads(), most)));
  options.observer = &progress;
  return options;
}

std::optional<DType> parse_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "fp32") return DType::Float32;
  return text == "bf16" ? DType::BFloat16 : DType::Float16;
}

void add_compress(CLI::App& command, Compression& compression) {
  command
      .add_option_function<std::string>(
          "--compress",
          [&compression](const std::string& name) {
            const auto parsed = compression_from_name(name);
            if (!parsed)
              throw CLI::ValidationError(
                  "--compress",
                  fmt::format("{} is not none, zstd[:1-{}] or auto[:1-{}]", quote(name),
                              Compression::kMaxLevel, Compression::kMaxLevel));
            compression = *parsed;
          },
          "How a UniShard checkpoint is stored: as it is, smaller, or smaller where that is "
          "faster; with a level, zstd searches for matches as well")
      ->type_name("none|zstd[:LEVEL]|auto[:LEVEL]");
}

void add_max_shard_size(CLI::App& command, std::string& size) {
  command.add_option("--max_shard_size,--max-shard-size", size, "Largest file of a model folder")
      ->capture_default_str();
}

void add_no_check(CLI::App& command, bool& check, const std::string& help) {
  command.add_flag_callback(
      "--no-check,--no_check", [&check] { check = false; }, help);
}

void add_no_check_input(CLI::App& command, bool& check_input) {
  command.add_flag_callback(
      "--no-check-input,--no_check_input", [&check_input] { check_input = false; },
      "For salvage from other formats: copy tensors that do not match the input's "
      "checksums as well; the result is marked. UniShard's own are always checked");
}

void add_color(CLI::App& command, std::string& when) {
  command
      .add_option("--color", when,
                  "Colours: auto (on a terminal, unless NO_COLOR is set), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN")
      ->capture_default_str();
}

void add_tag(CLI::App& command, std::optional<std::string>& tag) {
  command.add_option("-t,--tag", tag, "The checkpoint's tag (default: what `latest` names)");
}

void add_merge_rules(CLI::App& command, std::string& file) {
  command.add_option("--merge-rules,--merge_rules", file,
                     "A file of rules that says how tensors were cut, for a tensor-parallel run "
                     "whose files do not: `unishard formats --rules-schema`");
}

Json read_merge_rules(const std::string& file) {
  if (file.empty()) return nullptr;
  Json cuts = tools::read_rules(file, "--merge-rules").cuts;
  if (!cuts.is_null()) return cuts;
  raise(ErrorCode::InvalidArgument, fmt::format("--merge-rules: {} has no cuts", file),
        "--rename @FILE takes its names");
}

void NameOptions::add_to(CLI::App& command) {
  command
      .add_option("--layout", layout,
                  "Names of the Hugging Face model for the layers of a pipeline (neox, bloom, "
                  "llama-pipe) or for Meta's files (llama)")
      ->check(CLI::IsMember(tools::name_layouts()));
  command.add_option("--rename", renames,
                     "FROM=TO: a regular expression and what its matches in names become; @FILE: "
                     "the names of a file of rules, or one rule a line");
  command.add_option("--rules", rules, "A file of rules, as --rename @FILE and --merge-rules FILE");
  command.add_option("--save-rules,--save_rules", saved_rules,
                     "New file for the rules that gave names and put tensors together, for "
                     "--rules FILE");
  command.add_flag("--module-names,--module_names", keeps_module_names,
                   "Keep stacked experts as transformers 5 has them in memory, also in a model "
                   "whose config.json says that the hub's files have one tensor for each");
}

tools::Rules NameOptions::read(const std::string& merge_rules) const {
  if (!saved_rules.empty() && posix_storage().kind(saved_rules) != EntryKind::Missing)
    raise(ErrorCode::AlreadyExists, fmt::format("--save-rules: {} is there already", saved_rules),
          "name a new file; nothing was written");
  const Path folder = Path(saved_rules).parent_path();
  if (!folder.empty() && posix_storage().kind(folder) != EntryKind::Directory)
    raise(ErrorCode::NotFound, fmt::format("--save-rules: there is no folder {}", folder.string()),
          "make it first; nothing was written");
  tools::Rules all;
  if (!rules.empty()) all = tools::read_rules(rules, "--rules");
  if (!merge_rules.empty() && !all.cuts.is_null())
    raise(ErrorCode::InvalidArgument, "--rules and --merge-rules both say how tensors were cut",
          "leave one of them out");
  if (!merge_rules.empty()) all.cuts = read_merge_rules(merge_rules);
  const auto take_layout = [&](const std::string& name) {
    if (!name.empty() && !all.layout.empty() && all.layout != name)
      raise(ErrorCode::InvalidArgument,
            fmt::format("two layouts are given, {} and {}", all.layout, name),
            "leave one of them out");
    if (!name.empty()) all.layout = name;
  };
  take_layout(layout);
  for (const std::string& text : renames) {
    if (!text.starts_with('@')) {
      all.renames.push_back(tools::parse_rename(text));
      continue;
    }
    const tools::Rules file = tools::read_rules(text.substr(1), "--rename");
    if (file.renames.empty() && file.layout.empty() && !file.cuts.is_null())
      raise(ErrorCode::InvalidArgument, fmt::format("--rename: {} has no names", text.substr(1)),
            "--merge-rules FILE takes its cuts");
    take_layout(file.layout);
    all.renames.insert(all.renames.end(), file.renames.begin(), file.renames.end());
  }
  return all;
}

void NameOptions::save(const tools::Rules& given, const std::vector<tools::RenameRule>& renamed,
                       Json cuts) const {
  if (saved_rules.empty()) return;
  tools::Rules used{.renames = renamed, .cuts = std::move(cuts)};
  if (tools::changes_values(given.layout)) {
    used.layout = given.layout;
    used.renames = given.renames;
  }
  tools::save_rules(posix_storage(), saved_rules, used);
}

void add_like(CLI::App& command, std::string& like) {
  command.add_option("--like", like,
                     "A model with the names and shapes of the trained one, for rank files of "
                     "FSDP1's LOCAL_STATE_DICT; one file of torch.save(model.state_dict(), file)");
}

void add_from_rank(CLI::App& command, std::optional<std::uint32_t>& rank) {
  command.add_option("--from-rank,--from_rank", rank,
                     "The rank whose copies count where those of several ranks' files differ");
}

void PartOptions::add_to(CLI::App& command) {
  command.add_flag("--part", may_be_part,
                   "Take the file although it is one of several that make a model");
  add_from_rank(command, from_rank);
  add_like(command, like);
}

void PartOptions::check(const converters::Source& source) const {
  if (!may_be_part) tools::require_whole(source);
}

}  // namespace unishard::cli
