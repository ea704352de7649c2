// Files of other programs that UniShard does not read are called by their names, and the message
// says what to do.
#include "unishard/converters/registry.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "mutators.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <map>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::TempDir;
using test::write_file;
using testing::AllOf;
using testing::HasSubstr;

Error refusal(const Path& path) {
  return error_of([&] { open_source(posix_storage(), path); });
}

TEST(ForeignFormats, FilesAreCalledByTheirNames) {
  struct Case {
    std::string name, bytes, what, next;
  };
  const std::string keras = fuzz::zip_of({{"metadata.json", "{}"}, {"model.weights.h5", "x"}});
  const std::string kPickle = "\x80\x04\x95", kLfs = "version https://git-lfs.github.com/spec/v1\n";
  const std::vector<Case> cases = {
      {"m.onnx", "\x08\x07", "ONNX", "load it with that library"},
      {"m.keras", keras, "Keras", "model.weights.h5"},
      {"m.tflite", std::string("\x1c\0\0\0TFL3", 8), "TensorFlow Lite", "load it"},
      {"saved_model.pb", "\x08\x01", "TensorFlow", "load it"},
      {"model.ckpt-1.index", "x", "TensorFlow checkpoint", "load it"},
      {"flax_model.msgpack", "\x82", "Flax", "load it"},
      {"m.engine", "ftrt", "TensorRT", "built from"},
      {"m.plan", "x", "TensorRT", "built from"},
      {"m.mlmodel", "\x08\x01", "Core ML", "load it"},
      {"m.pdparams", "x", "PaddlePaddle", "load it"},
      {"forest.pkl", kPickle, "pickle", "runs code"},
      {"forest.joblib", "x\x9c", "pickle", "runs code"},
      {"any name", kPickle, "pickle", "numpy.savez"},
      {"m.tar.gz", "\x1f\x8b\x08", "gzip", "unpack"},
      {"model.safetensors.index.json", "{}", "index", "name its folder"},
      {"__0_0.distcp", "x", "distributed checkpoint", "name its folder"},
      {"a.bin", kLfs, "Git LFS", "git lfs pull"},
      {"a.safetensors", kLfs, "Git LFS", "git lfs pull"},
      {"a.gguf", kLfs, "Git LFS", "git lfs pull"},
      {"a.h5", kLfs, "Git LFS", "git lfs pull"},
      {"a.npy", kLfs, "Git LFS", "git lfs pull"},
      {"b.gguf", "nonsense", "no GGUF file", "cut short"}};
  for (const Case& each : cases) {
    const TempDir temp;
    write_file(temp.path() / each.name, each.bytes);
    EXPECT_THAT(refusal(temp.path() / each.name),
                Fails(ErrorCode::Unsupported,
                      AllOf(HasSubstr(each.name), HasSubstr(each.what), HasSubstr(each.next))))
        << each.name;
  }
}

TEST(ForeignFormats, FoldersAreCalledByTheirNames) {
  struct Case {
    std::vector<std::string> files;
    std::string what;
  };
  const std::vector<Case> cases = {
      {{"saved_model.pb", "variables/variables.index"}, "TensorFlow SavedModel"},
      {{"checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"}, "TensorFlow checkpoint"},
      {{"_CHECKPOINT_METADATA", "default/_METADATA", "default/manifest.ocdbt"}, "Orbax"},
      {{"default/manifest.ocdbt", "default/d/x"}, "Orbax"},
      {{"config.json", "flax_model.msgpack"}, "Flax"},
      {{"config.json", "model.onnx"}, "ONNX"},
      {{"config.json", "a.gguf", "b.gguf"}, "name one of them"},
      {{"Manifest.json", "Data/com.apple.CoreML/model.mlmodel"}, "Core ML"}};
  for (const Case& each : cases) {
    const TempDir temp;
    for (const std::string& file : each.files) write_file(temp.path() / "run" / file, "x");
    EXPECT_THAT(refusal(temp.path() / "run"), Fails(ErrorCode::Unsupported, HasSubstr(each.what)))
        << each.files.front();
  }
}

}  // namespace
}  // namespace unishard::converters
