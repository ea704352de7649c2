#pragma once
// Writes catalogs with the bytes of test::example_bytes() into one file of any format.
#include "unishard/converters/registry.hpp"
#include "unishard/format/crc64.hpp"

#include "make_checkpoint.hpp"
#include "random_parts.hpp"
#include "read_source.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {

using test::weight;

inline Catalog catalog_of(std::vector<TensorInfo> tensors) {
  Catalog catalog;
  catalog.tensors = std::move(tensors);
  return catalog;
}

inline void fill_with_example(Sink& sink, const Catalog& catalog) {
  for (std::size_t i = 0; i < sink.fragments().size(); ++i) {
    const Fragment& fragment = sink.fragments()[i];
    sink.write(i, fragment.range, test::example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
}

/// Writes the file and opens it.
inline std::unique_ptr<Source> write_example_file(const std::string& format, const Path& path,
                                                  const Catalog& catalog) {
  const auto sink =
      make_sink(posix_storage(), {.format = format, .path = path, .tag = {}}, catalog);
  fill_with_example(*sink, catalog);
  sink->commit();
  return open_source(posix_storage(), path);
}

/// Returns the catalog with the digests of what the source gives.
inline Catalog digested(const Source& source) {
  Catalog catalog = source.catalog();
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    catalog.tensors[i].crc64 = crc64(read_all(source, i));
  return catalog;
}

/// Returns the catalog with the digests of test::example_bytes().
inline Catalog with_example_digests(Catalog catalog) {
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    catalog.tensors[i].crc64 = crc64(test::example_bytes(catalog, i, 1));
  return catalog;
}

}  // namespace unishard::converters
