#pragma once
// The file by which other programs find a launcher, as with DeepSpeed's --save_pid.
#include <string>

namespace unishard::tools {

/// Exists as long as this object: `<folder>/<number>.deepspeed`, with the number of this process.
class PidFile {
 public:
  /// Throws: AlreadyExists when the file is there; Io.
  explicit PidFile(const std::string& folder);
  ~PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace unishard::tools
