#pragma once
// What tests say about errors and files:
//   EXPECT_THAT(error_of([&] { open(path); }), Fails(ErrorCode::Corrupt, "x.h5"));
// Files are read and written through the standard library, so that a mistake in the storage under
// test is not hidden.
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <ranges>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard {

/// Shows an Error in the text of a failed expectation.
inline void PrintTo(const Error& error, std::ostream* out) {
  *out << to_string(error.code()) << ": " << error.what();
  if (!error.hint().empty()) *out << " | hint: " << error.hint();
}

namespace test {

/// Returns the Error that `action` throws; nullopt: it throws nothing. What a derived class adds to
/// an Error is lost.
template <std::invocable Action>
std::optional<Error> thrown_by(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// Returns the Error that `action` throws. An action that throws nothing fails the test, and gives
/// an Internal error.
template <std::invocable Action>
Error error_of(Action&& action) {
  if (auto error = thrown_by(std::forward<Action>(action))) return *std::move(error);
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::Internal, "nothing was thrown"};
}

/// What is expected of a text: a string that it contains, several such strings, or any matcher of
/// gmock.
class Text {
 public:
  template <class Expected>
  Text(const Expected& expected) : matcher_(matcher_for(expected)) {}
  Text(std::initializer_list<std::string> words) : matcher_(all_of(words)) {}

  const testing::Matcher<const std::string&>& matcher() const { return matcher_; }

 private:
  template <class Expected>
  static testing::Matcher<const std::string&> matcher_for(const Expected& expected) {
    if constexpr (std::convertible_to<Expected, std::string_view>) {
      return testing::HasSubstr(std::string(std::string_view(expected)));
    } else if constexpr (std::ranges::range<Expected>) {
      return all_of(expected);
    } else {
      return testing::SafeMatcherCast<const std::string&>(expected);
    }
  }
  template <class Words>
  static testing::Matcher<const std::string&> all_of(const Words& words) {
    std::vector<testing::Matcher<const std::string&>> matchers;
    for (const auto& word : words) matchers.push_back(matcher_for(word));
    return testing::AllOfArray(matchers);
  }

  testing::Matcher<const std::string&> matcher_;
};

/// The matcher that Fails() makes.
class FailsMatcher {
 public:
  using is_gtest_matcher = void;

  FailsMatcher(ErrorCode code, Text message, Text hint)
      : code_(code), message_(std::move(message)), hint_(std::move(hint)) {}

  bool MatchAndExplain(const Error& error, std::ostream* explanation) const {
    const char* difference = nullptr;
    if (error.code() != code_)
      difference = "with another code";
    else if (!message_.matcher().Matches(error.what()))
      difference = "with another message";
    else if (!hint_.matcher().Matches(error.hint()))
      difference = "with another hint";
    if (difference != nullptr && explanation != nullptr) *explanation << difference;
    return difference == nullptr;
  }
  void DescribeTo(std::ostream* out) const {
    *out << "is an error with the code " << to_string(code_) << ", a message that ";
    message_.matcher().DescribeTo(out);
    *out << ", and a hint that ";
    hint_.matcher().DescribeTo(out);
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "not: ";
    DescribeTo(out);
  }

 private:
  ErrorCode code_;
  Text message_, hint_;
};

/// Matches an Error with this code, message and hint.
inline FailsMatcher Fails(ErrorCode code, Text message = testing::_, Text hint = testing::_) {
  return {code, std::move(message), std::move(hint)};
}

/// Returns the message and the hint of an error, for words that may be in either.
inline std::string message_and_hint(const Error& error) {
  return std::string(error.what()) + " | " + error.hint();
}

/// Returns all bytes of a file.
/// Throws: std::runtime_error when it cannot be read.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return bytes;
}

/// Returns the value that a JSON file holds.
inline Json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

/// Writes a file, in place of one that is there, and makes its folder where there is none.
/// Throws: std::runtime_error when it cannot be written.
inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << bytes << std::flush;
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

/// Writes `bytes` over those of a file at `offset`.
/// Pre: they lie in the file.
/// Throws: std::runtime_error when they cannot be written.
inline void overwrite(const std::filesystem::path& path, std::uint64_t offset,
                      std::string_view bytes) {
  if (offset + bytes.size() > std::filesystem::file_size(path))
    throw std::runtime_error(path.string() + " ends before what is to be overwritten");
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes << std::flush;
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

/// Inverts the bits `mask` of one byte of a file. A second call with the same values undoes it.
/// Throws: std::runtime_error when the file has no such byte or cannot be written.
inline void flip_bits(const std::filesystem::path& path, std::uint64_t offset, int mask = 1) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ mask)).flush();
  if (!file)
    throw std::runtime_error("cannot change byte " + std::to_string(offset) + " of " +
                             path.string());
}

/// Returns the bytes of every file below `folder`, by its name from there.
/// Throws: std::runtime_error when one cannot be read.
inline std::map<std::string, std::string> read_files_below(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(folder)] = read_file(entry.path());
  }
  return files;
}

}  // namespace test
}  // namespace unishard
