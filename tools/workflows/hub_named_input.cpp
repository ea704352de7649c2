#include "workflows/hub_named_input.hpp"

#include "unishard/format/json.hpp"

#include "workflows/model_config.hpp"
#include "workflows/run_files.hpp"
#include "workflows/side_files.hpp"

#include <optional>
#include <string>
#include <utility>

namespace unishard::tools {
namespace {

/// Returns an empty text where there is none.
std::string model_config_of(const converters::Source& source, const Path& input) {
  if (auto text = read_side_file(config_folder(source, input), "config.json")) return *text;
  const Json& client = source.catalog().client_state;
  const std::string key(kModelConfigKey);
  return client.is_object() && client.contains(key) ? config_text(client[key]) : std::string();
}

}  // namespace

converters::HubNamed hub_named_input(std::unique_ptr<converters::Source> source,
                                     const Path& input) {
  const std::string config = model_config_of(*source, input);
  return converters::hub_named(std::move(source), config);
}

}  // namespace unishard::tools
