#pragma once
// Columns of text, aligned. Pure.
#include <string>
#include <vector>

namespace unishard::cli {

enum class Align : unsigned char { Left, Right };

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
  /// Two blanks between columns, none at the end of a line; the last line ends with a newline.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Characters as a terminal shows them: UTF-8 continuation bytes do not count.
std::size_t display_width(const std::string& text);

}  // namespace unishard::cli
