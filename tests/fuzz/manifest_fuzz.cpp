// The native manifest. Its checksum stops almost every input, so it is put right first.
#include "unishard/format/crc64.hpp"
#include "unishard/format/manifest.hpp"

#include "fuzz.hpp"

#include <fmt/format.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unishard::fuzz::expect_error_or_success([&] {
    std::string text(reinterpret_cast<const char*>(data), size);
    if (const std::size_t line = text.find('\n');
        line != std::string::npos && text.starts_with("{\"crc64\":")) {
      const std::string rest = text.substr(line + 1);
      text = fmt::format("{{\"crc64\":\"{}\",\n{}", unishard::hex64(unishard::crc64(rest)), rest);
    }
    unishard::decode_manifest(text, "manifest.json");
  });
}
