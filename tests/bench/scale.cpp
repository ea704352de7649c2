// scale FOLDER: planning for a trillion parameters on thousands of ranks, and a checkpoint of many
// gigabytes that takes no disk (its zeros are holes), for measuring `inspect` and `verify` on it.
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/shard_writer.hpp"

#include "forwarding_file.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

namespace {

using namespace unishard;

constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;

/// Leaves out what is zero anyway.
class HoleyFile final : public test::ForwardingFile {
 public:
  using ForwardingFile::ForwardingFile;
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const bool is_zero = std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
    if (!is_zero) ForwardingFile::write_at(offset, bytes);
  }
  void reserve(std::uint64_t bytes) override { resize(bytes); }
};

class HoleyStorage final : public Storage {
 public:
  std::unique_ptr<File> open(const Path& path) override { return real_.open(path); }
  std::unique_ptr<File> create(const Path& path) override {
    return std::make_unique<HoleyFile>(real_.create(path));
  }
  std::unique_ptr<File> open_for_update(const Path& path) override {
    return std::make_unique<HoleyFile>(real_.open_for_update(path));
  }
  EntryKind kind(const Path& path) override { return real_.kind(path); }
  std::vector<Entry> list(const Path& directory) override { return real_.list(directory); }
  void make_directory(const Path& path) override { real_.make_directory(path); }
  void create_directory(const Path& path) override { real_.create_directory(path); }
  void rename(const Path& from, const Path& to) override { real_.rename(from, to); }
  void exchange(const Path& a, const Path& b) override { real_.exchange(a, b); }
  void hard_link(const Path& from, const Path& to) override { real_.hard_link(from, to); }
  void remove_tree(const Path& path) override { real_.remove_tree(path); }
  void remove_file(const Path& path) override { real_.remove_file(path); }
  void rename_new(const Path& from, const Path& to) override { real_.rename_new(from, to); }
  void remove_directory(const Path& path) override { real_.remove_directory(path); }
  void sync_directory(const Path& path) override { real_.sync_directory(path); }
  LockAttempt try_lock(const Path& path, const std::string& description) override {
    return real_.try_lock(path, description);
  }

 private:
  Storage& real_ = posix_storage();
};

/// `parameters` matrices of rows x 10,000 elements in units of 200, with AdamW's states.
Catalog transformer(int parameters, std::int64_t rows, std::uint32_t world_size) {
  Catalog catalog;
  catalog.world_size = world_size;
  catalog.stage = 2;
  catalog.groups = Json::array({Json::object()});
  for (int i = 0; i < parameters; ++i) {
    if (i % 200 == 0) catalog.units.push_back({fmt::format("h.{}", i / 200), {}});
    const std::string fqn = fmt::format("h.{}.p{}.weight", i / 200, i % 200);
    catalog.units.back().fqns.push_back(fqn);
    for (const std::string_view state : {state::kFp32, state::kExpAvg, state::kExpAvgSq}) {
      TensorInfo tensor;
      tensor.fqn = fqn;
      tensor.state = state;
      tensor.dtype = DType::Float32;
      tensor.shape = {static_cast<std::uint64_t>(rows), 10'000};
      tensor.group = 0;
      catalog.tensors.push_back(std::move(tensor));
    }
  }
  return catalog;
}

void write_holes(const Path& folder, const Catalog& catalog) {
  HoleyStorage storage;
  const std::string save_id = new_save_id();
  const std::uint64_t chunk_bytes = chunk_bytes_for(catalog, {});
  SaveTransaction save(storage, folder, "holes", save_id, {.chunk_bytes = chunk_bytes});
  const ShardPlans plans(catalog);
  std::vector<ShardEntry> entries(catalog.world_size);
  const std::vector<std::byte> zeros(kPieceBytes);
  run_bounded(catalog.world_size, {.threads = 2, .buffer_bytes = 1},
              [&](std::size_t index, std::span<std::byte>) {
                const auto rank = static_cast<std::uint32_t>(index);
                ShardWriter writer(storage,
                                   save.staging() / shard_file_name(rank, catalog.world_size),
                                   save_id, catalog, rank, plans.shard(rank), {chunk_bytes});
                for (std::size_t i = 0; i < writer.fragments().size(); ++i) {
                  for (const Fragment& piece :
                       cut_fragments(catalog, {&writer.fragments()[i], 1}, kPieceBytes))
                    writer.write(i, piece.range, std::span(zeros).first(piece.range.size() * 4));
                }
                entries[rank] = writer.finish();
                return std::uint64_t{0};
              });
  save.complete(catalog, std::move(entries));
  save.publish();
}

double seconds_of(const auto& job) {
  const auto started = std::chrono::steady_clock::now();
  job();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

void plan_trillion(std::uint32_t world_size) {
  const Catalog catalog = transformer(20'000, 5'000, world_size);
  std::size_t fragments = 0;
  const double all = seconds_of([&] {
    const ShardPlans plans(catalog);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) fragments += plans.shard(rank).size();
  });
  const double one = seconds_of([&] { plan_shard(catalog, world_size / 2); });
  fmt::print(
      "10^12 parameters, 20,000 tensors x 3 states, {} ranks: all plans {:.3f} s ({} "
      "fragments), one rank's {:.3f} s\n",
      world_size, all, fragments, one);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  std::uint64_t gibibytes = 100;
  std::uint32_t shards = 64;
  CLI::App app("Planning and opening at scale");
  app.add_option("folder", folder, "Where the checkpoint of holes goes")->required();
  app.add_option("--gib", gibibytes, "Its size in GiB")->capture_default_str();
  app.add_option("--shards", shards, "Its world size")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    for (const std::uint32_t world_size : {4096u, 1000u}) plan_trillion(world_size);
    const auto rows = static_cast<std::int64_t>((gibibytes << 30) / (12 * 400 * 10'000));
    const Catalog catalog = transformer(400, rows, shards);
    const double written = seconds_of([&] { write_holes(folder, catalog); });
    const double opened =
        seconds_of([&] { CheckpointReader(posix_storage(), Path(folder) / "holes"); });
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    fmt::print(
        "{} GiB in {} shards: written as holes in {:.1f} s, opened and proved complete in "
        "{:.3f} s, peak {} MiB\n",
        catalog.stored_bytes() >> 30, shards, written, opened, usage.ru_maxrss >> 10);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "scale: {}\n", error.what());
    return 3;
  }
}
