// The project compiles and links this file on machines without a device; it has never run on one.
#include "device/cuda_check.hpp"
#include "device/device_copies.hpp"
#include "device/tensor_bytes.hpp"

namespace unishard::trainer::detail {
namespace {

/// Makes `device` the thread's current device, and restores the previous one.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "asking for the device");
    check(cudaSetDevice(device), "choosing the device");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

PinnedMemory::PinnedMemory(std::span<std::byte> memory) {
  if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault) == cudaSuccess) {
    pinned_ = memory.data();
  } else {
    cudaGetLastError();  // clears the error, which the next call would report
  }
}

PinnedMemory::~PinnedMemory() {
  if (pinned_ != nullptr) cudaHostUnregister(pinned_);
}

DeviceCopies::~DeviceCopies() {
  for (const auto& [device, stream] : streams_) {
    cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    cudaStreamDestroy(static_cast<cudaStream_t>(stream));
  }
}

void DeviceCopies::start(std::span<std::byte> to, const at::Tensor& from) {
  if (!from.is_cuda()) return copy_to(to, from);
  const int device = from.device().index();
  const OnDevice scope(device);
  const auto [known, is_new] = streams_.try_emplace(device, nullptr);
  if (is_new) {
    check(cudaDeviceSynchronize(), "waiting for the device");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    known->second = stream;
  }
  check(cudaMemcpyAsync(to.data(), from.data_ptr(), to.size(), cudaMemcpyDeviceToHost,
                        static_cast<cudaStream_t>(known->second)),
        "copying from the device");
}

void DeviceCopies::wait() {
  for (const auto& [device, stream] : streams_)
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "copying from the device");
}

}  // namespace unishard::trainer::detail
