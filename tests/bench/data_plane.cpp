// data_plane: saving and loading beside raw I/O past the page cache of the same bytes by as many
// threads, in one run. Jobs take turns; a ratio is ours / the reference as speeds.
#include "unishard/format/bounded_executor.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/huge_buffer.hpp"
#include "unishard/format/shard_base.hpp"

#include "make_checkpoint.hpp"

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <thread>

namespace {

using namespace unishard;

constexpr std::uint32_t kLayers = 24;  // of 9 tensors each
constexpr std::size_t kBlock = std::size_t{4} << 20;
unsigned threads_per_rank = 4;

/// Calls work(rank) for each rank, each in its thread. The first error is rethrown.
void on_ranks(std::uint32_t count, const std::function<void(std::uint32_t)>& work) {
  std::vector<std::exception_ptr> failures(count);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          work(rank);
        } catch (...) {
          failures[rank] = std::current_exception();
        }
      });
    }
  }
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

/// A file moved in whole blocks on huge pages, past the page cache where that is possible.
void raw_file(const Path& path, std::uint64_t bytes, bool writes) {
  const int flags = writes ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY;
  int file = ::open(path.c_str(), flags | O_DIRECT, 0644);
  if (file < 0) file = ::open(path.c_str(), flags, 0644);
  if (file < 0) raise_errno("opening", path.native(), errno);
  if (writes) ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  const HugeBuffer buffer(kBlock);
  void* const block = buffer.bytes().data();
  std::memset(block, 1, kBlock);
  for (std::uint64_t at = 0; at < bytes; at += kBlock) {
    const auto offset = static_cast<off_t>(at);
    const ssize_t done =
        writes ? ::pwrite(file, block, kBlock, offset) : ::pread(file, block, kBlock, offset);
    if (done <= 0) raise_errno(writes ? "writing" : "reading", path.native(), errno);
  }
  if (writes) ::fsync(file);
  ::close(file);
}

/// What one rank holds: its fragments back to back.
struct RankState {
  std::vector<Fragment> fragments;
  std::vector<std::byte> bytes;

  /// Calls visit(index of the fragment, its bytes) on some threads, as the trainer saves.
  template <class Visit>
  void each_fragment(const Catalog& catalog, const Visit& visit) {
    const std::vector<std::span<std::byte>> places = places_in(catalog);
    in_parallel(fragments.size(), [&](std::size_t index) { visit(index, places[index]); });
  }

  /// Calls visit(index of the fragment, a part of it, the part's bytes), as the trainer loads.
  template <class Visit>
  void each_piece(const Catalog& catalog, const Boundary& boundary, const Visit& visit) {
    struct Piece {
      std::size_t fragment;
      ElementRange range;
      std::span<std::byte> bytes;
    };
    const std::vector<std::span<std::byte>> places = places_in(catalog);
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      const std::uint64_t width = size_of(catalog.tensors[fragments[i].tensor].dtype);
      for (const auto& [tensor, range, box] :
           cut_fragments(catalog, {&fragments[i], 1}, kBlock, boundary)) {
        const std::uint64_t at = (range.begin - fragments[i].range.begin) * width;
        pieces.push_back({i, range, places[i].subspan(at, range.size() * width)});
      }
    }
    in_parallel(pieces.size(), [&](std::size_t index) {
      visit(pieces[index].fragment, pieces[index].range, pieces[index].bytes);
    });
  }

 private:
  std::vector<std::span<std::byte>> places_in(const Catalog& catalog) {
    std::vector<std::span<std::byte>> places;
    std::size_t at = 0;
    for (const auto& [tensor, range, box] : fragments) {
      const std::size_t count = range.size() * size_of(catalog.tensors[tensor].dtype);
      places.push_back(std::span(bytes).subspan(at, count));
      at += count;
    }
    return places;
  }

  static void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
    run_bounded(count, {.threads = threads_per_rank, .buffer_bytes = 1},
                [&](std::size_t index, std::span<std::byte>) {
                  work(index);
                  return std::uint64_t{0};
                });
  }
};

/// Numbers as compressible as trained weights: normally distributed fp32. The same 16 MiB again and
/// again, which no chunk of 1 MiB notices.
void fill_like_weights(std::span<std::byte> bytes) {
  static const std::vector<float> numbers = [] {
    std::vector<float> made(4 << 20);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02F);
    for (float& number : made) number = normal(random);
    return made;
  }();
  const auto block = std::as_bytes(std::span(numbers));
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), block.size())))
    std::ranges::copy(block.first(std::min(bytes.size(), block.size())), bytes.begin());
}

std::vector<RankState> make_states(const Catalog& catalog) {
  std::vector<RankState> states(catalog.world_size);
  for (std::uint32_t rank = 0; rank < catalog.world_size; ++rank) {
    states[rank].fragments = plan_shard(catalog, rank);
    states[rank].bytes.resize(bytes_of(catalog, states[rank].fragments));
    fill_like_weights(states[rank].bytes);
  }
  return states;
}

class Bench {
 public:
  Bench(Path folder, std::uint64_t mebibytes, std::uint32_t world_size, std::string only)
      : folder_(std::move(folder)),
        only_(std::move(only)),
        catalog_(catalog(mebibytes, world_size, 2)) {
    states_ = make_states(catalog_);
    same_ = states_;
    other_catalog_ = catalog(mebibytes, std::max(1u, world_size - 1), 3);
    other_ = make_states(other_catalog_);
    for (const RankState& state : states_) bytes_ += state.bytes.size();
  }

  void round() {
    remove({"tag", "next", "raw"});
    time("raw write + fsync", "", [&] { raw(true); });
    time("save", "raw write + fsync", [&] { save(); });
    change_one();
    time("save, incremental, 3 of 228 tensors", "save", [&] { save({}, "next", "tag"); });
    drop_cache();
    time("raw read", "", [&] { raw(false); });
    drop_cache();
    time("load, same world size and stage", "raw read", [&] { load(catalog_, same_); });
    drop_cache();
    time("load, one rank less, stage 3", "raw read", [&] { load(other_catalog_, other_); });
    remove({"tag"});
    time("save, --compress auto", "save", [&] { save({Compression::Mode::Auto, 0}); });
    remove({"tag"});
    time("save, --compress zstd", "save", [&] { save({Compression::Mode::Zstd, 0}); });
    drop_cache();
    time("load of the compressed", "raw read", [&] { load(catalog_, same_); });
    time("memcpy of the state", "", [&] {
      on_ranks(catalog_.world_size, [&](std::uint32_t rank) {
        std::ranges::copy(states_[rank].bytes, same_[rank].bytes.begin());
      });
    });
  }

  void print(bool json) const {
    Json rows = Json::array();
    for (const Row& row : rows_) {
      const double median = median_of(row.seconds);
      const auto [low, high] = std::ranges::minmax(row.seconds);
      const auto base = std::ranges::find(rows_, row.reference, &Row::name);
      const double ratio = base == rows_.end() ? 1 : median_of(base->seconds) / median;
      const double speed = static_cast<double>(bytes_) / median / 1e6;
      rows.push_back({{"job", row.name},
                      {"seconds", median},
                      {"min", low},
                      {"max", high},
                      {"mb_per_s", speed},
                      {"reference", row.reference},
                      {"ratio", ratio}});
      if (json) continue;
      fmt::print("{:<34} {:7.3f} s ({:.3f} to {:.3f}) {:8.0f} MB/s", row.name, median, low, high,
                 speed);
      fmt::print("{}\n", row.reference.empty()
                             ? std::string()
                             : fmt::format("  {:.2f} of {}", ratio, row.reference));
    }
    if (json) {
      fmt::print(
          "{}\n",
          Json{{"bytes", bytes_}, {"incremental_bytes", incremental_bytes_}, {"rows", rows}}.dump(
              2));
      return;
    }
    fmt::print("the incremental save wrote {} bytes, {:.3f} of a full one\n", incremental_bytes_,
               static_cast<double>(incremental_bytes_) / static_cast<double>(bytes_));
    fmt::print("{} bytes, page cache dropped before reads: {}\n", bytes_, drops_cache_);
  }

 private:
  struct Row {
    std::string name, reference;
    std::vector<double> seconds;
  };

  static Catalog catalog(std::uint64_t mebibytes, std::uint32_t world_size, std::uint32_t stage) {
    test::CheckpointSpec spec;
    spec.world_size = world_size;
    spec.stage = stage;
    spec.bf16 = false;
    spec.layers = kLayers;
    spec.scale = mebibytes * 21 / kLayers;
    return test::example_catalog(spec);
  }

  static double median_of(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
  }

  void time(const std::string& name, const std::string& reference,
            const std::function<void()>& job) {
    if (name.find(only_) == std::string::npos && name != "save") return;
    const auto started = std::chrono::steady_clock::now();
    job();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
    auto row = std::ranges::find(rows_, name, &Row::name);
    if (row == rows_.end()) row = rows_.insert(row, {name, reference, {}});
    row->seconds.push_back(spent.count());
  }

  void drop_cache() {
    const int file = ::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    drops_cache_ = file >= 0 && ::write(file, "3", 1) == 1;
    if (file >= 0) ::close(file);
  }

  /// Before a job is timed: what it would have to delete.
  void remove(std::initializer_list<const char*> names) const {
    for (const char* name : names) posix_storage().remove_tree(folder_ / name);
    ::sync();
  }

  void raw(bool writes) {
    posix_storage().make_directory(folder_ / "raw");
    on_ranks(catalog_.world_size, [&](std::uint32_t rank) {
      raw_file(folder_ / "raw" / std::to_string(rank), states_[rank].bytes.size(), writes);
    });
  }

  /// All states of one parameter of many.
  void change_one() {
    for (RankState& state : states_) {
      std::size_t at = 0;
      for (const auto& [tensor, range, box] : state.fragments) {
        const TensorInfo& info = catalog_.tensors[tensor];
        const std::size_t count = range.size() * size_of(info.dtype);
        if (info.fqn == "h.12.attn.weight") {
          for (std::byte& byte : std::span(state.bytes).subspan(at, count)) byte ^= std::byte{1};
        }
        at += count;
      }
    }
  }

  void save(const Compression& compression = {}, const std::string& tag = "tag",
            const std::string& base = {}) {
    Storage& storage = posix_storage();
    const std::string save_id = new_save_id();
    const std::uint64_t chunk_bytes = chunk_bytes_for(catalog_, compression);
    SaveTransaction save(storage, folder_, tag, save_id, {.chunk_bytes = chunk_bytes});
    std::vector<ShardEntry> entries(catalog_.world_size);
    on_ranks(catalog_.world_size, [&](std::uint32_t rank) {
      ShardWriter writer(
          storage, save.staging() / shard_file_name(rank, catalog_.world_size), save_id, catalog_,
          rank, states_[rank].fragments,
          {chunk_bytes, compression,
           base.empty() ? nullptr
                        : std::make_shared<ShardBase>(storage, folder_ / base, rank,
                                                      catalog_.world_size, chunk_bytes)});
      states_[rank].each_fragment(catalog_, [&](std::size_t i, std::span<const std::byte> bytes) {
        writer.write(i, states_[rank].fragments[i].range, bytes);
      });
      entries[rank] = writer.finish();
    });
    if (!base.empty()) incremental_bytes_ = 0;
    for (const ShardEntry& entry : entries) incremental_bytes_ += base.empty() ? 0 : entry.bytes;
    save.complete(catalog_, std::move(entries));
    save.publish();
  }

  void load(const Catalog& catalog, std::vector<RankState>& states) const {
    on_ranks(catalog.world_size, [&](std::uint32_t rank) {
      const CheckpointReader reader(posix_storage(), folder_ / "tag");
      states[rank].each_piece(
          catalog,
          [&](std::uint32_t tensor, std::uint64_t element) {
            return reader.chunk_start(tensor, element);
          },
          [&](std::size_t i, ElementRange range, std::span<std::byte> bytes) {
            reader.read(states[rank].fragments[i].tensor, range, bytes);
          });
    });
  }

  const Path folder_;
  const std::string only_;  ///< jobs whose names hold it
  const Catalog catalog_;
  Catalog other_catalog_;
  std::vector<RankState> states_, same_, other_;
  std::uint64_t bytes_ = 0, incremental_bytes_ = 0;
  std::vector<Row> rows_;
  bool drops_cache_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  std::uint64_t mebibytes = 1024;
  std::uint32_t world_size = 4;
  int repeats = 3;
  std::string only;
  bool json = false;
  CLI::App app("Saving and loading beside raw I/O of the same bytes, in one run");
  app.add_option("folder", folder, "Folder on the disk to measure; files are left in it")
      ->required();
  app.add_option("--size", mebibytes, "Size of the checkpoint in MiB")->capture_default_str();
  app.add_option("--world-size", world_size, "Ranks (threads)")->capture_default_str();
  app.add_option("--threads", threads_per_rank, "Of each rank")->capture_default_str();
  app.add_option("--repeats", repeats, "Rounds; the median counts")->capture_default_str();
  app.add_option("--only", only, "Only the jobs whose names hold this, and `save`");
  app.add_flag("--json", json, "As JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    std::filesystem::create_directories(folder);
    Bench bench(folder, mebibytes, world_size, only);
    for (int i = 0; i < repeats; ++i) bench.round();
    bench.print(json);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "data_plane: {}\n", error.what());
    return 3;
  }
}
