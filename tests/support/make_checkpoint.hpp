#pragma once
// Writes a small, real checkpoint of a transformer-like model with every feature of the format:
// units, groups, a tied and a frozen parameter, buffers of unusual types, a scalar, an empty
// tensor. Its bytes depend only on names and seed, so checkpoints of any world size and stage hold
// the same state.
#include "unishard/format/catalog.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/partition.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unishard::test {

inline constexpr Compression kZstd{.mode = Compression::Mode::Zstd};

struct CheckpointSpec {
  std::uint32_t world_size = 3, stage = 2;
  std::uint64_t seed = 1;
  std::int64_t step = 7;
  std::string tag = "global_step7";
  bool bf16 = false;        ///< adds derived 16-bit weights
  std::uint64_t scale = 1;  ///< multiplies the sizes: 1 gives about 130 KiB, 8000 about 1 GiB
  std::uint32_t layers = 2;
  Compression compression = {};
  std::optional<std::uint64_t> chunk_bytes = {};  ///< nullopt: as a trainer chooses
  Path base = {};            ///< folder of the tag to share chunks with; empty: none
  bool diverged = false;     ///< all elements of wte.weight's exp_avg are NaN
  std::string changed = {};  ///< fqn of a parameter whose bytes are those of the next seed
  bool boxes = false;        ///< cuts tensors of two axes into ranges and boxes

  std::uint64_t seed_of(const std::string& fqn) const { return fqn == changed ? seed + 1 : seed; }
};

Catalog example_catalog(const CheckpointSpec& spec);

/// Return the bytes of a tensor, all or elements `range`, in row-major order.
std::vector<std::byte> example_bytes(const Catalog& catalog, std::size_t tensor, std::uint64_t seed,
                                     ElementRange range);
std::vector<std::byte> example_bytes(const Catalog& catalog, std::size_t tensor,
                                     std::uint64_t seed);

/// Returns the fragments of a rank: those of plan_shard(), or, with boxes, of each tensor of two
/// axes a range of the first quarter of its rows, and a part of the columns of the other rows.
std::vector<Fragment> example_fragments(const Catalog& catalog, std::uint32_t rank, bool boxes);
/// Returns the bytes that ShardWriter::write() takes for `range` of `fragment`.
std::vector<std::byte> example_bytes(const Catalog& catalog, const Fragment& fragment,
                                     std::uint64_t seed, ElementRange range);
/// Returns all elements of a fragment as ShardWriter::write() counts them.
ElementRange written_range(const Catalog& catalog, const Fragment& fragment);

/// Saves the checkpoint with SaveTransaction and ShardWriter; returns the tag's folder.
Path write_example(const Path& folder, const CheckpointSpec& spec = {},
                   Storage& storage = posix_storage(), CommitOptions options = {});

/// Returns the identity of the checkpoint that a reader of `folder` gets: `tag`, or the one that
/// `folder` names or is.
std::string identity_of(const Path& folder, const std::optional<std::string>& tag = {});

/// Rewrites the checkpoint at `tag` as if each rank's node had saved to its own disk; `nodes` has
/// the node of each rank. Returns the folder of each node, `<folder of tag>-<node>`, which has
/// `latest`.
std::map<std::string, Path> split_into_nodes(const Path& tag,
                                             const std::vector<std::string>& nodes);

/// Rewrites the manifest of a tag's folder with its checksum made right, as an attacker would.
void edit_manifest(const Path& tag, const std::function<void(Manifest&)>& edit);

}  // namespace unishard::test
