#include "unishard/trainer/runtime.hpp"

#include "unishard/format/error.hpp"

namespace unishard::trainer {

std::string_view name_of(Stream stream) {
  switch (stream) {
    case Stream::Compute:
      return "compute";
    case Stream::Communication:
      return "communication";
    case Stream::Copy:
      return "copy";
  }
  raise(ErrorCode::Internal, "a stream without a name");
}

}  // namespace unishard::trainer
