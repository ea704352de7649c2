// write_deepspeed FROM OUT --world-size W --stage S [--tag T] [--universal] [--set JSON]
// Writes a DeepSpeed checkpoint, for the real DeepSpeed to judge. FROM is a fixture's folder: its
// expected state is written; or with --read any checkpoint that open_source() knows. --set merges a
// JSON object into the configuration ("zero_optimization" key by key); --loss-scaler JSON replaces
// that section of the catalog.
#include "unishard/converters/sink.hpp"

#include "../../converters/deepspeed_case.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <numeric>

using namespace unishard;

namespace {

struct Options {
  std::string from, out, tag = "global_step", set = "{}", loss_scaler;
  std::uint32_t world_size = 1, stage = 0;
  bool universal = false, read = false;
};

int run(const Options& options) {
  std::unique_ptr<converters::Source> source;
  if (options.read) {
    source = converters::open_source(posix_storage(), options.from);
  } else {
    source = std::make_unique<test::CaseSource>(options.from);
  }
  Catalog catalog = source->catalog();
  catalog.world_size = options.world_size;
  catalog.stage = options.stage;
  if (catalog.config.is_object()) catalog.config.merge_patch(parse_json(options.set, "--set"));
  if (!options.loss_scaler.empty())
    catalog.loss_scaler = parse_json(options.loss_scaler, "--loss-scaler");
  auto sink = options.universal ? converters::make_deepspeed_universal_sink(
                                      posix_storage(), options.out, options.tag, catalog)
                                : converters::make_deepspeed_sink(posix_storage(), options.out,
                                                                  options.tag, catalog);
  for (const std::string& note : sink->notes()) std::printf("note: %s\n", note.c_str());
  converters::CopyPlan plan{source.get(), &catalog, {}};
  plan.tensor_map.resize(catalog.tensors.size());
  std::iota(plan.tensor_map.begin(), plan.tensor_map.end(), std::size_t{0});
  converters::copy(plan, *sink, TransferOptions{});
  sink->commit();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Writes a DeepSpeed checkpoint for the real DeepSpeed to judge");
  app.add_option("from", options.from)->required();
  app.add_option("out", options.out)->required();
  app.add_option("--world-size", options.world_size);
  app.add_option("--stage", options.stage);
  app.add_option("--tag", options.tag);
  app.add_option("--set", options.set);
  app.add_option("--loss-scaler", options.loss_scaler);
  app.add_flag("--universal", options.universal);
  app.add_flag("--read", options.read, "FROM is a checkpoint");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_deepspeed: %s\n", error.what());
    return 1;
  }
}
