#pragma once
// A place where ranks record which operation failed, so that each can name those that did not
// answer.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::trainer::detail {

/// Writes "<what>" down as the failure of `rank`, waits a few seconds for the others, and returns a
/// sentence on them: "rank 2 did not answer; rank 1 failed in: gathering unit h.2: all-gather".
/// When the store cannot be reached, because rank 0, which serves it, has ended for example, the
/// sentence names `keeper`. Only the first 64 ranks are asked.
std::string ask_about_failure(c10d::Store& store, std::string_view keeper, std::uint32_t rank,
                              std::uint32_t world_size, const std::string& what) noexcept;

}  // namespace unishard::trainer::detail
