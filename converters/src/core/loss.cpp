#include "unishard/converters/loss.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

namespace unishard::converters {
namespace {

struct Words {
  const char *key, *text;
};
/// By the number of the role: the word of JSON reports, and the one of messages.
constexpr std::array<Words, 11> kRoles = {{{"weight", "weight"},
                                           {"scale", "scales of a quantized weight"},
                                           {"buffer", "buffer"},
                                           {"state", "optimizer state"},
                                           {"optimizer", "optimizer states"},
                                           {"setting", "setting"},
                                           {"client_value", "value"},
                                           {"metadata", "metadata"},
                                           {"side_file", "file"},
                                           {"stale_file", "file of another save"},
                                           {"other_model", "file of other weights"}}};

const Words& words_of(Role role) { return kRoles.at(static_cast<std::size_t>(role)); }

}  // namespace

std::string to_string(Role role) { return words_of(role).key; }

std::string text_of(const Loss& loss) {
  std::string text = fmt::format("{} {}", words_of(loss.role).text, quote(loss.name));
  if (loss.shape) text += fmt::format(" of size ({})", fmt::join(*loss.shape, ", "));
  if (!loss.why.empty()) text += fmt::format(": {}", loss.why);
  return loss.is_kept ? text + ", which is kept as a value" : text;
}

std::vector<std::string> lines_of(const Losses& losses) {
  std::vector<std::string> lines;
  lines.reserve(losses.size());
  for (const Loss& loss : losses)
    lines.push_back((loss.is_kept ? "no tensor: " : "left out: ") + text_of(loss));
  return lines;
}

}  // namespace unishard::converters
