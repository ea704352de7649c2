#include "mutators.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/zip_reader.hpp"
#include "memory_storage.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <span>

namespace unishard::fuzz {
namespace {

using Random = std::mt19937_64;

/// Length of the opcode at the front of `program`, its argument included; nullopt when cut off.
std::optional<std::size_t> opcode_bytes(std::string_view program) {
  const auto little = [&](std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i > 0; --i)
      value = value << 8 | static_cast<unsigned char>(i < program.size() ? program[i] : 0);
    return value;
  };
  const auto lines = [&](int count) -> std::optional<std::size_t> {
    std::size_t at = 1;
    for (; count > 0; --count, ++at) {
      at = program.find('\n', at);
      if (at == std::string_view::npos) return std::nullopt;
    }
    return at;
  };
  std::uint64_t bytes = 1;
  switch (static_cast<unsigned char>(program.front())) {
    case 'K':
    case 'q':
    case 'h':
    case 0x80:
    case 0x82:
      bytes = 2;
      break;
    case 'M':
    case 0x83:
      bytes = 3;
      break;
    case 'J':
    case 'r':
    case 'j':
    case 0x84:
      bytes = 5;
      break;
    case 'G':
    case 0x95:
      bytes = 9;
      break;
    case 'U':
    case 'C':
    case 0x8a:
    case 0x8c:
      bytes = 2 + little(1);
      break;
    case 'X':
    case 'B':
    case 'T':
    case 0x8b:
      bytes = 5 + little(4);
      break;
    case 0x8d:
    case 0x8e:
    case 0x96:
      bytes = 9 + std::min<std::uint64_t>(little(8), 1u << 30);
      break;
    case 'I':
    case 'L':
    case 'F':
    case 'S':
    case 'V':
    case 'p':
    case 'g':
    case 'P':
      return lines(1);
    case 'c':
    case 'i':
      return lines(2);
    default:
      break;
  }
  if (bytes > program.size()) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

std::vector<std::string> opcodes_of(std::string_view program) {
  std::vector<std::string> out;
  while (!program.empty()) {
    const std::size_t bytes = opcode_bytes(program).value_or(program.size());
    out.emplace_back(program.substr(0, bytes));
    program.remove_prefix(bytes);
  }
  return out;
}

/// One opcode of each kind that a checkpoint may have, and names that mean something to readers.
std::string some_opcode(Random& random) {
  static const std::array<std::string, 40> kOpcodes = {
      std::string("N"),
      "\x88",
      "\x89",
      ")",
      "]",
      "}",
      "(",
      "t",
      "l",
      "d",
      "a",
      "e",
      "s",
      "u",
      "R",
      "b",
      "0",
      "1",
      "2",
      "Q",
      "o",
      "\x81",
      "\x85",
      "\x86",
      "\x87",
      "\x8f",
      "\x90",
      "\x91",
      "\x92",
      "\x93",
      "\x94",
      ".",
      std::string("K\x01"),
      std::string("J\xff\xff\xff\x7f"),
      std::string("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
      std::string("G\x7f\xf8\0\0\0\0\0\0", 9),
      std::string("X\x07\0\0\0storage", 12),
      std::string("ctorch._utils\n_rebuild_tensor_v2\n"),
      std::string("ctorch\nFloatStorage\n"),
      std::string("ccollections\nOrderedDict\n")};
  return kOpcodes[random() % kOpcodes.size()];
}

void collect(Json& json, std::vector<Json*>& out) {
  out.push_back(&json);
  if (!json.is_structured()) return;
  for (Json& item : json) collect(item, out);
}

Json odd_value(Random& random) {
  static const std::array<Json, 16> kValues = {Json(nullptr),
                                               Json(true),
                                               Json(0),
                                               Json(-1),
                                               Json(1),
                                               Json(std::uint64_t{1} << 32),
                                               Json(std::uint64_t{1} << 63),
                                               Json(std::numeric_limits<std::uint64_t>::max()),
                                               Json(std::numeric_limits<std::int64_t>::min()),
                                               Json(0.5),
                                               Json(""),
                                               Json("../x"),
                                               Json("fp32"),
                                               Json("0000000000000000"),
                                               Json::array(),
                                               Json::object()};
  return kValues[random() % kValues.size()];
}

void change(Json& json, Random& random) {
  std::vector<Json*> all;
  collect(json, all);
  Json& chosen = *all[random() % all.size()];
  const std::size_t other = random() % all.size();
  switch (random() % 5) {
    case 0:
      chosen = odd_value(random);
      break;
    case 1:
      if (chosen.is_structured() && !chosen.empty())
        chosen.erase(
            std::next(chosen.begin(), static_cast<std::ptrdiff_t>(random() % chosen.size())));
      break;
    case 2:
      if (chosen.is_array() && !chosen.empty())
        chosen.push_back(Json(chosen[random() % chosen.size()]));
      break;
    case 3:
      if (chosen.is_number_integer())
        chosen =
            static_cast<std::int64_t>(chosen.get<std::uint64_t>() + random() % 9 - 4);  // wraps
      break;
    default:
      chosen = Json(*all[other]);
  }
}

void append(std::string& out, std::uint64_t value, int bytes) {
  for (; bytes > 0; --bytes, value >>= 8) out += static_cast<char>(value & 0xff);
}

std::uint32_t crc32_of(const std::string& bytes) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

/// Returns raw DEFLATE data, without zlib's header and trailer.
std::string deflated(const std::string& bytes) {
  constexpr std::size_t kHeader = 2, kTrailer = 4;
  uLongf size = ::compressBound(static_cast<uLong>(bytes.size()));
  std::string out(size, '\0');
  ::compress2(reinterpret_cast<Bytef*>(out.data()), &size,
              reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uLong>(bytes.size()),
              Z_BEST_SPEED);
  return out.substr(kHeader, size - kHeader - kTrailer);
}

struct ZipFacts {
  std::uint32_t crc32;
  std::size_t bytes;
  ZipMethod method;
};

/// What local header and directory entry have in common, from the version on.
void append_facts(std::string& out, const std::string& name, const std::string& stored,
                  const ZipFacts& facts, std::size_t extra) {
  constexpr int kStored = 0, kDeflated = 8;
  append(out, 20, 2);
  append(out, 0, 2);  // flags
  append(out, facts.method == ZipMethod::Stored ? kStored : kDeflated, 2);
  append(out, 0, 4);  // time, date
  append(out, facts.crc32, 4);
  append(out, stored.size(), 4);
  append(out, facts.bytes, 4);
  append(out, name.size(), 2);
  append(out, extra, 2);
}

/// Changes bytes at random places, or the length.
std::string mutate_bytes(std::string bytes, Random& random) {
  if (bytes.empty() || random() % 4 == 0) {
    bytes.resize(random() % (2 * bytes.size() + 2));
    return bytes;
  }
  for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes)
    bytes[random() % bytes.size()] = static_cast<char>(random() & 0xff);
  return bytes;
}

/// The mutation that suits the file's name and content.
std::string mutate_file(const std::string& name, const std::string& bytes, Random& random) {
  std::string made;
  if (random() % 8 != 0) {
    if (name.ends_with(".metadata") || name.ends_with(".pkl"))
      made = mutate_pickle(bytes, random());
    else if (name.ends_with(".json"))
      made = mutate_json(bytes, random());
    else
      made = mutate_torch_file(bytes, random());
  }
  return made.empty() ? mutate_bytes(bytes, random) : made;
}

}  // namespace

std::string mutate_pickle(std::string_view program, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::string> opcodes = opcodes_of(program);
  if (opcodes.empty()) opcodes.emplace_back("N");
  for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    const std::size_t at = random() % opcodes.size(), other = random() % opcodes.size();
    const auto here = opcodes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 6) {
      case 0:
        if (opcodes.size() > 1) opcodes.erase(here);
        break;
      case 1:
        opcodes.insert(here, std::string(opcodes[other]));
        break;
      case 2:
        std::swap(opcodes[at], opcodes[other]);
        break;
      case 3:
        opcodes.insert(here, some_opcode(random));
        break;
      case 4:
        *here = some_opcode(random);
        break;
      default:
        here->at(random() % here->size()) = static_cast<char>(random() & 0xff);
    }
  }
  std::string out;
  for (const std::string& opcode : opcodes) out += opcode;
  return out;
}

std::string mutate_json(std::string_view text, std::uint64_t seed) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return {};
  Random random(seed);
  for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) change(json, random);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string zip_of(const ZipFiles& files, ZipMethod method) {
  constexpr std::size_t kAlign = 64, kHeaderBytes = 30;
  std::string out, directory;
  for (const auto& [name, bytes] : files) {
    const std::string stored = method == ZipMethod::Stored ? bytes : deflated(bytes);
    const ZipFacts facts{crc32_of(bytes), bytes.size(), method};
    const std::size_t begin = out.size(), fixed = begin + kHeaderBytes + name.size() + 4;
    const std::size_t padding = (kAlign - fixed % kAlign) % kAlign;
    append(out, 0x04034b50, 4);
    append_facts(out, name, stored, facts, 4 + padding);
    out += name + "FB";
    append(out, padding, 2);
    out.append(padding, 'Z');
    out += stored;
    append(directory, 0x02014b50, 4);
    append(directory, 20, 2);
    append_facts(directory, name, stored, facts, 0);
    append(directory, 0, 10);  // comment, disk, attributes
    append(directory, begin, 4);
    directory += name;
  }
  const std::size_t begin = out.size();
  out += directory;
  append(out, 0x06054b50, 4);
  append(out, 0, 4);
  append(out, files.size(), 2);
  append(out, files.size(), 2);
  append(out, directory.size(), 4);
  append(out, begin, 4);
  append(out, 0, 2);
  return out;
}

ZipFiles files_of(std::string_view zip) {
  constexpr std::uint64_t kLimit = 1 << 20;
  namespace torch = converters::torch;
  ZipFiles files;
  try {
    test::MemoryStorage storage;
    storage.put("zip", std::string(zip));
    const torch::ZipReader reader(torch::whole_file(storage, "zip"), torch::ZipReader::Root::None);
    for (const torch::ZipEntry& entry : reader.entries())
      files.emplace_back(entry.name, reader.content(entry, kLimit));
  } catch (const Error&) {
    return {};
  }
  return files;
}

std::string mutate_torch_file(std::string_view zip, std::uint64_t seed) {
  ZipFiles files = files_of(zip);
  const auto pickle = std::ranges::find_if(
      files, [](const auto& file) { return file.first.ends_with("/data.pkl"); });
  if (pickle == files.end()) return {};
  if (seed % 8 != 0) {
    pickle->second = mutate_pickle(pickle->second, seed);
  } else if (seed % 16 == 0) {
    files.erase(files.begin() + static_cast<std::ptrdiff_t>(seed / 16 % files.size()));
  } else {
    std::string& bytes = files[seed / 16 % files.size()].second;
    bytes.resize(seed / 64 % (2 * bytes.size() + 1));
  }
  return zip_of(files);
}

std::string mutate_arrays(std::string_view zip, std::uint64_t seed) {
  constexpr std::size_t kHeaderBytes = 128;
  static constexpr std::string_view kText = "0123456789(),'<>|{}:LTFOVUfiucb \\";
  ZipFiles files = files_of(zip);
  if (files.empty()) return {};
  Random random(seed);
  std::string& bytes = files[random() % files.size()].second;
  if (bytes.empty() || random() % 4 == 0) {
    bytes = mutate_bytes(bytes, random);
  } else {
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes)
      bytes[random() % std::min(bytes.size(), kHeaderBytes)] = kText[random() % kText.size()];
  }
  if (random() % 16 == 0) files.pop_back();
  return zip_of(files, random() % 2 == 0 ? ZipMethod::Stored : ZipMethod::Deflated);
}

std::string mutate_folder(std::string_view zip, std::uint64_t seed) {
  ZipFiles files = files_of(zip);
  if (files.empty()) return {};
  Random random(seed);
  const std::size_t chosen = random() % files.size();
  auto& [name, bytes] = files[chosen];
  if (random() % 16 == 0)
    files.erase(files.begin() + static_cast<std::ptrdiff_t>(chosen));
  else if (random() % 16 == 0)
    bytes = files[random() % files.size()].second;
  else
    bytes = mutate_file(name, bytes, random);
  return zip_of(files, ZipMethod::Deflated);
}

}  // namespace unishard::fuzz
