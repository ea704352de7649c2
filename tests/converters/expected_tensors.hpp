#pragma once
// Compares a checkpoint with expected.safetensors of its fixture, which names tensors "fqn|state".
#include "unishard/converters/source.hpp"

#include "read_source.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>

namespace unishard::converters {

/// The state that holds `<fqn>|<name>` of expected.safetensors.
inline std::optional<std::size_t> counterpart(const Catalog& catalog, const std::string& label) {
  const std::string fqn = label.substr(0, label.rfind('|')),
                    name = label.substr(label.rfind('|') + 1);
  if (const auto found = catalog.find(fqn, name)) return found;
  if (name == "weights") return catalog.find(fqn, state::kFp32);  // a run in fp32
  return std::nullopt;
}

/// Expects the tensors of `expected_path` and no others; of `other_bits`, named as there, another
/// value is allowed. Returns the number of tensors compared.
inline std::size_t compare_tensors(const Source& source, const Path& expected_path,
                                   const std::set<std::string>& other_bits = {}) {
  const auto expected = open_source(posix_storage(), expected_path);
  const Catalog& catalog = source.catalog();
  std::set<std::size_t> used;
  for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
    const TensorInfo& wanted = expected->catalog().tensors[i];
    const auto found = counterpart(catalog, wanted.fqn);
    if (!found) {
      ADD_FAILURE() << wanted.fqn << " is missing";
      continue;
    }
    used.insert(*found);
    const TensorInfo& info = catalog.tensors[*found];
    EXPECT_EQ(name_of(info.dtype), name_of(wanted.dtype)) << wanted.fqn;
    EXPECT_EQ(info.shape, wanted.shape) << wanted.fqn;
    if (other_bits.contains(wanted.fqn)) continue;
    EXPECT_TRUE(read_all(source, *found) == read_all(*expected, i)) << wanted.fqn;
  }
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    EXPECT_TRUE(used.contains(i)) << catalog.tensors[i].label() << " was not expected";
  return expected->catalog().tensors.size();
}

}  // namespace unishard::converters
