// Small files that ask for much: every reader stays within --memory-limit, and says why it refuses.
// The corpus is made here, so that nothing of it lies in the repository.
#include "unishard/format/manifest.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "program.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <zlib.h>

#include <cstring>
#include <functional>
#include <utility>

namespace unishard::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kLimit = 64 * kMiB;
constexpr std::uint64_t kAllowance = 64 * kMiB;  ///< the program, its libraries, and blocks of I/O

template <class T>
std::string little(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string repeat(std::string_view text, std::size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

// --- pickles, by hand: no honest writer makes these ---
std::string str(std::string_view text) {
  return "X" + little(static_cast<std::uint32_t>(text.size())) + std::string(text);
}
std::string put(std::uint32_t index) { return "r" + little(index); }
std::string get(std::uint32_t index) { return "j" + little(index); }

/// A tensor of one float in storage 0, expanded (stride 0) to `elements`.
std::string tensor(std::int64_t elements = 1) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + str("storage") + "ctorch\nFloatStorage\n" +
         str("0") + str("cpu") + "K\x01tQK" + std::string(1, '\0') + "(\x8a\x08" +
         little(elements) + "t(K" + std::string(1, elements == 1 ? '\1' : '\0') +
         "t\x89"
         "ccollections\nOrderedDict\n)RtR";
}
/// A dict with a tensor and `more` (key, value, key, value ...).
std::string object(const std::string& more) {
  return "\x80\x02}(" + str("t") + tensor() + more + "u.";
}

std::string deflated(const std::string& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

using Entries = std::vector<std::pair<std::string, std::string>>;

/// A zip archive whose entries are all deflated.
std::string zip(const Entries& entries) {
  std::string out, directory;
  for (const auto& [short_name, bytes] : entries) {
    const std::string name = "archive/" + short_name, packed = deflated(bytes);
    const auto crc = static_cast<std::uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    const std::string common =
        little(std::uint16_t{20}) + little(std::uint16_t{0}) + little(std::uint16_t{8}) +
        little(std::uint32_t{0}) + little(crc) + little(static_cast<std::uint32_t>(packed.size())) +
        little(static_cast<std::uint32_t>(bytes.size())) +
        little(static_cast<std::uint16_t>(name.size())) + little(std::uint16_t{0});
    directory += "PK\x01\x02" + little(std::uint16_t{20}) + common + std::string(10, '\0') +
                 little(static_cast<std::uint32_t>(out.size())) + name;
    out += "PK\x03\x04" + common + name + packed;
  }
  // Zip64, for more entries than 65,535.
  const std::uint64_t count = entries.size(), at = out.size(), end = at + directory.size();
  return out + directory + "PK\x06\x06" + little(std::uint64_t{44}) + std::string(12, '\0') +
         little(count) + little(count) + little(std::uint64_t{directory.size()}) + little(at) +
         "PK\x06\x07" + little(std::uint32_t{0}) + little(end) + little(std::uint32_t{1}) +
         "PK\x05\x06" + std::string(4, '\0') + "\xff\xff\xff\xff" + repeat("\xff", 8) +
         std::string(2, '\0');
}

std::string torch_file(const std::string& pickle, Entries more = {}) {
  more.insert(more.begin(), {{"data.pkl", pickle},
                             {"version", "3\n"},
                             {"byteorder", "little"},
                             {"data/0", std::string(4, '\0')}});
  return zip(more);
}

std::string shared_text(const std::string& text, std::size_t uses) {
  return object(str("list") + "(" + text + put(1) + repeat(get(1), uses) + "l");
}

/// Lists of ten times the list before: ten to the power of `levels` texts.
std::string laughs(std::uint32_t levels) {
  std::string pickle = "](" + repeat(str("ha"), 10) + "e" + put(0);
  for (std::uint32_t i = 1; i < levels; ++i)
    pickle += "0](" + repeat(get(i - 1), 10) + "e" + put(i);
  return pickle;
}

/// Dicts in dicts under one long key.
std::string long_path(std::size_t depth) {
  const std::string key = str(std::string(8 * kMiB, 'k'));
  return object(str("deep") + "}" + key + put(1) + "}" + repeat(get(1) + "}", depth) +
                repeat("s", depth + 1));
}

// --- folders of ours, whose manifest claims what it likes ---
/// All shards get a hole of `bytes` at their end.
void add_holes(const Path& tag, Manifest& manifest, std::uint64_t bytes) {
  for (ShardEntry& entry : manifest.shards) {
    entry.bytes += bytes;
    std::filesystem::resize_file(tag / entry.file, entry.bytes);
  }
}

void write_sparse_chunks(const Path& path) {
  const Path tag = write_example(path, {.world_size = 4});
  edit_manifest(tag, [&](Manifest& manifest) {
    manifest.chunk_bytes = 4096;
    for (ShardEntry& entry : manifest.shards) {
      if (!entry.data_sets.empty())
        entry.data_sets.front().elements += (std::uint64_t{128} << 30) / 4;
    }
    add_holes(tag, manifest, std::uint64_t{256} << 30);
  });
}

void write_sparse_index(const Path& path) {
  const Path tag = write_example(path, {.world_size = 4});
  edit_manifest(tag, [&](Manifest& manifest) {
    add_holes(tag, manifest, std::uint64_t{16} << 30);
    for (ShardEntry& entry : manifest.shards) entry.index_rows = 90'000'000;
  });
}

void write_sparse_names(const Path& path) {
  const Path tag = write_example(path, {.world_size = 4});
  edit_manifest(tag, [&](Manifest& manifest) {
    add_holes(tag, manifest, std::uint64_t{16} << 30);
    for (ShardEntry& entry : manifest.shards) entry.names_bytes = std::uint64_t{4} << 30;
  });
}

void write_sparse_manifest(const Path& path) {
  const Path tag = write_example(path);
  std::filesystem::resize_file(tag / kManifestFile, 900 * kMiB);
}

void write_wide_client_state(const Path& path) {
  const Path tag = write_example(path);
  edit_manifest(tag, [](Manifest& manifest) {
    Json rows = Json::array();
    for (int i = 0; i < 3'000'000; ++i) rows.push_back(Json::array());
    manifest.catalog.client_state = {{"rows", std::move(rows)}};
  });
}

void write_dcp(const Path& path, const std::string& metadata) {
  write_file(path / ".metadata", metadata);
  write_file(path / "__0_0.distcp", "x");
}

void write_safetensors(const Path& path, const std::string& header) {
  write_file(path, little(std::uint64_t{header.size()}) + header);
}

struct Attack {
  std::string name;
  std::function<void(const Path&)> write;
};

std::function<void(const Path&)> torch(std::string (*pickle)()) {
  return [pickle](const Path& path) { write_file(path, torch_file(pickle())); };
}

std::vector<Attack> attacks() {
  return {
      {"one_text_400_times.pt",
       torch([] { return shared_text(str(std::string(8 * kMiB, 'a')), 400); })},
      {"one_surrogate_400_times.pt", torch([] {
         return shared_text(str(std::string(8 * kMiB - 3, 'a') + "\xed\xa0\x80"), 400);
       })},
      {"bytes_400_times.pt", torch([] {
         return shared_text("B" + little(std::uint32_t{8 * kMiB}) + std::string(8 * kMiB, '\0'),
                            400);
       })},
      {"large_int_400_times.pt", torch([] {
         return shared_text("\x8b" + little(std::uint32_t{8 * kMiB}) + std::string(8 * kMiB, '\1'),
                            400);
       })},
      {"one_key_400_times.pt", torch([] {
         return object(str("list") + "(}" + str(std::string(8 * kMiB, 'a')) + put(1) + "Ns" +
                       repeat("}" + get(1) + "Ns", 400) + "l");
       })},
      {"long_path.pt", torch([] { return long_path(150); })},
      {"long_class_name.pt", torch([] {
         return object(str("list") + "(c" + std::string(8 * kMiB, 'm') + "\nname\n" + put(1) +
                       repeat(get(1) + ")R", 400) + "l");
       })},
      {"billion_laughs.pt", torch([] { return object(str("list") + laughs(30)); })},
      {"list_of_nothing.pt",
       torch([] { return object(str("l") + "(" + repeat("N", 16 * kMiB) + "l"); })},
      {"list_of_dicts.pt",
       torch([] { return object(str("l") + "(" + repeat("}", 8 * kMiB) + "l"); })},
      {"list_of_lists.pt",
       torch([] { return object(str("l") + "(" + repeat("]Na", 3 * kMiB) + "l"); })},
      {"marks.pt", torch([] { return "\x80\x02" + repeat("(", 16 * kMiB); })},
      {"memo.pt", torch([] { return "\x80\x02N" + repeat("\x94", 16 * kMiB) + "."; })},
      {"zeros.pt", torch([] { return std::string(256 * kMiB, '\0'); })},
      {"expanded.pt", torch([] { return object(str("wide") + tensor(1LL << 55)); })},
      {"deflated_storages.pt",
       [](const Path& path) {
         std::string pickle = "\x80\x02}(";
         Entries storages;
         for (int i = 1; i <= 8; ++i) {
           pickle += str(std::to_string(i)) + "ctorch._utils\n_rebuild_tensor_v2\n((" +
                     str("storage") + "ctorch\nFloatStorage\n" + str(std::to_string(i)) +
                     str("cpu") + "J" + little(std::int32_t{10 * kMiB}) + "tQK" +
                     std::string(1, '\0') + "(J" + little(std::int32_t{10 * kMiB}) +
                     "t(K\x01t\x89"
                     "ccollections\nOrderedDict\n)RtR";
           storages.emplace_back("data/" + std::to_string(i), std::string(40 * kMiB, '\0'));
         }
         write_file(path, torch_file(pickle + "u.", storages));
       }},
      {"many_entries.pt",
       [](const Path& path) {
         Entries entries;
         for (int i = 1; i < 400'000; ++i) entries.emplace_back(std::to_string(i), "");
         write_file(path, torch_file(object(""), entries));
       }},
      {"dcp_text",
       [](const Path& path) {
         write_dcp(path, shared_text(str(std::string(8 * kMiB, 'a')), 400));
       }},
      {"dcp_nothing",
       [](const Path& path) { write_dcp(path, "\x80\x02(" + repeat("N", 16 * kMiB) + "l."); }},
      {"header.safetensors",
       [](const Path& path) {
         write_safetensors(path, "{\"x\":[" + repeat("[],", 6 * kMiB) + "[]]}");
       }},
      {"hole.safetensors",
       [](const Path& path) {
         write_file(path, little(std::uint64_t{99 * kMiB}) + "{");
         std::filesystem::resize_file(path, 200 * kMiB);
       }},
      {"index",
       [](const Path& path) {
         write_file(path / "model.safetensors.index.json",
                    "{\"weight_map\":{\"x\":[" + repeat("[],", 6 * kMiB) + "[]]}}");
       }},
      {"sparse_chunks", write_sparse_chunks},
      {"sparse_index", write_sparse_index},
      {"sparse_names", write_sparse_names},
      {"sparse_manifest", write_sparse_manifest},
      {"wide_client_state", write_wide_client_state},
  };
}

class Amplify : public testing::TestWithParam<std::size_t> {};

TEST_P(Amplify, EveryReaderStaysWithinTheLimit) {
  const Attack attack = attacks()[GetParam()];
  const TempDir temp;
  const Path input = temp.path() / attack.name;
  attack.write(input);
  ::malloc_trim(0);  // what this process has counts until the program is started in its place
  const std::string in = input, model = temp.path() / "m.safetensors", native = temp.path() / "n";
  const std::vector<std::vector<std::string>> verbs = {{"inspect", in},
                                                       {"inspect", in, "--json"},
                                                       {"verify", in},
                                                       {"verify", in, "--deep"},
                                                       {"zero_to_fp32", in, model},
                                                       {"diff", in, in},
                                                       {"convert", in, native, "--to", "native"}};
  for (std::vector<std::string> words : verbs) {
    words.insert(words.end(), {"--memory-limit", "64MiB"});
    const ProcessResult result = unishard(words);
    SCOPED_TRACE(fmt::format("{}: status {}, {} MiB\n{}", fmt::join(words, " "), result.status,
                             result.peak_rss_bytes >> 20, result.err.substr(0, 500)));
    EXPECT_LE(result.peak_rss_bytes, kLimit + kAllowance);
    const bool is_unread =
        words[0] == "diff" && result.out.find(": not read from ") != std::string::npos;
    const bool is_damage = (words[0] == "verify" || is_unread) && result.status == 1;
    const bool is_refused = result.status == 3 || result.status == 4 || result.status == 6;
    EXPECT_TRUE(result.status == 0 || is_refused || is_damage);
    if (is_refused) {
      EXPECT_THAT(result.err, testing::HasSubstr("error: "));
    }
    EXPECT_EQ(result.err.find("internal"), std::string::npos);
    std::filesystem::remove_all(model);
    std::filesystem::remove_all(native);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Amplify, testing::Range<std::size_t>(0, attacks().size()),
                         [](const auto& param) {
                           std::string name = attacks()[param.param].name;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST(AmplifyMessage, NamesTheFileAndTheLimit) {
  const TempDir temp;
  const std::string path = temp.path() / "a.pt";
  write_file(path, torch_file(shared_text(str(std::string(8 * kMiB, 'a')), 400)));
  const ProcessResult result = unishard({"inspect", path, "--memory-limit", "64MiB"});
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, testing::HasSubstr(path));
  EXPECT_THAT(result.err, testing::HasSubstr("33554432 bytes"));
  EXPECT_THAT(result.err, testing::HasSubstr("--memory-limit"));
}

// So many names of one tensor that what is quadratic in them does not end within the test's time.
TEST(AmplifyAliases, AreReadInLinearTime) {
  const TempDir temp;
  const std::string path = temp.path() / "a.pt";
  std::string more;
  for (int i = 0; i < 400'000; ++i) more += str(fmt::format("name{}", i)) + get(1);
  write_file(path, torch_file("\x80\x02}(" + str("t") + tensor() + put(1) + more + "u."));
  const ProcessResult result = unishard({"inspect", path, "--json", "--memory-limit", "4GiB"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("\"name399999\": \"t\""));
  for (const char* verb : {"verify", "inspect"})
    EXPECT_EQ(unishard({verb, path, "--memory-limit", "4GiB"}).status, 0);
}

}  // namespace
}  // namespace unishard::test
