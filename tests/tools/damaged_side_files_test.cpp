// Files beside a checkpoint that are damaged, or that the system cannot read: every verb that looks
// at them names them, and no conversion copies them as good.
#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace unishard::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A state that torch.save wrote.
const Path kState = Path(UNISHARD_TEST_DATA) / "golden/trainer/llama/scheduler.pt";

constexpr int kDamageFound = 1, kNotReadable = 3, kCorruptInput = 4;

class DamagedSideFiles : public testing::Test {
 protected:
  void SetUp() override { write_example(temp_.path() / "example"); }

  /// Returns a checkpoint in another format, in an own folder.
  Path made(const std::string& format) {
    Path folder = temp_.path() / ("in-" + format);
    const ProcessResult result =
        unishard({"convert", temp_.path() / "example", folder, "--to", format, "-q"});
    EXPECT_EQ(result.status, 0) << result.err;
    return folder;
  }
  /// Returns the folder of the only tag.
  static Path tag_of(const Path& run) {
    for (const auto& entry : fs::directory_iterator(run))
      if (entry.is_directory()) return entry.path();
    return run;
  }
  static ProcessResult verify(const Path& path) { return unishard({"verify", path, "--deep"}); }

  /// Runs the program without the rights by which root reads every file.
  static ProcessResult unprivileged(std::vector<std::string> words) {
    const std::string start = ::geteuid() != 0
                                  ? "exec \"$@\""
                                  : "exec setpriv --bounding-set=-dac_override,-dac_read_search "
                                    "--inh-caps=-dac_override,-dac_read_search \"$@\"";
    words.insert(words.begin(), {"sh", "-c", start, "sh", kProgram});
    return run(std::move(words));
  }
  static bool has_setpriv() { return unprivileged({"--version"}).status == 0; }

  const TempDir temp_;
  const Path out_ = temp_.path() / "out";
};

TEST_F(DamagedSideFiles, AreNamedInEveryFormatAndNotCopied) {
  struct Beside {
    std::string format, name;
    bool is_in_tag = false;
  };
  const std::vector<Beside> cases = {{"dcp", "meta.pt"},
                                     {"dcp", "hyper.pth"},
                                     {"dcp", "rng_state_0.pth"},
                                     {"native", "rng_state.pth", true},
                                     {"native", "scheduler.pt", true},
                                     {"native", "meta.pt", true}};
  for (const Beside& c : cases) {
    SCOPED_TRACE(c.format + " " + c.name);
    const Path in = made(c.format), file = (c.is_in_tag ? tag_of(in) : in) / c.name;
    fs::copy_file(kState, file);
    EXPECT_EQ(verify(in).status, 0);
    EXPECT_THAT(report_of({"convert", in, out_, "--to", c.format})["side_files"],
                testing::Contains(Json(c.name)));
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{300}}) {
      fs::remove_all(out_);
      fs::remove(file);
      write_file(file, read_file(kState).substr(0, bytes));
      const ProcessResult checked = verify(in);
      EXPECT_EQ(checked.status, kDamageFound) << checked.out << checked.err;
      EXPECT_THAT(checked.out, AllOf(HasSubstr(c.name), HasSubstr("damaged")));
      const ProcessResult converted = unishard({"convert", in, out_, "--to", c.format});
      EXPECT_EQ(converted.status, 0) << converted.err;
      EXPECT_THAT(converted.err, AllOf(HasSubstr(c.name), HasSubstr("damaged (")));
      EXPECT_THAT(converted.err, Not(HasSubstr("left out: " + c.name))) << "once is enough";
      EXPECT_FALSE(fs::exists((c.is_in_tag ? tag_of(out_) : out_) / c.name));
    }
    fs::remove_all(in);
    fs::remove_all(out_);
  }
}

TEST_F(DamagedSideFiles, AreNoFilesOfOtherPrograms) {
  const Path in = made("dcp");
  write_file(in / "train.bin", "numbers");
  write_file(in / "old.pkl", "(lp0\n.");
  EXPECT_EQ(verify(in).status, 0);
  write_file(in / "train.bin", std::string(64, '\0'));
  EXPECT_EQ(verify(in).status, kDamageFound);
}

/// A Trainer with UniShard's plug-in keeps them beside the tag.
TEST_F(DamagedSideFiles, OfARunBesideATagAreNamed) {
  const Path run = temp_.path() / "checkpoint-7";
  fs::rename(made("native"), run);
  write_file(run / "trainer_state.json", R"({"global_step": 7})");
  fs::copy_file(kState, run / "rng_state.pth");
  EXPECT_EQ(verify(run).status, 0);
  write_file(run / "rng_state.pth", read_file(kState).substr(0, 300));
  for (const Path& path : {run, tag_of(run)}) {
    const ProcessResult checked = verify(path);
    EXPECT_EQ(checked.status, kDamageFound) << checked.err;
    EXPECT_THAT(checked.out, HasSubstr("rng_state.pth"));
  }
}

TEST_F(DamagedSideFiles, OfAModelAreReadAsJson) {
  const Path model = temp_.path() / "model";
  ASSERT_EQ(unishard({"zero_to_fp32", temp_.path() / "example", model, "-q"}).status, 0);
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "preprocessor_config.json"}) {
    for (const char* whole : {"{}", " {\"a\": [0.0, Infinity], \"b\": \"NaN\"}\n"}) {
      write_file(model / name, whole);
      const ProcessResult checked = verify(model);
      EXPECT_EQ(checked.status, 0) << name << checked.out;
      EXPECT_THAT(checked.out, Not(HasSubstr(name)));
    }
    for (const char* cut : {"", "{\"a\": 1", "[]", "{\"a\": Inf}"}) {
      write_file(model / name, cut);
      const ProcessResult checked = verify(model);
      EXPECT_EQ(checked.status, kDamageFound) << name << " " << cut;
      EXPECT_THAT(checked.out, HasSubstr(std::string(name) + ": damaged ("));
    }
    fs::remove(model / name);
  }
}

TEST_F(DamagedSideFiles, ThatCannotBeReadAreNoDamage) {
  if (!has_setpriv()) GTEST_SKIP() << "no setpriv";
  for (const char* format : {"dcp", "native"}) {
    const bool is_native = std::string_view(format) == "native";
    const Path in = made(format), folder = is_native ? tag_of(in) : in;
    for (const char* name : {"rng_state_0.pth", "tokenizer.json"}) {
      SCOPED_TRACE(std::string(format) + " " + name);
      write_file(folder / name, "{}");
      fs::permissions(folder / name, fs::perms::none);
      const ProcessResult checked = unprivileged({"verify", in, "--deep"});
      EXPECT_EQ(checked.status, kNotReadable) << checked.out << checked.err;
      EXPECT_THAT(checked.out, AllOf(HasSubstr(name), HasSubstr("cannot be read ("),
                                     HasSubstr("Permission denied")));
      write_file(folder / "scaler.pt", "");
      EXPECT_EQ(unprivileged({"verify", in}).status, kDamageFound) << "damage counts more";
      fs::remove(folder / "scaler.pt");
      fs::remove(folder / name);
    }
  }
}

TEST_F(DamagedSideFiles, ProgressThatCannotBeReadIsNamed) {
  if (!has_setpriv()) GTEST_SKIP() << "no setpriv";
  const Path in = made("trainer");
  fs::permissions(in / "trainer_state.json", fs::perms::none);
  const ProcessResult checked = unprivileged({"verify", in});
  EXPECT_EQ(checked.status, kNotReadable) << checked.out << checked.err;
  EXPECT_THAT(checked.out, AllOf(HasSubstr("trainer_state.json"), HasSubstr("Permission denied")));
}

TEST_F(DamagedSideFiles, AFolderThatMayNotBeLookedIntoIsNotMissing) {
  if (!has_setpriv()) GTEST_SKIP() << "no setpriv";
  const Path native = made("native"), universal = made("deepspeed-universal");
  std::vector<Path> closed = {tag_of(native)};
  for (const auto& entry : fs::directory_iterator(tag_of(universal) / "zero")) {
    if (!entry.is_directory()) continue;
    closed.push_back(entry.path());
    break;
  }
  ASSERT_EQ(closed.size(), 2u);
  for (const Path& folder : closed) fs::permissions(folder, fs::perms::none);
  for (const Path& folder : closed) {
    const Path& in = folder == closed[0] ? native : universal;
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"verify", in}, {"inspect", in}, {"zero_to_fp32", in, out_}}) {
      const ProcessResult result = unprivileged(words);
      EXPECT_EQ(result.status, kNotReadable) << words[0] << result.out << result.err;
      EXPECT_THAT(result.err,
                  AllOf(HasSubstr(folder.filename().string()), HasSubstr("Permission denied")));
    }
  }
  for (const Path& folder : closed) fs::permissions(folder, fs::perms::owner_all);
}

TEST_F(DamagedSideFiles, AFileOfAnIndexThatIsNoneIsNotMissing) {
  const Path in = temp_.path() / "model";
  fs::create_directory(in);
  write_file(in / "model.safetensors.index.json",
             R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})");
  ASSERT_EQ(::mkfifo((in / "model-00001-of-00001.safetensors").c_str(), 0600), 0);
  const ProcessResult result = unishard({"inspect", in});
  EXPECT_EQ(result.status, kCorruptInput);
  EXPECT_THAT(result.err, HasSubstr("00001.safetensors\" that it names is no regular file"));
}

TEST_F(DamagedSideFiles, AModelThatLinksToItselfIsDamageToEveryVerb) {
  const Path in = temp_.path() / "model";
  fs::create_directory(in);
  fs::create_symlink("model.safetensors", in / "model.safetensors");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"inspect", in},
                                             {"convert", in, out_, "--to", "native"},
                                             {"zero_to_fp32", in, out_},
                                             {"diff", in, in}}) {
    const ProcessResult result = unishard(words);
    EXPECT_EQ(result.status, kCorruptInput) << words[0] << result.err;
    EXPECT_THAT(result.err, HasSubstr("would be the model, and is no regular file"));
  }
  const ProcessResult checked = verify(in);
  EXPECT_EQ(checked.status, kDamageFound) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("would be the model, and is no regular file"));
  EXPECT_EQ(unishard({"report", in, "-o", temp_.path() / "report.html"}).status, kDamageFound);
}

}  // namespace
}  // namespace unishard::test
