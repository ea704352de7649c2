#pragma once
#include "unishard/format/observer.hpp"

#include "team/team.hpp"

namespace unishard::tools {

/// Stops long work soon after another process of the team has failed: advance() calls
/// Team::check().
class TeamObserver final : public Observer {
 public:
  /// Lifetime: both arguments must outlive this object.
  TeamObserver(const Team& team, Observer& inner) : team_(team), inner_(inner) {}

  void begin(std::string_view what, std::uint64_t total_bytes) override {
    inner_.begin(what, total_bytes);
  }
  void advance(std::uint64_t bytes) override {
    team_.check();
    inner_.advance(bytes);
  }
  void end() override { inner_.end(); }

 private:
  const Team& team_;
  Observer& inner_;
};

}  // namespace unishard::tools
