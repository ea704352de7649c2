#include "unishard/converters/planned_state_dict.hpp"

#include "python/c_catalog.hpp"
#include "python/c_texts.hpp"
#include "unishard_c.h"

using namespace unishard;

char* unishard_plan_state_dict(const char* described, char** out) {
  return c_interface::guarded([&] {
    const converters::PlannedStateDict planned =
        converters::plan_state_dict(parse_json(described, "the state dict"));
    Json json = c_interface::catalog_json(planned.catalog);
    for (std::size_t i = 0; i < planned.keys.size(); ++i)
      json["tensors"][i]["key"] = planned.keys[i];
    std::vector<std::string> notes = lines_of(planned.losses);
    notes.insert(notes.end(), planned.notes.begin(), planned.notes.end());
    json["notes"] = std::move(notes);
    json["remarks"] = planned.remarks;
    c_interface::set_text(out, json);
  });
}
