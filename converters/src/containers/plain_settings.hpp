#pragma once
// Settings of an optimizer's parameter groups as plain data: what a pickle has as an object of
// another library becomes its number, or is lost by name, and the other settings stay.
// Thread safety: pure functions.
#include "unishard/converters/loss.hpp"
#include "unishard/format/json.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Returns the number in a scalar of numpy, as object_tree.hpp describes it; nullopt for other
/// values.
std::optional<Json> number_of_numpy(const Json& value);

/// Returns `value` with a plain number for each of numpy's, at any depth of lists and dicts.
Json with_plain_numbers(Json value);

/// Makes the settings of group `number` plain data. Appends a line about each setting with numbers
/// of numpy to `notes`, and each object to `losses`: of a list, the place of one is null.
void make_settings_plain(Json& group, std::size_t number, std::vector<std::string>& notes,
                         Losses& losses);

}  // namespace unishard::converters::torch
