#include "training.hpp"

#include "unishard/converters/save_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"
#include "unishard/trainer/agree.hpp"
#include "unishard/trainer/batch_copies.hpp"
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/interrupt.hpp"
#include "unishard/trainer/sample_order.hpp"
#include "unishard/trainer/token_file.hpp"
#include "unishard/trainer/trace.hpp"

#include "config_options.hpp"
#include "console.hpp"
#include "device.hpp"
#include "memory_advice.hpp"
#include "monitors.hpp"
#include "profile.hpp"
#include "run_identity.hpp"
#include "saves.hpp"
#include "step_profile.hpp"
#include "trace_file.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace train_gpt {
namespace {

using namespace unishard;
using namespace unishard::trainer;

/// Throws: AlreadyExists when the regular file `path` begins with other text than `start`, because
/// it is then no earlier output of this option.
void require_own_output(const std::string& path, std::string_view start, const char* option) {
  if (path.empty() || posix_storage().kind(path) != EntryKind::File) return;
  const auto file = posix_storage().open(path);
  std::string text(std::min<std::uint64_t>(start.size(), file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  if (start.starts_with(text)) return;
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} {}: the file is no earlier output of {}", option, quote(path), option),
        "choose another file; nothing was changed");
}

/// Bits of what a rank tells the others with each step.
constexpr std::uint32_t kStops = 1;  ///< it has received a signal
constexpr std::uint32_t kSaves = 2;  ///< its last save is under way

constexpr const char* kSignalNotice =
    "train_gpt: note: a signal ends the run when the present step is done, and saved with --save\n";

/// Also true for an empty file, and for what is no regular file.
bool ends_with_a_line(const std::string& path) {
  if (posix_storage().kind(path) != EntryKind::File) return true;
  const auto file = posix_storage().open(path);
  if (file->size() == 0) return true;
  char last = 0;
  file->read_at(file->size() - 1, std::as_writable_bytes(std::span(&last, 1)));
  return last == '\n';
}

/// One JSON line per step, in the file as soon as the step is done. A line that cannot be written
/// is a warning, since training is dearer than its log, and an error at the end.
class LossLog {
 public:
  explicit LossLog(const std::string& path) : path_(path) {
    if (path.empty()) return;
    const bool has_torn_line = !ends_with_a_line(path);  // of a run that was killed
    file_.reset(std::fopen(path.c_str(), "ae"));
    if (!file_) raise_errno("opening", path, errno);
    if (has_torn_line) std::fputc('\n', file_.get());
  }
  void write(const StepStats& stats, double tokens_per_second) {
    if (!file_) return;
    Json line = {{"step", stats.step},
                 {"loss", fmt::format("{:a}", stats.loss)},
                 {"grad_norm", stats.gradient_norm},
                 {"lr", stats.learning_rate},
                 {"tokens_per_s", std::round(tokens_per_second)}};
    if (stats.loss_scale != 1) line["loss_scale"] = stats.loss_scale;
    if (stats.skipped) line["skipped"] = true;
    const std::string text = line.dump() + "\n";
    const bool is_written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
                            std::fflush(file_.get()) == 0;
    if (is_written || !problem_.empty()) return;
    problem_ = fmt::format("writing {}: {}: losses are missing from step {} on", path_,
                           std::generic_category().message(errno), stats.step);
    say_error(0, "warning", problem_ + "; training goes on");
  }
  void require_written() const {
    if (!problem_.empty()) raise(ErrorCode::Io, problem_, kHarmless);
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string problem_;
};

std::shared_ptr<CausalLanguageModel> build_model(const Options& options,
                                                 const Communicator& communicator,
                                                 at::Device device) {
  const bool has_files = options.config.offload_optimizer.residence == Residence::File ||
                         options.config.offload_param.residence == Residence::File;
  if (has_files) return_freed_memory();
  const ConstructionScope scope(placement_for(options.config, communicator, device));
  auto model = make_language_model(options.model);
  if (options.config.activation_checkpointing)
    model->recompute_blocks(*options.config.activation_checkpointing);
  return model;
}

/// What all ranks must be told alike, beside the configuration that the engine compares.
std::vector<std::string> agreed_lines(const Options& options, const Json& identity) {
  const auto& compression = options.compression;
  // Paths on the disk of a node may differ.
  const auto path = [&](const std::string& text) {
    return options.config.node_local_checkpoints ? "of each node" : quote(text);
  };
  std::vector<std::string> lines{
      fmt::format("--context {}, --steps {}", options.context, options.steps),
      fmt::format("--save {}, --tag {}, --save-interval {}, --keep-last {}",
                  path(options.save_folder), quote(options.tag_prefix), options.save_interval,
                  options.keep_last),
      fmt::format("--resume {}, --fresh {}", path(options.resume.value_or("")), options.fresh),
      fmt::format("asynchronous saves {}, incremental {}, compressed {} at level {}",
                  options.async_save ? fmt::format("{}", *options.async_save) : "if possible",
                  options.incremental_save, static_cast<int>(compression.mode), compression.level)};
  for (std::string& line : identity_lines(identity)) lines.push_back(std::move(line));
  return lines;
}

class Training {
 public:
  Training(const Options& options, const RankEnvironment& environment, Communicator& communicator,
           SaveProbe probe)
      : options_(options),
        communicator_(communicator),
        probe_(std::move(probe)),
        says_signals_(environment.local_rank == 0),
        tokens_(posix_storage(), options.data, static_cast<std::uint64_t>(options.context),
                options.tokens),
        identity_(run_identity(options, tokens_)),
        runtime_(
            make_runtime(options, environment, communicator,
                         options.trace.empty() && options.profile.empty() ? nullptr : &trace_)),
        program_megabytes_(process_megabytes("VmRSS")),
        model_(build_model(options, communicator, runtime_->device())),
        engine_(model_, communicator, options.config, engine_options(environment)),
        saves_(options, engine_, communicator, identity_) {
    if (is_first()) print_header(options_, engine_, environment, runtime_->device());
    if (is_first() && options_.config.dump_state)
      say(config_text(options_.config, communicator.size()));
    saves_.claim();
  }

  void run() {
    require_countable();
    agree(communicator_, "looking at the tokens",
          [&] { tokens_.require_vocabulary(vocabulary_of(options_.model)); });
    if (options_.resume) {
      resume();
    } else if (!options_.save_folder.empty()) {
      starts_fresh();
    }
    std::optional<LossLog> log;
    std::optional<Monitors> monitors;
    agree(communicator_, "opening the files of losses and trace", [&] {
      if (is_first()) {
        require_own_output(options_.losses, R"({"step":)", "--losses");
        require_own_output(options_.trace, kTraceStart, "--trace");
        require_own_output(options_.profile, kTraceStart, "--profile");
      }
      log.emplace(is_first() ? options_.losses : "");
      if (is_first()) monitors.emplace(options_.config);
      if (is_first()) require_profile_file(options_.config);
    });
    if (steps_taken() < options_.steps) {
      saves_.require_free_names(start_);
      saves_.prepare();
    }
    const SampleOrder order(tokens_.samples(), engine_.shuffle_seed());
    const auto loss = [&](const MicroBatch& batch) { return model_->loss(windows(order, batch)); };
    // Until the process ends, because a signal must not change the status of a complete run.
    static const Interrupt& interrupt = *new Interrupt(says_signals_ ? kSignalNotice : nullptr);
    interrupt_ = &interrupt;
    StepPrinter printer(options_.steps, options_.config.steps_per_print, tokens_per_step());
    StepProfile profile(options_, *runtime_, trace_, communicator_);
    const Counts first = counts();
    bool stopped = false;
    if (steps_taken() >= options_.steps && is_first())
      say(fmt::format("nothing to do: the run is at step {}, and --steps is {}\n", steps_taken(),
                      options_.steps));
    while (steps_taken() < options_.steps && !stopped) {
      profile.begin_step();
      printer.begin();
      const StepStats stats = step(loss);
      double tokens_per_second = 1;
      if (is_first()) {
        log->write(stats, tokens_per_second = printer.end(stats));
        monitors->write(stats, engine_.next_learning_rate(), steps_taken() * engine_.batch().train);
      }
      profile.end_step();
      report_breakdowns(stats, tokens_per_second);
      if ((stats.flags & kSaves) == 0) saves_.finish();
      stopped = (stats.flags & kStops) != 0;
      const bool is_due =
          !stats.skipped && options_.save_interval > 0 && stats.step % options_.save_interval == 0;
      const bool is_last = steps_taken() == options_.steps;
      if (is_last) require_training(first);
      if (is_due || is_last || stopped) saves_.start();
    }
    saves_.finish();
    warn_of_missing_profile();
    if (stopped && is_first())
      say(fmt::format("stopped by a signal after step {}\n", engine_.global_steps()));
    if (is_first()) print_skipped_steps(engine_);
    if (options_.report_memory) report_memory();
    if (is_first() && model_->recompute()) print_recompute(model_->recompute()->stats());
    profile.finish();
    write_trace();
    agree(communicator_, "writing the losses", [&] { log->require_written(); });
  }

 private:
  /// A step that is not finite ends the run, after the save that is under way.
  StepStats step(const LossFunction& loss) {
    try {
      if (options_.config.wall_clock_breakdown) return timed_step(engine_, loss, times_);
      return engine_.train_batch(loss);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::NotFinite) report_save();
      throw;
    }
  }

  void report_memory() {
    print_memory(engine_, communicator_);
    const bool on_host = runtime_->device().is_cpu();
    if (is_first())
      say(planned_memory(run_size(options_, communicator_.size(), on_host),
                         engine_.memory().staging, program_megabytes_));
  }

  /// What the configuration asks for beside the line of a step. Collective.
  void report_breakdowns(const StepStats& stats, double tokens_per_second) {
    const Config& config = options_.config;
    if (prints_step(config.steps_per_print, stats)) {
      if (config.wall_clock_breakdown && is_first()) say(times_text(times_));
      if (config.memory_breakdown) print_memory(engine_, communicator_);
    }
    if (!config.flops_profiler.enabled || steps_taken() != config.flops_profiler.profile_step)
      return;
    report_profile(options_, engine_, communicator_, runtime_->device(), steps_taken(),
                   static_cast<double>(tokens_per_step()) / tokens_per_second);
  }

  void warn_of_missing_profile() const {
    const FlopsProfilerOptions& profiler = options_.config.flops_profiler;
    if (!profiler.enabled || !is_first() || steps_taken() >= profiler.profile_step) return;
    say_error(0, "warning",
              fmt::format("flops_profiler: the run ended before step {}, which was to be profiled",
                          profiler.profile_step));
  }

  /// The step's error is said even where the save fails too.
  void report_save() {
    try {
      saves_.finish();
    } catch (const Error& error) {
      if (is_first()) say_error(0, "warning", error.what());
    }
  }

  /// Samples are counted in 64 bits.
  void require_countable() const {
    const std::int64_t samples = engine_.batch().train;
    if (options_.steps <= std::numeric_limits<std::int64_t>::max() / samples) return;
    raise(ErrorCode::InvalidArgument,
          fmt::format("--steps {} with batches of {} is more than 2^63 samples", options_.steps,
                      samples));
  }
  struct Counts {
    std::int64_t done = 0, skipped = 0;
  };
  Counts counts() const { return {engine_.global_steps(), engine_.skipped_steps()}; }
  /// Throws: NotFinite when every step of this program was skipped.
  void require_training(const Counts& first) const {
    if (engine_.global_steps() > first.done) return;
    raise(
        ErrorCode::NotFinite,
        fmt::format("all {} steps were skipped, because their loss or gradient was not finite: "
                    "nothing was trained",
                    engine_.skipped_steps() - first.skipped),
        options_.config.compute == unishard::DType::Float16
            ? "lower fp16.loss_scale or the learning rate, or allow more steps for a dynamic scale "
              "to fall; nothing was saved"
            : "lower the learning rate, or look at the model and the data; nothing was saved");
  }
  bool is_first() const { return communicator_.rank() == 0; }
  /// Skipped steps count too, as DeepSpeed counts them: a run that skips all of them ends.
  std::int64_t steps_taken() const { return engine_.global_steps() + engine_.skipped_steps(); }

  void write_trace() {
    if (options_.trace.empty()) return;
    runtime_->complete_trace();
    write_trace_file(options_.trace, trace_.events(communicator_.rank()), communicator_, kHarmless);
  }

  EngineOptions engine_options(const RankEnvironment& environment) {
    return {.runtime = runtime_.get(),
            .node = environment.node,
            .on_save_step = [this](CommitStep step) { report(step); },
            .shuffle_seed = options_.config.seed,
            .samples_per_epoch = tokens_.samples(),
            .agreed = agreed_lines(options_, identity_),
            .foreign_names = model_foreign_names(options_.model),
            .flags = [this] { return flags(); }};
  }

  std::uint32_t flags() const {
    return (interrupt_ && interrupt_->requested() ? kStops : 0) | (saves_.are_done() ? 0 : kSaves);
  }

  /// By the thread that saves, of which there is one at a time.
  void report(CommitStep step) {
    if (step == (is_first() ? CommitStep::CreateStaging : CommitStep::WriteShard)) ++save_count_;
    probe_(save_count_, step);
  }

  at::Tensor windows(const SampleOrder& order, const MicroBatch& batch) {
    const std::int64_t length = options_.context + 1;
    at::Tensor tokens = at::empty({batch.samples, length}, at::kLong);
    auto* data = tokens.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < batch.samples; ++i) {
      const std::uint64_t sample = order.sample(batch.first_sample + static_cast<std::uint64_t>(i));
      tokens_.read(sample, {data + i * length, static_cast<std::size_t>(length)},
                   vocabulary_of(options_.model));
    }
    return copies_.send(tokens);
  }

  std::int64_t tokens_per_step() const { return engine_.batch().train * options_.context; }

  /// Goes on from what --resume names. The newest checkpoint may be missing, as decide_resume()
  /// says, so that a launcher may always pass --resume.
  void resume() {
    const bool latest = *options_.resume == "latest";
    if (latest && options_.save_folder.empty())
      raise(ErrorCode::InvalidArgument, "--resume needs --save-dir, or a path");
    if (!latest && options_.fresh)
      raise(ErrorCode::InvalidArgument, "--fresh goes with --resume, not with a tag or a path");
    if (latest && starts_fresh()) return;
    const bool is_path = !latest && (options_.save_folder.empty() ||
                                     options_.resume->find('/') != std::string::npos ||
                                     names_checkpoint(*options_.resume));
    const Path folder = is_path ? Path(*options_.resume) : Path(options_.save_folder);
    const auto tag = latest || is_path ? std::nullopt : options_.resume;
    LoadReport report = engine_.load_checkpoint(folder, tag);
    std::ranges::move(compare_identity(report.client_state, identity_),
                      std::back_inserter(report.notes));
    if (is_first()) print_load(report);
  }

  /// True for a file, and for a folder when --save has no tag of that name.
  bool names_checkpoint(const std::string& name) const {
    const EntryKind kind = posix_storage().kind(name);
    const bool is_tag =
        posix_storage().kind(Path(options_.save_folder) / name) == EntryKind::Directory;
    return kind == EntryKind::File || (kind == EntryKind::Directory && !is_tag);
  }

  /// Returns false when the newest checkpoint is to be loaded, which may be on another node.
  bool starts_fresh() {
    const bool decides = is_first() || options_.config.node_local_checkpoints;
    agree(communicator_, "looking for a checkpoint", [&] {
      if (!decides) return;
      const auto decide = options_.resume ? converters::decide_resume : converters::decide_start;
      start_ = decide(posix_storage(), options_.save_folder, options_.fresh);
    });
    const bool loads = decides && start_.action == converters::ResumeDecision::Action::Load;
    if (agree_max(communicator_, loads ? 1 : 0) == 1) return false;
    if (is_first() && (options_.resume || options_.fresh))
      say(printable(start_.explanation) + "\n");
    return true;
  }

  const Options& options_;
  Communicator& communicator_;
  SaveProbe probe_;
  bool says_signals_;  ///< one rank of each host does
  int save_count_ = 0;
  StepTimes times_;                   ///< of the last step, with wall_clock_breakdown
  converters::ResumeDecision start_;  ///< as rank 0 knows it, or each rank of its node
  TokenFile tokens_;
  Json identity_;
  Trace trace_;
  std::unique_ptr<Runtime> runtime_;
  BatchCopies copies_{runtime_->device()};
  double program_megabytes_;  ///< of the process without a model
  std::shared_ptr<CausalLanguageModel> model_;
  Engine engine_;
  Saves saves_;
  const Interrupt* interrupt_ = nullptr;  ///< from when signals are heard
};

}  // namespace

void train(const Options& options, const RankEnvironment& environment, Communicator& communicator,
           const SaveProbe& probe) {
  Training(options, environment, communicator, probe).run();
}

}  // namespace train_gpt
