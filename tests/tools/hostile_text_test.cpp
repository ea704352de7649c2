// Names, tags and paths that are meant to fool a terminal: no verb prints them as they are.
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/text.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::test {
namespace {

using testing::HasSubstr;

const std::string kRightToLeft = "\u202e", kC1 = "\u009b", kMark = "\u200f";

TEST(Printable, EscapesWhatATerminalWouldAct) {
  EXPECT_EQ(printable("plain \u00e9 \u4e2d\U0001f600"), "plain \u00e9 \u4e2d\U0001f600");
  EXPECT_EQ(printable("a\x1b[2Jb\nc\td\x7f"), "a\\x1b[2Jb\\x0ac\\x09d\\x7f");
  EXPECT_EQ(printable("\u0080\u009f\u00a0"), "\\u0080\\u009f\u00a0");
  EXPECT_EQ(printable("\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2065"),
            "\\u061c\\u200e\\u200f\\u202a\\u202e\\u2066\\u2069\u2065");
  EXPECT_EQ(printable("\x9b\xc3(\xed\xa0\x80\xff"), "\\x9b\\xc3(\\xed\\xa0\\x80\\xff");
  EXPECT_EQ(printable(printable("\x1b\\")), printable("\x1b\\"));
  EXPECT_EQ(printable_lines("a\n\rb\n"), "a\n\\x0db\n");
  EXPECT_EQ(printable_json("{\n \"\u202e\x7f\u009b\u00e9\": 1}"),
            "{\n \"\\u202e\\u007f\\u009b\u00e9\": 1}");
}

TEST(Printable, AgreesWithQuote) {
  EXPECT_EQ(quote("\x1b\"\u202e\u009b\xff"), "\"\\u001b\\\"\\u202e\\u009b\\xff\"");
  const std::string cut = quote(std::string(199, 'x') + "\u4e2d\u4e2d");
  EXPECT_EQ(cut, "\"" + std::string(199, 'x') + "...\"");
}

void expect_harmless(const std::string& text, const std::string& what) {
  SCOPED_TRACE(what);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      ASSERT_EQ(c, '\n') << printable_lines(text);
    }
  }
  for (const std::string& mark : {kRightToLeft, kC1, kMark})
    EXPECT_EQ(text.find(mark), std::string::npos);
  EXPECT_EQ(printable_lines(text), text);
}

class HostileText : public testing::Test {
 protected:
  ProcessResult check(std::vector<std::string> words) {
    const ProcessResult result = unishard(words);
    const std::string what = printable(fmt::format("{}", fmt::join(words, " ")));
    expect_harmless(result.out, what + ": standard output");
    expect_harmless(result.err, what + ": standard error");
    EXPECT_NE(result.status, 5) << result.err;
    if (std::ranges::count(words, "--json") > 0 && !result.out.empty()) {
      EXPECT_TRUE(Json::accept(result.out)) << result.out;
    }
    return result;
  }
  std::string path(const std::string& name) const { return temp_.path() / name; }

  const TempDir temp_;
};

TEST_F(HostileText, InNamesOfTensors) {
  const std::string name = "h\\u001b[2J\\n\\u009b31m\\u202ecod.exe\\u200f\\u007f";
  const std::string header = "{\"__metadata__\":{\"unishard.x\\u001b\":\"\\u001b\"},\"" + name +
                             "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  const std::string file = path("a.safetensors");
  write_file(file, length + header + std::string(4, '\0'));
  const ProcessResult json = check({"inspect", file, "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(Json::parse(json.out)["tensors"][0]["name"], Json::parse("\"" + name + "\""));
  EXPECT_THAT(check({"inspect", file}).out, HasSubstr("h\\x1b[2J\\x0a\\u009b31m\\u202ecod.exe"));
  check({"inspect", file, "--stats"});
  check({"verify", file, "--deep"});
  check({"report", file, "--stats", "-o", path("page.html")});
  check({"report", file, "-o", "-"});
  check({"verify", file, "--deep", "--json"});
  check({"zero_to_fp32", file, path("m"), "--debug"});
  check({"convert", file, path("n"), "--to", "native"});
  check({"inspect", path("n"), "--layout"});
  write_file(path("b.safetensors"), length + header + std::string("\0\0\0\1", 4));
  EXPECT_EQ(check({"diff", file, path("b.safetensors")}).status, 1);
  EXPECT_EQ(check({"diff", file, path("b.safetensors"), "--json"}).status, 1);
  write_file(path("c.safetensors"), length + header);
  EXPECT_EQ(check({"inspect", path("c.safetensors")}).status, 4);
  check({"convert", file, path("o"), "--to", "deepspeed", "--dry-run"});
  check({"convert", file, path("o"), "--to", "dcp", "--rename", "h=\x1b"});
}

TEST_F(HostileText, InTagsAndPaths) {
  const std::string tag = "step\u202e\u009b1", folder = path("run\x1b[31m\n\u202e");
  write_example(folder, {.tag = tag});
  write_example(folder, {.step = 8, .tag = "second"});
  for (const char* option : {"--tags", "--json", "--layout"}) check({"inspect", folder, option});
  EXPECT_EQ(check({"inspect", folder, "-t", tag}).status, 0);
  EXPECT_EQ(check({"inspect", folder, "-t", "none\x1b\u202e"}).status, 2);
  EXPECT_EQ(check({"inspect", folder + "\x1b"}).status, 3);
  EXPECT_EQ(check({"verify", folder, "--all", "--deep"}).status, 0);
  EXPECT_EQ(check({"reshard", folder, path("out\x1b"), "-w", "2", "-t", tag}).status, 0);
  EXPECT_EQ(check({"convert", folder, path("m\x1b"), "--to", "safetensors"}).status, 0);
  std::filesystem::resize_file(Path(folder) / tag / "shard-00000-of-00003.h5", 5000);
  EXPECT_EQ(check({"verify", folder, "--all"}).status, 1);
  EXPECT_EQ(check({"verify", folder, "--all", "--json"}).status, 1);
  EXPECT_EQ(check({"prune", folder, "-k", "1", "--dry-run"}).status, 0);
}

TEST_F(HostileText, InArguments) {
  EXPECT_EQ(check({"\x1b[2J"}).status, 2);
  EXPECT_EQ(check({"inspect", "x", "--\x1b\u202e"}).status, 2);
  EXPECT_EQ(check({"inspect", "x", "--memory-limit", "\x1b\u009b\xff"}).status, 2);
  EXPECT_EQ(check({"convert", "x", "y", "--to", "\x1b"}).status, 2);
  EXPECT_EQ(check({"convert", "x\xff\x1b", "y", "--to", "native"}).status, 3);
}

}  // namespace
}  // namespace unishard::test
