// convert: any format into any other.
#include "commands/convert_run.hpp"

namespace unishard::cli {
namespace {

struct ConvertRequest {
  std::string output;
  std::string to;
  std::string dtype;
  std::string max_shard_size;
  ConvertRun run;
  Processes processes;
};

int run(const ConvertRequest& options) {
  ConvertRun job = options.run;
  job.resources.apply();
  job.rules = job.names.read(job.merge_rules);
  job.convert.layout = job.rules.layout;
  job.convert.renames = job.rules.renames;
  job.convert.dtype = parse_dtype(options.dtype);
  const auto model = tools::model_output(tools::format_or_suffix(options.to, options.output),
                                         options.output, options.max_shard_size);
  job.output.format = model.format;
  job.output.path = model.path;
  job.output.max_shard_bytes = model.max_shard_bytes;
  using Kind = Processes::Work::Kind;
  return options.processes.run({options.output, job.dry_run ? Kind::Whole : Kind::Writes},
                               [&](tools::Team& team) { return job.run(team); });
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ConvertRequest>();
  CLI::App* command = add_verb(app, action, "convert",
                               "Rewrite a checkpoint of any format in another one", options, run);
  add_checkpoint(*command, "in", options->run.input,
                 "A checkpoint: DeepSpeed, DCP/FSDP, torch.save, safetensors, Hugging Face (also "
                 "ORG/NAME in the local cache of the hub), HDF5, .npz, GGUF or UniShard");
  command->add_option("out", options->output, "Folder or file to write; nothing is overwritten")
      ->required();
  add_to_format(*command, options->to,
                "Format to write; may be left out where the suffix of a file tells it");
  add_dcp_layout(*command, options->run.output.key_layout);
  add_compress(*command, options->run.output.compression);
  add_tag(*command, options->run.tag);
  options->run.part.add_to(*command);
  command->add_option(
      "--out-tag,--out_tag", options->run.output.tag,
      "Tag to write (default: the input's, else global_step<N>); for formats with tags");
  add_fresh(*command, options->run.may_be_fresh);
  command->add_option("-w,--world-size,--world_size", options->run.convert.world_size,
                      "Ranks of the result (default: the input's)");
  command
      ->add_option("-s,--stage", options->run.convert.stage,
                   "ZeRO stage of the result, 0 to 3 (default: the input's)")
      ->check(CLI::Range(0, 3));
  options->run.add_parallel_ranks(*command);
  command
      ->add_option("--dtype", options->dtype,
                   "Type of the weights (not of fp32 masters and optimizer states); quantized ones "
                   "are dequantized")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--only", options->run.convert.only,
                      "Only parameters that match a shell pattern, such as 'h.0.*'");
  options->run.names.add_to(*command);
  command->add_flag("--weights-only,--weights_only", options->run.convert.weights_only,
                    "Only the model: fp32 masters where there are, else weights, and buffers");
  add_max_shard_size(*command, options->max_shard_size);
  options->processes.add_to(*command);
  options->run.add_to(*command);
  command->footer(
      "What one format holds and the other cannot express is listed; --strict makes it an error.\n"
      "Examples:\n"
      "  unishard convert ds_run native_run --to native\n"
      "  unishard convert ds_run fsdp_run --to dcp -w 16\n"
      "  unishard convert ds_run titan_run --to dcp --dcp-layout titan -w 8\n"
      "  srun -n 8 unishard convert ds_run fsdp_run --to dcp -w 16\n"
      "  unishard convert checkpoint-500 model/ --to safetensors --weights-only --dtype bf16\n"
      "  unishard convert model.safetensors model.h5 --to hdf5\n"
      "  unishard convert model/ model.npz --to npz --dtype fp32\n"
      "  unishard convert model.pt model.safetensors --to safetensors --rename '^module\\.='\n"
      "  unishard convert neox_run model/ --to safetensors --weights-only --layout neox\n");
}

}  // namespace unishard::cli
