#include "views/table.hpp"

#include "unishard/format/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::cli {

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string Table::text() const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    widths.push_back(display_width(column.title));
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(printable(row[i])));
    }
  }
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = printable(cells[i]);
      const std::string padding(widths[i] - display_width(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::Right ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line(titles);
  for (const auto& row : rows_) add_line(row);
  return out;
}

}  // namespace unishard::cli
