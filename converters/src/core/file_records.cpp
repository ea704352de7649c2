#include "core/file_records.hpp"

#include "unishard/format/crc64.hpp"

namespace unishard::converters {

std::string digest_of_values(const Catalog& catalog) {
  std::string values;
  for (const Json* section : {&catalog.groups, &catalog.client_state})
    values += SortedJson(*section).dump() + '\n';
  return hex64(crc64(values + std::to_string(catalog.step)));
}

}  // namespace unishard::converters
