#include "console.hpp"

#include "unishard/format/storage.hpp"
#include "unishard/format/text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <vector>

namespace train_gpt {
namespace {

using unishard::trainer::BatchPlan;
using unishard::trainer::Residence;

double megabytes(double bytes) { return bytes / 1e6; }

/// Escapes a message except for the line breaks before its list items, which begin with two spaces:
/// no name in a message can begin a line of its own.
std::string printable_lines(std::string_view message) {
  constexpr std::string_view kItem = "\n  ";
  std::string text;
  for (std::size_t end = message.find(kItem); end != message.npos; end = message.find(kItem)) {
    text += unishard::printable(message.substr(0, end));
    text += kItem;
    message.remove_prefix(end + kItem.size());
  }
  return text + unishard::printable(message);
}

/// Returns a sentence for each folder of offloaded state whose file system lacks direct I/O.
std::vector<std::string> notes_on_disks(const unishard::trainer::Config& config) {
  std::set<std::string> folders;
  if (config.offload_optimizer.residence == Residence::File)
    folders.insert(config.offload_optimizer.nvme_path);
  if (config.offload_param.residence == Residence::File)
    folders.insert(config.offload_param.nvme_path);
  std::vector<std::string> notes;
  for (const std::string& folder : folders) {
    // Where nothing is offloaded to files, the folder may be missing.
    if (unishard::posix_storage().kind(folder) != unishard::EntryKind::Directory) continue;
    if (unishard::posix_storage().create_unnamed(folder)->bypasses_cache()) continue;
    notes.push_back(
        fmt::format("nvme_path {}: its file system has no direct I/O, so it is no NVMe disk: tmpfs "
                    "keeps in memory what is offloaded there, and others go through the page cache",
                    folder));
  }
  return notes;
}

/// Returns which runs have the same bits as this one.
std::string promise(const unishard::trainer::Config& config, at::Device device) {
  if (!device.is_cpu() && !config.is_deterministic())
    return "repeated runs may differ in their last bits (\"deterministic\": true prevents it)";
  return config.folds_every_micro_batch() ? "the same bits at every world size and stage"
                                          : "the same bits in every run at this world size";
}

}  // namespace

double megabytes(std::int64_t bytes) { return megabytes(static_cast<double>(bytes)); }

double process_megabytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    double kibibytes = 0;
    if (name == field + ":" && status >> kibibytes) return kibibytes * 1024 / 1e6;
    std::getline(status, name);
  }
  return 0;
}

void say(const std::string& text) {
  const bool has_failed = std::ferror(stdout) != 0;
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (is_written || has_failed) return;
  say_error(0, "warning",
            fmt::format("standard output cannot be written: {}; training goes on",
                        std::generic_category().message(errno)));
}

void say_error(std::uint32_t rank, std::string_view kind, std::string_view message,
               std::string_view hint) {
  std::string text =
      fmt::format("train_gpt: rank {}: {}: {}\n", rank, kind, printable_lines(message));
  if (!hint.empty())
    text += fmt::format("train_gpt: rank {}: hint: {}\n", rank, unishard::printable(hint));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void print_header(const Options& options, const unishard::trainer::Engine& engine,
                  const unishard::trainer::RankEnvironment& environment, at::Device device) {
  const auto& config = options.config;
  const BatchPlan& batch = engine.batch();
  std::string text = fmt::format(
      "train_gpt: {:.2f} M parameters, world size {}{}, ZeRO stage {}, {}, {}{}\n",
      static_cast<double>(engine.parameter_count()) / 1e6, environment.world_size,
      environment.launcher == "none" ? "" : " (" + environment.launcher + ")", config.stage,
      name_of(config.compute), config.optimizer, device.is_cpu() ? "" : ", on " + device.str());
  text += fmt::format("  batch {} = {} micro-batches of {}, {} micro-steps per rank", batch.train,
                      batch.global_micro_batches, batch.micro, batch.accumulation);
  if (const auto padding = batch.padding(environment.world_size); padding > 0)
    text += fmt::format(" ({} padding)", padding);
  text += config.folds_every_micro_batch() ? ", canonical order\n" : "\n";
  text +=
      fmt::format("  samples of {} tokens ({})\n", options.context, name_of(options.tokens.type));
  text += fmt::format("  {}\n", promise(config, device));
  if (engine.widens_fp16())
    text +=
        "  note: this LibTorch has no fp16 kernels for the CPU: it computes in float32 on fp16 "
        "values\n";
  std::vector<std::string> notes = config.notes;
  std::ranges::move(notes_on_disks(config), std::back_inserter(notes));
  for (const std::string& note : notes)
    text += fmt::format("  note: {}\n", unishard::printable(note));
  say(text);
}

bool prints_step(std::int64_t interval, const unishard::trainer::StepStats& stats) {
  return stats.skipped || (interval > 0 && stats.step % interval == 0);
}

StepPrinter::StepPrinter(std::int64_t steps, std::int64_t interval, std::int64_t tokens_per_step)
    : steps_(steps),
      interval_(interval),
      tokens_per_step_(tokens_per_step),
      on_terminal_(isatty(STDOUT_FILENO) == 1) {}

void StepPrinter::begin() {
  begin_ = Clock::now();
  if (done_ == 0) first_ = begin_;
}

double StepPrinter::end(const unishard::trainer::StepStats& stats) {
  using Seconds = std::chrono::duration<double>;
  const auto now = Clock::now();
  ++done_;
  const double seconds = std::max(Seconds(now - begin_).count(), 1e-9);
  const double rate = static_cast<double>(tokens_per_step_) / seconds;
  const bool stays = prints_step(interval_, stats) || (on_terminal_ && stats.step == steps_);
  if (!stays && !on_terminal_) return rate;
  std::string line =
      fmt::format("step {:6}  loss {:.6f}  gradient norm {:.4f}  lr {:.3e}  {:.3f} s/step",
                  stats.step, stats.loss, stats.gradient_norm, stats.learning_rate, seconds);
  if (stats.loss_scale != 1) line += fmt::format("  loss scale {:g}", stats.loss_scale);
  if (stats.skipped) line += "  skipped: not finite";
  if (on_terminal_) {
    const double left = Seconds(now - first_).count() / static_cast<double>(done_) *
                        static_cast<double>(steps_ - stats.step);
    line = fmt::format("\r{}  {:.0f} tokens/s  {:.0f} s left\x1b[K", line, rate, left);
  }
  say(line + (stays ? "\n" : ""));
  return rate;
}

void print_save(const unishard::trainer::SaveReport& report) {
  const auto bytes = static_cast<double>(report.bytes);
  const auto written = static_cast<double>(report.written_bytes);
  const std::string before =
      report.wait_seconds < 0.005
          ? ""
          : fmt::format(" ({:.2f} s for the save before)", report.wait_seconds);
  std::string text = fmt::format(
      "saved {}: {:.1f} MB in {:.2f} s ({:.0f} MB/s), {}training waited {:.2f} s{}, identity {}\n",
      unishard::printable(report.tag), megabytes(bytes), report.seconds,
      megabytes(bytes) / report.seconds,
      written < bytes ? fmt::format("{:.1f} MB written, ", megabytes(written)) : "",
      report.stall_seconds, before, report.identity);
  for (const std::string& warning : report.warnings)
    text += fmt::format("  warning: {}\n", unishard::printable(warning));
  say(text);
}

void print_load(const unishard::trainer::LoadReport& report) {
  std::string text = fmt::format("resumed {} at step {} (saved by world size {}, stage {})\n",
                                 unishard::printable(report.tag), report.step,
                                 report.saved_world_size, report.saved_stage);
  for (const std::string& note : report.notes)
    text += fmt::format("  note: {}\n", unishard::printable(note));
  say(text);
}

void print_skipped_steps(const unishard::trainer::Engine& engine) {
  if (engine.skipped_steps() == 0) return;
  say(fmt::format("{} of {} steps changed nothing: their loss or gradient was not finite\n",
                  engine.skipped_steps(), engine.skipped_steps() + engine.global_steps()));
}

void print_recompute(const unishard::trainer::RecomputeStats& stats) {
  std::string text =
      fmt::format("recomputed {} blocks from inputs of {:.2f} MB at most", stats.calls,
                  megabytes(static_cast<double>(stats.kept_bytes_peak)));
  if (stats.recompute_seconds > 0) {
    text += fmt::format("; {:.2f} s forward, {:.2f} s again", stats.forward_seconds,
                        stats.recompute_seconds);
  }
  say(text + "\n");
}

void print_memory(const unishard::trainer::Engine& engine,
                  unishard::trainer::Communicator& communicator) {
  const auto memory = engine.memory();
  const std::string frozen =
      memory.frozen > 0 ? fmt::format("frozen {:.2f}, ", megabytes(memory.frozen)) : "";
  const std::string ahead = memory.updates_ahead > 0 ? fmt::format("updates ahead {:.2f}, ",
                                                                   megabytes(memory.updates_ahead))
                                                     : "";
  const std::string device =
      memory.device
          ? fmt::format("device {:.2f} MB (peak {:.2f}), reserved {:.2f} (peak {:.2f}); ",
                        megabytes(memory.device->allocated),
                        megabytes(memory.device->allocated_peak),
                        megabytes(memory.device->reserved), megabytes(memory.device->reserved_peak))
          : "";
  const std::string files =
      memory.files > 0 ? fmt::format("in files {:.2f} MB; ", megabytes(memory.files)) : "";
  const std::string line = fmt::format(
      "memory rank {}: parameters {:.2f} MB (peak {:.2f}), master {:.2f}, optimizer {:.2f}, "
      "gradients {:.2f}, {}{}staging {:.2f}; {}{}"
      "process {:.0f} MB (peak {:.0f})\n",
      communicator.rank(), megabytes(memory.parameters), megabytes(memory.parameters_peak),
      megabytes(memory.master), megabytes(memory.optimizer), megabytes(memory.gradients), frozen,
      ahead, megabytes(memory.staging), files, device, process_megabytes("VmRSS"),
      process_megabytes("VmHWM"));
  const auto lines = gather_text(communicator, line);
  if (communicator.rank() != 0) return;
  for (const std::string& each : lines) say(each);
}

}  // namespace train_gpt
