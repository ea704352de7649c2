#pragma once
// The last line of --memory-limit. Readers refuse what a file asks for too much of, with the file's
// name (unishard/format/memory.hpp); whatever they do not count ends here, as std::bad_alloc.
#include <cstdint>

namespace unishard::cli {

/// From now on `operator new` of this program throws when all that it has given out would be above
/// `bytes`.
void set_heap_limit(std::uint64_t bytes);
/// The limit, once it was met; 0 before.
std::uint64_t exceeded_heap_limit();

}  // namespace unishard::cli
