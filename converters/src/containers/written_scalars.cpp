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

void write_scalars(ArchiveDraft& file, const OptimizerScalars& scalars, const std::string& fqn,
                   std::vector<std::string>& notes) {
  Json::object_t members;
  for (const auto& [state, value] : scalars.of(fqn)) members.push_back({state, *value});
  const Json kept = without_unwritable(Json(std::move(members)),
                                       fmt::format("optimizer state of {}", fqn), notes);
  for (const auto& [state, value] : kept.items()) {
    file.pickle.str(state);
    write_json(file.pickle, value, refuse_tensor);
  }
}

}  // namespace unishard::converters::torch
