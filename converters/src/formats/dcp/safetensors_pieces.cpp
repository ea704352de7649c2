#include "formats/dcp/safetensors_pieces.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kShardingInfo = "DCP_SHARDING_INFO";

Shape saved_offsets(const SortedJson& info, const safetensors::HeaderEntry& entry) {
  const auto row = info.find(entry.name);
  if (row == info.end()) return Shape(entry.shape.size(), 0);
  if (!row->is_object() || !row->contains("saved_offsets")) {
    raise(ErrorCode::Corrupt, "no saved_offsets");
  }
  const SortedJson& list = row->at("saved_offsets");
  const auto is_number = [](const SortedJson& value) { return value.is_number_unsigned(); };
  if (!list.is_array() || list.size() != entry.shape.size() ||
      !std::ranges::all_of(list, is_number)) {
    raise(ErrorCode::Corrupt, fmt::format("saved_offsets are {}", list.dump()));
  }
  return list.get<Shape>();
}

/// The writer lists the tensors of this file.
/// Throws: Corrupt, naming the tensor, for one that is not in the file.
void require_listed(const SortedJson& info, const safetensors::Header& header,
                    const std::string& file) {
  std::set<std::string_view> names;
  for (const safetensors::HeaderEntry& entry : header.entries) names.insert(entry.name);
  for (const auto& [name, row] : info.items()) {
    if (names.contains(name)) continue;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} lists {}, which is not in the file", file, kShardingInfo,
                      unishard::quote(name)),
          "another program has written the file again without it: use another copy");
  }
}

}  // namespace

torch::TensorView view_of(const std::shared_ptr<const File>& file, std::uint64_t data_offset,
                          const safetensors::HeaderEntry& entry) {
  auto storage = std::make_shared<torch::StorageBytes>();
  storage->window = {file, data_offset + entry.begin, entry.end - entry.begin};
  torch::TensorView view;
  view.dtype = entry.dtype;
  view.shape = entry.shape;
  view.strides.resize(entry.shape.size());
  std::uint64_t stride = 1;
  for (std::size_t d = entry.shape.size(); d-- > 0; stride *= entry.shape[d]) {
    view.strides[d] = stride;
  }
  view.storage = std::move(storage);
  return view;
}

bool looks_like_safetensors(const File& file) {
  std::array<char, 9> head{};
  if (file.size() < head.size()) return false;
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, head.data(), sizeof header_bytes);
  return head[8] == '{' && header_bytes <= file.size() - sizeof header_bytes;
}

SafetensorsPieces read_pieces(const std::shared_ptr<const File>& file) {
  const safetensors::Header header = safetensors::read_header(*file);
  const auto text = std::ranges::find(header.metadata, kShardingInfo,
                                      [](const auto& item) { return item.first; });
  SafetensorsPieces out;
  out.says_where = text != header.metadata.end();
  const std::string name = file->path().string();
  SortedJson info = SortedJson::object();
  if (out.says_where)
    info = parse_sorted_json(text->second, fmt::format("{}: {}", name, kShardingInfo));
  if (!info.is_object())
    raise(ErrorCode::Corrupt, fmt::format("{}: {} is no object", name, kShardingInfo));
  require_listed(info, header, name);
  for (const safetensors::HeaderEntry& entry : header.entries) {
    try {
      if (entry.sub_byte)
        raise(ErrorCode::Unsupported,
              fmt::format("UniShard has no element type for {}", entry.sub_byte->dtype));
      out.pieces.push_back({entry.name,
                            {saved_offsets(info, entry), entry.shape},
                            view_of(file, header.data_offset, entry)});
    } catch (const Error& error) {
      throw error.with_context(
          fmt::format("{}: {}: {}: ", name, kShardingInfo, unishard::quote(entry.name)));
    }
  }
  return out;
}

}  // namespace unishard::converters::dcp
