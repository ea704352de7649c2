#include "formats/hdf5/directory_text.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include <fmt/format.h>

namespace unishard::converters::hdf5 {
namespace {

Json encode_tensor(const ListedTensor& tensor) {
  const StoredTensor& stored = tensor.stored;
  return Json::array({tensor.path, tensor.name, tensor.other_names, name_of(stored.dtype),
                      stored.shape, stored.offset ? Json(*stored.offset) : Json(),
                      stored.cache_bytes, stored.has_checksum});
}

ListedTensor decode_tensor(const Json& row) {
  ListedTensor tensor;
  tensor.path = row.at(0).get<std::string>();
  tensor.name = row.at(1).get<std::string>();
  tensor.other_names = row.at(2).get<std::vector<std::string>>();
  const auto dtype = dtype_from_name(row.at(3).get<std::string>());
  if (!dtype) raise(ErrorCode::Corrupt, "an unknown type");
  tensor.stored.dtype = *dtype;
  tensor.stored.shape = row.at(4).get<Shape>();
  if (!row.at(5).is_null()) tensor.stored.offset = row.at(5).get<std::uint64_t>();
  tensor.stored.cache_bytes = row.at(6).get<std::uint64_t>();
  tensor.stored.has_checksum = row.at(7).get<bool>();
  return tensor;
}

Loss decode_loss(const Json& row) {
  const int role = row.at(0).get<int>();
  if (role < 0 || role > static_cast<int>(Role::OtherModel))
    raise(ErrorCode::Corrupt, "an unknown role");
  return {.role = static_cast<Role>(role),
          .name = row.at(1).get<std::string>(),
          .why = row.at(2).get<std::string>()};
}

}  // namespace

std::string encode_directory(const Directory& directory) {
  Json tensors = Json::array();
  for (const ListedTensor& tensor : directory.tensors) tensors.push_back(encode_tensor(tensor));
  Json losses = Json::array();
  for (const Loss& loss : directory.losses)
    losses.push_back(Json::array({static_cast<int>(loss.role), loss.name, loss.why}));
  const Json all = Json::array({std::move(tensors), std::move(losses),
                                directory.catalog_text ? Json(*directory.catalog_text) : Json()});
  std::string text;
  Json::to_cbor(all, text);
  return text;
}

Directory decode_directory(std::string_view text, const std::string& where) {
  Directory directory;
  try {
    const Json all = Json::from_cbor(text);
    for (const Json& row : all.at(0)) directory.tensors.push_back(decode_tensor(row));
    for (const Json& row : all.at(1)) directory.losses.push_back(decode_loss(row));
    if (!all.at(2).is_null()) directory.catalog_text = all.at(2).get<std::string>();
  } catch (const std::exception& error) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", where, error.what()));
  }
  return directory;
}

}  // namespace unishard::converters::hdf5
