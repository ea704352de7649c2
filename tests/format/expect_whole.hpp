#pragma once
// Expects that a checkpoint holds exactly what write_example() saved.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace unishard::test {

inline void expect_whole(const CheckpointReader& reader, const CheckpointSpec& spec) {
  for (std::size_t i = 0; i < reader.catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = reader.catalog().tensors[i];
    std::vector<std::byte> bytes(tensor.bytes());
    reader.read(i, {0, tensor.elements()}, bytes);
    EXPECT_EQ(bytes, example_bytes(reader.catalog(), i, spec.seed_of(tensor.fqn)))
        << tensor.label();
  }
}

inline void expect_whole(const Path& tag, const CheckpointSpec& spec) {
  expect_whole(CheckpointReader(posix_storage(), tag), spec);
}

/// Reads a damaged checkpoint, and returns the error that says so.
inline Error damage_found(const Path& tag) {
  return error_of([&] { expect_whole(tag, {}); });
}

}  // namespace unishard::test
