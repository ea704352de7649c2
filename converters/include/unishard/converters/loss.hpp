#pragma once
// What the files of a checkpoint hold and its catalog does not, as data. What a verb does about a
// loss depends on its role; the text is for people only, and no code reads it.
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// What a thing of the files is to the program that saved it.
enum class Role : std::uint8_t {
  Weight,       ///< of the model: a parameter, or a tensor that another program would load as one
  Scale,        ///< a tensor without which a quantized weight has no value
  Buffer,       ///< of the model, but not trained
  State,        ///< of the optimizer, for one parameter
  Optimizer,    ///< the states of all parameters of an optimizer
  Setting,      ///< of a parameter group, a schedule, a loss scaler or a counter
  ClientValue,  ///< a value that the user or the trainer added
  Metadata,     ///< of a file: it describes the content and is no part of it
  SideFile,     ///< a file beside the checkpoint's own
  StaleFile,    ///< a file that another save or another program left
  OtherModel,   ///< a file that may hold weights of its own, beside the model that is read
};

struct Loss {
  Role role = Role::Weight;
  std::string name;                 ///< as the files have it: a key, a path, the name of a file
  std::string why = {};             ///< "a sparse tensor"
  std::optional<Shape> shape = {};  ///< of a tensor, where it is known
  bool is_frozen = false;           ///< of a parameter that was not trained
  bool is_kept = false;             ///< the catalog has it as a value of its client state
  bool is_broken = false;           ///< its name is there, and what belongs there is not
  bool is_unreadable = false;  ///< is_broken, and the system cannot read it: no permission, I/O
  bool is_absent = false;      ///< no file here has any of its bytes
  std::uint64_t bytes = 0;     ///< in the files; 0 where that is not known
};
using Losses = std::vector<Loss>;

/// Returns the role as a word of JSON reports: "weight", "state", "client_value", ...
std::string to_string(Role role);

/// Returns true for what a model is not whole without.
inline bool is_weight(Role role) { return role == Role::Weight || role == Role::Scale; }

/// Returns the loss as a line for people: "weight w: a sparse tensor".
std::string text_of(const Loss& loss);

/// Returns "left out: " and text_of() of each loss.
std::vector<std::string> lines_of(const Losses& losses);

}  // namespace unishard::converters
