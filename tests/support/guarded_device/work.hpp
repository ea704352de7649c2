#pragma once
// A piece of work on the current stream of a device: checks that the tensors may be used.
#include "guarded_device/aliases.hpp"
#include "guarded_device/streams.hpp"

namespace unishard::test::guarded {

class Work {
 public:
  explicit Work(const char* operation) : operation_(operation) {}

  /// Throws: as block_of() does.
  void add(const at::Tensor& tensor, bool writes) {
    Block* const block = block_of(tensor, operation_);
    if (!block) return;
    bytes_ += tensor.nbytes();
    for (auto& [known, written] : uses_) {
      if (known != block) continue;
      written |= writes;
      return;
    }
    uses_.emplace_back(block, writes);
  }
  /// Throws: as begin_work() does.
  void begin(c10::DeviceIndex device) const {
    count_bytes(operation_, bytes_);
    begin_work(current_stream(device), operation_, uses_);
  }

 private:
  const char* operation_;
  Uses uses_;
  std::uint64_t bytes_ = 0;
};

}  // namespace unishard::test::guarded
