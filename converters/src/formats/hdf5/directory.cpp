#include "formats/hdf5/directory.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/utf8.hpp"

#include "core/embedded_catalog.hpp"
#include "formats/hdf5/element_types.hpp"
#include "formats/hdf5/link_names.hpp"
#include "formats/hdf5/strings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

namespace unishard::converters::hdf5 {
namespace {

constexpr std::size_t kLinks = 1'000'000;
constexpr std::size_t kLinkNameBytes = 65536;
constexpr std::size_t kNamedAttributes = 20;  // in one note
/// Upper bound on the bytes of elements of a file: this number, or kExpansion times the file's size
/// if that is more. HDF5 invents elements that were never written, so a tiny file may claim any
/// number of them; deflate shrinks zeros by a factor of at most 1032.
constexpr std::uint64_t kElementBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kExpansion = 2048;

struct Link {
  std::string name;
  H5L_type_t type;
};

struct Links {
  std::vector<Link> links;
  std::size_t limit;
};

/// No exception may pass through libhdf5, so a positive result ends the walk.
herr_t add_link(hid_t, const char* name, const H5L_info_t* info, void* out) noexcept {
  auto& found = *static_cast<Links*>(out);
  if (found.links.size() >= found.limit) return 1;
  try {
    found.links.push_back({name, info->type});
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

herr_t add_attribute(hid_t, const char* name, const H5A_info_t*, void* out) noexcept {
  auto& names = *static_cast<std::vector<std::string>*>(out);
  if (names.size() > kNamedAttributes) return 1;
  try {
    names.emplace_back(name);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

class Walk {
 public:
  Walk(std::uint64_t file_bytes, const std::string& file_name)
      : file_bytes_(file_bytes), file_name_(file_name) {}

  void root(hid_t id) {
    H5O_info_t info;
    if (H5Oget_info2(id, &info, H5O_INFO_BASIC) < 0) fail("", "the group cannot be read");
    objects_[info.addr].group = "";
    walk_group(id, "", 0);
  }

  Directory take() {
    for (ListedTensor& tensor : directory_.tensors) choose_name(tensor);
    return std::move(directory_);
  }

 private:
  [[noreturn]] void fail(const std::string& path, std::string_view problem) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {}: {}", file_name_, unishard::quote("/" + path), problem));
  }

  void lose(Role role, const std::string& path, std::string why) {
    directory_.losses.push_back({.role = role, .name = "/" + path, .why = std::move(why)});
  }

  void walk_group(hid_t id, const std::string& path, int depth) {
    if (depth > kGroupDepth) fail(path, fmt::format("more than {} groups deep", kGroupDepth));
    note_attributes(id, path);
    for (const Link& link : links_of(id, path)) {
      const std::string child = path.empty() ? link.name : fmt::format("{}/{}", path, link.name);
      if (child.size() > kLinkNameBytes)
        fail(path, fmt::format("a name of more than {} bytes", kLinkNameBytes));
      if (!valid_utf8(child)) {
        lose(Role::Weight, path, "a member whose name is not UTF-8");
        continue;
      }
      if (link.type != H5L_TYPE_HARD) {
        const bool is_soft = link.type == H5L_TYPE_SOFT;
        lose(is_soft ? Role::Metadata : Role::Weight, child,
             is_soft ? "a soft link, which is not followed"
                     : "a link to another file, which is not followed");
        continue;
      }
      object(id, link.name, child, depth);
    }
  }

  std::vector<Link> links_of(hid_t group, const std::string& path) {
    const Hdf5Handle creation(H5Gget_create_plist(group), H5Pclose);
    unsigned order = 0;
    if (creation < 0 || H5Pget_link_creation_order(creation, &order) < 0)
      fail(path, "the group cannot be read");
    const H5_index_t index =
        (order & H5P_CRT_ORDER_TRACKED) != 0 ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
    Links found{{}, kLinks - links_};
    const herr_t result = H5Literate(group, index, H5_ITER_INC, nullptr, add_link, &found);
    if (result < 0) fail(path, fmt::format("the group cannot be read: {}", hdf5_reasons()));
    if (result > 0) fail(path, fmt::format("the file has more than {} links", kLinks));
    links_ += found.links.size();
    return std::move(found.links);
  }

  void object(hid_t group, const std::string& link, const std::string& path, int depth) {
    const Hdf5Handle id(H5Oopen(group, link.c_str(), H5P_DEFAULT), H5Oclose);
    H5O_info_t info;
    if (id < 0 || H5Oget_info2(id, &info, H5O_INFO_BASIC) < 0)
      fail(path, fmt::format("it cannot be opened: {}", hdf5_reasons()));
    const auto [place, is_new] = objects_.emplace(info.addr, Seen{});
    Seen& seen = place->second;
    if (!is_new) return second_name(seen, path);
    if (info.type == H5O_TYPE_GROUP) {
      seen.group = path;
      walk_group(id, path, depth + 1);
    } else if (info.type == H5O_TYPE_DATASET) {
      seen.tensor = data_set(id, path);
    } else {
      lose(Role::Metadata, path, "a named type");
    }
  }

  /// Returns the tensor's number, or nullopt when it is no tensor.
  std::optional<std::size_t> data_set(hid_t id, const std::string& path) {
    if (path == kCatalogKey) {
      directory_.catalog_text = text_of(id, limits::kManifestBytes);
      if (directory_.catalog_text) return std::nullopt;
    }
    auto described = describe_data_set(
        id, file_bytes_, fmt::format("{}: {}", file_name_, unishard::quote("/" + path)));
    if (auto* unreadable = std::get_if<Unreadable>(&described)) {
      lose(unreadable->role, path, std::move(unreadable->why));
      return std::nullopt;
    }
    count_elements(std::get<StoredTensor>(described), path);
    note_attributes(id, path);
    directory_.tensors.push_back({path, name_of_link(path), {}, std::get<StoredTensor>(described)});
    main_names_.push_back(text_attribute(id, kNameAttribute).value_or(""));
    return directory_.tensors.size() - 1;
  }

  void count_elements(const StoredTensor& tensor, const std::string& path) {
    const std::uint64_t bytes = element_count(tensor.shape) * size_of(tensor.dtype);
    element_bytes_ = checked_add(element_bytes_, bytes, "the bytes of all data sets");
    if (element_bytes_ <= kElementBytes || element_bytes_ / kExpansion <= file_bytes_) return;
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {} has {} bytes; the data sets up to it claim {}, which is more than {} "
                      "times the file's {} bytes",
                      file_name_, unishard::quote("/" + path), bytes, element_bytes_, kExpansion,
                      file_bytes_),
          "most elements were never written, and HDF5 would make them up: write the data set in "
          "full, or leave it out of the file");
  }

  struct Seen {
    std::optional<std::size_t> tensor;
    std::optional<std::string> group;
  };

  void second_name(const Seen& seen, const std::string& path) {
    if (seen.tensor) {
      directory_.tensors[*seen.tensor].other_names.push_back(name_of_link(path));
    } else if (seen.group) {
      lose(Role::Metadata, path,
           fmt::format("a second name of the group {}, which is not read again",
                       unishard::quote("/" + *seen.group)));
    } else {
      lose(Role::Metadata, path, "a second name of what is not read");
    }
  }

  /// The attribute `fqn` names which of several names is the tensor's own.
  void choose_name(ListedTensor& tensor) const {
    const auto number = static_cast<std::size_t>(&tensor - directory_.tensors.data());
    const auto found = std::ranges::find(tensor.other_names, main_names_[number]);
    if (found != tensor.other_names.end()) std::swap(tensor.name, *found);
  }

  void note_attributes(hid_t object, const std::string& path) {
    std::vector<std::string> names;
    H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, add_attribute, &names);
    std::erase_if(names, [](const std::string& name) {
      return name == kNameAttribute || name == kDTypeAttribute;
    });
    if (names.empty()) return;
    const bool is_all = names.size() <= kNamedAttributes;
    if (!is_all) names.back() = "...";
    for (std::string& name : names) name = unishard::quote(name);
    lose(Role::Metadata, path, fmt::format("attributes: {}", fmt::join(names, ", ")));
  }

  const std::uint64_t file_bytes_;
  const std::string& file_name_;
  Directory directory_;
  std::vector<std::string> main_names_;  ///< one per tensor; empty: none
  std::unordered_map<haddr_t, Seen> objects_;
  std::size_t links_ = 0;
  std::uint64_t element_bytes_ = 0;  ///< of all tensors so far
};

}  // namespace

Directory list_file(hid_t file, std::uint64_t file_bytes, const std::string& file_name) {
  const Hdf5Handle root(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose);
  if (root < 0) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: its root group cannot be opened: {}", file_name, hdf5_reasons()));
  }
  Walk walk(file_bytes, file_name);
  walk.root(root);
  return walk.take();
}

}  // namespace unishard::converters::hdf5
