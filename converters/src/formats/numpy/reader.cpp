// An archive is a zip of .npy files, stored or deflated. Arrays in Fortran's order are views with
// other strides. The CRC-32 of an entry covers the array's header too: its share is taken out of
// the checksum that the elements must have.
#include "formats/numpy/reader.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/memory.hpp"

#include "containers/git_lfs.hpp"
#include "containers/inflated_file.hpp"
#include "containers/pieced_source.hpp"
#include "core/embedded_catalog.hpp"
#include "core/escaped_name.hpp"
#include "formats/numpy/array_header.hpp"
#include "formats/numpy/entry_names.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>

namespace unishard::converters {
namespace {

using numpy::ArrayHeader;
using torch::Window;

constexpr std::string_view kZip = "PK", kZipEntry = "PK\x03\x04";
/// Deflated arrays in Fortran's order that are kept in memory.
constexpr std::uint64_t kHeldBytes = std::uint64_t{256} << 20;
constexpr std::size_t kNameLengthAt = 26, kNameAt = 30;  // in the header of a zip entry

std::string bytes_at(const File& file, std::uint64_t offset, std::uint64_t size) {
  if (offset >= file.size()) return {};
  std::string bytes(std::min(size, file.size() - offset), '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::uint32_t crc32_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// Returns the CRC-32 that the bytes behind `front` must have, where both together have `whole`.
std::uint32_t crc32_behind(std::string_view front, std::uint64_t rest_bytes, std::uint32_t whole) {
  return whole ^ static_cast<std::uint32_t>(
                     crc32_combine(crc32_of(front), 0, static_cast<z_off_t>(rest_bytes)));
}

std::vector<std::uint64_t> strides_of(const ArrayHeader& header) {
  std::vector<std::uint64_t> strides(header.shape.size());
  std::uint64_t stride = 1;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const std::size_t d = header.fortran_order ? i : strides.size() - 1 - i;
    strides[d] = stride;
    stride *= header.shape[d];
  }
  return strides;
}

class Collector {
 public:
  explicit Collector(const Path& path) : file_(path.string()) {}

  /// `entry` is that of an archive whose content is `content`, or null.
  void add(const std::string& name, const Window& content, const torch::ZipEntry* entry) {
    const ArrayHeader header = numpy::read_header(content);
    if (!header.dtype) {
      parts.losses.push_back(
          {.role = numpy::holds_text(header.descr) ? Role::ClientValue : Role::Weight,
           .name = name,
           .why = fmt::format("an array of {}", numpy::describe_elements(header.descr)),
           .shape = header.shape});
      return;
    }
    const std::uint64_t bytes = header.data_bytes(), rest = content.size - header.data_offset;
    if (rest > bytes) {
      parts.losses.push_back({.role = Role::Metadata,
                              .name = name,
                              .why = fmt::format("{} bytes behind the array", rest - bytes),
                              .bytes = rest - bytes});
    }
    auto storage = std::make_shared<torch::StorageBytes>();
    storage->window = {content.file, content.begin + header.data_offset, rest};
    storage->big_endian = header.big_endian;
    if (entry != nullptr) {
      add_checksum(*storage, content, header, entry->crc32);
      if (entry->deflated && header.fortran_order) hold(*storage);
    }
    torch::TensorView view{.dtype = *header.dtype,
                           .shape = header.shape,
                           .strides = strides_of(header),
                           .storage_key = name,
                           .storage = std::move(storage)};
    torch::validate(view, unishard::quote(name));
    TensorInfo tensor;
    tensor.fqn = name;
    tensor.state = state::kWeights;
    tensor.dtype = view.dtype;
    tensor.shape = view.shape;
    raw_.push_back(header.is_raw);
    parts.catalog.tensors.push_back(std::move(tensor));
    parts.pieces.push_back({{{0, view.elements()}, std::move(view), 0}});
  }

  /// Gives untyped bytes the types that the archive names.
  void take_types(const std::string& text) {
    const std::string where = fmt::format("{}: {}", file_, numpy::kTypesKey);
    const SortedJson types = parse_sorted_json(text, where);
    if (!types.is_object()) raise(ErrorCode::Corrupt, where + " is not an object");
    bool was_used = false;
    for (std::size_t i = 0; i < raw_.size(); ++i) {
      TensorInfo& tensor = parts.catalog.tensors[i];
      const auto named = types.find(tensor.fqn);
      if (!raw_[i] || named == types.end()) continue;
      const auto dtype =
          named->is_string() ? dtype_from_name(named->get<std::string>()) : std::nullopt;
      if (!dtype || size_of(*dtype) != 1)
        raise(ErrorCode::Corrupt,
              fmt::format("{}: {} is no type of one byte", where, named->dump()));
      raw_[i] = false;
      was_used = true;
      tensor.dtype = *dtype;
      for (ViewPiece& piece : parts.pieces[i]) piece.view.dtype = *dtype;
    }
    if (!was_used)
      parts.losses.push_back({.role = Role::Metadata,
                              .name = std::string(numpy::kTypesKey),
                              .why = "it names no type of another array"});
  }

  void note_raw_bytes() {
    for (std::size_t i = 0; i < raw_.size(); ++i) {
      if (!raw_[i]) continue;
      parts.notes.push_back(
          fmt::format("{}: elements of one byte whose type numpy did not record; they are uint8",
                      unishard::quote(parts.catalog.tensors[i].fqn)));
    }
  }

  PiecedCatalog parts;

 private:
  static void add_checksum(torch::StorageBytes& storage, const Window& content,
                           const ArrayHeader& header, std::uint32_t crc32) {
    std::string front(header.data_offset, '\0');
    content.read(0, std::as_writable_bytes(std::span(front)));
    const std::uint64_t bytes = storage.window.size;
    const std::uint32_t expected = crc32_behind(front, bytes, crc32);
    if (bytes == 0 && expected != 0) raise(ErrorCode::Corrupt, "it does not match its CRC-32");
    storage.checksum = std::make_shared<torch::EntryChecksum>(bytes, expected);
  }

  /// Unpacks an array that would else be unpacked for each group of rows, as far as memory allows.
  void hold(torch::StorageBytes& storage) {
    const std::uint64_t bytes = storage.window.size;
    if (bytes > held_bytes_left_) return;
    std::string content(bytes, '\0');
    storage.window.read(0, std::as_writable_bytes(std::span(content)));
    storage.inflated = std::make_shared<const std::string>(std::move(content));
    held_bytes_left_ -= bytes;
  }

  const std::string file_;
  std::uint64_t held_bytes_left_ = std::min(kHeldBytes, description_limit() / 4);
  std::vector<bool> raw_;  ///< per tensor: its type is not known
};

/// Returns the bytes of one of our own entries.
std::string own_text(const torch::ZipReader& zip, const torch::ZipEntry& entry) {
  constexpr std::uint64_t kTextBytesMax = std::uint64_t{1} << 30;
  std::string text = zip.content(entry, kTextBytesMax);
  const Window content = torch::content_window(zip, entry);
  const ArrayHeader header = numpy::read_header(content);
  if (header.dtype != DType::UInt8) raise(ErrorCode::Corrupt, "it is not an array of bytes");
  return text.substr(header.data_offset, header.data_bytes());
}

/// Runs `body`; adds file and entry to an error that names only a defect.
template <class Body>
void naming(const Path& path, std::string_view entry, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    const bool is_named = std::string_view(error.what()).starts_with(path.string());
    if (is_named) throw;
    throw error.with_context(fmt::format("{}: {}: ", path.string(), unishard::quote(entry)));
  }
}

PiecedCatalog read_archive(Storage& storage, const Path& path) {
  const torch::ZipReader zip(torch::whole_file(storage, path), torch::ZipReader::Root::None);
  Collector collector(path);
  std::map<std::string_view, std::string> own;
  for (const torch::ZipEntry& entry : zip.entries()) {
    const auto key = numpy::key_of_entry(entry.name);
    zip.data_offset(entry);  // a damaged name is no other name
    if (!key) {
      collector.parts.losses.push_back(
          {.role = Role::ClientValue, .name = entry.name, .why = "it is no array"});
      continue;
    }
    naming(path, entry.name, [&] {
      if (*key == kCatalogKey || *key == numpy::kTypesKey) {
        own[*key == kCatalogKey ? kCatalogKey : numpy::kTypesKey] = own_text(zip, entry);
      } else {
        collector.add(unescaped_name(*key), torch::content_window(zip, entry), &entry);
      }
    });
  }
  if (const auto types = own.find(numpy::kTypesKey); types != own.end())
    collector.take_types(types->second);
  collector.note_raw_bytes();
  if (const auto text = own.find(kCatalogKey); text != own.end()) {
    restore_catalog(text->second, collector.parts.catalog,
                    fmt::format("{}: {}", path.string(), kCatalogKey));
    collector.parts.has_own_names = true;
  }
  return std::move(collector.parts);
}

/// A single array is called by its file's name.
PiecedCatalog read_array(Storage& storage, const Path& path) {
  Collector collector(path);
  naming(path, path.filename().string(), [&] {
    const Window content = torch::whole_file(storage, path);
    const ArrayHeader header = numpy::read_header(content);
    if (!header.dtype) {
      raise(ErrorCode::Unsupported,
            fmt::format("an array of {}", numpy::describe_elements(header.descr)),
            "save its numbers as an array of a numeric type");
    }
    collector.add(path.stem().string(), content, nullptr);
  });
  collector.note_raw_bytes();
  return std::move(collector.parts);
}

}  // namespace

bool is_npz(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::File) return false;
  const std::unique_ptr<File> file = storage.open(path);
  const std::string head = bytes_at(*file, 0, kNameAt);
  if (head.starts_with(numpy::kArrayMagic)) return true;
  if (path.extension() == ".npz" || path.extension() == ".npy")
    return !head.starts_with(kGitLfsStart);
  if (!head.starts_with(kZipEntry) || head.size() < kNameAt) return false;
  const auto name_bytes = static_cast<unsigned char>(head[kNameLengthAt]) |
                          static_cast<unsigned char>(head[kNameLengthAt + 1]) << 8;
  const std::string name = bytes_at(*file, kNameAt, static_cast<std::uint64_t>(name_bytes));
  return numpy::key_of_entry(name).has_value();
}

std::unique_ptr<Source> open_npz(Storage& storage, const Path& path) {
  const std::string head = bytes_at(*storage.open(path), 0, kNameAt);
  const bool is_zip = head.starts_with(kZip);
  if (!is_zip && path.extension() == ".npz") {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: not an .npz file: it does not begin with a zip archive", path.string()));
  }
  PiecedCatalog parts = is_zip ? read_archive(storage, path) : read_array(storage, path);
  parts.format = "npz";
  return make_pieced_source(std::move(parts), path.string());
}

}  // namespace unishard::converters
