#pragma once
#include <string>
#include <vector>

namespace unishard::cli {

enum class Align : unsigned char { Left, Right };

/// Text in aligned columns. Not thread-safe.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::Left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Pre: one cell per column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  /// Returns the table with two blanks between columns and none at the end of a line; the last line
  /// ends with a newline.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Returns the number of characters that a terminal shows: UTF-8 continuation bytes do not count.
std::size_t display_width(const std::string& text);

}  // namespace unishard::cli
