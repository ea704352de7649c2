#include "containers/archive_draft.hpp"

#include <cstring>
#include <memory>
#include <utility>

namespace unishard::converters::torch {

ArchiveDraft::Storage ArchiveDraft::add_storage(DType dtype, std::uint64_t elements) {
  storage_bytes_.push_back(elements * size_of(dtype));
  return {storage_bytes_.size() - 1, elements};
}

void ArchiveDraft::view(const Storage& storage, DType dtype, const Shape& shape) {
  pickle.tensor(dtype, shape, std::to_string(storage.number), storage.elements);
}

void ArchiveDraft::zeros(const Storage& storage, DType dtype, std::uint64_t begin,
                         std::uint64_t end) {
  if (begin >= end) return;
  const std::uint64_t width = size_of(dtype);
  plan_.constants.push_back({archive_, storage.number, begin * width, {}, (end - begin) * width});
}

void ArchiveDraft::tensor(std::size_t index, DType dtype) {
  const Shape& shape = catalog_.tensors[index].shape;
  const auto [found, is_new] = whole_.try_emplace({index, dtype});
  if (is_new) {
    const std::uint64_t elements = element_count(shape);
    found->second = add_storage(dtype, elements);
    if (elements > 0) {
      plan_.placements.push_back({static_cast<std::uint32_t>(index),
                                  {0, elements},
                                  archive_,
                                  found->second.number,
                                  0,
                                  dtype});
    }
  }
  view(found->second, dtype, shape);
}

void ArchiveDraft::number(const std::vector<std::uint32_t>& tensors) {
  const DType dtype = catalog_.tensors[tensors.front()].dtype;
  const Storage storage = add_storage(dtype, 1);
  const auto agreed = std::make_shared<AgreedNumber>();
  for (const std::uint32_t tensor : tensors) {
    Placement place{tensor, {0, 1}, archive_, storage.number, 0, dtype};
    place.agreed = agreed;
    plan_.placements.push_back(std::move(place));
  }
  view(storage, dtype, {});
}

void ArchiveDraft::flat(DType dtype, std::uint64_t length, const std::vector<FlatPiece>& pieces) {
  shaped(dtype, {length}, pieces);
}

void ArchiveDraft::shaped(DType dtype, const Shape& shape, const std::vector<FlatPiece>& pieces) {
  const Storage storage = add_storage(dtype, element_count(shape));
  std::uint64_t filled = 0;
  for (const FlatPiece& piece : pieces) {
    zeros(storage, dtype, filled, piece.at);
    plan_.placements.push_back(
        {piece.tensor, piece.range, archive_, storage.number, piece.at * size_of(dtype), dtype});
    filled = piece.at + piece.range.size();
  }
  zeros(storage, dtype, filled, storage.elements);
  view(storage, dtype, shape);
}

void ArchiveDraft::placeholder(DType dtype) {
  const auto [found, is_new] = empty_.try_emplace(dtype);
  if (is_new) found->second = add_storage(dtype, 0);
  view(found->second, dtype, {0});
}

void ArchiveDraft::constant(DType dtype, const Shape& shape, std::vector<std::byte> bytes) {
  const Storage storage = add_storage(dtype, element_count(shape));
  plan_.constants.push_back({archive_, storage.number, 0, std::move(bytes)});
  view(storage, dtype, shape);
}

void ArchiveDraft::scalar(float value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  constant(DType::Float32, {}, std::move(bytes));
}

ArchivePlan ArchiveDraft::finish(std::string file, std::string root) {
  return {std::move(file), std::move(root), pickle.finish(), std::move(storage_bytes_)};
}

ArchivePlan ArchiveDraft::finish(std::string file) {
  const std::string name = file.substr(file.rfind('/') + 1);  // npos + 1 is 0: no folder
  return finish(std::move(file), name.substr(0, name.rfind('.')));
}

}  // namespace unishard::converters::torch
