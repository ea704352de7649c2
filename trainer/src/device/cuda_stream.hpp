#pragma once
// The CUDA stream behind a stream of LibTorch, for libraries that take one.
#include <c10/core/Stream.h>

namespace unishard::trainer::detail {

template <class Stream>
concept TellsHandle = requires(const Stream& stream) { stream.native_handle(); };

/// True when LibTorch can tell.
constexpr bool has_cuda_streams() { return TellsHandle<c10::Stream>; }

/// Returns the cudaStream_t.
/// Pre: has_cuda_streams().
template <class Stream>
void* cuda_stream(const Stream& stream) {
  if constexpr (TellsHandle<Stream>) {
    return stream.native_handle();
  } else {
    return nullptr;
  }
}

}  // namespace unishard::trainer::detail
