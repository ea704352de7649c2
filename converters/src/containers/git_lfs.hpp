#pragma once
// Recognises the small text that Git LFS puts where a file was not downloaded. Layout:
// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
#include <string_view>

namespace unishard::converters {

inline constexpr std::string_view kGitLfsBegin = "version https://git-lfs";
/// The first 8 bytes of such a text.
inline constexpr std::string_view kGitLfsStart = kGitLfsBegin.substr(0, 8);
/// Ends the message "<path> is ...".
inline constexpr std::string_view kGitLfsPointer =
    "a Git LFS pointer and not the file itself: run `git lfs pull`";

}  // namespace unishard::converters
