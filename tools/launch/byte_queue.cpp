#include "launch/byte_queue.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace unishard::tools {

ByteQueue::ByteQueue(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  ::fcntl(descriptor_.get(), F_SETFL, O_NONBLOCK);
}

void ByteQueue::push(std::string_view bytes) {
  if (has_failed_) return;
  bytes_ += bytes;
  flush();
}

void ByteQueue::flush() {
  std::size_t written = 0;
  while (written < bytes_.size()) {
    const ssize_t count =
        ::write(descriptor_.get(), bytes_.data() + written, bytes_.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) has_failed_ = true;
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  bytes_.erase(0, has_failed_ ? std::string::npos : written);
}

}  // namespace unishard::tools
