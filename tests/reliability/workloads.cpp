#include "workloads.hpp"

#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/staging_names.hpp"

#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

namespace unishard::test {
namespace {

/// Identity of the checkpoint, every chunk of which was read and compared; throws Error.
std::string whole_identity(Storage& storage, const Path& tag_folder) {
  const CheckpointReader reader(storage, tag_folder);
  std::vector<std::byte> buffer;
  for (const auto& shard : reader.shards()) {
    buffer.resize(shard->chunk_bytes());
    for (std::uint64_t chunk = 0; chunk < shard->chunk_count(); ++chunk) {
      if (!shard->check_chunks(chunk, 1, buffer).empty())
        raise(ErrorCode::Corrupt, fmt::format("{}: damaged chunk", shard->path().string()));
    }
  }
  return identity(reader.catalog()).value();
}

/// Remembers what was found in a folder, by its digest: most states of a crash differ elsewhere.
class Verdicts {
 public:
  std::string whole_identity_of(Storage& storage, const Path& folder) {
    auto* const recording = dynamic_cast<RecordingStorage*>(&storage);
    if (recording == nullptr) return whole_identity(storage, folder);
    const std::uint64_t digest = digest_of(*recording->at(folder));
    const auto known = known_.find(digest);
    if (known != known_.end()) return known->second;
    return known_[digest] = whole_identity(storage, folder);
  }

 private:
  std::unordered_map<std::uint64_t, std::string> known_;
};

struct Expected {
  Path folder;
  std::map<std::string, std::set<std::string>> of_tag;  ///< identities that a tag may have
  std::set<std::string> before;                         ///< what a reader may get; empty: nothing
  std::string after;
};

std::string identity_of(const CheckpointSpec& spec) {
  RecordingStorage storage;
  CheckpointSpec alone = spec;
  alone.base.clear();
  return whole_identity(storage, write_example("/alone", alone, storage));
}

std::string reader_finds(Storage& storage, const Path& folder, Verdicts& verdicts) {
  return verdicts.whole_identity_of(storage, resolve_checkpoint(storage, folder, {}));
}

/// What a reader without a tag gets: the old or the new one, whole.
std::string check_default(Storage& storage, const Expected& expected, bool returned,
                          Verdicts& verdicts) {
  const bool may_be_missing = expected.before.empty() && !returned;
  try {
    const std::string found = reader_finds(storage, expected.folder, verdicts);
    const bool ok = found == expected.after || (!returned && expected.before.contains(found));
    return ok ? "" : fmt::format("a reader finds {}", found);
  } catch (const Error& error) {
    if (may_be_missing && error.code() == ErrorCode::NotFound) return "";
    return fmt::format("a reader is refused: {}", error.what());
  }
}

std::string check_tags(Storage& storage, const Expected& expected, Verdicts& verdicts) {
  if (storage.kind(expected.folder) == EntryKind::Missing) return "";
  for (const TagEntry& entry : list_tags(storage, expected.folder)) {
    try {
      const std::string found = verdicts.whole_identity_of(storage, expected.folder / entry.tag);
      const auto allowed = expected.of_tag.find(entry.tag);
      if (allowed == expected.of_tag.end() || !allowed->second.contains(found))
        return fmt::format("tag {} has identity {}", entry.tag, found);
    } catch (const Error& error) {
      return fmt::format("tag {} is published and damaged: {}", entry.tag, error.what());
    }
  }
  return "";
}

/// Names that nobody clears up.
std::string check_tidy(Storage& storage, const Path& folder) {
  for (const Entry& entry : storage.list(folder)) {
    const bool is_tag = storage.kind(folder / entry.name / kManifestFile) == EntryKind::File;
    if (!is_tag && entry.name != kLatestFile && !entry.name.starts_with("."))
      return fmt::format("the next save leaves {}", entry.name);
  }
  return "";
}

/// Saves and removals of native checkpoints in `folder`, of which `work` makes `after`.
Workload native(std::string name, const Path& folder, std::vector<CheckpointSpec> old,
                std::function<void(Storage&)> work, const CheckpointSpec& after,
                bool tidies_up = true) {
  auto expected = std::make_shared<Expected>();
  expected->folder = folder;
  for (const CheckpointSpec& spec : old) expected->of_tag[spec.tag].insert(identity_of(spec));
  if (!old.empty()) expected->before.insert(identity_of(old.back()));
  expected->after = identity_of(after);
  expected->of_tag[after.tag].insert(expected->after);
  auto verdicts = std::make_shared<Verdicts>();
  const auto check = [expected, verdicts](Storage& storage, bool returned) {
    const std::string wrong = check_default(storage, *expected, returned, *verdicts);
    return wrong.empty() ? check_tags(storage, *expected, *verdicts) : wrong;
  };
  return {std::move(name),
          [old = std::move(old), folder](Storage& storage) {
            for (const CheckpointSpec& spec : old) write_example(folder, spec, storage);
          },
          work, check,
          [work, check, tidies_up, expected](Storage& storage) {
            try {
              work(storage);
            } catch (const Error& error) {
              return fmt::format("the next time fails: {}", error.what());
            }
            const std::string wrong = check(storage, true);
            return wrong.empty() && tidies_up ? check_tidy(storage, expected->folder) : wrong;
          }};
}

Workload save(std::string name, const Path& folder, std::vector<CheckpointSpec> old,
              const CheckpointSpec& next, std::uint32_t keep_last = 0) {
  return native(
      std::move(name), folder, std::move(old),
      [next, keep_last, folder](Storage& storage) {
        write_example(folder, next, storage, {.keep_last = keep_last});
      },
      next);
}

std::vector<Workload> native_workloads(const Path& folder) {
  const CheckpointSpec old{.world_size = 2, .step = 1, .tag = "step1", .chunk_bytes = kChunkBytes};
  const CheckpointSpec next{.world_size = 3, .seed = 2, .step = 2, .tag = "step2"};
  CheckpointSpec older = old, compressed = next, incremental = old, again = old;
  older.step = 0;
  older.seed = 3;
  older.tag = "step0";
  compressed.compression = kZstd;
  incremental.step = 2;
  incremental.tag = "step2";
  incremental.changed = "ln_f.weight";
  incremental.base = folder / old.tag;
  again.seed = 4;
  std::vector<Workload> out;
  out.push_back(save("first-save", folder, {}, next));
  out.back().unneeded = fmt::format("sync folder {}", folder.string());
  out.back().because = "nothing was there to lose, and without `latest` the newest tag is read";
  out.push_back(save("save", folder, {old}, next));
  out.push_back(save("save-compressed", folder, {old}, compressed));
  out.push_back(save("save-incremental", folder, {old}, incremental));
  out.push_back(save("save-replacing", folder, {old}, again));
  out.back().unneeded = fmt::format("sync folder {}", folder.string());
  out.back().because = "`latest` names the tag before and after, and both checkpoints are whole";
  out.push_back(save("save-keep-last-1", folder, {older, old}, next, 1));
  out.push_back(native(
      "prune", folder, {older, old, next},
      [folder](Storage& storage) { prune(storage, folder, 1); }, next, false));
  return out;
}

using Digests = std::map<std::string, std::uint64_t>;

Digests digests_of(const converters::Source& source) {
  Digests digests;
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = source.catalog().tensors[i];
    std::vector<std::byte> bytes(tensor.bytes());
    source.read(i, {0, tensor.elements()}, bytes);
    digests[tensor.label()] = crc64(bytes);
  }
  return digests;
}

/// One state per name, as model formats have it.
Catalog model_catalog(const CheckpointSpec& spec) {
  Catalog catalog = example_catalog(spec);
  std::erase_if(catalog.tensors, [](const TensorInfo& tensor) {
    return tensor.state == state::kExpAvg || tensor.state == state::kExpAvgSq;
  });
  return catalog;
}

/// One output of a converter: where it is, and how it is opened.
struct Conversion {
  converters::Output output;
  Catalog catalog;
  std::uint64_t seed = 1;

  Path result() const { return output.tag.empty() ? output.path : output.path / output.tag; }
  void write(Storage& storage) const {
    const auto sink = converters::make_sink(storage, output, catalog);
    for (std::size_t i = 0; i < sink->fragments().size(); ++i) {
      const Fragment& fragment = sink->fragments()[i];
      sink->write(i, fragment.range, example_bytes(catalog, fragment.tensor, seed, fragment.range));
    }
    sink->commit();
  }
  Digests read(Storage& storage, const std::optional<std::string>& tag) const {
    if (output.format == "hdf5") return read_copy(storage);
    return digests_of(*converters::open_source(storage, output.path, tag));
  }
  /// libhdf5 reads real files only.
  Digests read_copy(Storage& storage) const {
    const TempDir temp("/dev/shm");
    const Path copy = temp.path() / output.path.filename();
    const auto from = storage.open(output.path), to = posix_storage().create(copy);
    std::vector<std::byte> bytes(from->size());
    from->read_at(0, bytes);
    to->write_at(0, bytes);
    to->close();
    return digests_of(*converters::open_source(posix_storage(), copy));
  }
  Digests expected() const {
    RecordingStorage storage;
    write(storage);
    return read(storage, {});
  }
  /// Of all files of the result, also of those that our readers do without. 0 where no two runs
  /// write the same bytes, or the storage cannot tell.
  std::uint64_t files_in(Storage& storage) const {
    const auto* const recording = dynamic_cast<RecordingStorage*>(&storage);
    const bool is_repeatable = output.format != "native";
    return recording != nullptr && is_repeatable ? digest_of(*recording->at(result())) : 0;
  }
  std::uint64_t expected_files() const {
    RecordingStorage storage;
    write(storage);
    return files_in(storage);
  }
};

/// The result is absent or whole; `old`, where there is one, stays readable.
Workload conversion(const std::string& name, const Path& folder, const Conversion& made,
                    const std::optional<Conversion>& old = {}) {
  const Digests expected = made.expected();
  const std::uint64_t expected_files = made.expected_files();
  const Digests before = old ? old->expected() : Digests{};
  const auto tag = [](const Conversion& one) {
    return one.output.tag.empty() ? std::nullopt : std::optional(one.output.tag);
  };
  const auto check = [=](Storage& storage, bool returned) -> std::string {
    try {
      if (old && old->read(storage, tag(*old)) != before) return "the old checkpoint has changed";
      if (storage.kind(made.result()) == EntryKind::Missing) {
        if (returned) return "the result is missing";
        return old && made.read(storage, {}) != before ? "a reader finds another one" : "";
      }
      if (made.read(storage, tag(made)) != expected) return "the result has other bytes";
      const std::uint64_t files = made.files_in(storage);
      if (files != 0 && files != expected_files) return "a file of the result has other bytes";
      if (!returned && !old) return "";
      const Digests found = made.read(storage, {});
      return found == expected || (!returned && found == before) ? "" : "a reader finds neither";
    } catch (const Error& error) {
      return fmt::format("a reader is refused: {}", error.what());
    }
  };
  const auto again = [=](Storage& storage) -> std::string {
    try {
      if (storage.kind(made.result()) == EntryKind::Missing) made.write(storage);
    } catch (const Error& error) {
      return fmt::format("the next time fails: {}", error.what());
    }
    return check(storage, false);
  };
  return {name,
          [old, folder](Storage& storage) {
            storage.make_directory(folder);
            if (old) old->write(storage);
          },
          [made](Storage& storage) { made.write(storage); }, check, again};
}

std::vector<Workload> conversion_workloads(const Path& folder, bool is_long) {
  const CheckpointSpec spec{.world_size = 2, .layers = 1};
  const Catalog universal = example_catalog({.world_size = 2, .layers = is_long ? 1u : 0u});
  const Catalog all = example_catalog(spec), model = model_catalog(spec);
  const auto made = [](const std::string& format, const Path& path, const Catalog& catalog,
                       const std::string& tag = {}, std::uint64_t max_shard_bytes = 0) {
    return Conversion{
        .output = {.format = format, .path = path, .tag = tag, .max_shard_bytes = max_shard_bytes},
        .catalog = catalog,
        .seed = tag == "old" ? 2u : 1u};
  };
  std::vector<Workload> out;
  out.push_back(conversion("native sink", folder, made("native", folder, all, "new"),
                           made("native", folder, all, "old")));
  out.push_back(
      conversion("safetensors file", folder, made("safetensors", folder / "m.safetensors", model)));
  out.push_back(conversion("safetensors folder", folder,
                           made("safetensors", folder / "model", model, "", 8192)));
  out.push_back(conversion("torch file", folder, made("torch", folder / "m.pt", model)));
  out.push_back(conversion("torch training file", folder, made("torch", folder / "m.pt", all)));
  out.push_back(
      conversion("torch folder", folder, made("torch", folder / "model", model, "", 8192)));
  out.push_back(conversion("hdf5 file", folder, made("hdf5", folder / "m.h5", all)));
  out.push_back(conversion("npz file", folder, made("npz", folder / "m.npz", all)));
  out.push_back(conversion("dcp", folder, made("dcp", folder / "dcp", all)));
  out.push_back(conversion("deepspeed", folder, made("deepspeed", folder, all, "new"),
                           made("deepspeed", folder, all, "old")));
  out.push_back(conversion("deepspeed-universal", folder,
                           made("deepspeed-universal", folder, universal, "new"),
                           made("deepspeed-universal", folder, universal, "old")));
  return out;
}

}  // namespace

std::vector<Workload> all_workloads(const Path& folder, bool is_long) {
  std::vector<Workload> out = native_workloads(folder);
  std::ranges::move(conversion_workloads(folder, is_long), std::back_inserter(out));
  return out;
}

}  // namespace unishard::test
