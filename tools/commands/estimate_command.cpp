#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/trainer/batch_plan.hpp"
#include "unishard/trainer/config.hpp"

#include "commands/command.hpp"
#include "support/size_text.hpp"
#include "views/estimate_view.hpp"
#include "views/terminal.hpp"
#include "workflows/estimate.hpp"
#include "workflows/inspect.hpp"

#include <fmt/format.h>

namespace unishard::cli {
namespace {

constexpr std::uint64_t kConfigBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kParametersMost = std::uint64_t{1} << 50;
constexpr std::uint64_t kDevicesMost = std::uint64_t{1} << 24;

struct EstimateRequest {
  std::string input, config;
  std::uint64_t parameters = 0, largest_layer = 0;
  tools::Setup setup;
  std::string device_memory, host_memory, disk_speed = "1GB";
  bool json = false;
};

tools::ModelSize size_of_file(const Path& file) {
  const std::string text = read_text(posix_storage(), file, kConfigBytes);
  return tools::model_size_of_config(parse_json(text, file.string()), file.string());
}

tools::ModelSize size_of_checkpoint(const Path& path) {
  const tools::Description description = tools::describe(posix_storage(), path, {}, {});
  tools::ModelSize size = tools::model_size_of_catalog(description.catalog);
  size.is_adapter = posix_storage().kind(path / "adapter_config.json") == EntryKind::File;
  return size;
}

/// A config.json, a folder that has one, or a checkpoint, which tells its size also where its
/// config.json is of a type that is not known.
tools::ModelSize size_of_input(const std::string& input) {
  const Path path = tools::find_input(posix_storage(), input);
  if (path.extension() == ".json") return size_of_file(path);
  const Path config = path / "config.json";
  if (posix_storage().kind(config) != EntryKind::File) return size_of_checkpoint(path);
  try {
    return size_of_file(config);
  } catch (const Error& unknown) {
    try {
      return size_of_checkpoint(path);
    } catch (const Error&) {
      throw unknown;  // the folder has a config.json alone
    }
  }
}

tools::ModelSize model_size(const EstimateRequest& options) {
  if (options.input.empty() == (options.parameters == 0)) {
    raise(ErrorCode::InvalidArgument, "one model is needed: a path, or --params",
          "name a checkpoint or a config.json, or give --params N and --largest-layer M");
  }
  if (!options.input.empty()) return size_of_input(options.input);
  tools::ModelSize size{.parameters = options.parameters, .largest_layer = options.largest_layer};
  if (size.largest_layer == 0 || size.largest_layer > size.parameters)
    raise(ErrorCode::InvalidArgument, "--largest-layer is not from 1 to --params",
          "it is the number of parameters of the model's largest module, often the embedding");
  return size;
}

/// Gives `setup` the configuration, and its micro-batch unless a flag precedes it.
void read_config(const EstimateRequest& options, const tools::ModelSize& model,
                 tools::Setup& setup) {
  trainer::ConfigInputs inputs;
  if (model.hidden > 0) inputs.hidden_size = static_cast<std::int64_t>(model.hidden);
  inputs.steps = 1;  // a number of steps that is "auto" changes no memory
  setup.config = trainer::parse_config(trainer::read_config_file(options.config), inputs);
  const trainer::BatchRequest& batch = setup.config->batch;
  if (setup.micro_batch || (!batch.train && !batch.micro)) return;
  const auto devices = static_cast<std::uint32_t>(setup.devices());
  setup.micro_batch = static_cast<std::uint64_t>(trainer::plan_batch(batch, devices).micro);
}

int run(const EstimateRequest& options) {
  tools::Setup setup = options.setup;
  if (setup.devices() > kDevicesMost) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} nodes with {} devices each are more than {} devices", setup.nodes,
                      setup.devices_per_node, kDevicesMost));
  }
  const tools::ModelSize model = model_size(options);
  if (!options.config.empty()) read_config(options, model, setup);
  if (model.layers == 0 && (options.setup.micro_batch || setup.context || setup.recomputes)) {
    raise(ErrorCode::InvalidArgument,
          "--micro-batch, --context and --recompute need the model's layers",
          "name a config.json: a checkpoint and --params do not say them");
  }
  if (!options.device_memory.empty())
    setup.device_bytes = tools::parse_bytes(options.device_memory, "--device-memory");
  if (!options.host_memory.empty())
    setup.host_bytes = tools::parse_bytes(options.host_memory, "--host-memory");
  setup.disk_bytes_per_second = tools::parse_bytes(options.disk_speed, "--disk-speed");
  const tools::Estimate result = tools::estimate(model, setup);
  if (options.json) {
    print_json(estimate_json(result));
  } else {
    print(estimate_text(result));
  }
  return 0;
}

/// CLI11's range takes NaN.
CLI::Validator number_check() {
  return {[](const std::string& text) {
            return text.find_first_of("nN") == text.npos ? "" : text + " is not a number";
          },
          "", "number"};
}

void add_setup(CLI::App& command, EstimateRequest& options) {
  const CLI::Range machines(1u, 65536u);
  command.add_option("--nodes,--num_nodes", options.setup.nodes, "Machines")
      ->check(machines)
      ->capture_default_str();
  command
      .add_option("--gpus,--num_gpus_per_node", options.setup.devices_per_node,
                  "Devices of a machine")
      ->check(machines)
      ->capture_default_str();
  command.add_option("--device-memory", options.device_memory,
                     "Memory of a device, such as 24GiB; asks for a recommendation");
  command.add_option("--host-memory", options.host_memory, "Memory of a machine");
  command
      .add_option("--disk-speed", options.disk_speed,
                  "Bytes that a machine writes in a second, such as 2GB")
      ->capture_default_str();
  command
      .add_option("--buffer-factor", options.setup.buffer_factor,
                  "DeepSpeed's allowance for buffers in host memory")
      ->check(CLI::Range(1.0, 100.0) & number_check())
      ->capture_default_str();
  command
      .add_option("--micro-batch", options.setup.micro_batch,
                  "Samples that a device computes at once, for activations")
      ->check(CLI::Range(1u, 1u << 20));
  command.add_option("--context", options.setup.context, "Tokens of a sample, for activations")
      ->check(CLI::Range(1u, 1u << 20));
  command.add_flag("--recompute", options.setup.recomputes,
                   "Activations are recomputed (activation_checkpointing)");
}

}  // namespace

void add_estimate(CLI::App& app, Action& action) {
  const auto options = std::make_shared<EstimateRequest>();
  CLI::App* command =
      add_verb(app, action, "estimate", "Memory, disk and time that training a model will need",
               options, run);
  command->add_option("model", options->input,
                      "A Hugging Face config.json or a folder that has one, or a checkpoint of any "
                      "format");
  command->add_option("--params", options->parameters, "Parameters of the model, without a path")
      ->check(CLI::Range(std::uint64_t{1}, kParametersMost));
  command->add_option("--largest-layer", options->largest_layer, "Parameters of its largest module")
      ->check(CLI::Range(std::uint64_t{1}, kParametersMost));
  command->add_option(
      "--config,--deepspeed_config", options->config,
      "The configuration of the run: its precision, optimizer, buckets, micro-batch "
      "and offload");
  add_setup(*command, *options);
  command->add_flag("--json", options->json, "As JSON");
  command->footer(
      "The tables of stages 2 and 3 have the numbers of DeepSpeed's\n"
      "estimate_zero2_model_states_mem_needs_all_cold and estimate_zero3_...\n\n"
      "  unishard estimate Qwen3-8B/ --gpus 4 --device-memory 24GiB --host-memory 256GiB\n"
      "  unishard estimate Qwen3-8B/ --config ds_config.json --gpus 8 --context 4096\n"
      "  unishard estimate --params 7000000000 --largest-layer 131000000 --gpus 8 --json\n");
}

}  // namespace unishard::cli
