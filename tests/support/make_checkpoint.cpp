#include "make_checkpoint.hpp"

#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/node_shards.hpp"
#include "unishard/format/shard_base.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace unishard::test {
namespace {

struct Builder {
  Catalog catalog;
  bool bf16;

  void parameter(const std::string& fqn, Shape shape, std::int32_t group) {
    for (const std::string_view name : {state::kFp32, state::kExpAvg, state::kExpAvgSq}) {
      catalog.tensors.push_back(
          {fqn, std::string(name), DType::Float32, shape, group, false, false, {}, {}});
    }
    if (bf16)
      catalog.tensors.push_back(
          {fqn, std::string(state::kWeights), DType::BFloat16, shape, group, false, true, {}, {}});
    catalog.units.back().fqns.push_back(fqn);
  }
  void other(const std::string& fqn, std::string_view state, DType dtype, Shape shape) {
    catalog.tensors.push_back({fqn,
                               std::string(state),
                               dtype,
                               std::move(shape),
                               -1,
                               state == state::kWeights,
                               false,
                               {},
                               {}});
  }
};

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in [-1, 1), or in [0, 1) for second moments.
float value_at(std::uint64_t key, std::uint64_t element, bool positive) {
  const float unit = static_cast<float>(mix(key + element) >> 40) * 0x1p-24f;
  return positive ? unit : 2 * unit - 1;
}

void store_element(DType dtype, std::uint64_t key, std::uint64_t element, bool positive,
                   std::byte* out) {
  const float value = value_at(key, element, positive);
  if (dtype == DType::Float32) {
    std::memcpy(out, &value, sizeof(value));
  } else if (dtype == DType::BFloat16 || dtype == DType::Float16) {
    const std::uint16_t bits =
        dtype == DType::BFloat16 ? round_to_bfloat16(value) : round_to_float16(value);
    std::memcpy(out, &bits, sizeof(bits));
  } else {
    std::uint64_t bits = mix(key + element);
    if (dtype == DType::Bool) bits &= 1;
    std::memcpy(out, &bits, std::min<std::uint64_t>(sizeof(bits), size_of(dtype)));
  }
}

}  // namespace

Catalog example_catalog(const CheckpointSpec& spec) {
  Builder builder{{}, spec.bf16};
  const std::uint64_t width = 32, rows = 64 * spec.scale;
  builder.catalog.units = {{"", {}}};
  builder.parameter("wte.weight", {rows, width}, 0);
  builder.parameter("ln_f.weight", {width}, 1);
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string name = "h." + std::to_string(layer);
    builder.catalog.units.push_back({name, {}});
    builder.parameter(name + ".attn.weight", {width, 3 * width * spec.scale}, 0);
    builder.parameter(name + ".attn.bias", {3 * width + 1}, 1);
    builder.parameter(name + ".scale", {}, 1);
  }
  builder.other("adapter.frozen", state::kWeights, DType::BFloat16, {17, 3});
  builder.other("h.0.attn.mask", state::kBuffer, DType::Bool, {5, 7});
  builder.other("h.0.counter", state::kBuffer, DType::Int64, {});
  builder.other("nothing", state::kBuffer, DType::Float32, {0, 4});
  Catalog& catalog = builder.catalog;
  catalog.aliases = {{"lm_head.weight", "wte.weight"}};
  catalog.step = spec.step;
  catalog.world_size = spec.world_size;
  catalog.stage = spec.stage;
  catalog.groups =
      Json::array({{{"lr", 0.001}, {"weight_decay", 0.1}}, {{"lr", 0.001}, {"weight_decay", 0.0}}});
  catalog.scheduler = {{"type", "WarmupLR"}, {"last_batch_iteration", spec.step - 1}};
  catalog.data_position = {
      {"global_sample_index", spec.step * 12}, {"epoch", 0}, {"shuffle_seed", 1}};
  catalog.rng = {{"scheme", "counter"}, {"seed", 1234}};
  catalog.client_state = {{"note", "test \u00e9"}, {"list", {1, 2.5, nullptr}}};
  catalog.producer = {{"library", "unishard tests"}};
  return catalog;
}

std::vector<std::byte> example_bytes(const Catalog& catalog, std::size_t tensor, std::uint64_t seed,
                                     ElementRange range) {
  const TensorInfo& info = catalog.tensors[tensor];
  const std::string state = info.derived ? std::string(state::kFp32) : info.state;
  const std::uint64_t key = crc64(info.fqn + '\0' + state) + seed * 0x100000001b3u;
  const std::uint64_t item = size_of(info.dtype);
  std::vector<std::byte> bytes(range.size() * item);
  for (std::uint64_t i = 0; i < range.size(); ++i) {
    store_element(info.dtype, key, range.begin + i, state == state::kExpAvgSq,
                  bytes.data() + i * item);
  }
  return bytes;
}

std::vector<std::byte> example_bytes(const Catalog& catalog, std::size_t tensor,
                                     std::uint64_t seed) {
  return example_bytes(catalog, tensor, seed, {0, catalog.tensors[tensor].elements()});
}

std::vector<Fragment> example_fragments(const Catalog& catalog, std::uint32_t rank, bool boxes) {
  std::vector<Fragment> fragments = plan_shard(catalog, rank);
  if (!boxes) return fragments;
  const auto is_boxed = [](const TensorInfo& tensor) {
    return tensor.shape.size() == 2 && tensor.elements() > 0;
  };
  std::erase_if(fragments, [&](const Fragment& fragment) {
    return is_boxed(catalog.tensors[fragment.tensor]);
  });
  const std::uint64_t count = catalog.world_size;
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    if (!is_boxed(tensor)) continue;
    const std::uint64_t rows = tensor.shape[0], columns = tensor.shape[1], front = rows / 4;
    const auto share = [&](std::uint64_t of) {
      return ElementRange{of * rank / count, of * (rank + 1) / count};
    };
    const ElementRange range = share(front * columns), across = share(columns);
    if (!range.empty()) fragments.push_back({i, range});
    if (across.empty()) continue;
    fragments.push_back(
        Fragment::of_box(i, tensor, {{front, across.begin}, {rows - front, across.size()}}));
  }
  std::ranges::sort(fragments, {}, [](const Fragment& fragment) {
    return std::pair(fragment.tensor, fragment.range);
  });
  return fragments;
}

ElementRange written_range(const Catalog& catalog, const Fragment& fragment) {
  if (!fragment.box) return fragment.range;
  return {0, ElementMap(catalog.tensors[fragment.tensor].shape, *fragment.box).elements()};
}

std::vector<std::byte> example_bytes(const Catalog& catalog, const Fragment& fragment,
                                     std::uint64_t seed, ElementRange range) {
  if (!fragment.box) return example_bytes(catalog, fragment.tensor, seed, range);
  std::vector<std::byte> bytes;
  ElementMap(catalog.tensors[fragment.tensor].shape, *fragment.box)
      .each_run(range, [&](std::uint64_t, ElementRange run) {
        const auto row = example_bytes(catalog, std::size_t{fragment.tensor}, seed, run);
        bytes.insert(bytes.end(), row.begin(), row.end());
      });
  return bytes;
}

Path write_example(const Path& folder, const CheckpointSpec& spec, Storage& storage,
                   CommitOptions options) {
  const Catalog catalog = example_catalog(spec);
  options.chunk_bytes = spec.chunk_bytes.value_or(chunk_bytes_for(catalog, spec.compression));
  const std::string save_id = new_save_id();
  SaveTransaction save(storage, folder, spec.tag, save_id, options);
  std::vector<ShardEntry> shards;
  constexpr std::uint64_t kStep = 1 << 18;
  for (std::uint32_t rank = 0; rank < spec.world_size; ++rank) {
    if (options.on_step) options.on_step(CommitStep::WriteShard);
    ShardWriter writer(
        storage, save.staging() / shard_file_name(rank, spec.world_size), save_id, catalog, rank,
        example_fragments(catalog, rank, spec.boxes),
        {options.chunk_bytes, spec.compression,
         spec.base.empty() ? nullptr
                           : std::make_shared<ShardBase>(storage, spec.base, rank, spec.world_size,
                                                         options.chunk_bytes)});

    for (std::size_t i = 0; i < writer.fragments().size(); ++i) {
      const Fragment& fragment = writer.fragments()[i];
      const std::uint64_t seed = spec.seed_of(catalog.tensors[fragment.tensor].fqn);
      const ElementRange whole = written_range(catalog, fragment);
      for (std::uint64_t at = whole.begin; at < whole.end; at += kStep) {
        const ElementRange part{at, std::min(at + kStep, whole.end)};
        std::vector<std::byte> bytes = example_bytes(catalog, fragment, seed, part);
        if (spec.diverged && catalog.tensors[fragment.tensor].label() == "wte.weight [exp_avg]")
          std::ranges::fill(bytes, std::byte{0xff});
        writer.write(i, part, bytes);
      }
    }
    if (options.on_step) options.on_step(CommitStep::SyncShard);
    shards.push_back(writer.finish());
  }
  save.complete(catalog, std::move(shards));
  save.publish();
  return folder / spec.tag;
}

std::string identity_of(const Path& folder, const std::optional<std::string>& tag) {
  const CheckpointReader reader(posix_storage(), resolve_checkpoint(posix_storage(), folder, tag));
  return identity(reader.catalog()).value();
}

std::map<std::string, Path> split_into_nodes(const Path& tag,
                                             const std::vector<std::string>& nodes) {
  namespace fs = std::filesystem;
  edit_manifest(tag, [&](Manifest& manifest) { record_nodes(manifest.catalog, nodes); });
  const Manifest manifest = read_manifest(posix_storage(), tag);
  std::map<std::string, Path> folders;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    Path& folder = folders[nodes[rank]];
    if (folder.empty()) {
      folder = tag.parent_path().native() + "-" + nodes[rank];
      fs::create_directories(folder / tag.filename());
      fs::copy_file(tag / kManifestFile, folder / tag.filename() / kManifestFile);
      replace_text(posix_storage(), folder / kLatestFile, tag.filename().native() + "\n");
    }
    const std::string& file = manifest.shards.at(rank).file;
    fs::copy_file(tag / file, folder / tag.filename() / file);
  }
  return folders;
}

void edit_manifest(const Path& tag, const std::function<void(Manifest&)>& edit) {
  Manifest manifest = read_manifest(posix_storage(), tag);
  edit(manifest);
  replace_text(posix_storage(), tag / kManifestFile, encode_manifest(manifest));
}

}  // namespace unishard::test
