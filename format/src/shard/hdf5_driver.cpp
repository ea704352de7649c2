#include "unishard/format/hdf5_driver.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/hdf5_library.hpp"

#include <fmt/format.h>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace unishard {
namespace {

struct AccessInfo {
  const std::shared_ptr<Hdf5Target>* target;  // valid while the file is being created
};

struct OpenFile {
  H5FD_t base;  // HDF5's part comes first
  std::shared_ptr<Hdf5Target> target;
};

Hdf5Target& target_of(const H5FD_t* file) {
  return *reinterpret_cast<const OpenFile*>(file)->target;
}

template <class Action>
herr_t keep_failure(H5FD_t* file, const Action& action) {
  Hdf5Target& target = target_of(file);
  try {
    if (target.file != nullptr) action(*target.file);
  } catch (...) {
    target.failure = std::current_exception();
    target.file = nullptr;
  }
  return 0;
}

H5FD_t* open_file(const char*, unsigned, hid_t access, haddr_t) {
  const auto* const info = static_cast<const AccessInfo*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  auto* const file = new (std::nothrow) OpenFile{};
  if (file == nullptr) return nullptr;
  file->target = *info->target;
  return &file->base;
}

herr_t close_file(H5FD_t* file) {
  delete reinterpret_cast<OpenFile*>(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA |
           H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t end_of_allocation(const H5FD_t* file, H5FD_mem_t) { return target_of(file).end; }

herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  target_of(file).end = end;
  return 0;
}

// The file itself may be longer, because space is reserved in it.
haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t) { return target_of(file).end; }

// Allocated bytes that are not written yet read as zeros.
herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, std::size_t bytes, void* out) {
  std::memset(out, 0, bytes);
  return keep_failure(file, [&](File& target) {
    const std::uint64_t size = target.size();
    if (at >= size) return;
    target.read_at(at, {static_cast<std::byte*>(out), std::min<std::uint64_t>(bytes, size - at)});
  });
}

herr_t write(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t at, std::size_t bytes,
             const void* data) {
  if (type == H5FD_MEM_DRAW && target_of(file).places_raw_data) {
    target_of(file).raw_data_at = at;
    return 0;
  }
  return keep_failure(file, [&](File& target) {
    target.write_at(at, {static_cast<const std::byte*>(data), bytes});
  });
}

hid_t registered_driver() {
  static const hid_t driver = [] {
    H5FD_class_t callbacks;
    std::memset(&callbacks, 0, sizeof(callbacks));
#if H5_VERSION_GE(1, 13, 0)
    callbacks.version = H5FD_CLASS_VERSION;
    callbacks.value = static_cast<H5FD_class_value_t>(5748);  // a number that no other driver has
#endif
    callbacks.name = "unishard";
    callbacks.maxaddr = (haddr_t{1} << 62) - 1;
    callbacks.fc_degree = H5F_CLOSE_STRONG;
    callbacks.fapl_size = sizeof(AccessInfo);
    callbacks.open = open_file;
    callbacks.close = close_file;
    callbacks.query = query;
    callbacks.get_eoa = end_of_allocation;
    callbacks.set_eoa = set_end_of_allocation;
    callbacks.get_eof = end_of_file;
    callbacks.read = read;
    callbacks.write = write;
    constexpr H5FD_mem_t kKinds[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(kKinds), std::end(kKinds), callbacks.fl_map);
    return H5FDregister(&callbacks);
  }();
  return driver;
}

}  // namespace

void raise_hdf5_failure(const Path& path, std::string_view action) {
  raise(ErrorCode::Io,
        fmt::format("{}: HDF5 failed to {}: {}", path.native(), action, hdf5_reasons()),
        "check free space and permissions of the folder");
}

herr_t set_hdf5_driver(hid_t access, const std::shared_ptr<Hdf5Target>& target) {
  const AccessInfo info{&target};
  return H5Pset_driver(access, registered_driver(), &info);
}

}  // namespace unishard
