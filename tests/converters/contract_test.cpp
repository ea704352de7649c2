// The contract of reading: what the files hold is in the catalog, or in losses(), or another entry
// expresses it. This test needs no reader to tell the truth: it watches which bytes of the files
// are read while the whole catalog is read, and finds the stored tensors that nobody has touched.
#include "unishard/converters/registry.hpp"
#include "unishard/format/error.hpp"

#include "containers/safetensors_header.hpp"
#include "containers/zip_reader.hpp"
#include "fault_storage.hpp"
#include "fixtures.hpp"
#include "forwarding_file.hpp"
#include "read_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;

/// Bytes of a file that were read.
class Touched {
 public:
  void add(const Path& file, std::uint64_t begin, std::uint64_t end) {
    const std::scoped_lock lock(mutex_);
    reads_[fs::weakly_canonical(file)].emplace_back(begin, end);
  }
  bool overlaps(const Path& file, std::uint64_t begin, std::uint64_t end) const {
    const auto found = reads_.find(fs::weakly_canonical(file));
    return found != reads_.end() && std::ranges::any_of(found->second, [&](const auto& read) {
             return read.first < end && begin < read.second;
           });
  }

 private:
  std::mutex mutex_;
  std::map<Path, std::vector<std::pair<std::uint64_t, std::uint64_t>>> reads_;
};

class WatchedFile final : public test::ForwardingFile {
 public:
  WatchedFile(std::unique_ptr<File> file, Touched& touched)
      : ForwardingFile(std::move(file)), touched_(touched) {}
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    touched_.add(path(), offset, offset + out.size());
    ForwardingFile::read_at(offset, out);
  }

 private:
  Touched& touched_;
};

class ReadsNoted final : public test::FaultStorage {
 public:
  std::unique_ptr<File> open(const Path& path) override {
    return std::make_unique<WatchedFile>(FaultStorage::open(path), touched);
  }
  Touched touched;
};

/// A tensor's bytes in a file.
struct Stored {
  Path file;
  std::string name;
  std::uint64_t begin = 0, end = 0;
};

/// Adds the storages of one archive. Returns false where there is none.
bool add_archive(const torch::Window& window, std::vector<Stored>& out) {
  try {
    const torch::ZipReader zip(window);
    for (const torch::ZipEntry& entry : zip.entries()) {
      if (!entry.name.starts_with("data/") || entry.stored_bytes == 0) continue;
      const std::uint64_t begin = window.begin + zip.data_offset(entry);
      out.push_back({window.file->path(), entry.name, begin, begin + entry.stored_bytes});
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// A file of torch.save() is one archive; one of a distributed save holds many.
void add_archives(const std::shared_ptr<const File>& file, std::vector<Stored>& out) {
  constexpr std::string_view kEnd("PK\5\6", 4);
  constexpr std::uint64_t kEndBytes = 22;
  std::string bytes(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(bytes)));
  std::uint64_t begin = 0;
  for (std::size_t at = bytes.find(kEnd); at != bytes.npos; at = bytes.find(kEnd, at + 1)) {
    const std::uint64_t end = at + kEndBytes;
    if (end <= bytes.size() && add_archive({file, begin, end - begin}, out)) begin = end;
  }
}

std::vector<Stored> stored_in(const Path& folder) {
  std::vector<Stored> out;
  const auto add = [&](const Path& path) {
    const std::shared_ptr<const File> file = posix_storage().open(path);
    if (path.extension() != ".safetensors") return add_archives(file, out);
    const safetensors::Header header = safetensors::read_header(*file);
    for (const auto& entry : header.entries) {
      if (entry.begin < entry.end)
        out.push_back(
            {path, entry.name, header.data_offset + entry.begin, header.data_offset + entry.end});
    }
  };
  if (fs::is_regular_file(folder)) add(folder);
  if (!fs::is_directory(folder)) return out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) add(entry.path());
  }
  return out;
}

/// Returns the paths below a case that can be a checkpoint: its folder, and its files, for a folder
/// that is refused because each file is a checkpoint of its own.
std::vector<Path> paths_of(const Path& folder) {
  Path top = folder;
  for (const char* name : {"checkpoint", "input"}) {
    if (fs::exists(folder / name)) top = folder / name;
  }
  std::vector<Path> paths = {top};
  for (const auto& entry : fs::recursive_directory_iterator(top)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  return paths;
}

/// What is in the files, not in the catalog, and told in another way than by a loss.
struct Expressed {
  std::string_view fixture, file, reason;
};
constexpr Expressed kExpressed[] = {
    {"hf_trainer_plain", "rng_state.pth", "a conversion carries the file as it is"},
    {"dcp_hf_consolidated_w2", "model-0000", "a note says that sharded/ is read instead"},
};

bool is_expressed(const Path& path, const std::string& file) {
  return std::ranges::any_of(kExpressed, [&](const Expressed& known) {
    return path.native().find(known.fixture) != std::string::npos && file.starts_with(known.file);
  });
}

/// "dcp" names all in that folder, "optim_rank0 to 3" the files of four ranks.
bool names_file(const Loss& loss, const std::string& file) {
  std::string first = loss.name.substr(0, loss.name.find(" to "));
  if (first != loss.name) first.erase(first.find_last_not_of("0123456789") + 1);
  return file.starts_with(first);
}

/// Returns the stored tensors that nobody has read and no loss names.
std::vector<std::string> silent_of(const Path& path, const Source& source, const Touched& touched) {
  const Losses losses = source.losses();
  std::vector<std::string> silent;
  std::size_t untold = 0;  // losses of tensors, whose names are not those of the records
  for (const Loss& loss : losses) untold += loss.role <= Role::State ? 1 : 0;
  for (const Stored& stored : stored_in(path)) {
    if (touched.overlaps(stored.file, stored.begin, stored.end)) continue;
    const std::string file = stored.file.lexically_relative(path).string();
    if (is_expressed(path, file)) continue;
    if (std::ranges::any_of(losses, [&](const Loss& loss) { return names_file(loss, file); }))
      continue;
    if (untold > 0) {
      --untold;
      continue;
    }
    silent.push_back(
        fmt::format("{} of {}, {} bytes", stored.name, file, stored.end - stored.begin));
  }
  return silent;
}

/// Reads all that the catalog at `path` has. Returns null when it is refused.
std::unique_ptr<Source> read_whole(Storage& storage, const Path& path) {
  try {
    auto source = open_source(storage, path);
    read_all_tensors(*source);
    return source;
  } catch (const Error&) {
    return nullptr;
  }
}

TEST(Contract, EveryStoredTensorIsReadOrLostByName) {
  if (!fs::is_directory(test::fixtures())) GTEST_SKIP() << "no fixtures (UNISHARD_FIXTURES)";
  int read = 0;
  for (const char* kind : {"deepspeed", "parallel", "torch", "safetensors", "public"}) {
    for (const auto& entry : fs::directory_iterator(test::fixtures() / kind)) {
      if (!entry.is_directory() || entry.path().filename() == "hostile") continue;
      for (const Path& path : paths_of(entry.path())) {
        ReadsNoted storage;
        const auto source = read_whole(storage, path);
        if (!source) continue;
        ++read;
        EXPECT_THAT(silent_of(path, *source, storage.touched), testing::IsEmpty()) << path;
        if (fs::is_directory(path)) break;  // its files are read with it
      }
    }
  }
  EXPECT_GE(read, 200);
}

}  // namespace
}  // namespace unishard::converters
