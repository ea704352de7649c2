// Containers follow torch/serialization.py, tensors follow torch/_utils.py of PyTorch 2.x.
#include "containers/torch_file.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/memory.hpp"

#include "containers/git_lfs.hpp"
#include "containers/module_names.hpp"
#include "containers/plain_objects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace unishard::converters::torch {
namespace {

/// The number 0x1950a86a20f9469cfc6c and STOP. Before it come the protocol and, from protocol 4 on,
/// a frame.
constexpr std::string_view kLegacyMagic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 13);
constexpr std::size_t kLegacyHead = 2 + 9 + 13;
/// Upper bound on a deflated storage, which is inflated into memory.
constexpr std::uint64_t kInflateBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kSmallEntryBytes = 64;
constexpr std::size_t kHeadBytes = 512;

struct TypeName {
  std::string_view storage;  // class in module torch; empty: none
  std::string_view dtype;    // attribute of module torch
  DType type;
};

constexpr std::array<TypeName, 20> kTypeNames = {{
    {"DoubleStorage", "float64", DType::Float64},
    {"FloatStorage", "float32", DType::Float32},
    {"HalfStorage", "float16", DType::Float16},
    {"BFloat16Storage", "bfloat16", DType::BFloat16},
    {"", "float8_e4m3fn", DType::Float8E4M3},
    {"", "float8_e5m2", DType::Float8E5M2},
    {"", "float8_e4m3fnuz", DType::Float8E4M3Fnuz},
    {"", "float8_e5m2fnuz", DType::Float8E5M2Fnuz},
    {"", "float8_e8m0fnu", DType::Float8E8M0},
    {"LongStorage", "int64", DType::Int64},
    {"IntStorage", "int32", DType::Int32},
    {"ShortStorage", "int16", DType::Int16},
    {"CharStorage", "int8", DType::Int8},
    {"", "uint64", DType::UInt64},
    {"", "uint32", DType::UInt32},
    {"", "uint16", DType::UInt16},
    {"ByteStorage", "uint8", DType::UInt8},
    {"BoolStorage", "bool", DType::Bool},
    {"ComplexFloatStorage", "complex64", DType::Complex64},
    {"ComplexDoubleStorage", "complex128", DType::Complex128},
}};

/// Calls that rebuild tensors which are not one dense array, and their names in messages.
struct OtherTensor {
  std::string_view call, what;
};
constexpr std::array<OtherTensor, 9> kOtherTensors = {{
    {"torch._utils._rebuild_sparse_tensor", "a sparse tensor"},
    {"torch._utils._rebuild_sparse_csr_tensor", "a sparse tensor"},
    {"torch._utils._rebuild_qtensor", "a quantized tensor"},
    {"torch._utils._rebuild_nested_tensor", "a nested tensor"},
    {kWrapper, "a tensor subclass (DTensor, ShardedTensor)"},
    {"torch._utils._rebuild_device_tensor_from_numpy", "a tensor kept as a numpy array"},
    {"torch._utils._rebuild_xla_tensor", "a tensor kept as a numpy array"},
    {"torch._tensor._rebuild_from_type", "a tensor subclass"},
    {"torch._utils._rebuild_meta_tensor_no_storage", "a meta tensor"},
}};

constexpr std::string_view kFromCpu = "torch._utils._rebuild_device_tensor_from_cpu_tensor";

/// Fields of wrappers that hold an ordinary tensor under "_tensor" and cast it when it is used or
/// gathered: WeightWithDynamicFloat8CastTensor of torchao and its relatives of other versions. The
/// class may have any name; what holds another tensor than it seems to be has other fields.
constexpr std::array<std::string_view, 2> kCastWrapper = {"_tensor", "_linear_mm_config"};

/// Returns the tensor that a wrapper holds, which has the wrapper's own type and shape; nullopt for
/// every other object. `args` are those of _rebuild_from_type_v2.
std::optional<Value> wrapped_tensor(Value args) {
  if (args.size() != 4 || !args[0].is(NodeKind::Global) || args[0].global() != kWrapper)
    return std::nullopt;
  Value state = args[3];  // a dict, or (dict, slots)
  if (state.is(NodeKind::Tuple) && state.size() > 0) state = state[0];
  if (!state.is_dict()) return std::nullopt;
  for (const std::string_view field : kCastWrapper) {
    if (!state.find(field)) return std::nullopt;
  }
  return state.find(kCastWrapper.front());
}

bool makes_parameter(const std::string& call) {
  return call == "torch._utils._rebuild_parameter" ||
         call == "torch._utils._rebuild_parameter_with_state";
}
bool is_dense(const std::string& call) {
  return call == "torch._utils._rebuild_tensor" || call == "torch._utils._rebuild_tensor_v2" ||
         call == "torch._utils._rebuild_tensor_v3";
}

[[noreturn]] void refuse(const std::string& file, std::string_view what) {
  raise(ErrorCode::Unsupported, fmt::format("{}: {}", file, what));
}

std::string head_of(const Window& window, std::size_t bytes) {
  std::string head(std::min<std::uint64_t>(bytes, window.size), '\0');
  window.read(0, std::as_writable_bytes(std::span(head)));
  return head;
}

std::string small_entry(const ZipReader& zip, std::string_view name) {
  const ZipEntry* entry = zip.find(name);
  if (entry == nullptr) return {};
  std::string text = zip.content(*entry, kSmallEntryBytes);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

/// torch.load reads entries that say nothing here (.format_version, .storage_alignment), and fails
/// where one is damaged.
void check_small_entries(const ZipReader& zip) {
  for (const ZipEntry& entry : zip.entries()) {
    if (!entry.name.starts_with("data/") && entry.bytes <= kSmallEntryBytes)
      zip.content(entry, kSmallEntryBytes);
  }
}

/// The parts of the persistent id of a storage.
struct StorageId {
  std::string key;
  std::string location;
  std::optional<DType> dtype;  // nullopt: untyped, elements count bytes
  std::uint64_t elements = 0;
  // Legacy container: the storage is a part of storage `key`.
  std::uint64_t view_offset = 0;
  std::optional<std::uint64_t> view_elements;

  std::uint64_t width() const { return dtype ? size_of(*dtype) : 1; }
};

StorageId parse_storage_id(Value persistent) {
  if (!persistent.is(NodeKind::Persistent)) {
    raise(ErrorCode::Corrupt,
          fmt::format("a tensor without a storage (found {})", to_string(persistent.kind())));
  }
  const Value pid = persistent.args();
  if (!pid.is(NodeKind::Tuple) || pid.size() < 5 || !pid[0].is(NodeKind::Str) ||
      pid[0].text() != "storage") {
    raise(ErrorCode::Corrupt, "a persistent id that is not a storage");
  }
  const std::string storage_class = pid[1].global();
  StorageId id;
  const bool untyped = storage_class == "torch.storage.UntypedStorage" ||
                       storage_class == "torch.storage._UntypedStorage";
  if (!untyped) {
    id.dtype = dtype_of_global(storage_class);
    if (!id.dtype) {
      const bool is_quantized = storage_class.starts_with("torch.Q");
      raise(is_quantized ? ErrorCode::Unsupported : ErrorCode::Corrupt,
            is_quantized ? fmt::format("a quantized tensor ({})", storage_class)
                         : fmt::format("storage class {} is not known", storage_class));
    }
  }
  id.key = pid[2].text();
  id.location = pid[3].text();
  id.elements = pid[4].unsigned_int();
  if (pid.size() >= 6 && !pid[5].is_none()) {
    id.view_offset = pid[5][1].unsigned_int();
    id.view_elements = pid[5][2].unsigned_int();
  }
  return id;
}

std::vector<std::uint64_t> numbers(Value sequence) {
  if (sequence.size() > limits::kDimensions) {
    raise(ErrorCode::Corrupt, fmt::format("a tensor of {} dimensions", sequence.size()));
  }
  std::vector<std::uint64_t> out;
  for (std::size_t i = 0; i < sequence.size(); ++i) out.push_back(sequence[i].unsigned_int());
  return out;
}

}  // namespace

struct TorchFile::Cache {
  explicit Cache(const std::string& file) : inflated(fmt::format("{}: deflated storages", file)) {}
  std::mutex mutex;
  MemoryBudget inflated;
  std::map<std::string, std::shared_ptr<const StorageBytes>, std::less<>> storages;
};

std::optional<DType> dtype_of_global(std::string_view name) {
  for (const std::string_view module : {"torch.cuda.", "torch."}) {
    if (!name.starts_with(module)) continue;
    const std::string_view attribute = name.substr(module.size());
    for (const TypeName& row : kTypeNames) {
      if (attribute == row.dtype || (!row.storage.empty() && attribute == row.storage))
        return row.type;
    }
  }
  return std::nullopt;
}

TorchFile::TorchFile(Window window, const PickleLimits& limits)
    : window_(std::move(window)), cache_(std::make_shared<Cache>(window_.name())) {
  const std::string head = head_of(window_, kHeadBytes);
  if (head.starts_with("PK\x03\x04")) {
    open_zip(limits);
  } else if (is_torch_head(head)) {
    open_legacy(limits);
  } else if (const auto begin = find_archive(window_)) {  // behind foreign bytes
    window_ = {window_.file, window_.begin + *begin, window_.size - *begin};
    open_zip(limits);
  } else {
    refuse_head(head);
  }
}

void TorchFile::refuse_head(const std::string& head) const {
  if (head.starts_with("PYTORCH1"))
    refuse(name(), "a TorchScript archive of before torch 1.0, not a checkpoint");
  if (head.size() > 262 && head.compare(257, 5, "ustar") == 0) {
    refuse(name(),
           "the tar container of before torch 0.2; load it with an old torch and save it again");
  }
  if (head.empty()) raise(ErrorCode::Corrupt, fmt::format("{}: the file is empty", name()));
  if (head.starts_with(kGitLfsBegin))
    raise(ErrorCode::Unsupported, fmt::format("{} is {}", name(), kGitLfsPointer));
  raise(ErrorCode::Corrupt,
        fmt::format("{}: not a torch.save file (it begins with neither a zip archive nor "
                    "torch's magic number)",
                    name()));
}

void TorchFile::open_zip(const PickleLimits& limits) {
  zip_ = std::make_unique<ZipReader>(window_);
  if (zip_->find("constants.pkl") != nullptr)
    raise(ErrorCode::Unsupported,
          fmt::format("{}: a TorchScript archive (torch.jit.save), not a torch.save file", name()),
          "load it with torch.jit.load() and save its state_dict() with torch.save()");
  if (zip_->find("archive_format") != nullptr)
    raise(ErrorCode::Unsupported,
          fmt::format("{}: a program of torch.export.save(), not a torch.save file", name()),
          "load it with torch.export.load() and save its state_dict with torch.save()");
  const ZipEntry* data = zip_->find("data.pkl");
  if (data == nullptr) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: a zip archive without {}/data.pkl: not a torch.save file", name(),
                      zip_->root()));
  }
  check_small_entries(*zip_);
  std::string version = small_entry(*zip_, "version");
  if (version.empty()) version = small_entry(*zip_, ".data/version");
  const bool known = version.size() <= 2 && !version.empty() &&
                     std::ranges::all_of(version, [](char c) { return c >= '0' && c <= '9'; });
  if (!known || std::stoi(version) < 1 || std::stoi(version) > 10) {
    refuse(name(),
           fmt::format("file format version {} (1 to 10 are read)", unishard::quote(version)));
  }
  const std::string order = small_entry(*zip_, "byteorder");
  if (!order.empty() && order != "little" && order != "big") {
    raise(ErrorCode::Corrupt, fmt::format("{}: byte order {}", name(), unishard::quote(order)));
  }
  big_endian_ = order == "big";
  pickle_ = Pickle::parse(zip_->content(*data, limits.bytes), fmt::format("{}: data.pkl", name()),
                          limits);
}

namespace {

/// Reads the pickles of a legacy stream one after the other without holding the storages.
class PickleStream {
 public:
  PickleStream(const Window& window, const PickleLimits& limits)
      : window_(window), limits_(limits) {}

  /// Returns the next pickle. Its length is not known in advance, so it reads ahead in growing
  /// steps.
  std::unique_ptr<Pickle> next(std::string_view what) {
    const std::uint64_t left = window_.size - at_;
    for (std::uint64_t ahead = 1 << 16;; ahead *= 8) {
      const std::uint64_t bytes = std::min({ahead, left, limits_.bytes});
      MemoryBudget(window_.name()).charge(bytes);
      std::string text(bytes, '\0');
      window_.read(at_, std::as_writable_bytes(std::span(text)));
      try {
        auto pickle = Pickle::parse(
            std::move(text), fmt::format("{}: {} at byte {}", window_.name(), what, at_), limits_);
        at_ += pickle->consumed();
        return pickle;
      } catch (const Error&) {
        if (bytes == left || bytes == limits_.bytes) throw;
      }
    }
  }
  std::uint64_t at() const { return at_; }
  void skip(std::uint64_t bytes) { at_ += bytes; }
  std::uint64_t left() const { return window_.size - at_; }

 private:
  const Window& window_;
  const PickleLimits& limits_;
  std::uint64_t at_ = 0;
};

}  // namespace

void TorchFile::open_legacy(const PickleLimits& limits) {
  PickleStream stream(window_, limits);
  stream.next("magic number");
  const auto protocol = stream.next("protocol number");
  if (protocol->root().integer() != 1001) {
    refuse(name(), fmt::format("legacy container of protocol {} (1001 is read)",
                               protocol->root().integer()));
  }
  const auto system = stream.next("system information");
  const auto little = system->root().find("little_endian");
  big_endian_ = little && !little->boolean();
  pickle_ = stream.next("object");
  const auto keys = stream.next("list of storages");

  std::map<std::string, std::uint64_t> widths;
  for (const NodeId node : pickle_->persistents()) {
    const Value pid = Value(*pickle_, node).args();
    if (pid.is(NodeKind::Tuple) && pid.size() >= 5 && pid[0].is(NodeKind::Str) &&
        pid[0].text() == "storage") {
      const StorageId id = parse_storage_id(Value(*pickle_, node));
      widths[id.key] = id.width();
    }
  }
  for (std::size_t i = 0; i < keys->root().size(); ++i) {
    const std::string key(keys->root()[i].text());
    if (!widths.contains(key)) {
      raise(ErrorCode::Corrupt, fmt::format("{}: storage {} is in no tensor: its size is unknown",
                                            name(), unishard::quote(key)));
    }
    std::uint64_t elements = 0;
    window_.read(stream.at(), std::as_writable_bytes(std::span(&elements, 1)));
    if (big_endian_) elements = __builtin_bswap64(elements);
    stream.skip(sizeof elements);
    const std::uint64_t bytes = checked_mul(elements, widths[key], "bytes of a storage");
    if (bytes > stream.left()) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: truncated: storage {} of {} bytes begins at byte {}", name(),
                        unishard::quote(key), bytes, stream.at()));
    }
    auto storage = std::make_shared<StorageBytes>();
    storage->window = {window_.file, window_.begin + stream.at(), bytes};
    storage->big_endian = big_endian_;
    legacy_[key] = std::move(storage);
    stream.skip(bytes);
  }
  behind_ = stream.left();
}

std::shared_ptr<const StorageBytes> TorchFile::storage(const std::string& key,
                                                       std::uint64_t bytes) const {
  const std::scoped_lock lock(cache_->mutex);
  auto& known = cache_->storages[key];
  if (!known && !zip_) {
    const auto found = legacy_.find(key);
    if (found == legacy_.end())
      raise(ErrorCode::Corrupt, fmt::format("{}: no storage {}", name(), unishard::quote(key)));
    known = found->second;
  }
  if (!known) {
    const ZipEntry* entry = zip_->find(fmt::format("data/{}", key));
    if (entry == nullptr)
      raise(ErrorCode::Corrupt, fmt::format("{}: no entry data/{}", name(), key));
    auto made = std::make_shared<StorageBytes>();
    made->big_endian = big_endian_;
    made->window = {window_.file, window_.begin + zip_->data_offset(*entry), entry->stored_bytes};
    // Zero: torch did not write the data (skip_data), so a checksum cannot cover what was filled in
    // later.
    if (entry->crc32 != 0)
      made->checksum = std::make_shared<EntryChecksum>(entry->bytes, entry->crc32);
    if (entry->deflated) {
      cache_->inflated.charge(entry->bytes);
      made->inflated = std::make_shared<const std::string>(zip_->unchecked(*entry, kInflateBytes));
    }
    known = std::move(made);
  }
  if (known->size() != bytes) {
    raise(ErrorCode::Corrupt, fmt::format("{}: storage {} has {} bytes; the pickle says {}", name(),
                                          unishard::quote(key), known->size(), bytes));
  }
  return known;
}

bool is_torch_head(std::string_view head) {
  if (head.starts_with("PK\x03\x04")) return true;
  return head.starts_with('\x80') && head.substr(0, kLegacyHead).find(kLegacyMagic) != head.npos;
}

bool is_torch_file(const Window& window) {
  if (is_torch_head(head_of(window, kHeadBytes))) return true;
  const auto begin = find_archive(window);
  if (!begin) return false;
  try {
    const ZipReader zip({window.file, window.begin + *begin, window.size - *begin});
    return zip.find("data.pkl") != nullptr;
  } catch (const Error&) {
    return false;  // another program's archive, or a damaged one
  }
}

std::string TorchFile::archive_name() const { return zip_ ? zip_->root() : std::string(); }

std::uint64_t TorchFile::trailing_bytes() const {
  return zip_ ? pickle_->bytes().size() - pickle_->consumed() : behind_;
}

std::size_t TorchFile::unnamed_storages() const {
  if (!zip_) return 0;
  constexpr std::string_view kFolder = "data/";
  std::set<std::string> named;
  for (const NodeId node : pickle_->persistents()) {
    const Value id = Value(*pickle_, node).args();
    if (id.is(NodeKind::Tuple) && id.size() >= 3 && id[2].is(NodeKind::Str))
      named.emplace(id[2].text());
  }
  return static_cast<std::size_t>(std::ranges::count_if(zip_->entries(), [&](const auto& entry) {
    return entry.name.starts_with(kFolder) && !named.contains(entry.name.substr(kFolder.size()));
  }));
}

void note_oddities(const TorchFile& file, std::vector<std::string>& notes) {
  if (const std::uint64_t rest = file.trailing_bytes(); rest > 0)
    notes.push_back(fmt::format(
        "{}: {} bytes behind the {} were not read", file.name(), rest,
        file.archive_name().empty() ? "last storage, maybe a second object," : "pickle's end"));
  if (const std::size_t count = file.unnamed_storages(); count > 0)
    notes.push_back(fmt::format(
        "{}: {} storages in the archive are no tensor's: the pickle has lost what named them",
        file.name(), count));
  if (auto doubt = doubt_about_names(file.root())) notes.push_back(*std::move(doubt));
}

bool TorchFile::is_tensor(Value value) {
  if (!value.is(NodeKind::Object)) return false;
  const std::string call = value.callable_name();
  if (is_dense(call) || makes_parameter(call) || call == kFromCpu || call == kFromType) return true;
  return std::ranges::any_of(kOtherTensors,
                             [&](const OtherTensor& other) { return other.call == call; });
}

bool TorchFile::is_parameter(Value tensor) { return makes_parameter(tensor.callable_name()); }

bool TorchFile::requires_grad(Value tensor) {
  const std::string call = tensor.callable_name();
  const std::size_t flag = makes_parameter(call) ? 1 : 4;
  if (!makes_parameter(call) && !is_dense(call)) return false;
  const Value args = tensor.args();
  return args.size() > flag && args[flag].is(NodeKind::Bool) && args[flag].boolean();
}

std::optional<Value> TorchFile::attributes(Value tensor) {
  if (tensor.calls(kFromType)) return tensor.args()[3];
  if (tensor.calls("torch._utils._rebuild_parameter_with_state")) return tensor.args()[3];
  return std::nullopt;
}

std::optional<Value> TorchFile::user_attributes(Value tensor) {
  if (tensor.calls(kFromType)) {
    const Value maker = tensor.args()[0];
    const bool is_ordinary =
        maker.is(NodeKind::Global) && (is_dense(maker.global()) || makes_parameter(maker.global()));
    if (!is_ordinary) return std::nullopt;
  }
  return attributes(tensor);
}

TensorView TorchFile::dense(Value args, std::size_t dtype_argument) const {
  const StorageId id = parse_storage_id(args[0]);
  TensorView view;
  if (dtype_argument != 0) {
    const std::string dtype = args[dtype_argument].global();
    const auto known = dtype_of_global(dtype);
    if (!known) raise(ErrorCode::Unsupported, fmt::format("element type {}", dtype));
    view.dtype = *known;
  } else if (id.dtype) {
    view.dtype = *id.dtype;
  } else {
    raise(ErrorCode::Corrupt, "an untyped storage in a typed tensor");
  }
  view.offset = args[1].unsigned_int();
  view.shape = numbers(args[2]);
  view.strides = numbers(args[3]);
  if (view.shape.size() != view.strides.size()) {
    raise(ErrorCode::Corrupt, "a tensor with more or fewer strides than dimensions");
  }
  const std::size_t metadata = dtype_argument != 0 ? 7 : 6;
  if (args.size() > metadata && args[metadata].is_dict()) {
    const auto flag = [&](std::string_view key) {
      const auto found = args[metadata].find(key);
      return found && found->boolean();
    };
    view.conjugate = flag("conj");
    view.negative = flag("neg");
  }
  if (id.location == "meta") return view;
  view.storage_key = id.key;
  view.storage = storage(id.key, checked_mul(id.elements, id.width(), "bytes of a storage"));
  if (id.view_elements) {
    if (checked_add(id.view_offset, *id.view_elements, "view of a storage") > id.elements) {
      raise(ErrorCode::Corrupt, "a view outside its storage");
    }
    view.offset = checked_add(view.offset, id.view_offset, "view of a storage");
  }
  validate(view, "its geometry");
  return view;
}

TensorView TorchFile::rebuild(const std::string& call, Value args) const {
  if (call == "torch._utils._rebuild_tensor_v3") return dense(args, 6);
  if (is_dense(call)) return dense(args, 0);
  if (makes_parameter(call) || call == kFromCpu) return tensor(args[0]);
  if (call == kFromType) {
    const std::string type = args[1].global();
    if (const auto inner = wrapped_tensor(args)) return tensor(*inner);
    if (type != "torch.Tensor" && type != "torch.nn.parameter.Parameter") {
      raise(ErrorCode::Unsupported, fmt::format("a tensor subclass ({})", type));
    }
    return rebuild(args[0].global(), args[2]);
  }
  for (const OtherTensor& other : kOtherTensors) {
    if (other.call == call) raise(ErrorCode::Unsupported, std::string(other.what));
  }
  raise(ErrorCode::Corrupt, fmt::format("{} is not a tensor", call.empty() ? "a value" : call));
}

TensorView TorchFile::tensor(Value value) const {
  return rebuild(value.callable_name(), value.args());
}

}  // namespace unishard::converters::torch
