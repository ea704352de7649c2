#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace unishard::cli {

enum class Style : unsigned char { Plain, Good, Bad, Notice };

/// Text whose parts have a style, which print() may show as a colour. Not thread-safe.
class StyledText {
 public:
  struct Part {
    std::string text;
    Style style;
  };

  void add(std::string text, Style style = Style::Plain) {
    parts_.push_back({std::move(text), style});
  }
  const std::vector<Part>& parts() const { return parts_; }
  /// Returns the text without styles.
  std::string plain() const {
    std::string out;
    for (const Part& part : parts_) out += part.text;
    return out;
  }

 private:
  std::vector<Part> parts_;
};

}  // namespace unishard::cli
