// make_example FOLDER: the tests' example checkpoint at any size.
#include "unishard/format/checkpoint_reader.hpp"

#include "make_checkpoint.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <exception>
#include <utility>

int main(int argc, char** argv) {
  using namespace unishard;
  test::CheckpointSpec spec;
  std::string folder, changed;
  CLI::App app("Writes the tests' example checkpoint");
  app.add_option("folder", folder, "Gets the tag global_step7 and `latest`")->required();
  app.add_option("-w,--world-size", spec.world_size, "Shards")->capture_default_str();
  app.add_option("-s,--stage", spec.stage, "ZeRO stage")->capture_default_str();
  app.add_option("--scale", spec.scale, "Size of the tensors: 8000 with 2 layers is about 1 GiB")
      ->capture_default_str();
  app.add_option("--layers", spec.layers, "Each has 9 tensors")->capture_default_str();
  app.add_option("--changed", changed,
                 "Save global_step8 as well: this parameter changed, all other chunks shared");
  app.add_flag("--boxes", spec.boxes, "Cut tensors of two axes into ranges and boxes");
  CLI11_PARSE(app, argc, argv);
  try {
    Path tag = test::write_example(folder, spec);
    if (!changed.empty()) {
      spec.base = std::exchange(tag, {});
      spec.step = 8;
      spec.tag = "global_step8";
      spec.changed = changed;
      tag = test::write_example(folder, spec);
    }
    const CheckpointReader reader(posix_storage(), tag);
    fmt::print("{} {} bytes in {} tensors\n", identity(reader.catalog()).value(),
               reader.catalog().stored_bytes(), reader.catalog().tensors.size());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "make_example: {}\n", error.what());
    return 3;
  }
}
