#include "formats/dcp/state_dict.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "core/key_text.hpp"
#include "formats/dcp/distributed_tensor.hpp"
#include "formats/dcp/flat_like.hpp"
#include "formats/dcp/flat_parameters.hpp"
#include "formats/dcp/folder_files.hpp"
#include "formats/dcp/rank_copies.hpp"
#include "formats/dcp/safetensors_pieces.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <string_view>

namespace unishard::converters::dcp {
namespace {

/// Upper bound on a bytes item that is no torch.save archive and is kept as bytes.
constexpr std::uint64_t kRawBytes = 64 << 10;

/// Return the first element of a box in the tensor, and the one after its last.
ElementRange span_of(const Shape& shape, const Box& box) {
  ElementRange span;
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    span.begin = span.begin * shape[d] + box.offsets[d];
    last = last * shape[d] + box.offsets[d] + box.sizes[d] - 1;
  }
  span.end = last + 1;
  return span;
}

/// Checks that the sorted chunks cover the tensor.
void complete(TensorEntry& tensor, const std::string& what) {
  std::vector<const Box*> boxes;
  boxes.reserve(tensor.chunks.size());
  for (const Chunk& chunk : tensor.chunks) boxes.push_back(&chunk.box);
  try {
    checked_mul(element_count(tensor.shape), size_of(tensor.dtype), "its bytes");
  } catch (const Error& error) {
    throw error.with_context(what + ": ");
  }
  check_cover(tensor.shape, boxes, what);
  std::uint64_t reach = 0;
  for (const Chunk& chunk : tensor.chunks) {
    reach = std::max(reach, span_of(tensor.shape, chunk.box).end);
    tensor.reach.push_back(reach);
  }
}

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

/// Returns true for a plain state dict: only tensors, fully described by their names.
bool holds_only_tensors(const Json& content) {
  if (!content.is_object()) return false;
  if (content.contains("$tensor")) return true;
  if (!content.contains("$type"))
    return !content.empty() && std::ranges::all_of(content, holds_only_tensors);
  return content.contains("pairs") && !content["pairs"].empty() &&
         std::ranges::all_of(content["pairs"],
                             [](const Json& pair) { return holds_only_tensors(pair[1]); });
}

/// The path of a tensor inside an object: the number of a parameter group is a position.
KeyPath path_inside(KeyPath path, const std::string& name) {
  constexpr std::string_view kStart = "param_groups.";
  const std::size_t dot = name.starts_with(kStart) ? name.find('.', kStart.size()) : name.npos;
  if (dot == name.npos) {
    path.push_back({name, false});
    return path;
  }
  path.push_back({"param_groups", false});
  path.push_back({name.substr(kStart.size(), dot - kStart.size()), true});
  path.push_back({name.substr(dot + 1), false});
  return path;
}

/// Finds the places of the tensors in the object at `path`, by their names.
void find_places(const Json& content, const KeyPath& path,
                 std::unordered_map<std::string, KeyPath>& places) {
  const auto descend = [&](std::string text, bool is_position, const Json& child) {
    KeyPath longer = path;
    longer.push_back({std::move(text), is_position});
    find_places(child, longer, places);
  };
  if (content.is_array()) {
    for (std::size_t i = 0; i < content.size(); ++i) descend(std::to_string(i), true, content[i]);
  } else if (content.is_object() && content.contains("$tensor")) {
    places.emplace(content["$tensor"].get<std::string>(), path);
  } else if (content.is_object() && !content.contains("$type")) {
    for (const auto& [key, child] : content.items()) descend(key, false, child);
  } else if (content.is_object() && content.contains("pairs")) {
    for (const Json& pair : content["pairs"]) descend(key_text(pair[0]), false, pair[1]);
  }
}

/// Tensors inside an object are named relative to the object; entries are named from the top.
void name_tensors_fully(Json& content, const std::string& key) {
  if (!content.is_structured()) return;
  if (content.is_object() && content.contains("$tensor")) {
    content["$tensor"] = fmt::format("{}.{}", key, content["$tensor"].get<std::string>());
    return;
  }
  for (Json& child : content) name_tensors_fully(child, key);
}

/// Replaces the names of tensors: old -> new.
void rename_tensors(Json& content, const std::unordered_map<std::string, std::string>& names) {
  if (names.empty() || !content.is_structured()) return;
  if (content.is_object() && content.contains("$tensor")) {
    const auto found = names.find(content["$tensor"].get<std::string>());
    if (found != names.end()) content["$tensor"] = found->second;
    return;
  }
  for (Json& child : content) rename_tensors(child, names);
}

/// A type that UniShard lacks is damage of its name where the item itself has one that UniShard
/// has.
void check_unknown_type(const Path& folder, const StoredTensor& tensor, FolderFiles& files,
                        Items& items) {
  if (tensor.chunks.empty()) return;
  const StoredChunk& chunk = tensor.chunks.front();
  constexpr std::uint64_t kWidestElement = 16;
  const std::string where =
      fmt::format("{}: tensor {}: ", folder.string(), unishard::quote(tensor.key));
  std::optional<DType> stored;
  try {
    const std::uint64_t bytes = checked_mul(chunk.box.elements(), kWidestElement, "its bytes");
    stored = items.tensor(files.add_chunk(tensor, chunk, items), bytes)->dtype;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw error.with_context(where);
    return;
  }
  raise(ErrorCode::Corrupt,
        fmt::format("{}the metadata calls its element type {}, and its item holds {}", where,
                    unishard::quote(tensor.dtype_name), name_of(*stored)),
        "the metadata is damaged: use a copy or another checkpoint");
}

KeyPath path_of(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.paths.find(key);
  return found == metadata.paths.end() ? KeyPath() : found->second;
}

/// Returns the keys that planner_data names and nothing is stored of. torch writes both parts of
/// the metadata from one state dict.
std::vector<LostKey> unstored_keys(const Metadata& metadata) {
  std::unordered_set<std::string_view> stored;
  for (const StoredTensor& tensor : metadata.tensors) stored.insert(tensor.key);
  for (const StoredObject& object : metadata.objects) stored.insert(object.key);
  std::vector<LostKey> lost;
  for (const auto& [key, position] : metadata.order) {
    if (!stored.contains(key))
      lost.push_back({key, path_of(metadata, key), "the metadata names it, and no file holds it"});
  }
  std::ranges::sort(lost, {}, &LostKey::key);
  return lost;
}

}  // namespace

namespace {

/// Runs shorter than this are read together and then copied to their places.
constexpr std::uint64_t kLongRunBytes = 64 << 10;
constexpr std::uint64_t kScatterBytes = std::uint64_t{4} << 20;

std::shared_ptr<const torch::TensorView> open_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                                    const Items& items) {
  auto view = items.tensor(chunk.item, chunk.box.elements() * size_of(tensor.dtype));
  if (view->dtype != tensor.dtype || view->shape != chunk.box.sizes) {
    raise(ErrorCode::Corrupt,
          fmt::format("the item holds {} of size ({}) where {} of size ({}) is expected",
                      name_of(view->dtype), fmt::join(view->shape, ", "), name_of(tensor.dtype),
                      fmt::join(chunk.box.sizes, ", ")));
  }
  return view;
}

/// Copies the chunk's elements `part` (numbered within its box) to their places in `out`, which
/// begins with the tensor's element `first`.
void read_part(const TensorEntry& tensor, const Chunk& chunk, const torch::TensorView& view,
               ElementRange part, std::uint64_t first, std::span<std::byte> out,
               torch::Reading reading) {
  const std::uint64_t width = size_of(tensor.dtype);
  const BoxRuns runs(tensor.shape, chunk.box);
  const auto place = [&](const Run& run) {
    return out.subspan((run.tensor_first - first) * width, run.count * width);
  };
  if (runs.run_elements() * width >= kLongRunBytes) {
    return runs(part, [&](const Run& run) {
      view.read({run.box_first, run.box_first + run.count}, place(run), reading);
    });
  }
  std::vector<std::byte> scratch;
  while (part.begin < part.end) {
    const std::uint64_t end = std::min(part.end, part.begin + kScatterBytes / width);
    scratch.resize((end - part.begin) * width);
    view.read({part.begin, end}, scratch, reading);
    runs({part.begin, end}, [&](const Run& run) {
      const std::span<std::byte> to = place(run);
      std::copy_n(scratch.data() + (run.box_first - part.begin) * width, to.size(), to.data());
    });
    part.begin = end;
  }
}

}  // namespace

std::uint64_t read_elements(const TensorEntry& tensor, const Items& items, ElementRange range,
                            std::span<std::byte> out, torch::Reading reading) {
  std::uint64_t covered = 0;
  const auto first = std::ranges::upper_bound(tensor.reach, range.begin);
  for (std::size_t i = static_cast<std::size_t>(first - tensor.reach.begin());
       i < tensor.chunks.size(); ++i) {
    const Chunk& chunk = tensor.chunks[i];
    if (span_of(tensor.shape, chunk.box).begin >= range.end) break;
    const ElementRange part{count_before(tensor.shape, chunk.box, range.begin),
                            count_before(tensor.shape, chunk.box, range.end)};
    if (part.empty()) continue;
    try {
      const auto view = open_chunk(tensor, chunk, items);
      read_part(tensor, chunk, *view, part, range.begin, out, reading);
      if (view->storage && view->storage->checksum) covered += part.size() * size_of(tensor.dtype);
    } catch (const Error& error) {
      throw error.with_context(
          fmt::format("tensor {}, chunk at ({}), {}: ", unishard::quote(tensor.key),
                      fmt::join(chunk.box.offsets, ", "), items.place(chunk.item)));
    }
  }
  return covered;
}

Loss unsaved_weight(std::string fqn) {
  return {.role = Role::Weight,
          .name = std::move(fqn),
          .why = "the optimizer trains it, and no file of the model holds it",
          .is_broken = true,
          .is_absent = true};
}

std::optional<std::uint32_t> rank_of_file(const Path& file) {
  const std::string name = file.filename().string();
  std::uint32_t rank = 0;
  if (!name.starts_with("__")) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 2, name.data() + name.size(), rank);
  if (error != std::errc() || *end != '_' || rank >= limits::kWorldSize) return std::nullopt;
  return rank;
}

StateDictBuilder::StateDictBuilder(Storage& storage)
    : storage_(storage), pool_(reading_pool(storage)) {
  out.items = std::make_unique<Items>();
}

TensorEntry& StateDictBuilder::entry(const std::string& key, KeyPath path, DType dtype,
                                     const Shape& shape, const std::string& where) {
  const auto [found, is_new] = tensors_.emplace(key, out.tensors.size());
  if (is_new) {
    out.tensors.push_back({key, std::move(path), dtype, shape, {}, {}, {}});
    return out.tensors.back();
  }
  TensorEntry& known = out.tensors[found->second];
  if (known.dtype != dtype || known.shape != shape) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: tensor {} is {} of size ({}) here and {} of size ({}) in another file",
                      where, unishard::quote(key), name_of(dtype), fmt::join(shape, ", "),
                      name_of(known.dtype), fmt::join(known.shape, ", ")),
          ranks_repeat ? "the ranks' files seem to hold pieces of tensors (of FSDP1's flat "
                         "parameters, of tensor-parallel ranks): give FSDP1's names and shapes "
                         "with --like MODEL, or save whole tensors, or with "
                         "torch.distributed.checkpoint"
                       : "");
  }
  return known;
}

void StateDictBuilder::add_folder(const Path& folder, const Metadata& metadata,
                                  std::uint64_t rank) {
  FolderFiles files(storage_, pool_, folder, metadata.files);
  for (const std::string& name : metadata.files) {
    out.world_size = std::max(out.world_size, rank_of_file(name).value_or(0) + 1);
  }
  out.notes.insert(out.notes.end(), metadata.notes.begin(), metadata.notes.end());
  const std::size_t first = order_.size();
  for (const auto& [key, position] : metadata.order) order_.emplace(key, first + position);
  std::ranges::move(unstored_keys(metadata), std::back_inserter(out.lost_keys));
  for (const StoredTensor& tensor : metadata.tensors) {
    if (!tensor.dtype) {
      check_unknown_type(folder, tensor, files, *out.items);
      out.lost_keys.push_back({tensor.key, path_of(metadata, tensor.key),
                               fmt::format("elements of type {}", tensor.dtype_name),
                               tensor.shape});
      continue;
    }
    try {
      TensorEntry& into = entry(tensor.key, path_of(metadata, tensor.key), *tensor.dtype,
                                tensor.shape, folder.string());
      for (const StoredChunk& chunk : tensor.chunks) {
        into.chunks.push_back({chunk.box, files.add_chunk(tensor, chunk, *out.items),
                               static_cast<std::uint32_t>(rank)});
      }
    } catch (const Error& error) {
      throw error.with_context(
          fmt::format("{}: tensor {}: ", folder.string(), unishard::quote(tensor.key)));
    }
  }
  for (const StoredObject& object : metadata.objects) {
    try {
      add_stored_object(object.key, path_of(metadata, object.key),
                        files.add_item(object.item, object.key, *out.items));
    } catch (const Error& error) {
      throw error.with_context(
          fmt::format("{}: object {}: ", folder.string(), unishard::quote(object.key)));
    }
  }
  files.check_places(folder, metadata, out.lost_keys.empty(), out.notes);
}

void StateDictBuilder::add_stored_object(const std::string& key, KeyPath path, std::uint32_t item) {
  if (objects_.contains(key)) return;
  const torch::Window window = out.items->unpacked(item);
  std::array<char, 4> head{};
  if (window.size >= head.size()) window.read(0, std::as_writable_bytes(std::span(head)));
  const std::string_view text(head.data(), head.size());
  if (text.starts_with("PK") || text.starts_with("\x80\x02\x8a\x0a")) {
    const torch::TorchFile file(window);
    return add_object(key, path, file);
  }
  // An io.BytesIO of the state dict is stored as it is.
  constexpr std::string_view kArchiveEnd = "PK\x05\x06";
  constexpr std::uint64_t kArchiveEndBytes = 22;
  std::array<char, kArchiveEnd.size()> tail{};
  if (window.size >= kArchiveEndBytes)
    window.read(window.size - kArchiveEndBytes, std::as_writable_bytes(std::span(tail)));
  if (std::string_view(tail.data(), tail.size()) == kArchiveEnd)
    raise(ErrorCode::Corrupt, "it ends as a torch.save archive and does not begin as one",
          "the file is damaged: use a copy or another checkpoint");
  objects_.insert(key);
  if (window.size > kRawBytes) {
    out.lost_keys.push_back({key, std::move(path),
                             fmt::format("{} bytes that are no torch.save archive", window.size)});
    return;
  }
  std::string bytes(window.size, '\0');
  window.read(0, std::as_writable_bytes(std::span(bytes)));
  // A file system leaves such bytes where a write was lost.
  constexpr std::size_t kFew = 16;
  if (bytes.size() >= kFew && bytes.find_first_not_of(bytes[0]) == bytes.npos)
    raise(ErrorCode::Corrupt,
          fmt::format("all of its {} bytes are {:#04x}", bytes.size(),
                      static_cast<unsigned char>(bytes[0])),
          "the file is damaged: use a copy or another checkpoint");
  out.objects.push_back({key, std::move(path), {{"$type", "bytes"}, {"hex", hex(bytes)}}});
}

void StateDictBuilder::add_object(const std::string& key, const KeyPath& path,
                                  const torch::TorchFile& file, std::uint64_t rank) {
  add_part(key, path, file, file.root(), rank);
}

void StateDictBuilder::add_part(const std::string& key, const KeyPath& path,
                                const torch::TorchFile& file, torch::Value value,
                                std::uint64_t rank) {
  torch::ObjectTree tree;
  try {
    tree = torch::describe(value, file.pickle().bytes().size());
  } catch (const torch::EndlessObject& error) {
    if (objects_.insert(key).second) out.lost_keys.push_back({key, path, error.what()});
    return;
  }
  const bool is_tensor = torch::TorchFile::is_tensor(value);
  if (!is_tensor) name_tensors_fully(tree.content, key);
  std::unordered_map<std::string, KeyPath> places;
  find_places(tree.content, path, places);
  std::unordered_map<std::string, std::string> numbered;
  for (const torch::NamedTensor& tensor : tree.tensors) {
    const KeyPath parts = is_tensor ? path : path_inside(path, tensor.name);
    const std::string full = is_tensor ? key : fmt::format("{}.{}", key, tensor.name);
    const std::string free = free_key(full);
    add_named_tensor(free, parts, file, tensor.value, rank);
    if (const auto place = places.find(full); place != places.end())
      set_place(free, std::move(place->second));
    if (free != full) numbered.emplace(full, free);
  }
  rename_tensors(tree.content, numbered);
  add_described(key, path, std::move(tree), is_tensor);
}

void StateDictBuilder::set_place(const std::string& key, KeyPath place) {
  if (const auto known = tensors_.find(key); known != tensors_.end()) {
    out.tensors[known->second].place = std::move(place);
  } else if (!out.second_keys.empty() && out.second_keys.back().key == key) {
    out.second_keys.back().place = std::move(place);
  }
}

std::string StateDictBuilder::free_key(const std::string& key) {
  if (!numbers_repeated_keys || used_keys_.insert(key).second) return key;
  std::string numbered;
  for (int number = 2; numbered.empty() || !used_keys_.insert(numbered).second; ++number)
    numbered = fmt::format("{}#{}", key, number);
  out.notes.push_back(fmt::format("renamed: {}: another tensor has the path {} as well", numbered,
                                  unishard::quote(key)));
  return numbered;
}

void StateDictBuilder::add_described(std::string key, const KeyPath& path, torch::ObjectTree tree,
                                     bool is_tensor) {
  if (!objects_.insert(key).second) {
    // When several ranks saved the same object, the first counts.
    if (!numbers_repeated_keys) return compare_with_first(key, tree.content);
    const std::string repeated = key;
    for (int number = 2; !objects_.insert(key).second; ++number)
      key = fmt::format("{}#{}", repeated, number);
  }
  for (const std::string& line : tree.opaque) out.opaque.emplace_back(key, line);
  for (const auto& [at, why] : tree.left_out)
    out.lost_keys.push_back({fmt::format("{}.{}", key, at), path, why});
  for (const std::string& line : tree.attributes)
    out.losses.push_back(
        {Role::ClientValue, fmt::format("{}.{}", key, line), torch::kTensorAttributes});
  for (const auto& [name, why] : tree.lost_weights)
    out.losses.push_back({Role::Weight, fmt::format("{}.{}", key, name), why});
  for (const auto& [at, type] : tree.optimizers)
    out.losses.push_back(
        {Role::Optimizer,
         fmt::format("{} ({})", at.empty() ? key : fmt::format("{}.{}", key, at), type),
         torch::kOptimizerObject});
  for (const std::string& line : tree.unregistered)
    out.losses.push_back(
        {Role::ClientValue, fmt::format("{}.{}", key, line), torch::kUnregistered});
  for (const std::string& line : tree.renamed)
    out.notes.push_back(fmt::format("renamed: {}.{}", key, line));
  // An optimizer that is an object knows its parameters by no names.
  const bool is_optimizer = !tree.optimizers.empty() && tree.optimizers.front().first.empty();
  if (is_optimizer && key.find('.') == key.npos) out.values.insert(key);
  auto& objects = is_tensor || holds_only_tensors(tree.content) ? out.tensor_objects : out.objects;
  objects.push_back({key, path, std::move(tree.content)});
}

void StateDictBuilder::compare_with_first(const std::string& key, const Json& content) {
  const bool is_optimizer = key.starts_with("optim") || content.contains("param_groups");
  if (!is_optimizer) return;  // random states and others are each rank's own
  const auto first = std::ranges::find(out.objects, key, &ObjectEntry::key);
  if (first == out.objects.end() || first->value == content) return;
  if (!differing_.insert(key).second) return;
  out.notes.push_back(
      fmt::format("the files of the ranks have different values in {}, such as settings of the "
                  "optimizer's groups or steps: those of the first file count",
                  unishard::quote(key)));
}

bool StateDictBuilder::is_second_key(const std::string& key, const KeyPath& path,
                                     const torch::TorchFile& file, const torch::TensorView* view,
                                     std::uint64_t rank) {
  if (!finds_second_keys || view == nullptr || view->elements() == 0) return false;
  const auto [first, is_new] = views_.try_emplace({file.name(), torch::identity_of(*view)}, key);
  if (ranks_repeat) {
    ties_.add(key, rank, first->second);
    return false;
  }
  if (is_new) return false;
  if (second_keys_.insert(key).second) out.second_keys.push_back({key, first->second, path, {}});
  return true;
}

void StateDictBuilder::settle_ties() {
  const std::size_t before = out.tensors.size();
  ties_.settle(out);
  if (out.tensors.size() == before) return;
  tensors_.clear();
  for (std::size_t i = 0; i < out.tensors.size(); ++i) tensors_.emplace(out.tensors[i].key, i);
}

void StateDictBuilder::add_named_tensor(const std::string& key, const KeyPath& path,
                                        const torch::TorchFile& file, torch::Value value,
                                        std::uint64_t rank) {
  if (taken_keys.contains(key)) return;
  try {
    if (is_distributed_tensor(value) && ranks_repeat) {
      RankTensor tensor = read_distributed_tensor(file, value, rank);
      is_second_key(key, path, file, tensor.parts.empty() ? nullptr : &tensor.parts.front().view,
                    rank);  // which decides when all files are read
      for (RankPart& part : tensor.parts)
        add_piece(key, path, tensor.shape, std::move(part.box), std::move(part.view), rank);
      if (const auto known = tensors_.find(key); known != tensors_.end())
        out.tensors[known->second].is_distributed = true;
      return;
    }
    torch::TensorView view =
        is_distributed_tensor(value) ? read_whole_tensor(file, value) : file.tensor(value);
    if (!view.storage) raise(ErrorCode::Unsupported, "a tensor on the meta device has no data");
    const Shape shape = view.shape;
    if (is_second_key(key, path, file, &view, rank)) return;
    add_piece(key, path, shape, {Shape(shape.size(), 0), shape}, std::move(view), rank);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported)
      throw error.with_context(fmt::format("{}: {}: ", file.name(), key));
    if (error.what() == kRankPart) out.part_of = "the file of one of several ranks";
    out.lost_keys.push_back({key, path, error.what()});
  }
}

void StateDictBuilder::add_piece(const std::string& key, KeyPath path, const Shape& shape, Box box,
                                 torch::TensorView view, std::uint64_t rank) {
  const std::string where =
      view.storage && view.storage->window.file ? view.storage->window.name() : "memory";
  order_.emplace(key, order_.size());
  TensorEntry& into = entry(key, std::move(path), view.dtype, shape, where);
  if (std::ranges::count(box.sizes, std::uint64_t{0}) > 0) return;
  into.chunks.push_back(
      {std::move(box), out.items->add(std::move(view)), static_cast<std::uint32_t>(rank)});
}

StateDict StateDictBuilder::finish(const std::string& where) {
  settle_ties();
  if (!ranks_repeat) {
    if (auto note = torch::note_shared_parts(views_)) out.notes.push_back(*std::move(note));
  }
  if (like != nullptr) {
    if (flat_units.empty()) take_apart_like(out, where, *like, RankFlatFiles(*like));
    order_.clear();  // that has set the order
  }
  take_apart_flat_parameters(out, where);
  for (TensorEntry& tensor : out.tensors)
    std::ranges::stable_sort(tensor.chunks, {},
                             [](const Chunk& chunk) -> const Shape& { return chunk.box.offsets; });
  if (ranks_repeat) settle_copies(out, from_rank, where);
  for (TensorEntry& tensor : out.tensors)
    complete(tensor, fmt::format("{}: tensor {}", where, unishard::quote(tensor.key)));
  const auto position = [&](const auto& item) {
    const auto found = order_.find(item.key);
    return found == order_.end() ? order_.size() : found->second;
  };
  std::ranges::stable_sort(out.tensors, {}, position);
  std::ranges::stable_sort(out.objects, {}, position);
  return std::move(out);
}

}  // namespace unishard::converters::dcp
