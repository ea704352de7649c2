#pragma once
// Byte planes, laid out as by HDF5's shuffle filter: byte 0 of all elements, then byte 1 of all
// elements, and so on. The bytes of exponents then lie together and compress, while the bytes of
// mantissas do not.
// Thread safety: pure functions.
#include <cstddef>
#include <span>

namespace unishard::detail {

// A constant width lets the compiler unroll and vectorise the loop.
template <std::size_t Width>
void split_planes_of(const std::byte* in, std::size_t count, std::size_t stride, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t k = 0; k < Width; ++k) out[k * stride + i] = in[i * Width + k];
}

template <std::size_t Width>
void join_planes_of(const std::byte* in, std::size_t count, std::size_t stride, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t k = 0; k < Width; ++k) out[i * Width + k] = in[k * stride + i];
}

/// Splits `elements`, each of `width` bytes, into planes.
/// Pre: planes.size() >= elements.size(), a multiple of `width`.
inline void split_planes(std::span<const std::byte> elements, std::size_t width,
                         std::span<std::byte> planes) {
  const std::size_t count = elements.size() / width;
  switch (width) {
    case 2:
      return split_planes_of<2>(elements.data(), count, count, planes.data());
    case 4:
      return split_planes_of<4>(elements.data(), count, count, planes.data());
    case 8:
      return split_planes_of<8>(elements.data(), count, count, planes.data());
    default:
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < width; ++k) planes[k * count + i] = elements[i * width + k];
  }
}

/// Joins the first elements of `planes`, as many as fit into `elements`.
/// Pre: both sizes are multiples of `width`, and planes.size() >= elements.size().
inline void join_planes(std::span<const std::byte> planes, std::size_t width,
                        std::span<std::byte> elements) {
  const std::size_t stride = planes.size() / width, count = elements.size() / width;
  switch (width) {
    case 2:
      return join_planes_of<2>(planes.data(), count, stride, elements.data());
    case 4:
      return join_planes_of<4>(planes.data(), count, stride, elements.data());
    case 8:
      return join_planes_of<8>(planes.data(), count, stride, elements.data());
    default:
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < width; ++k) elements[i * width + k] = planes[k * stride + i];
  }
}

}  // namespace unishard::detail
