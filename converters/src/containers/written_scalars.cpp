#include "containers/written_scalars.hpp"

#include "containers/pickle_json.hpp"

#include <fmt/format.h>

namespace unishard::converters::torch {

void write_step(ArchiveDraft& file, const Json& step) {
  if (step.is_null()) return;
  file.pickle.str("step");
  if (step.is_number_float()) return file.scalar(step.get<float>());
  file.pickle.integer(step.get<std::int64_t>());
}

Json::object_t writable_scalars(const OptimizerScalars& scalars, const std::string& fqn,
                                std::vector<std::string>& notes) {
  Json::object_t members;
  for (const auto& [state, value] : scalars.of(fqn)) members.push_back({state, *value});
  Json kept = without_unwritable(Json(std::move(members)),
                                 fmt::format("optimizer state of {}", fqn), notes);
  return std::move(kept.get_ref<Json::object_t&>());
}

}  // namespace unishard::converters::torch
