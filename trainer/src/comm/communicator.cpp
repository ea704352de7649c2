// Operations built on the primitive collectives.
#include "unishard/trainer/communicator.hpp"

#include <algorithm>
#include <cstring>

namespace unishard::trainer {

std::vector<std::string> gather_text(Communicator& communicator, const std::string& mine) {
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(communicator.size());
  communicator
      .all_gather(std::as_writable_bytes(std::span(lengths)), std::as_bytes(std::span(&length, 1)))
      ->wait();
  const std::uint64_t widest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(communicator.size());
  if (widest == 0) return texts;
  std::vector<char> padded(widest);
  std::copy(mine.begin(), mine.end(), padded.begin());
  std::vector<char> all(widest * communicator.size());
  communicator.all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(padded)))
      ->wait();
  for (std::size_t r = 0; r < texts.size(); ++r)
    texts[r].assign(all.data() + r * widest, lengths[r]);
  return texts;
}

std::string broadcast_text(Communicator& communicator, const std::string& text,
                           std::uint32_t root) {
  std::uint64_t length = text.size();
  communicator.broadcast(std::as_writable_bytes(std::span(&length, 1)), root)->wait();
  if (length == 0) return {};
  std::string received = communicator.rank() == root ? text : std::string(length, '\0');
  communicator.broadcast(std::as_writable_bytes(std::span(received)), root)->wait();
  return received;
}

std::vector<double> gather_doubles(Communicator& communicator, std::span<const double> mine) {
  std::vector<double> all(mine.size() * communicator.size());
  if (all.empty()) return all;
  communicator.all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(mine))->wait();
  return all;
}

std::int64_t agree_max(Communicator& communicator, std::int64_t mine) {
  std::vector<std::int64_t> all(communicator.size());
  communicator
      .all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(&mine, 1)))
      ->wait();
  return *std::max_element(all.begin(), all.end());
}

}  // namespace unishard::trainer
