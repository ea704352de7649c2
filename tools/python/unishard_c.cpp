#include "unishard_c.h"

#include "unishard/format/bounded_executor.hpp"

#include "python/c_catalog.hpp"
#include "python/c_texts.hpp"
#include "workflows/input_path.hpp"
#include "workflows/losses.hpp"
#include "workflows/native_folder.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

struct unishard_checkpoint {
  std::string path;
  unishard::tools::TaggedSource opened;
};

namespace unishard {
namespace {

/// Reads of more bytes than this are shared by several threads.
constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
/// A box whose rows lie in more bytes than this is shared by several threads too.
constexpr std::uint64_t kSpanBytes = std::uint64_t{64} << 20;

Json describe(const unishard_checkpoint& checkpoint) {
  const converters::Source& source = *checkpoint.opened.source;
  const Catalog& catalog = source.catalog();
  const std::string& tag = checkpoint.opened.tag;
  const std::optional<std::string> digest = identity(catalog);
  Json json = c_interface::catalog_json(catalog);
  json["format"] = source.format();
  json["path"] = checkpoint.path;
  json["tag"] = tag.empty() ? Json(nullptr) : Json(tag);
  json["identity"] = digest ? Json(*digest) : Json(nullptr);
  json["notes"] = source.notes_and_remarks();
  json["losses"] = tools::losses_json(source.losses());
  return json;
}

/// Reads `range` in pieces on `threads` threads. `out` has exactly its size.
void read(const converters::Source& source, std::uint32_t tensor, ElementRange range,
          std::span<std::byte> out, unsigned threads) {
  const Catalog& catalog = source.catalog();
  const std::uint64_t size = size_of(catalog.tensors[tensor].dtype);
  const std::vector<Fragment> pieces =
      cut_fragments(catalog, std::vector<Fragment>{{tensor, range}}, kPieceBytes,
                    [&](std::uint32_t index, std::uint64_t element) {
                      return source.read_boundary(index, element);
                    });
  const TransferOptions options = {.threads = std::clamp(threads, 1u, 64u), .buffer_bytes = 1};
  run_bounded(pieces.size(), options, [&](std::size_t index, std::span<std::byte>) {
    const ElementRange part = pieces[index].range;
    source.read(tensor, part, out.subspan((part.begin - range.begin) * size, part.size() * size));
    return part.size() * size;
  });
}

/// Reads `box` in pieces on `threads` threads, cut along its first axis with several indices.
void read_box(const converters::Source& source, std::uint32_t tensor, BoxView box,
              std::span<std::byte> out, unsigned threads) {
  std::size_t axis = 0;
  while (axis + 1 < box.sizes.size() && box.sizes[axis] == 1) ++axis;
  const TensorInfo& info = source.catalog().tensors[tensor];
  const auto inner = std::span(info.shape).subspan(axis + 1);
  const std::uint64_t stride = std::accumulate(inner.begin(), inner.end(), size_of(info.dtype),
                                               std::multiplies<std::uint64_t>());
  const std::uint64_t rows = box.sizes[axis], row_bytes = out.size() / rows;
  const std::uint64_t step =
      std::max<std::uint64_t>(1, std::min(kPieceBytes / row_bytes, kSpanBytes / stride));
  const TransferOptions options = {.threads = std::clamp(threads, 1u, 64u), .buffer_bytes = 1};
  run_bounded((rows + step - 1) / step, options, [&](std::size_t index, std::span<std::byte>) {
    Box piece = box.owned();
    piece.offsets[axis] += index * step;
    piece.sizes[axis] = std::min(step, rows - index * step);
    const auto bytes = out.subspan(index * step * row_bytes, piece.sizes[axis] * row_bytes);
    source.read_box(tensor, piece, bytes);
    return std::uint64_t{bytes.size()};
  });
}

}  // namespace
}  // namespace unishard

using namespace unishard;
using c_interface::guarded;
using c_interface::set_text;

int unishard_c_version() { return UNISHARD_C_VERSION; }

void unishard_free(char* text) { ::free(text); }

char* unishard_open(const char* path, const char* tag, int assume_model_order,
                    unishard_checkpoint** out) {
  return guarded([&] {
    if (path == nullptr || *path == '\0')
      raise(ErrorCode::InvalidArgument, "the path of the checkpoint is an empty text");
    std::optional<std::string> chosen;
    if (tag != nullptr) chosen = tag;
    std::string found = tools::find_input(posix_storage(), path);
    auto opened = tools::open_tagged(
        posix_storage(), found, {.tag = chosen, .assume_model_order = assume_model_order != 0});
    *out = new unishard_checkpoint{std::move(found), std::move(opened)};
  });
}

void unishard_close(unishard_checkpoint* checkpoint) { delete checkpoint; }

char* unishard_describe(const unishard_checkpoint* checkpoint, char** out) {
  return guarded([&] { set_text(out, describe(*checkpoint)); });
}

char* unishard_read(const unishard_checkpoint* checkpoint, uint64_t tensor, uint64_t begin,
                    uint64_t end, void* buffer, uint64_t bytes, unsigned threads) {
  return guarded([&] {
    const converters::Source& source = *checkpoint->opened.source;
    const auto& tensors = source.catalog().tensors;
    if (tensor >= tensors.size() || begin > end || end > tensors[tensor].elements() ||
        bytes != (end - begin) * size_of(tensors[tensor].dtype))
      raise(ErrorCode::InvalidArgument,
            "the tensor has no such elements, or the buffer another size");
    if (begin == end) return;
    read(source, static_cast<std::uint32_t>(tensor), {begin, end},
         {static_cast<std::byte*>(buffer), bytes}, threads);
  });
}

char* unishard_read_box(const unishard_checkpoint* checkpoint, uint64_t tensor,
                        const uint64_t* offsets, const uint64_t* sizes, uint64_t axes, void* buffer,
                        uint64_t bytes, unsigned threads) {
  return guarded([&] {
    const converters::Source& source = *checkpoint->opened.source;
    const auto& tensors = source.catalog().tensors;
    const BoxView box(std::span(offsets, axes), std::span(sizes, axes));
    const bool is_box = tensor < tensors.size() && !box_problem(tensors[tensor].shape, box);
    if (!is_box ||
        bytes != ElementMap(tensors[tensor].shape, box).elements() * size_of(tensors[tensor].dtype))
      raise(ErrorCode::InvalidArgument, "the tensor has no such box, or the buffer another size");
    read_box(source, static_cast<std::uint32_t>(tensor), box,
             {static_cast<std::byte*>(buffer), bytes}, threads);
  });
}

char* unishard_read_parts(const unishard_checkpoint* checkpoint, char** out) {
  return guarded([&] { set_text(out, checkpoint->opened.source->read_parts()); });
}

char* unishard_verify_reads(const unishard_checkpoint* checkpoint, uint32_t rank, uint32_t ranks,
                            const char* parts, unsigned threads) {
  return guarded([&] {
    converters::ReadPeers peers{.share = {.rank = rank, .size = ranks, .id = {}}, .parts = {}};
    for (const Json& part : parse_json(parts, "what the ranks have read")) {
      if (!part.is_string()) raise(ErrorCode::InvalidArgument, "a part that is no text");
      peers.parts.push_back(part.get<std::string>());
    }
    if (rank >= ranks || peers.parts.size() != ranks)
      raise(ErrorCode::InvalidArgument, "there is not one part for each rank");
    checkpoint->opened.source->verify_reads({.threads = std::clamp(threads, 1u, 64u)}, peers);
  });
}
