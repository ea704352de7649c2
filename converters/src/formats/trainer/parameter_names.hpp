#pragma once
// Names of the numbered optimizer states of a Trainer or of accelerate. The optimizer has its
// parameters in the order of the model, and a Trainer puts those with and without weight decay into
// two groups.
// Thread safety: pure functions.
#include "unishard/converters/loss.hpp"
#include "unishard/format/catalog.hpp"

#include "formats/dcp/raw_names.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::trainer {

/// What reveals the order of a model's parameters.
struct OrderSource {
  bool is_file_order = false;                  ///< the model's file keeps it: pytorch_model.bin
  std::optional<std::string> model_type = {};  ///< of config.json
  /// The user says that the order is the model's.
  bool is_assumed = false;
};

/// Returns the names of `parameters` if the order of the model is known and only one choice fits;
/// nullopt otherwise. An optimizer without the Trainer's two groups is a script's, whose order is
/// not known. Without a model type every known model that has all parameters counts, and
/// all must agree. Parameters whose shapes differ from each other need no order.
std::optional<std::vector<std::string>> name_parameters(const OrderSource& source,
                                                        const dcp::NumberedParameters& parameters,
                                                        const std::vector<dcp::NamedShape>& model);

}  // namespace unishard::converters::trainer
