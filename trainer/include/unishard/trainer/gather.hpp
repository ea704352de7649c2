#pragma once
#include <cstdint>

namespace unishard::trainer {

/// What happens to a flat tensor that gets gradients.
enum class Gather : std::uint8_t {
  Copy,   ///< it gets their values, which have its type, and zeros elsewhere
  Begin,  ///< float32: it gets zero plus each of them, and zeros elsewhere
  Add,    ///< float32: they are added to what is there
};

}  // namespace unishard::trainer
