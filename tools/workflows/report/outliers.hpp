#pragma once
// Tensors whose recorded statistics deserve a look.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::tools {

enum class Level : std::uint8_t { Error, Warning, Note };
/// Returns "error", "warning" or "note".
std::string_view name_of(Level level);

struct Outlier {
  std::size_t tensor = 0;  ///< index in Catalog::tensors
  Level level = Level::Note;
  std::string code;  ///< stable, for scripts; tools/README.md lists the codes
  std::string message;
};

/// Returns the outliers, errors first, each kind in the order of the model:
///   nan, inf              NaN or infinite elements
///   negative-variance     a second moment with a negative element
///   all-zero              a matrix, or a moment after the first step, that is zero everywhere
///   update-ratio          the first moment beside the root of the second is far from the model's
///                         median (by kFarRatio), or larger than Adam can make it
///   scale                 the root mean square is far (by kFarScale, second moments by its square)
///   from the median of the same
///                         parameter in the other layers
std::vector<Outlier> find_outliers(const Catalog& catalog);

inline constexpr double kFarRatio = 100, kFarScale = 30;

/// Returns the root mean square of the finite elements; 0 without statistics.
double rms_of(const TensorInfo& tensor);

}  // namespace unishard::tools
