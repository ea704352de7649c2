#pragma once
// Writes the states of an optimizer that are no tensors.
#include "unishard/converters/optimizer_scalars.hpp"

#include "containers/archive_draft.hpp"

#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Appends a step counter, as OptimizerScalars::step() returns it, to the open dict of an archive's
/// pickle.
void write_step(ArchiveDraft& file, const Json& step);
/// Returns the values of the parameter `fqn` by state. Adds a line to `notes` for each that cannot
/// be written.
Json::object_t writable_scalars(const OptimizerScalars& scalars, const std::string& fqn,
                                std::vector<std::string>& notes);

}  // namespace unishard::converters::torch
