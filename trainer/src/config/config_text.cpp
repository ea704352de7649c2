// The text of a configuration file. DeepSpeed reads Hjson; of that, what files use are comments and
// commas before a closing bracket.
#include "unishard/format/error.hpp"
#include "unishard/trainer/config.hpp"

#include <fmt/format.h>

#include <string>

namespace unishard::trainer {
namespace {

/// Replaces what JSON does not have by spaces, so that positions in messages stay right.
class PlainText {
 public:
  /// `what` begins messages.
  PlainText(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  std::string take() {
    while (at_ < text_.size()) {
      if (text_[at_] == '"') {
        skip_string();
      } else if (begins("//") || begins("#")) {
        blank_until("\n");
      } else if (begins("/*")) {
        if (text_.find("*/", at_ + 2) == text_.npos)
          raise(ErrorCode::InvalidArgument,
                fmt::format("{}: the comment at byte {} has no end", what_, at_));
        blank_until("*/");
      } else {
        skip_character();
      }
    }
    return std::move(text_);
  }

 private:
  bool begins(std::string_view word) const {
    return std::string_view(text_).substr(at_).starts_with(word);
  }
  void skip_string() {
    comma_ = text_.npos;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    ++at_;
  }
  void blank_until(std::string_view end) {
    const std::size_t found = text_.find(end, at_ + end.size());
    const std::size_t stop = found == text_.npos ? text_.size() : found + end.size();
    for (; at_ < stop; ++at_)
      if (text_[at_] != '\n') text_[at_] = ' ';
  }
  void skip_character() {
    const char c = text_[at_];
    if ((c == '}' || c == ']') && comma_ != text_.npos) text_[comma_] = ' ';
    const bool is_space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (c == ',') {
      comma_ = at_;
    } else if (!is_space) {
      comma_ = text_.npos;
    }
    ++at_;
  }

  std::string text_;
  std::string_view what_;
  std::size_t at_ = 0;
  std::size_t comma_ = std::string::npos;  ///< the last character but spaces and comments
};

}  // namespace

Json parse_config_text(std::string_view text, std::string_view what) {
  try {
    return parse_json(PlainText(text, what).take(), what);
  } catch (const Error& error) {
    raise(ErrorCode::InvalidArgument, error.what(), error.hint());
  }
}

Json read_config_file(const Path& file) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
  std::string text;
  try {
    text = read_text(posix_storage(), file, kMostBytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt) throw;
    raise(ErrorCode::InvalidArgument, error.what(), error.hint());  // the user named it
  }
  return parse_config_text(text, file.native());
}

}  // namespace unishard::trainer
