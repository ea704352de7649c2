#pragma once
// Loads and stores numbers in byte buffers, least significant byte first. All table bytes become
// numbers here.
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace unishard::detail {

static_assert(std::endian::native == std::endian::little,
              "a big-endian port needs byte swaps here");

template <class T>
/// Pre: offset + sizeof(T) <= bytes.size().
void store(std::span<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.subspan(offset, sizeof(T)).data(), &value, sizeof(T));
}

template <class T>
/// Pre: offset + sizeof(T) <= bytes.size().
T load(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.subspan(offset, sizeof(T)).data(), sizeof(T));
  return value;
}

}  // namespace unishard::detail
