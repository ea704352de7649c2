// What is copied beside a model is what lies in its folder, and nothing else of the machine.
#include "unishard/format/json.hpp"

#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void write_file(const Path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

class SideFilesOfModels : public testing::Test {
 protected:
  void SetUp() override {
    write_example(temp_.path() / "in");
    write_file(secret_, "{\"password\": \"hunter2\"}");
    make_model(model_);
  }
  void make_model(const Path& folder) {
    ASSERT_EQ(unishard({"zero_to_fp32", temp_.path() / "in", folder, "-q"}).status, 0);
  }
  /// Copies the model; returns the report.
  Json convert(const Path& from) {
    fs::remove_all(out_);
    const ProcessResult result = unishard({"convert", from, out_, "--to", "safetensors", "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
    return Json::parse(result.out);
  }
  void expect_left_out(const std::string& name, const std::string& why) {
    const Json report = convert(model_);
    EXPECT_FALSE(fs::exists(fs::symlink_status(out_ / name)));
    EXPECT_EQ(report["side_files"], Json::array());
    EXPECT_THAT(report["left_out"].dump(), HasSubstr(name));
    EXPECT_THAT(report["left_out"].dump(), HasSubstr(why));
    const Path again = temp_.path() / "again";
    const ProcessResult text = unishard({"zero_to_fp32", model_, again});
    EXPECT_EQ(text.status, 0);
    EXPECT_THAT(text.err, HasSubstr("left out: " + name + ": " + why));
    EXPECT_FALSE(fs::exists(again / name));
  }

  const TempDir temp_;
  const Path model_ = temp_.path() / "model", out_ = temp_.path() / "out",
             secret_ = temp_.path() / "secret.json";
};

TEST_F(SideFilesOfModels, StateOfATrainingRunIsNamedAndStrictRefusesIt) {
  const Path torch_model = temp_.path() / "torch";
  fs::create_directory(torch_model);
  ASSERT_EQ(unishard({"zero_to_fp32", temp_.path() / "in", torch_model / "pytorch_model.bin", "-q"})
                .status,
            0);
  for (const Path& model : {model_, torch_model}) {
    write_file(model / "optimizer.pt", "state");
    write_file(model / "rng_state_0.pth", "state");
    EXPECT_THAT(convert(model)["left_out"].dump(),
                AllOf(HasSubstr("not read: optimizer.pt: the optimizer's state"),
                      HasSubstr("not read: rng_state_0.pth")));
    const Path strict = temp_.path() / "strict.safetensors";
    const ProcessResult result =
        unishard({"convert", model, strict, "--to", "safetensors", "--strict"});
    EXPECT_EQ(result.status, 4) << result.err;
    EXPECT_THAT(result.err, HasSubstr("optimizer.pt"));
    EXPECT_FALSE(fs::exists(strict));
  }
}

TEST_F(SideFilesOfModels, AreCopiedAndNamed) {
  write_file(model_ / "config.json", "{\"model_type\": \"gpt2\"}");
  write_file(model_ / "merges.txt", "a b\n");
  EXPECT_EQ(convert(model_)["side_files"], (Json{"config.json", "merges.txt"}));
  EXPECT_EQ(read_text(posix_storage(), out_ / "merges.txt", 100), "a b\n");
  const ProcessResult text = unishard({"zero_to_fp32", model_, temp_.path() / "again"});
  EXPECT_THAT(text.err, HasSubstr("side files: config.json, merges.txt"));
  const ProcessResult json = unishard({"zero_to_fp32", model_, temp_.path() / "third", "--json"});
  EXPECT_EQ(Json::parse(json.out)["side_files"], (Json{"config.json", "merges.txt"}));
}

TEST_F(SideFilesOfModels, LinksThatLeaveTheFolderAreRefused) {
  for (const Path& target : {secret_, Path("../secret.json"), Path("/etc/passwd")}) {
    fs::remove(model_ / "tokenizer.model");
    fs::create_symlink(target, model_ / "tokenizer.model");
    expect_left_out("tokenizer.model", "a link that leaves the folder");
    fs::remove_all(temp_.path() / "again");
  }
}

TEST_F(SideFilesOfModels, AFolderBesideWithTheSameBeginningIsAnotherFolder) {
  write_file(temp_.path() / "model-2" / "vocab.txt", "secret");
  fs::create_symlink("../model-2/vocab.txt", model_ / "vocab.txt");
  expect_left_out("vocab.txt", "a link that leaves the folder");
}

TEST_F(SideFilesOfModels, LinksInsideOfTheFolderAreFollowed) {
  write_file(model_ / "files" / "t.json", "{}");
  fs::create_symlink("files/t.json", model_ / "tokenizer.json");
  EXPECT_EQ(convert(model_)["side_files"], Json{"tokenizer.json"});
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(out_ / "tokenizer.json")));
}

TEST_F(SideFilesOfModels, ThatAreNoJsonAreRefused) {
  write_file(model_ / "vocab.json", "root:x:0:0\n");
  expect_left_out("vocab.json", "it is not valid JSON");
}

TEST_F(SideFilesOfModels, ThatAreNoRegularFilesAreRefused) {
  ASSERT_EQ(::mkfifo((model_ / "vocab.txt").c_str(), 0600), 0);
  expect_left_out("vocab.txt", "it is not a regular file");
}

TEST_F(SideFilesOfModels, ThatAreFoldersAreRefused) {
  fs::create_directory(model_ / "merges.txt");
  expect_left_out("merges.txt", "it is not a regular file");
}

TEST_F(SideFilesOfModels, ThatLeadNowhereAreRefused) {
  fs::create_symlink("nowhere", model_ / "merges.txt");
  expect_left_out("merges.txt", "No such file or directory");
}

TEST_F(SideFilesOfModels, ThatAreTooLargeAreRefused) {
  write_file(model_ / "vocab.txt", "x");
  fs::resize_file(model_ / "vocab.txt", (std::uint64_t{64} << 20) + 1);
  expect_left_out("vocab.txt", "67108865 bytes, and at most 67108864 are copied");
}

// As huggingface_hub lays it out: snapshots/REVISION/NAME -> ../../blobs/HASH.
TEST_F(SideFilesOfModels, TheCacheOfTheHubWorks) {
  const Path repository = temp_.path() / "models--org--name", blobs = repository / "blobs",
             snapshot = repository / "snapshots" / "0123abc";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  write_file(model_ / "config.json", "{}");
  for (const auto& entry : fs::directory_iterator(model_)) {
    const Path name = entry.path().filename();
    fs::rename(entry.path(), blobs / name);
    fs::create_symlink(Path("../../blobs") / name, snapshot / name);
  }
  fs::create_symlink("../../../secret.json", snapshot / "vocab.json");
  const Json report = convert(snapshot);
  EXPECT_EQ(report["side_files"], Json{"config.json"});
  EXPECT_THAT(report["left_out"].dump(), HasSubstr("vocab.json"));
}

TEST_F(SideFilesOfModels, AFolderCalledBlobsAloneIsNoCache) {
  const Path blobs = temp_.path() / "blobs", snapshot = temp_.path() / "snapshots" / "a";
  make_model(snapshot);
  write_file(blobs / "x", "{}");
  fs::create_symlink("../../blobs/x", snapshot / "config.json");
  EXPECT_EQ(convert(snapshot)["side_files"], Json::array());
}

}  // namespace
}  // namespace unishard::test
