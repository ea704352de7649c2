#include "options.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/storage.hpp"

#include "config_options.hpp"

#include <CLI/CLI.hpp>

#include <map>

namespace train_gpt {
namespace {

constexpr std::uint64_t kModelConfigBytes = std::uint64_t{1} << 20;  ///< every checkpoint has it

struct Overrides {
  ConfigOptions config;
  std::string model = "tiny";
  std::string tokens;
  std::optional<std::int64_t> layers, width, heads, context, vocabulary;
  std::optional<double> dropout;
  bool tied_head = false, untied_head = false;
};

constexpr std::int64_t kSizeMax = std::int64_t{1} << 24;  ///< of each number of a model
constexpr int kThreadsMax = 1024;
constexpr std::uint32_t kTimeoutMax = 365 * 24 * 3600;

/// CLI::Range lets a NaN pass.
std::string check_dropout(const std::string& text) {
  double value = -1;
  if (CLI::detail::lexical_cast(text, value) && value >= 0 && value <= 0.99) return {};
  return text + " is not a number from 0 to 0.99";
}

void add_model_options(CLI::App& app, Overrides& overrides) {
  const CLI::Range size(std::int64_t{1}, kSizeMax);
  app.add_option(
         "--model", overrides.model,
         "nano, tiny, small, medium, gpt2, llama-nano, llama-tiny, llama-small, or a Hugging "
         "Face folder: the GPT-2, Llama, Mistral, Qwen2 or Qwen3 of its config.json (its "
         "weights: --resume)")
      ->capture_default_str();
  app.add_option("--layers", overrides.layers, "blocks")->check(size);
  app.add_option("--width", overrides.width, "width of the residual stream")->check(size);
  app.add_option("--heads", overrides.heads, "attention heads")->check(size);
  app.add_option("--context", overrides.context,
                 "tokens per sample (default: the model's context, at most 1024 but for GPT-2)")
      ->check(size);
  app.add_option("--vocab-size,--vocab_size", overrides.vocabulary, "tokens that the model knows")
      ->check(size);
  CLI::Option* tied =
      app.add_flag("--tied-head", overrides.tied_head,
                   "the output layer is the embedding (default for presets of GPT-2)");
  app.add_flag("--untied-head", overrides.untied_head, "the output layer has a weight of its own")
      ->excludes(tied);
  app.add_option("--dropout", overrides.dropout, "dropout probability")->check(check_dropout);
}

/// Adds an option whose values have names.
template <class Value>
void add_choice(CLI::App& app, const std::string& option, Value& chosen,
                const std::map<std::string, Value>& choices, const std::string& description) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) names.push_back(name);
  app.add_option_function<std::string>(
         option, [&chosen, choices](const std::string& name) { chosen = choices.at(name); },
         description)
      ->check(CLI::IsMember(names).description(""))
      ->type_name("NAME");
}

/// Reads "FIRST-LAST", or one number.
void read_steps(const std::string& text, Options& options) {
  const std::size_t dash = text.find('-');
  const auto number = [&](const std::string& digits, std::int64_t& value) {
    return CLI::detail::lexical_cast(digits, value) && value > 0;
  };
  std::int64_t first = 0, last = 0;
  const bool is_valid = number(text.substr(0, dash), first) &&
                        number(dash == std::string::npos ? text : text.substr(dash + 1), last) &&
                        first <= last;
  if (!is_valid)
    throw CLI::ValidationError("--profile-steps", text + " is no step and no range such as 2-3");
  options.profile_first = first;
  options.profile_last = last;
}

void add_run_options(CLI::App& app, Options& options, Overrides& overrides) {
  overrides.config.add_to(app);
  app.add_flag("--print-config", options.prints_config,
               "print every value of the configuration and where it comes from, and end");
  app.add_option("--data", options.data, "text file, or file of tokens");
  app.add_option(
         "--tokens", overrides.tokens,
         "bytes, or uint16 or uint32, little-endian (default: as a header of llm.c says, else "
         "uint16 for *.bin and bytes for others)")
      ->check(CLI::IsMember({"bytes", "uint16", "uint32"}));
  app.add_option("--steps", options.steps,
                 "train until this many steps are done, those that fp16 skips included")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--threads", options.threads, "threads of each rank")
      ->check(CLI::Range(1, kThreadsMax))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds,
                 "seconds of silence after which another rank counts as failed")
      ->check(CLI::Range(1u, kTimeoutMax))
      ->envname("UNISHARD_TIMEOUT")  // of `unishard launch --timeout`
      ->capture_default_str();
  add_choice(
      app, "--device", options.device,
      {{"cpu", DeviceChoice::Cpu}, {"cuda", DeviceChoice::Cuda}, {"auto", DeviceChoice::Auto}},
      "where the training state is: cpu (default), cuda, or auto: cuda where each rank has a "
      "device");
  using unishard::trainer::Backend;
  add_choice(app, "--backend", options.backend,
             {{"gloo", Backend::Gloo}, {"nccl", Backend::Nccl}, {"auto", Backend::Auto}},
             "collectives of a run on CUDA devices: nccl, gloo, or auto (default): nccl where each "
             "rank has a device of its own; on the CPU it is gloo");
  app.add_option("--losses", options.losses,
                 "file that gets one JSON line per step: step, loss (hexadecimal float, the mean "
                 "over the batch), grad_norm, lr, tokens_per_s; appended to");
  app.add_option(
      "--trace", options.trace,
      "file for what each rank's streams did and when (Chrome's trace viewer, Perfetto)");
  app.add_option("--profile", options.profile,
                 "file for the operators and the device's kernels of a few steps, with what the "
                 "streams did meanwhile (Chrome's trace viewer, Perfetto)");
  app.add_flag("--profile-summary", options.profile_summary,
               "print the time of each operator and kernel in those steps, of rank 0");
  app.add_option_function<std::string>(
         "--profile-steps", [&options](const std::string& text) { read_steps(text, options); },
         "which steps of this run; its first is 1")
      ->type_name("FIRST-LAST")
      ->default_str("2-3");
  app.add_flag("--report-memory", options.report_memory, "print the bytes that each rank holds");
}

void add_save_options(CLI::App& app, Options& options) {
  app.add_option("--save,--save-dir,--save_dir", options.save_folder, "folder of the checkpoints");
  app.add_option("--save-interval", options.save_interval,
                 "save every so many steps; 0: at the end only")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--keep-last", options.keep_last,
                 "whole checkpoints to keep, those committed last; 0: all")
      ->capture_default_str();
  CLI::Option* behind = app.add_flag_callback(
      "--async-save", [&options] { options.async_save = true; },
      "training continues while a copy of its state is saved (default: where twice the memory "
      "for the copies is available)");
  app.add_flag_callback(
         "--no-async-save", [&options] { options.async_save = false; },
         "training waits for each save")
      ->excludes(behind);
  app.add_option_function<std::string>(
         "--compress",
         [&options](const std::string& name) {
           const auto parsed = unishard::compression_from_name(name);
           if (!parsed) throw CLI::ValidationError("--compress", "unknown: " + name);
           options.compression = *parsed;
         },
         "store checkpoints smaller (zstd), or smaller where that is faster (auto)")
      ->type_name("none|zstd[:LEVEL]|auto[:LEVEL]");
  app.add_flag("--incremental-save,--incremental_save", options.incremental_save,
               "write only what differs from the checkpoint before, and share the rest with it "
               "(hard links; it may be deleted)");
  app.add_option("--tag", options.tag_prefix, "tags are this and the step")->capture_default_str();
  app.add_option("--resume", options.resume,
                 "continue from \"latest\" (default), a tag or a path: a checkpoint of any format, "
                 "or the weights of a Hugging Face folder; starts fresh where there never was a "
                 "checkpoint")
      ->expected(0, 1);
  app.add_flag("--fresh", options.fresh,
               "start at step 0 beside what the folder contains, where a run would stop with an "
               "error: nothing there is replaced or removed. With --resume, a whole checkpoint is "
               "continued all the same");
}

/// The user wrote the configuration, so invalid JSON is a wrong option and not a damaged file.
unishard::Json parse_configuration(const std::string& text, const std::string& path) {
  try {
    return unishard::parse_json(text, path);
  } catch (const unishard::Error& error) {
    raise(unishard::ErrorCode::InvalidArgument, error.what(), error.hint());
  }
}

unishard::Path model_config_file(const Overrides& overrides) {
  return unishard::Path(overrides.model) / "config.json";
}

/// Whether --model is a folder with a config.json, and not a preset's name.
bool names_a_folder(const Overrides& overrides) {
  if (unishard::trainer::is_model_preset(overrides.model)) return false;
  return overrides.model.find('/') != std::string::npos ||
         unishard::posix_storage().kind(model_config_file(overrides)) == unishard::EntryKind::File;
}

unishard::trainer::ModelConfig named_model(const Overrides& overrides) {
  if (!names_a_folder(overrides)) return unishard::trainer::model_preset(overrides.model);
  const unishard::Path file = model_config_file(overrides);
  const std::string text = read_text(unishard::posix_storage(), file, kModelConfigBytes);
  unishard::Json json = parse_configuration(text, file.string());
  const bool is_gpt =
      json.is_object() && json.contains("model_type") && json["model_type"] == "gpt2";
  if (overrides.dropout && is_gpt) {
    for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"})
      json[key] = *overrides.dropout;
  }
  return unishard::trainer::model_from_hugging_face(json, file.string());
}

unishard::trainer::ModelConfig model_config(const Overrides& overrides) {
  unishard::trainer::ModelConfig chosen = named_model(overrides);
  const auto apply = [&](auto& model) {
    model.layers = overrides.layers.value_or(model.layers);
    model.width = overrides.width.value_or(model.width);
    model.heads = overrides.heads.value_or(model.heads);
    model.dropout = overrides.dropout.value_or(model.dropout);
    model.vocabulary = overrides.vocabulary.value_or(model.vocabulary);
    model.tied_head = overrides.tied_head || (model.tied_head && !overrides.untied_head);
  };
  std::visit(apply, chosen);
  // GPT-2 has a weight for each position. A folder says how many; a new model has as many as a
  // sample has tokens.
  auto* const gpt = std::get_if<unishard::trainer::GptConfig>(&chosen);
  if (gpt != nullptr && !names_a_folder(overrides))
    gpt->context = overrides.context.value_or(gpt->context);
  return chosen;
}

std::int64_t sample_context(const Overrides& overrides,
                            const unishard::trainer::ModelConfig& model) {
  const std::int64_t context =
      overrides.context.value_or(unishard::trainer::default_context(model));
  unishard::trainer::require_context(model, context);
  return context;
}

unishard::trainer::TokenFormat token_format(const Overrides& overrides, const Options& options) {
  using unishard::trainer::TokenType;
  std::optional<TokenType> asked;
  for (const TokenType type : {TokenType::Bytes, TokenType::UInt16, TokenType::UInt32}) {
    if (overrides.tokens == name_of(type)) asked = type;
  }
  return token_format_of(unishard::posix_storage(), options.data, asked,
                         vocabulary_of(options.model));
}

/// Throws: InvalidArgument when two options name one file.
void require_different_files(const std::vector<std::pair<std::string, std::string>>& options) {
  std::map<std::filesystem::path, std::string> known;
  for (const auto& [option, path] : options) {
    if (path.empty()) continue;
    const auto [other, is_new] = known.try_emplace(
        std::filesystem::weakly_canonical(std::filesystem::absolute(path)), option);
    if (is_new) continue;
    raise(unishard::ErrorCode::InvalidArgument,
          fmt::format("{} and {} name the same file", other->second, option));
  }
}

/// Checks what CLI11 does not check.
void require_possible(const CLI::App& app, const Options& options) {
  if (options.data.empty())
    raise(unishard::ErrorCode::InvalidArgument, "--data is required: it names a text or tokens");
  if (app.count("--save") > 0 && options.save_folder.empty())
    raise(unishard::ErrorCode::InvalidArgument,
          "--save is empty: it names the checkpoints' folder");
  if (app.count("--losses") > 0 && options.losses.empty())
    raise(unishard::ErrorCode::InvalidArgument, "--losses is empty: it names a file");
  if (app.count("--profile") > 0 && options.profile.empty())
    raise(unishard::ErrorCode::InvalidArgument, "--profile is empty: it names a file");
  if (app.count("--profile-steps") > 0 && options.profile.empty() && !options.profile_summary)
    raise(unishard::ErrorCode::InvalidArgument,
          "--profile-steps goes with --profile or --profile-summary");
  require_different_files(
      {{"--losses", options.losses}, {"--trace", options.trace}, {"--profile", options.profile}});
  unishard::validate_tag(options.tag_prefix + std::to_string(options.steps));
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& status) {
  CLI::App app{
      "Trains a language model on a text or a file of tokens with ZeRO stages 0 to 3. Start it "
      "with torchrun, "
      "mpirun "
      "or srun, or "
      "alone. Checkpoints of any world size and stage resume on any other."};
  Options options;
  Overrides overrides;
  app.option_defaults()->take_last();
  add_run_options(app, options, overrides);
  add_model_options(app, overrides);
  add_save_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    status = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  if (app.count("--resume") > 0 && options.resume.value_or("").empty()) options.resume = "latest";
  options.model = model_config(overrides);
  options.config = overrides.config.read(options.model, options.steps);
  if (options.prints_config) return options;
  options.context = sample_context(overrides, options.model);
  require_possible(app, options);
  options.tokens = token_format(overrides, options);
  return options;
}

}  // namespace train_gpt
