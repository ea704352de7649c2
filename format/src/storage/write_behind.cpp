#include "storage/write_behind.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

namespace unishard {
namespace {

using Interval = std::pair<std::size_t, std::size_t>;

void add_interval(std::vector<Interval>& filled, Interval fresh) {
  auto first = std::ranges::lower_bound(filled, fresh.first, {}, &Interval::second);
  auto last = first;
  for (; last != filled.end() && last->first <= fresh.second; ++last) {
    fresh = {std::min(fresh.first, last->first), std::max(fresh.second, last->second)};
  }
  filled.insert(filled.erase(first, last), fresh);
}

}  // namespace

WriteBehind::WriteBehind(std::uint64_t file_bytes, std::uint64_t limit_bytes, Write direct,
                         Write buffered)
    : file_bytes_(file_bytes),
      limit_bytes_(limit_bytes),
      direct_(std::move(direct)),
      buffered_(std::move(buffered)) {}

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
  const bool whole = pending->filled.front() == Interval{0, length_of(index)};
  if (whole && pending->users == 0) return leave(pending_.find(index), lock);
  changed_.notify_all();
}

// The block to collect in; nullptr when there is no memory for one.
WriteBehind::Pending* WriteBehind::block_for(std::uint64_t index, Lock& lock) {
  for (;;) {
    const auto found = pending_.find(index);
    if (found != pending_.end()) {
      if (!found->second.leaving) return &found->second;
      changed_.wait(lock);
      continue;
    }
    if (auto block = block_pool().try_take(limit_bytes_)) {
      Pending fresh;
      fresh.block = std::move(*block);
      return &pending_.emplace(index, std::move(fresh)).first->second;
    }
    if (!make_room(lock)) return nullptr;
  }
}

// Writes out the block that was touched longest ago. False when there is none to write.
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

// Pre: nobody uses it. Writes it without the lock and forgets it, also when writing fails.
void WriteBehind::leave(Map::iterator item, Lock& lock) {
  Pending& pending = item->second;
  pending.leaving = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    const std::uint64_t begin = item->first * kBlockBytes;
    const auto bytes = pending.block.bytes();
    if (pending.filled.front() == Interval{0, kBlockBytes}) {
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
  if (failure) std::rethrow_exception(failure);
}

void WriteBehind::flush(std::uint64_t begin, std::uint64_t end) {
  Lock lock(mutex_);
  for (;;) {
    const auto item = pending_.lower_bound(begin / kBlockBytes);
    if (item == pending_.end() || item->first * kBlockBytes >= end) return;
    if (item->second.users > 0 || item->second.leaving) {
      changed_.wait(lock);
    } else {
      leave(item, lock);
    }
  }
}

std::size_t WriteBehind::length_of(std::uint64_t index) const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(
      kBlockBytes, file_bytes_ - std::min(file_bytes_, index * kBlockBytes)));
}

}  // namespace unishard
