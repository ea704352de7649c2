#include "shard/base_links.hpp"

#include "unishard/format/error.hpp"

#include <utility>

namespace unishard::detail {

BaseLinks::BaseLinks(Storage& storage, Path folder, std::shared_ptr<const ShardBase> base)
    : storage_(storage),
      folder_(std::move(folder)),
      base_(std::move(base)),
      linked_(base_->holders().size()) {
  for (std::size_t i = 0; i < linked_.size(); ++i) {
    const ShardBase::Holder& holder = base_->holders()[i];
    try {
      storage_.hard_link(holder.path, folder_ / holder.file.file);
      linked_[i] = true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported && error.code() != ErrorCode::NotFound) {
        remove_unless({});
        throw;
      }
    }
  }
}

BaseLinks::~BaseLinks() {
  if (kept_) return;
  try {
    remove_unless({});
  } catch (const std::exception&) {  // the staging folder is removed with them
  }
}

const ChunkRow* BaseLinks::find(const DataSetEntry& set, std::uint64_t chunk) const {
  const ChunkRow* const row = base_->find(set, chunk);
  return row != nullptr && linked_[row->file - 1] ? row : nullptr;
}

std::vector<BaseFile> BaseLinks::keep(std::vector<std::vector<ChunkRow>>& tables) {
  std::vector<bool> used(linked_.size());
  for (const auto& table : tables)
    for (const ChunkRow& row : table)
      if (row.file != 0) used[row.file - 1] = true;
  std::vector<BaseFile> files;
  std::vector<std::uint32_t> number(linked_.size());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    files.push_back(base_->holders()[i].file);
    number[i] = static_cast<std::uint32_t>(files.size());
  }
  for (auto& table : tables)
    for (ChunkRow& row : table)
      if (row.file != 0) row.file = number[row.file - 1];
  remove_unless(used);
  kept_ = true;
  return files;
}

void BaseLinks::remove_unless(const std::vector<bool>& wanted) {
  for (std::size_t i = 0; i < linked_.size(); ++i) {
    if (!linked_[i] || (!wanted.empty() && wanted[i])) continue;
    linked_[i] = false;
    storage_.remove_file(folder_ / base_->holders()[i].file.file);
  }
}

}  // namespace unishard::detail
