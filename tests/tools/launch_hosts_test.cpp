// What `unishard launch` reads before it starts anything: hostfiles, filters, environment files,
// and what it writes for ssh and for its agents.
#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "expect.hpp"
#include "launch/environment_file.hpp"
#include "launch/failure_policy.hpp"
#include "launch/host_addresses.hpp"
#include "launch/host_job.hpp"
#include "launch/hostfile.hpp"
#include "launch/message.hpp"
#include "launch/remote_host.hpp"
#include "launch/ssh_command.hpp"
#include "process.hpp"
#include "team/packed_texts.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>

namespace unishard::tools {
namespace {

using test::TempDir;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const std::vector<HostSlots>& hosts) {
  std::string out;
  for (const HostSlots& host : hosts) {
    out += (out.empty() ? "" : " ") + host.name;
    for (const std::uint32_t slot : host.slots) out += ":" + std::to_string(slot);
  }
  return out;
}

std::string hosts_in(const std::string& text) { return text_of(parse_hostfile(text, "hosts")); }

/// Returns the message of the error that `body` raises.
template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    return error.what();
  }
  return "accepted";
}

std::string refusal_of(const std::string& text) {
  return refusal([&] { parse_hostfile(text, "hosts"); });
}

TEST(Hostfile, HasHostsSlotsCommentsAndBlankLines) {
  EXPECT_EQ(hosts_in("# first\n\n  worker-0 slots=2\nworker-1\tslots=1 # second\r\n"
                     "user@10.0.0.7  slots=0\nfe80::1%eth0 slots=1 max_slots=4"),
            "worker-0:0:1 worker-1:0 user@10.0.0.7 fe80::1%eth0:0");
}

TEST(Hostfile, RefusesOtherLines) {
  EXPECT_EQ(refusal_of("a slots=1\n\nb 4\n"), "hosts, line 3: \"b 4\" is not `NAME slots=N`");
  for (const char* line :
       {"a", "a slots=", "a slots=-1", "a slots=1x", "a slots=1 slots=2", "a slots=99999999999",
        "a slots = 1", "slots=4", "a slots=1 max_slots=x"}) {
    EXPECT_THAT(refusal_of(line), HasSubstr("is not `NAME slots=N`")) << line;
  }
  EXPECT_THAT(refusal_of("a slots=4097"), HasSubstr("4097 slots are more than 4096"));
  EXPECT_THAT(refusal_of("# none\n"), HasSubstr("there is no host in it"));
  EXPECT_THAT(refusal_of("a slots=1\nb slots=1\na slots=2\n"), HasSubstr("\"a\" is there twice"));
  std::string many;
  for (int i = 0; i <= 4096; ++i) many += "h" + std::to_string(i) + " slots=1\n";
  EXPECT_THAT(refusal_of(many), HasSubstr("line 4097: more than 4096 hosts"));
}

TEST(Hostfile, RefusesNamesThatSshOrAShellCouldMistake) {
  for (const char* name : {"-oProxyCommand=x", "user@-oProxyCommand=x", "a;reboot", "a$(reboot)",
                           "a`b`", "a'b", "a|b", "a/b", "\x1b[31m", "h\xc3\xb6st"}) {
    EXPECT_THAT(refusal_of(std::string(name) + " slots=1"), HasSubstr("is not the name of a host"))
        << name;
  }
}

std::string selected(const HostFilter& filter) {
  return text_of(
      select_hosts(parse_hostfile("a slots=4\nb slots=2\nc slots=0\n", "hosts"), filter));
}

TEST(HostFilter, ChoosesHostsAndSlotsInTheOrderOfTheHostfile) {
  EXPECT_EQ(selected({}), "a:0:1:2:3 b:0:1");
  EXPECT_EQ(selected({.include = "b@a:2,0,2"}), "a:0:2 b:0:1");
  EXPECT_EQ(selected({.include = "a:1@a:3"}), "a:1:3");
  EXPECT_EQ(selected({.exclude = "b"}), "a:0:1:2:3");
  EXPECT_EQ(selected({.exclude = "a:0,3@b:1"}), "a:1:2 b:0");
  EXPECT_EQ(selected({.nodes = 1}), "a:0:1:2:3");
  EXPECT_EQ(selected({.nodes = 2, .devices = 3}), "a:0:1:2 b:0:1:2");
}

TEST(HostFilter, RefusesWhatTheHostfileDoesNotHave) {
  const auto why = [](const HostFilter& filter) { return refusal([&] { selected(filter); }); };
  EXPECT_THAT(why({.include = "a", .exclude = "b"}), HasSubstr("exclude each other"));
  EXPECT_THAT(why({.include = "a", .nodes = 1}), HasSubstr("cannot be used together"));
  EXPECT_THAT(why({.exclude = "a", .devices = 1}), HasSubstr("cannot be used together"));
  EXPECT_THAT(why({.include = "d"}), HasSubstr("--include: the hostfile has no host \"d\""));
  EXPECT_THAT(why({.exclude = "b:2"}), HasSubstr("--exclude: \"b\" has no slot 2"));
  EXPECT_THAT(why({.exclude = "a@b"}), HasSubstr("no host with a slot is left"));
  EXPECT_THAT(why({.nodes = 4}), HasSubstr("--num_nodes is 4, and there are 3 hosts"));
  for (const char* filter : {"a:", "a:x", "a:-1", "a:0,", "a:0;b"})
    EXPECT_THAT(why({.include = filter}), HasSubstr("is not the number of a slot")) << filter;
  for (const char* filter : {"a@", "@a", "a@@b"})
    EXPECT_NE(why({.include = filter}), "accepted") << filter;
}

TEST(EnvironmentFile, TakesValuesAsTheyAre) {
  EXPECT_THAT(parse_environment_file("# all\n\nA=1\n _B2 = x=y \"z\" $(true)\r\nC=\n", "file"),
              ElementsAre(std::pair<std::string, std::string>("A", "1"),
                          std::pair<std::string, std::string>("_B2", "x=y \"z\" $(true)"),
                          std::pair<std::string, std::string>("C", "")));
  for (const char* line : {"A", "=1", "2A=1", "A B=1", "export A=1"}) {
    EXPECT_EQ(refusal([&] { parse_environment_file(line, "file"); }),
              "file, line 1: not `NAME=VALUE`")
        << line;
  }
}

TEST(EnvironmentFile, IsLookedForInTheHomeAndTheWorkingFolder) {
  const TempDir home, elsewhere;
  std::ofstream(home.path() / ".deepspeed_env") << "A=home\n";
  std::ofstream(home.path() / "other") << "A=other\n";
  const auto read = [&](const std::string& name) {
    return read_environment_files([&](const std::string& variable) -> std::optional<std::string> {
      if (variable == "HOME") return home.path().string();
      if (variable == "DS_ENV_FILE" && !name.empty()) return name;
      return std::nullopt;
    });
  };
  ASSERT_EQ(read("").size(), 1u);
  EXPECT_EQ(read("")[0].second, "home");
  EXPECT_EQ(read("other")[0].second, "other");
  std::ofstream(elsewhere.path() / "third") << "A=third\n";
  EXPECT_EQ(read((elsewhere.path() / "third").string())[0].second, "third");
  EXPECT_THAT(refusal([&] { read("fourth"); }), HasSubstr("DS_ENV_FILE names \"fourth\""));
}

TEST(SshCommand, QuotesEveryWordForTheRemoteShell) {
  const std::vector<std::string> words =
      ssh_command({.port = 2222, .config = "c"}, "host", {"/a b/unishard", "it's", "$(x)"});
  EXPECT_EQ(words.front(), "ssh");
  ASSERT_GE(words.size(), 3u);
  EXPECT_EQ(words[words.size() - 3], "--");
  EXPECT_EQ(words[words.size() - 2], "host");
  EXPECT_EQ(words.back(), "exec '/a b/unishard' 'it'\\''s' '$(x)'");
  EXPECT_THAT(words, testing::IsSupersetOf({"BatchMode=yes", "-p", "2222", "-F", "c"}));
  const test::ProcessResult shell =
      test::run({"sh", "-c", "printf '<%s>' " + shell_quoted("a'b\"$(id)\n`c`\\")});
  EXPECT_EQ(shell.out, "<a'b\"$(id)\n`c`\\>");
}

TEST(SshCommand, TheAddressOfAHostIsWhereItWasReached) {
  EXPECT_EQ(ssh_address("10.0.0.1 50000 10.0.0.2 22"), "10.0.0.2");
  EXPECT_EQ(ssh_address("127.0.0.1 50000 127.0.0.1 22"), "");
  EXPECT_EQ(ssh_address(""), "");
}

TEST(HostJob, ArrivesAsItWasSent) {
  const HostJob job{.command = {"a b", "", std::string("\xff\0\n", 3)},
                    .folder = "/f",
                    .variables = {{"A", "1\n2"}, {"B", ""}},
                    .first_rank = 3,
                    .ranks = 2,
                    .world_size = 9,
                    .master_addr = "::1",
                    .master_port = 65535};
  const HostJob back = unpack_job(pack_job(job));
  EXPECT_EQ(back.command, job.command);
  EXPECT_EQ(back.folder, job.folder);
  EXPECT_EQ(back.variables, job.variables);
  EXPECT_EQ(back.first_rank, 3u);
  EXPECT_EQ(back.ranks, 2u);
  EXPECT_EQ(back.world_size, 9u);
  EXPECT_EQ(back.master_addr, "::1");
  EXPECT_EQ(back.master_port, 65535);
}

TEST(Messages, AreFoundInAnyPiecesOfTheStream) {
  const std::string stream = "noise of a login shell\n" + std::string(kAgentMark) +
                             encode({.kind = "a", .payload = ""}) +
                             encode({.kind = "output", .payload = std::string("x\n\0y", 4)});
  MessageReader reader;
  std::vector<std::string> found;
  for (const char byte : stream) {
    reader.feed({&byte, 1});
    if (!reader.skip_to_mark()) continue;
    while (const auto message = reader.next()) found.push_back(message->kind + message->payload);
  }
  EXPECT_THAT(found, ElementsAre("a", std::string("outputx\n\0y", 10)));
}

TEST(Messages, HostileStreamsAreRefused) {
  for (const char* bytes :
       {"x\n", "99999999999\n", "123456789012", "20000000\n", "3\n1\na", "4\n9\na1\n"}) {
    MessageReader reader;
    reader.feed(bytes);
    EXPECT_THROW(reader.next(), Error) << bytes;
  }
  MessageReader reader;
  reader.feed(std::string(70000, 'x'));
  EXPECT_THROW(reader.skip_to_mark(), Error);
}

/// Lets a RemoteHost read `sent` from a process in the place of ssh; returns why the host is lost.
std::string loss_after(const std::string& sent) {
  const TempDir folder;
  const std::string path = (folder.path() / "sent").string();
  std::ofstream(path, std::ios::binary) << sent;
  RemoteHost host(
      "far", {"sh", "-c", "cat '" + path + "'; echo last words >&2; exec sleep 0.5"},
      [](std::uint32_t, int, std::string_view) { ADD_FAILURE() << "output"; },
      [](const RankFailure&) { ADD_FAILURE() << "a rank ended"; });
  for (int i = 0; i < 200 && !host.is_over(); ++i) {
    PollSet polled;
    host.add_to(polled);
    polled.wait(std::chrono::milliseconds(50));
    host.reap();
  }
  return host.lost().value_or("not lost");
}

std::string hello(const std::string& version) {
  return std::string(kAgentMark) +
         encode({.kind = "hello", .payload = pack({version, "1", "", "0", "", ""})});
}

TEST(RemoteHost, IsLostWhenItsAgentSpeaksNonsense) {
  const std::string own(kLibraryVersion);
  EXPECT_THAT(loss_after(""),
              HasSubstr("it cannot be reached (ssh exited with status 0: \"last words\")"));
  EXPECT_THAT(loss_after(hello(own)), HasSubstr("the connection was lost"));
  EXPECT_THAT(loss_after(hello("9.9")), HasSubstr("it has UniShard \"9.9\", and this is"));
  EXPECT_THAT(loss_after(hello(own) + "x\n"), HasSubstr("is no number"));
  EXPECT_THAT(loss_after(std::string(100000, 'x')), HasSubstr("no agent of this version answers"));
  for (const char* kind : {"ended", "output"}) {
    const std::string payload =
        kind == std::string("ended") ? pack({"7", "1", "0", "0"}) : pack({"7", "1", "text"});
    EXPECT_THAT(loss_after(hello(own) + encode({.kind = kind, .payload = payload})),
                HasSubstr("rank 7 does not run there"));
  }
}

TEST(FailurePolicy, ALostHostStopsTheOthersAtOnceAndCountsBeforeItsConsequence) {
  const FailurePolicy::Clock::time_point now{};
  FailurePolicy policy(5);
  policy.note({.rank = 1, .exit_code = 3}, now);
  EXPECT_FALSE(policy.due(now));
  policy.note({.exit_code = 3, .host = "b", .lost = "gone"}, now);
  EXPECT_EQ(policy.failure()->text(), "host b: gone");
  EXPECT_EQ(policy.due(now + std::chrono::milliseconds(300)), SIGTERM);
  EXPECT_FALSE(policy.due(now + std::chrono::seconds(5)));
  EXPECT_EQ(policy.due(now + std::chrono::seconds(6)), SIGKILL);
  EXPECT_FALSE(policy.next());
}

TEST(FailurePolicy, AfterASecondSignalRanksGetOneSigtermAndAreKilled) {
  const FailurePolicy::Clock::time_point now{};
  FailurePolicy policy(5);
  policy.kill_after_grace(now);
  policy.note({.rank = 1, .exit_code = 1}, now);
  EXPECT_EQ(policy.due(now), SIGTERM);
  EXPECT_FALSE(policy.due(now + std::chrono::seconds(1)));
  EXPECT_EQ(policy.due(now + std::chrono::seconds(5)), SIGKILL);
  EXPECT_FALSE(policy.next());
}

}  // namespace
}  // namespace unishard::tools
