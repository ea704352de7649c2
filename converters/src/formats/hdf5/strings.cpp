#include "formats/hdf5/strings.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

namespace unishard::converters::hdf5 {
namespace {

using Read = std::function<herr_t(hid_t type, void* out)>;

std::optional<std::string> read_varying(hid_t type, hid_t space, const Read& read,
                                        std::uint64_t limit_bytes) {
  char* text = nullptr;
  if (read(type, &text) < 0 || text == nullptr) return std::nullopt;
  std::optional<std::string> out;
  if (const std::size_t bytes = std::strlen(text); bytes <= limit_bytes) out.emplace(text, bytes);
  H5Dvlen_reclaim(type, space, H5P_DEFAULT, &text);
  return out;
}

void remove_padding(std::string& text, H5T_str_t padding) {
  if (padding == H5T_STR_NULLTERM) {
    text.resize(std::min(text.find('\0'), text.size()));
  } else {
    const char filler = padding == H5T_STR_SPACEPAD ? ' ' : '\0';
    text.resize(text.find_last_not_of(filler) + 1);
  }
}

std::optional<std::string> read_text(hid_t type, hid_t space, const Read& read,
                                     std::uint64_t limit_bytes) {
  if (H5Tget_class(type) != H5T_STRING || H5Sget_simple_extent_npoints(space) != 1)
    return std::nullopt;
  if (H5Tis_variable_str(type) > 0) return read_varying(type, space, read, limit_bytes);
  const std::size_t bytes = H5Tget_size(type);
  if (bytes > limit_bytes) return std::nullopt;
  std::string text(bytes, '\0');
  if (read(type, text.data()) < 0) return std::nullopt;
  remove_padding(text, H5Tget_strpad(type));
  return text;
}

constexpr std::uint64_t kAttributeBytes = 65536;

}  // namespace

std::optional<std::string> text_attribute(hid_t object, const char* name) {
  if (H5Aexists(object, name) <= 0) return std::nullopt;
  const Hdf5Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  return read_text(
      type, space, [&](hid_t as, void* out) { return H5Aread(attribute, as, out); },
      kAttributeBytes);
}

std::optional<std::string> text_of(hid_t data_set, std::uint64_t limit_bytes) {
  const Hdf5Handle type(H5Dget_type(data_set), H5Tclose);
  const Hdf5Handle space(H5Dget_space(data_set), H5Sclose);
  return read_text(
      type, space,
      [&](hid_t as, void* out) {
        return H5Dread(data_set, as, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
      },
      limit_bytes);
}

bool write_text_attribute(hid_t object, const char* name, const std::string& text) {
  const Hdf5Handle type = text_type(text.size());
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
  return attribute >= 0 && H5Awrite(attribute, type, text.data()) >= 0;
}

Hdf5Handle text_type(std::uint64_t bytes) {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, std::max<std::uint64_t>(bytes, 1));
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

}  // namespace unishard::converters::hdf5
