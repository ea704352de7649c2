#include "storage/write_behind.hpp"

#include <algorithm>
#include <cstring>

namespace unishard {
namespace {

using Interval = std::pair<std::size_t, std::size_t>;

/// Upper bound on the incomplete blocks of a file: several streams side by side, and several
/// threads.
constexpr std::size_t kBlocksPerFile = 12;

void add_interval(std::vector<Interval>& filled, Interval fresh) {
  auto first = std::ranges::lower_bound(filled, fresh.first, {}, &Interval::second);
  auto last = first;
  for (; last != filled.end() && last->first <= fresh.second; ++last) {
    fresh = {std::min(fresh.first, last->first), std::max(fresh.second, last->second)};
  }
  filled.insert(filled.erase(first, last), fresh);
}

}  // namespace

WriteBehind::WriteBehind(Limits limits, Write direct, Write buffered)
    : limits_(limits),
      direct_(std::move(direct)),
      buffered_(std::move(buffered)),
      written_(limits.file_bytes / kBlockBytes + 1) {}

void WriteBehind::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t index = offset / kBlockBytes;
    const std::size_t at = offset % kBlockBytes;
    const std::size_t count = std::min(bytes.size(), kBlockBytes - at);
    put(index, at, bytes.first(count));
    offset += count;
    bytes = bytes.subspan(count);
  }
}

void WriteBehind::put(std::uint64_t index, std::size_t at, std::span<const std::byte> bytes) {
  Lock lock(mutex_);
  Pending* const pending = block_for(index, lock);
  if (pending == nullptr) {
    mark_written(index);
    lock.unlock();
    return buffered_(index * kBlockBytes + at, bytes);
  }
  ++pending->users;
  pending->last_use = ++clock_;
  lock.unlock();
  std::memcpy(pending->block.bytes().data() + at, bytes.data(), bytes.size());
  lock.lock();
  --pending->users;
  add_interval(pending->filled, {at, at + bytes.size()});
  if (pending->is_whole(length_of(index)) && pending->users == 0)
    return leave(pending_.find(index), lock);
  changed_.notify_all();
  if (pending_.size() > kBlocksPerFile) make_room(lock);
}

// Returns the block to collect in; nullptr when there is no memory for one.
WriteBehind::Pending* WriteBehind::block_for(std::uint64_t index, Lock& lock) {
  for (;;) {
    const auto found = pending_.find(index);
    if (found != pending_.end()) {
      if (!found->second.leaving) return &found->second;
      changed_.wait(lock);
      continue;
    }
    if (auto block = block_pool().try_take(limits_.held_bytes)) {
      Pending fresh;
      fresh.block = std::move(*block);
      return &pending_.emplace(index, std::move(fresh)).first->second;
    }
    if (!make_room(lock)) return nullptr;
  }
}

// Writes the least recently used block. Returns false when there is none to write.
bool WriteBehind::make_room(Lock& lock) {
  auto oldest = pending_.end();
  for (auto item = pending_.begin(); item != pending_.end(); ++item) {
    if (item->second.users > 0 || item->second.leaving) continue;
    if (oldest == pending_.end() || item->second.last_use < oldest->second.last_use) oldest = item;
  }
  if (oldest == pending_.end()) return false;
  leave(oldest, lock);
  return true;
}

// Records that the block may hold bytes other than zero on the disk.
void WriteBehind::mark_written(std::uint64_t index) {
  if (index < written_.size()) written_[index] = true;
}

// Returns true when the block can be written whole. Fills gaps that were never written with zeros.
bool WriteBehind::fill_gaps(std::uint64_t index, Pending& pending) const {
  const auto bytes = pending.block.bytes();
  if (pending.is_whole(bytes.size())) return true;
  if (!limits_.is_zero || length_of(index) != kBlockBytes || written_[index]) return false;
  std::size_t at = 0;
  for (const auto& [from, to] : pending.filled) {
    std::ranges::fill(bytes.subspan(at, from - at), std::byte{0});
    at = to;
  }
  std::ranges::fill(bytes.subspan(at), std::byte{0});
  return true;
}

// Pre: no thread uses the block. Writes it with the mutex released, and forgets it even when
// writing fails.
void WriteBehind::leave(Map::iterator item, Lock& lock) {
  Pending& pending = item->second;
  const std::uint64_t index = item->first;
  pending.leaving = true;
  const bool whole = fill_gaps(index, pending);
  mark_written(index);
  lock.unlock();
  std::exception_ptr failure;
  try {
    const std::uint64_t begin = index * kBlockBytes;
    const auto bytes = pending.block.bytes();
    if (whole) {
      direct_(begin, bytes);
    } else {
      for (const auto& [from, to] : pending.filled)
        buffered_(begin + from, bytes.subspan(from, to - from));
    }
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  pending_.erase(item);
  changed_.notify_all();
  if (failure && !failure_) failure_ = failure;
  if (failure) std::rethrow_exception(failure);
}

void WriteBehind::flush(std::uint64_t begin, std::uint64_t end) {
  Lock lock(mutex_);
  for (;;) {
    const auto item = pending_.lower_bound(begin / kBlockBytes);
    if (item == pending_.end() || item->first * kBlockBytes >= end) break;
    if (item->second.users > 0 || item->second.leaving) {
      changed_.wait(lock);
    } else {
      leave(item, lock);
    }
  }
  if (failure_) std::rethrow_exception(failure_);
}

std::size_t WriteBehind::length_of(std::uint64_t index) const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(
      kBlockBytes, limits_.file_bytes - std::min(limits_.file_bytes, index * kBlockBytes)));
}

}  // namespace unishard
