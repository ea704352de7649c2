#include "workflows/llama_input.hpp"

#include "unishard/converters/llama_names.hpp"
#include "unishard/format/error.hpp"

#include "workflows/run_files.hpp"
#include "workflows/side_files.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::tools {

std::unique_ptr<converters::Source> llama_input(std::unique_ptr<converters::Source> source,
                                                const Path& input, std::string_view layout) {
  if (layout != "llama") return source;
  constexpr const char* kParams = "params.json";
  const Path folder = config_folder(*source, input);
  const auto text = read_side_file(folder, kParams);
  if (!text) {
    raise(ErrorCode::NotFound,
          fmt::format("--layout llama: there is no {} beside {}, which tells the number of heads",
                      kParams, input.string()),
          "put Meta's file there");
  }
  const std::string where = (folder / kParams).string();
  return in_order_of_transformers(std::move(source),
                                  converters::parse_attention_heads(*text, where));
}

}  // namespace unishard::tools
