#include "formats/dcp/metadata.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"

#include "containers/object_tree.hpp"
#include "containers/pickle.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace unishard::converters::dcp {
namespace {

using torch::NodeKind;
using torch::Value;

constexpr std::uint64_t kMetadataBytes = std::uint64_t{2} << 30;
constexpr std::size_t kPathParts = 64;
constexpr std::uint64_t kMemoryBytes = std::uint64_t{12} << 30;

/// Packages of the classes: of torch 1.12 and 1.13, and later.
constexpr std::array<std::string_view, 2> kPackages = {"torch.distributed.checkpoint.",
                                                       "torch.distributed._shard.checkpoint."};

/// A class of torch, and the fields by which a copy of it in another package is known, such as
/// olmo_core.distributed.checkpoint.filesystem._StorageInfo of OLMo-core. A class without fields of
/// its own is known by its name.
struct ClassShape {
  std::string_view module_and_name;
  std::array<std::string_view, 3> fields;
};
constexpr std::array<ClassShape, 5> kShapes = {{
    {"metadata.Metadata", {"state_dict_metadata", "storage_data", "planner_data"}},
    {"metadata.MetadataIndex", {"fqn", "offset", "index"}},
    {"metadata.TensorStorageMetadata", {"properties", "size", "chunks"}},
    {"metadata.BytesStorageMetadata", {}},
    {"filesystem._StorageInfo", {"relative_path", "offset", "length"}},
}};

/// Returns true for an instance of a class in another package that has the fields of the shape.
bool is_foreign_copy(Value value, const std::string& name, const ClassShape& shape) {
  if (shape.fields.front().empty()) return name.ends_with(shape.module_and_name);
  return std::ranges::all_of(
      shape.fields, [&](std::string_view field) { return value.field(field).has_value(); });
}

/// Returns true for an instance of `module`.`name` of one of the packages, or of a copy of it.
bool is_instance(Value value, std::string_view module_and_name) {
  if (!value.is(NodeKind::Object)) return false;
  const std::string name = value.callable_name();
  const bool is_torchs = std::ranges::any_of(kPackages, [&](std::string_view package) {
    return name.size() == package.size() + module_and_name.size() && name.starts_with(package) &&
           name.ends_with(module_and_name);
  });
  if (is_torchs || name.starts_with("torch.")) return is_torchs;
  const auto* const shape =
      std::ranges::find(kShapes, module_and_name, &ClassShape::module_and_name);
  return shape != kShapes.end() && is_foreign_copy(value, name, *shape);
}

std::string describe_value(Value value) {
  if (!value.is(NodeKind::Object)) return std::string(torch::to_string(value.kind()));
  const std::string name = value.callable_name();
  return name.empty() ? "a call" : name;
}

Value field(Value object, std::string_view name) {
  if (const auto found = object.field(name)) return *found;
  raise(ErrorCode::Corrupt, fmt::format("{} has no field {}", describe_value(object), name));
}

/// MetadataIndex as torch compares it: the name and the offsets of the chunk.
std::string index_key(std::string_view key, const Shape& offsets) {
  return fmt::format("{}\n{}", key, fmt::join(offsets, ","));
}

class Decoder {
 public:
  Decoder(Value root, std::string where) : root_(root), where_(std::move(where)) {}

  Metadata decode() {
    if (!is_instance(root_, "metadata.Metadata")) {
      raise(ErrorCode::Corrupt, fmt::format("{}: not a checkpoint's Metadata object but {}", where_,
                                            describe_value(root_)));
    }
    read_storage();
    read_entries();
    read_paths();
    check_paths();
    if (const auto version = root_.field("version"); version && version->is(NodeKind::Str))
      out_.version = version->text();
    for (const auto& [name, item] : items_) {
      if (item.is_used) continue;
      if (empty_.contains(name)) {
        out_.empty.push_back(item.item);
        continue;
      }
      contradict(name.substr(0, name.rfind('\n')),
                 "storage_data has an item of it, and the list of tensors lacks it");
    }
    std::ranges::sort(out_.notes);
    return std::move(out_);
  }

 private:
  struct FoundItem {
    StoredItem item;
    bool is_used = false;
  };

  /// Writers make all parts of the metadata from the same names: two that differ are damage.
  [[noreturn]] void contradict(std::string_view key, std::string_view problem) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it contradicts itself about {}: {}", where_, unishard::quote(key),
                      problem),
          "the file is damaged: use a copy or another checkpoint");
  }

  /// Runs `read`. Adds the file and the key to the message of an error.
  template <class Read>
  void about(std::string_view what, std::string_view key, Read&& read) {
    try {
      read();
    } catch (const Error& error) {
      throw error.with_context(fmt::format("{}: {} {}: ", where_, what, unishard::quote(key)));
    }
  }

  /// Returns one of the parts of the whole.
  Value section(std::string_view name) {
    if (const auto found = root_.field(name)) return *found;
    raise(ErrorCode::Corrupt, fmt::format("{}: Metadata has no field {}", where_, name));
  }

  void read_storage() {
    const Value storage = section("storage_data");
    if (!storage.is_dict())
      raise(ErrorCode::Corrupt,
            fmt::format("{}: storage_data is {}", where_, describe_value(storage)));
    items_.reserve(storage.pair_count());
    for (std::size_t i = 0; i < storage.pair_count(); ++i) {
      const Value index = storage.key(i);
      if (!is_instance(index, "metadata.MetadataIndex"))
        raise(ErrorCode::Corrupt,
              fmt::format("{}: storage_data has a key that is no MetadataIndex but {}", where_,
                          describe_value(index)));
      std::string key;
      about("item number", std::to_string(i), [&] { key = field(index, "fqn").string(); });
      about("item", key, [&] {
        // Objects that are no tensors have no offset: None, or no such field.
        const auto offset = index.field("offset");
        const Shape offsets = offset && !offset->is_none() ? extents_of(*offset) : Shape();
        if (!items_.emplace(index_key(key, offsets), FoundItem{read_item(storage.value(i))}).second)
          raise(ErrorCode::Corrupt, "listed twice in storage_data");
      });
    }
  }

  StoredItem read_item(Value info) {
    if (!is_instance(info, "filesystem._StorageInfo"))
      raise(ErrorCode::Corrupt, fmt::format("storage_data holds {}", describe_value(info)));
    StoredItem item;
    item.file = read_file_name(std::string(field(info, "relative_path").string()));
    item.offset = field(info, "offset").unsigned_int();
    item.length = field(info, "length").unsigned_int();
    const auto transforms = info.field("transform_descriptors");
    if (!transforms || transforms->is_none()) return item;
    for (std::size_t i = 0; i < transforms->size(); ++i) {
      // name[@domain][/version]
      const std::string_view text = (*transforms)[i].string();
      const std::string_view name = text.substr(0, text.find_first_of("@/"));
      const std::size_t slash = text.find('/');
      const std::string_view version =
          slash == std::string_view::npos ? "1" : text.substr(slash + 1);
      if (name != "stream.zstd" || !(version == "1" || version.starts_with("1.")) || i > 0) {
        raise(ErrorCode::Unsupported,
              fmt::format("written through the transform {} (stream.zstd/1 alone is read)",
                          unishard::quote(text)));
      }
      item.packing = Packing::Zstd;
    }
    return item;
  }

  std::uint32_t read_file_name(std::string name) {
    if (const auto known = files_.find(name); known != files_.end()) return known->second;
    const Path path(name);
    const bool is_plain = !name.empty() && name.find('\0') == std::string::npos &&
                          !name.ends_with('/') && path.is_relative() &&
                          std::ranges::none_of(path, [](const Path& part) {
                            return part == "." || part == ".." || part.empty();
                          });
    if (!is_plain) {
      raise(ErrorCode::Corrupt,
            fmt::format("relative_path {} does not name a file below the folder",
                        unishard::quote(name)),
            "nothing outside of the folder is read");
    }
    const auto index = static_cast<std::uint32_t>(out_.files.size());
    out_.files.push_back(name);
    files_.emplace(std::move(name), index);
    return index;
  }

  void read_entries() {
    const Value entries = section("state_dict_metadata");
    if (!entries.is_dict())
      raise(ErrorCode::Corrupt,
            fmt::format("{}: state_dict_metadata is {}", where_, describe_value(entries)));
    std::unordered_map<std::string_view, int> seen;
    for (std::size_t i = 0; i < entries.pair_count(); ++i) {
      std::string_view key;
      about("entry number", std::to_string(i), [&] { key = entries.key(i).string(); });
      if (++seen[key] > 1)
        raise(ErrorCode::Corrupt,
              fmt::format("{}: {} is listed twice", where_, unishard::quote(key)));
      const Value entry = entries.value(i);
      if (is_instance(entry, "metadata.TensorStorageMetadata")) {
        about("tensor", key, [&] { out_.tensors.push_back(read_tensor(std::string(key), entry)); });
      } else if (is_instance(entry, "metadata.BytesStorageMetadata")) {
        about("object", key, [&] {
          out_.objects.push_back({std::string(key), find_item(index_key(key, {}))});
        });
      } else {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: {} is described by {}, not by a tensor's or object's metadata",
                          where_, unishard::quote(key), describe_value(entry)));
      }
    }
  }

  StoredItem find_item(const std::string& index) {
    const auto found = items_.find(index);
    if (found == items_.end()) {
      raise(ErrorCode::Corrupt, fmt::format("storage_data does not say where the item at ({}) lies",
                                            index.substr(index.rfind('\n') + 1)));
    }
    found->second.is_used = true;
    return found->second.item;
  }

  StoredTensor read_tensor(std::string key, Value entry) {
    StoredTensor tensor;
    tensor.key = std::move(key);
    read_dtype(field(entry, "properties"), tensor);
    tensor.shape = extents_of(field(entry, "size"));
    const Value chunks = field(entry, "chunks");
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Value chunk = chunks[i];
      Box box{extents_of(field(chunk, "offsets")), extents_of(field(chunk, "sizes"))};
      const std::string index = index_key(tensor.key, box.offsets);
      if (std::ranges::count(box.sizes, std::uint64_t{0}) > 0) {
        empty_[index] = true;  // FSDP2 stores one empty shard for all ranks that have none
        continue;
      }
      tensor.chunks.push_back({std::move(box), find_item(index)});
    }
    return tensor;
  }

  /// Reads (dtype, layout, requires_grad, memory format, pin_memory). An intermediate dict form was
  /// never released.
  static void read_dtype(Value properties, StoredTensor& tensor) {
    const auto state = properties.state();
    const bool is_tuple = state && state->is(NodeKind::Tuple);
    const Value dtype = is_tuple ? (*state)[0] : field(properties, "dtype");
    tensor.dtype_name = dtype.global();
    tensor.dtype = torch::dtype_of_global(tensor.dtype_name);
    if (!is_tuple || state->size() < 2) return;
    const Value layout = (*state)[1];
    if (layout.is(NodeKind::Object) && layout.args().size() == 1 &&
        layout.args()[0].is(NodeKind::Str) && layout.args()[0].text() != "torch.strided") {
      raise(ErrorCode::Unsupported, fmt::format("a tensor of layout {}", layout.args()[0].text()));
    }
  }

  void read_paths() {
    const Value planner = section("planner_data");  // None where the planner noted nothing
    if (!planner.is_dict()) return;
    for (std::size_t i = 0; i < planner.pair_count(); ++i) {
      if (!planner.key(i).is(NodeKind::Str) || !planner.value(i).is_sequence()) continue;
      const std::string key(planner.key(i).text());
      if (planner.value(i).size() > kPathParts)
        raise(ErrorCode::Corrupt, fmt::format("{}: the path of {} has {} parts", where_,
                                              unishard::quote(key), planner.value(i).size()));
      KeyPath path;
      std::string joined;
      bool is_exact = true;  // whether Python's text of each part is known
      for (std::size_t p = 0; p < planner.value(i).size(); ++p) {
        const Value part = planner.value(i)[p];
        path.push_back({torch::path_part(part), part.is(NodeKind::Int)});
        joined += (p == 0 ? "" : ".") + path.back().text;
        is_exact &= part.is(NodeKind::Int) || part.is(NodeKind::Str);
      }
      out_.order.emplace(key, out_.order.size());
      if (joined == key) {
        out_.paths.emplace(key, std::move(path));
      } else if (is_exact) {
        contradict(key, fmt::format("planner_data calls it {}", unishard::quote(joined)));
      } else {
        out_.notes.push_back(
            fmt::format("{}: planner_data calls {} by another name, {}: not followed", where_,
                        unishard::quote(key), unishard::quote(joined)));
      }
    }
  }

  /// Planners that note any name note all of them (those of objects that one rank alone has, too).
  void check_paths() const {
    if (out_.order.empty()) return;
    const auto check = [&](const std::string& key) {
      if (!out_.order.contains(key)) contradict(key, "planner_data lacks it");
    };
    for (const StoredTensor& tensor : out_.tensors) check(tensor.key);
    for (const StoredObject& object : out_.objects) check(object.key);
  }

  const Value root_;
  const std::string where_;
  Metadata out_;
  std::unordered_map<std::string, FoundItem> items_;
  std::unordered_map<std::string, bool> empty_;
  std::unordered_map<std::string, std::uint32_t> files_;
};

}  // namespace

Shape extents_of(Value sequence) {
  if (sequence.size() > limits::kDimensions)
    raise(ErrorCode::Corrupt, fmt::format("{} dimensions", sequence.size()));
  Shape out;
  for (std::size_t i = 0; i < sequence.size(); ++i) out.push_back(sequence[i].unsigned_int());
  return out;
}

Metadata read_metadata(Storage& storage, const Path& path) {
  const torch::Window window = torch::whole_file(storage, path);
  if (window.size > kMetadataBytes)
    raise(ErrorCode::Corrupt, fmt::format("{}: {} bytes of metadata", path.string(), window.size));
  MemoryBudget(path.string()).charge(window.size);
  std::string bytes(window.size, '\0');
  window.read(0, std::as_writable_bytes(std::span(bytes)));
  const auto pickle =
      torch::Pickle::parse(std::move(bytes), path.string(),
                           {.bytes = kMetadataBytes,
                            .memory_bytes = std::min(kMemoryBytes, (1 << 20) + 128 * window.size)});
  Decoder decoder(pickle->root(), path.string());
  return decoder.decode();
}

}  // namespace unishard::converters::dcp
