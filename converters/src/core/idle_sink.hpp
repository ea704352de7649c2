#pragma once
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include <vector>

namespace unishard::converters {

/// The sink of the processes that write nothing, where one process writes the whole result.
class IdleSink final : public Sink {
 public:
  const std::vector<Fragment>& fragments() const override { return none_; }
  void write(std::size_t, ElementRange, std::span<const std::byte>) override {
    raise(ErrorCode::Internal, "written to a sink that wants nothing");
  }
  std::string seal() override { return {}; }
  Path complete(std::span<const std::string>) override {
    raise(ErrorCode::Internal, "a process that wrote nothing completes the result");
  }
  void publish() override {
    raise(ErrorCode::Internal, "a process that wrote nothing publishes the result");
  }

 private:
  const std::vector<Fragment> none_;
};

}  // namespace unishard::converters
