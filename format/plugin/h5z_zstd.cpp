// HDF5 filter 32015 (zstd, a number registered with The HDF Group) as a plug-in for other HDF5
// programs that read compressed checkpoints: add this library's folder to HDF5_PLUGIN_PATH.
// UniShard itself does not need it. A chunk is one zstd frame, which records the size of its
// content.
#include <H5PLextern.h>
#include <zstd.h>

#include <cstdlib>

namespace {

constexpr H5Z_filter_t kZstdFilter = 32015;
constexpr int kDefaultLevel = 3;

/// Replaces HDF5's buffer, which was allocated by malloc; returns the size of the new content, 0 on
/// failure.
std::size_t replace(void** buffer, std::size_t* capacity, void* made, std::size_t made_capacity,
                    std::size_t size) {
  if (ZSTD_isError(size)) {
    std::free(made);
    return 0;
  }
  std::free(*buffer);
  *buffer = made;
  *capacity = made_capacity;
  return size;
}

std::size_t filter(unsigned flags, std::size_t parameters, const unsigned* values,
                   std::size_t bytes, std::size_t* capacity, void** buffer) {
  if ((flags & H5Z_FLAG_REVERSE) != 0) {
    const unsigned long long content = ZSTD_getFrameContentSize(*buffer, bytes);
    if (content == ZSTD_CONTENTSIZE_UNKNOWN || content == ZSTD_CONTENTSIZE_ERROR ||
        content > (1ULL << 32))
      return 0;
    void* const made = std::malloc(content == 0 ? 1 : content);
    if (made == nullptr) return 0;
    return replace(buffer, capacity, made, content, ZSTD_decompress(made, content, *buffer, bytes));
  }
  const std::size_t bound = ZSTD_compressBound(bytes);
  void* const made = std::malloc(bound);
  if (made == nullptr) return 0;
  const int level = parameters > 0 ? static_cast<int>(values[0]) : kDefaultLevel;
  return replace(buffer, capacity, made, bound, ZSTD_compress(made, bound, *buffer, bytes, level));
}

const H5Z_class2_t kClass = {
    H5Z_CLASS_T_VERS, kZstdFilter, 1,     1, "zstd (https://github.com/facebook/zstd)",
    nullptr,          nullptr,     filter};

}  // namespace

extern "C" {
H5PL_type_t H5PLget_plugin_type() { return H5PL_TYPE_FILTER; }
const void* H5PLget_plugin_info() { return &kClass; }
}
