#pragma once
// How the functions of unishard_c.h return texts and errors.
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include <cstring>
#include <new>
#include <string>
#include <string_view>

namespace unishard::c_interface {

inline std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Sets `*out` to a text that unishard_free() frees.
inline void set_text(char** out, const Json& json) {
  *out = ::strdup(text_of(json).c_str());
  if (*out == nullptr) throw std::bad_alloc();
}

/// Returns the error as text; the text of the worst case when there is no memory for it.
inline char* error_text(ErrorCode code, std::string_view message, std::string_view hint) {
  try {
    char* text = nullptr;
    set_text(&text, {{"code", to_string(code)}, {"message", message}, {"hint", hint}});
    return text;
  } catch (const std::exception&) {
    return ::strdup(R"({"code":"memory limit","message":"out of memory","hint":""})");
  }
}

/// Calls `work` and returns its exception as the text that the header promises, or a null pointer.
template <class Work>
char* guarded(const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const Error& error) {
    return error_text(error.code(), error.what(), error.hint());
  } catch (const std::bad_alloc&) {
    return error_text(ErrorCode::MemoryLimit, "out of memory", "");
  } catch (const std::exception& error) {
    return error_text(ErrorCode::Internal, error.what(), "please report this");
  }
}

}  // namespace unishard::c_interface
