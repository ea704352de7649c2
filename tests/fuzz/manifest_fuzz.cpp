// The native manifest. Its checksum stops almost every input, so it is put right first. Half of the
// mutations change JSON values.
#include "unishard/format/crc64.hpp"
#include "unishard/format/manifest.hpp"

#include "fuzz.hpp"
#include "mutators.hpp"

#include <fmt/format.h>

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return unishard::fuzz::mutate_half(data, size, max_size, seed, [&](std::string_view text) {
    // The checksum is no JSON line of its own: "{...",<line feed>"format": becomes one object.
    const std::string json = unishard::fuzz::mutate_json(text, seed);
    const std::size_t comma = json.find(',');
    return comma == std::string::npos ? json
                                      : json.substr(0, comma + 1) + "\n" + json.substr(comma + 1);
  });
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unishard::fuzz::expect_error_or_success([&] {
    std::string text(reinterpret_cast<const char*>(data), size);
    if (const std::size_t line = text.find('\n');
        line != std::string::npos && text.starts_with("{\"crc64\":")) {
      const std::string rest = text.substr(line + 1);
      text = fmt::format("{{\"crc64\":\"{}\",\n{}", unishard::hex64(unishard::crc64(rest)), rest);
    }
    const std::string encoded =
        unishard::encode_manifest(unishard::decode_manifest(text, "manifest.json"));
    unishard::fuzz::require(
        unishard::encode_manifest(unishard::decode_manifest(encoded, "manifest.json")) == encoded,
        "a manifest that was read is written and read without a change");
  });
}
