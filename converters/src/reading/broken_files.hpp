#pragma once
// What a checkpoint names and cannot give: names in a folder behind which there is no file (links
// to what is gone, pipes, folders), and files that are damaged.
#include "unishard/converters/loss.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace unishard::converters {

/// Files of a Trainer's and of accelerate's optimizer.
inline constexpr std::array<std::string_view, 2> kOptimizerFiles = {"optimizer.pt",
                                                                    "optimizer.bin"};

/// Returns a sentence about what the folder calls its model and is no file, for which no other file
/// may be taken; nullopt when there is none.
std::optional<std::string> broken_model(Storage& storage, const Path& folder);

/// Returns a loss for each name in the folder that is a link to what is not there. The optimizer of
/// a model's folder is one of the optimizer.
Losses broken_files(Storage& storage, const Path& folder, bool is_model_folder);

/// Returns the loss of a thing that `error` says to be damaged, or that the system cannot read, or
/// of a kind that is not read.
Loss damaged(Role role, std::string name, const Error& error);

/// Runs `read`, which reads what a model does not need, and returns whether it ended well. What is
/// damaged, of a kind that is not read, too large, or closed to this user is lost under `name`.
/// Throws: the other errors of `read`.
template <class Read>
bool read_or_lose(Losses& losses, Role role, std::string name, const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    constexpr std::array kLost = {ErrorCode::Corrupt, ErrorCode::Unsupported, ErrorCode::Io,
                                  ErrorCode::MemoryLimit};
    if (std::ranges::count(kLost, error.code()) == 0) throw;
    losses.push_back(damaged(role, std::move(name), error));
    return false;
  }
}

}  // namespace unishard::converters
