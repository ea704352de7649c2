#pragma once
// HDF5's shuffle: byte k of all elements, for k = 0, 1, ... An exponent's bytes then lie together
// and compress, apart from the mantissas, which do not.
#include <cstddef>
#include <span>

namespace unishard::detail {

// The width as a constant lets the compiler unroll and vectorise.
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

/// All of `elements` into planes of `planes`, which is as large.
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

/// The first elements of `planes`, as many as fill `elements`.
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
