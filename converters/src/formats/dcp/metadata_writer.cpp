#include "formats/dcp/metadata_writer.hpp"

#include "containers/pickle_writer.hpp"

#include <charconv>

namespace unishard::converters::dcp {
namespace {

using torch::PickleWriter;

constexpr std::string_view kClasses = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFileClasses = "torch.distributed.checkpoint.filesystem";
/// The class of torch 2.3 and later is unknown to older versions; all versions know this one.
constexpr std::string_view kPropertyClasses = "torch.distributed._shard.sharded_tensor.metadata";

/// Writes an instance whose state is a dict that `write_fields` fills.
template <class WriteFields>
void instance(PickleWriter& p, std::string_view module, std::string_view name,
              WriteFields&& write_fields) {
  p.global(module, name);
  p.new_object();
  p.begin_dict();
  write_fields();
  p.end_dict();
  p.build();
}

void write_properties(PickleWriter& p, DType dtype) {
  p.global(kPropertyClasses, "TensorProperties");
  p.new_object();
  p.begin_tuple();
  p.dtype(dtype);
  p.global("torch.serialization", "_get_layout");
  p.begin_tuple();
  p.str("torch.strided");
  p.end_tuple();
  p.reduce();
  p.boolean(false);  // requires_grad
  p.global(kPropertyClasses, "MEM_FORMAT_ENCODING");
  p.begin_tuple();
  p.integer(0);  // contiguous
  p.end_tuple();
  p.reduce();
  p.boolean(false);  // pin_memory
  p.end_tuple();
  p.build();
}

void write_tensor(PickleWriter& p, const WrittenTensor& tensor) {
  instance(p, kClasses, "TensorStorageMetadata", [&] {
    p.str("properties");
    write_properties(p, tensor.dtype);
    p.str("size");
    p.size(tensor.shape);
    p.str("chunks");
    p.begin_list();
    for (const auto& [box, item] : tensor.chunks) {
      instance(p, kClasses, "ChunkStorageMetadata", [&, &box = box] {
        p.str("offsets");
        p.size(box.offsets);
        p.str("sizes");
        p.size(box.sizes);
      });
    }
    p.end_list();
  });
}

void write_path(PickleWriter& p, const KeyPath& path) {
  p.begin_tuple();
  for (const PathPart& part : path) {
    std::int64_t position = 0;
    if (part.is_position) {
      std::from_chars(part.text.data(), part.text.data() + part.text.size(), position);
      p.integer(position);
    } else {
      p.str(part.text);
    }
  }
  p.end_tuple();
}

/// Writes one pair of storage_data. `box` is null for an object.
void write_place(PickleWriter& p, const std::string& key, const Box* box, std::int64_t index,
                 const WrittenItem& item) {
  instance(p, kClasses, "MetadataIndex", [&] {
    p.str("fqn");
    p.str(key);
    p.str("offset");
    if (box != nullptr) p.size(box->offsets);
    if (box == nullptr) p.none();
    p.str("index");
    if (box != nullptr) p.integer(index);
    if (box == nullptr) p.none();
  });
  instance(p, kFileClasses, "_StorageInfo", [&] {
    p.str("relative_path");
    p.str(item.file);
    p.str("offset");
    p.integer(static_cast<std::int64_t>(item.offset));
    p.str("length");
    p.integer(static_cast<std::int64_t>(item.length));
  });
}

void write_places(PickleWriter& p, const std::vector<WrittenTensor>& tensors,
                  const std::vector<WrittenObject>& objects) {
  p.begin_dict();
  for (const WrittenTensor& tensor : tensors) {
    std::int64_t index = 0;
    for (const auto& [box, item] : tensor.chunks) write_place(p, tensor.key, &box, index++, item);
  }
  for (const WrittenObject& object : objects) write_place(p, object.key, nullptr, 0, object.item);
  p.end_dict();
}

}  // namespace

std::string encode_metadata(const std::vector<WrittenTensor>& tensors,
                            const std::vector<WrittenObject>& objects) {
  PickleWriter p;
  instance(p, kClasses, "Metadata", [&] {
    p.str("state_dict_metadata");
    p.begin_dict();
    for (const WrittenTensor& tensor : tensors) {
      p.str(tensor.key);
      write_tensor(p, tensor);
    }
    for (const WrittenObject& object : objects) {
      p.str(object.key);
      p.global(kClasses, "BytesStorageMetadata");
      p.new_object();
    }
    p.end_dict();
    p.str("planner_data");
    p.begin_dict();
    const auto note = [&](const std::string& key, const KeyPath& path) {
      if (path.empty()) return;
      p.str(key);
      write_path(p, path);
    };
    for (const WrittenTensor& tensor : tensors) note(tensor.key, tensor.path);
    for (const WrittenObject& object : objects) note(object.key, object.path);
    p.end_dict();
    p.str("storage_data");
    write_places(p, tensors, objects);
  });
  return p.finish();
}

}  // namespace unishard::converters::dcp
