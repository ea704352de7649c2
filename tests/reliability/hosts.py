#!/usr/bin/env python3
"""`unishard launch` on several hosts: network namespaces, each with a real sshd.

    hosts.py --bin BUILD/bin [--only NAME]

The launcher runs in a namespace of its own and reaches the hosts through ssh, with keys and
configurations in a temporary folder. Needs root, iproute2 and openssh; status 77 where they are
missing. Status 1: a check failed.
"""
import argparse
import contextlib
import fcntl
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class Failed(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failed(text)


def eventually(condition, seconds=20):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def alive(pid):
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def standing(launcher, ranks):
    """What a job that does not end was doing: the processes, then what the launcher had said. Ends the launcher."""
    pids = [launcher.pid, *ranks, *set(ranks.values())]
    processes = subprocess.run(["ps", "-L", "-o", "pid,ppid,stat,etimes,wchan:20,comm", "-p", ",".join(map(str, pids))], capture_output=True, text=True).stdout
    launcher.kill()
    err = launcher.communicate()[1]
    return f"its processes:\n{processes}its messages:\n{err[-3000:]}\n"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """A bridge in a namespace of its own, and namespaces that are connected to it."""

    def __init__(self, count):
        self.prefix = f"us{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.hosts = [f"{self.prefix}-{i}" for i in range(count)]
        self.made = []

    def __enter__(self):
        try:
            self.add_namespace(self.switch)
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
            for i, host in enumerate(self.hosts):
                self.add_namespace(host)
                ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
                ip("-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
                ip("-n", host, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
                ip("-n", host, "link", "set", "eth0", "up")
                ip("-n", host, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def add_namespace(self, name):
        ip("netns", "add", name)
        self.made.append(name)

    def __exit__(self, *ignored):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def address(self, i):
        return f"10.213.7.{i + 1}"

    def plug(self, i, state):
        ip("-n", self.switch, "link", "set", f"port{i}", state)

    def inside(self, i):
        return ["ip", "netns", "exec", self.hosts[i]]


class Cluster:
    """Hosts 1 and 2 run sshd; the launcher runs on host 0."""

    def __init__(self, root, network, binaries):
        self.root, self.network = root, network
        self.unishard = str(Path(binaries).resolve() / "unishard")
        self.train_gpt = str(Path(binaries).resolve() / "train_gpt")
        self.servers = []
        self.launched = []
        self.work = root / "work folder's"  # both must be quoted for a shell
        self.work.mkdir()
        self.home = root / "home"
        self.home.mkdir()

    def start_servers(self):
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.root / name], check=True)
        shutil.copy(self.root / "user.pub", self.root / "authorized")
        (self.root / "authorized").chmod(0o600)
        for i in (1, 2):
            config = self.root / f"sshd-{i}"
            config.write_text(f"ListenAddress {self.network.address(i)}:22\nHostKey {self.root}/host\nPidFile none\n"
                              f"AuthorizedKeysFile {self.root}/authorized\nStrictModes no\nUsePAM no\n"
                              "PermitRootLogin yes\nPasswordAuthentication no\nPermitUserRC no\n"
                              f"SetEnv HOME={self.home}\n")  # and not the user's .bashrc
            self.servers.append(subprocess.Popen([*self.network.inside(i), shutil.which("sshd"), "-D", "-e", "-f", config],
                                                 stderr=open(self.root / f"sshd-{i}.log", "w")))
        key = " ".join((self.root / "host.pub").read_text().split()[:2])
        (self.root / "known").write_text("".join(f"{self.network.address(i)} {key}\n" for i in (1, 2)))
        (self.root / "ssh").write_text(f"IdentityFile {self.root}/user\nIdentitiesOnly yes\nIdentityAgent none\n"
                                       f"UserKnownHostsFile {self.root}/known\nGlobalKnownHostsFile none\n"
                                       f"User {getpass.getuser()}\nStrictHostKeyChecking yes\nLogLevel ERROR\n")
        for i in (1, 2):
            command = [*self.network.inside(0), "ssh", "-F", self.root / "ssh", "-o", "BatchMode=yes", self.network.address(i), "true"]
            if not eventually(lambda: subprocess.run(command, capture_output=True).returncode == 0, 10):
                print("SKIP: sshd does not let this user in:", (self.root / f"sshd-{i}.log").read_text()[-300:])
                return False
        return True

    def stop(self):
        for process in self.launched + self.servers:
            if process.poll() is None:
                process.kill()
            process.wait()

    def hostfile(self, *slots, extra=""):
        path = self.root / "hostfile"
        lines = [f"{self.network.address(i + 1)} slots={count}\n" for i, count in enumerate(slots)]
        path.write_text("# two hosts\n\n" + "".join(lines) + extra)
        return path

    def command(self, options, program, where=0):
        return [*self.network.inside(where), self.unishard, "launch", "--ssh-config", self.root / "ssh", *map(str, options), "--", *map(str, program)]

    def environment(self):
        return {**os.environ, "HOME": str(self.home), "NCCL_TEST": "passed on", "OPENBLAS_TEST": "products"}

    def start(self, options, program, where=0, **more):
        more.setdefault("stdout", subprocess.PIPE)
        process = subprocess.Popen(self.command(options, program, where), cwd=self.work, env=self.environment(),
                                   stderr=subprocess.PIPE, text=True, **more)
        self.launched.append(process)
        return process

    def run(self, options, program, timeout=60, where=0):
        process = self.start(options, program, where)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed("the launcher does not end")
        return subprocess.CompletedProcess([], process.returncode, out, err)

    def pids(self):
        found = {}
        for path in self.work.glob("pid-*"):
            text = path.read_text().split()
            if text:
                found[int(path.name[4:])] = int(text[0])
        return found

    def start_waiting(self, options, ranks, script="exec sleep 300", before=""):
        """Starts ranks that do `before`, write their pids to files and do `script`, and waits for the files of all."""
        for path in self.work.glob("pid-*"):
            path.unlink()
        process = self.start(options, ["bash", "-c", before + "echo $$ > new-$RANK; mv new-$RANK pid-$RANK; " + script])
        if not eventually(lambda: len(self.pids()) == ranks):
            process.kill()
            raise Failed(f"the ranks do not start: {process.communicate()}")
        return process

    def check_gone(self, pids, why, seconds=20):
        check(eventually(lambda: not any(alive(pid) for pid in pids.values()), seconds),
              f"{why}: ranks are left behind: {[rank for rank, pid in pids.items() if alive(pid)]}")


def a_folder_in_use_stays(cluster):
    folder = cluster.root / "of servers"
    holds = "import sys, pathlib, hosts\nwith hosts.server_folder(pathlib.Path(sys.argv[1])):\n    print(flush=True)\n    input()"
    first = subprocess.Popen([sys.executable, "-c", holds, folder], cwd=Path(__file__).parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first.stdout.readline()
    with server_folder(folder):
        first.communicate("\n")
        check(first.returncode == 0 and folder.exists(), "the test that made the folder of sshd took it from another")
    folder.rmdir()
    with server_folder(folder):
        pass
    check(not folder.exists(), "the folder of sshd is left behind")


def variables_and_words(cluster):
    (cluster.work / ".deepspeed_env").write_text("# for all hosts\n\nFROM_FILE=a b $(touch pwned) 'c\n")
    (cluster.home / ".deepspeed_env").write_text("FROM_HOME=1\nFROM_FILE=of the home folder\n")
    script = ('echo "$RANK/$LOCAL_RANK/$WORLD_SIZE/$LOCAL_WORLD_SIZE/$GROUP_RANK/$CUDA_VISIBLE_DEVICES/$MASTER_ADDR'
              '|$FROM_FILE|$FROM_HOME|$NCCL_TEST|$OPENBLAS_TEST|$1|$PWD|$(ip -4 -o addr show dev eth0 | grep -o "10.213[^/]*")"; '
              '[ $((MASTER_PORT > 0)) = 1 ] || exit 9; echo "to the other stream" >&2')
    word = "a 'b' \"c\" ; touch pwned"
    logs = cluster.root / "logs"
    result = cluster.run(["--hostfile", cluster.hostfile(2, 1), "--log-dir", logs], ["bash", "-c", script, "bash", word])
    check(result.returncode == 0, f"status {result.returncode}: {result.stderr}")
    for rank, (local, size, group, devices, host) in enumerate([(0, 2, 0, "0,1", 1), (1, 2, 0, "0,1", 1), (0, 1, 1, "0", 2)]):
        line = (f"{rank}/{local}/3/{size}/{group}/{devices}/{cluster.network.address(1)}|a b $(touch pwned) 'c|1|passed on|products|{word}|"
                f"{cluster.work}|{cluster.network.address(host)}")
        check(f"[rank {rank}] {line}\n" in result.stdout, f"rank {rank}: {result.stdout}, not {line}")
        check(f"[rank {rank}] to the other stream\n" in result.stderr, result.stderr)
        check((logs / f"rank-{rank}.log").read_text().splitlines().count(line) == 1, "the log file of a rank")
    check(not list(cluster.root.rglob("pwned")), "a value went through a shell")
    for name in (cluster.work, cluster.home):
        (name / ".deepspeed_env").unlink()


def filters(cluster):
    one, two = cluster.network.address(1), cluster.network.address(2)
    script = ["bash", "-c", 'echo "$WORLD_SIZE $(ip -4 -o addr show dev eth0 | grep -o "10.213[^/]*") $CUDA_VISIBLE_DEVICES"']
    for options, lines in ((["--include", f"{one}:1@{two}"], {f"2 {one} 1", f"2 {two} 0"}),
                           (["--exclude", one], {f"1 {two} 0"}),
                           (["--num_nodes", 1, "--num_gpus", 1], {f"1 {one} 0"}),
                           (["--include", two, "--master_addr", two, "--master_port", 29511], {f"1 {two} 0"})):
        result = cluster.run(["--hostfile", cluster.hostfile(2, 1), *options], script)
        printed = {re.sub(r"^\[rank \d\] ", "", line) for line in result.stdout.splitlines()}
        check(result.returncode == 0 and printed == lines, f"{options}: {result.stdout}{result.stderr}")


def failures(cluster):
    options = ["--hostfile", cluster.hostfile(1, 1)]
    process = cluster.start_waiting(options, 2, "[ $RANK = 0 ] || { while [ ! -s go ]; do sleep 0.05; done; exit 9; }; exec sleep 300")
    pids = cluster.pids()
    (cluster.work / "go").write_text("go")
    _, err = process.communicate(timeout=30)
    (cluster.work / "go").unlink()
    check(process.returncode == 9, f"status {process.returncode}: {err}")
    check(f"rank 1 (pid {pids[1]} on {cluster.network.address(2)}) exited with status 9" in err, err)
    cluster.check_gone(pids, "a rank failed")
    result = cluster.run(options, ["bash", "-c", "[ $RANK = 0 ] || kill -SEGV $$; sleep 300"])
    check(result.returncode == 128 + signal.SIGSEGV, f"status {result.returncode}: {result.stderr}")
    result = cluster.run(options, ["/no/such/program"])
    check(result.returncode == 127 and "cannot start /no/such/program" in result.stderr, result.stderr)


def signals(cluster):
    for number in (signal.SIGTERM, signal.SIGINT):
        process = cluster.start_waiting(["--hostfile", cluster.hostfile(1, 2)], 3, "while true; do sleep 0.05; done",
                                        before="trap 'echo stopped; exit 0' TERM INT; ")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        check(process.returncode == 0, f"{number}: status {process.returncode}: {err}")
        check(sorted(out.splitlines()) == [f"[rank {rank}] stopped" for rank in range(3)], f"{number}: {out}")


def dead_launcher(cluster):
    process = cluster.start_waiting(["--hostfile", cluster.hostfile(1, 2)], 3)
    pids = cluster.pids()
    process.kill()
    process.wait()
    cluster.check_gone(pids, "the launcher was killed")


def dead_connection(cluster):
    options = ["--hostfile", cluster.hostfile(1, 1)]
    process = cluster.start_waiting(options, 2)
    pids = cluster.pids()
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True, text=True)
    connections = [line for line in found.stdout.splitlines() if cluster.network.address(2) in line]
    check(len(connections) == 1, f"the connections: {found.stdout}")
    os.kill(int(connections[0].split()[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    check(process.returncode == 3, f"status {process.returncode}: {err}")
    check(f"host {cluster.network.address(2)}: the connection was lost" in err, err)
    cluster.check_gone(pids, "a connection died")


def dead_agent(cluster):
    process = cluster.start_waiting(["--hostfile", cluster.hostfile(1, 1)], 2)
    pids = cluster.pids()
    agent = int(Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1])
    check(b"--agent" in Path(f"/proc/{agent}/cmdline").read_bytes(), "the parent of a rank is no agent")
    os.kill(agent, signal.SIGKILL)
    process.communicate(timeout=30)
    check(process.returncode == 3, f"status {process.returncode}")
    cluster.check_gone(pids, "an agent died")


def cut_cable(cluster):
    """The ranks of a host that is cut off end before the launcher gives it up, so that no two jobs run at once."""
    options = ["--hostfile", cluster.hostfile(1, 1), "--host-timeout", 6, "--max-restarts", 1]
    process = cluster.start_waiting(options, 2)
    first = cluster.pids()
    (cluster.work / "pid-0").unlink()
    cluster.network.plug(1 + 1, "down")
    try:
        check(eventually(lambda: 0 in cluster.pids(), 40), "the job does not start again")
        check(not alive(first[1]), "a rank of the lost host runs beside the new job")
        check(not alive(first[0]), "a rank of the old job runs beside the new job")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    finally:
        cluster.network.plug(1 + 1, "up")
    check(f"host {cluster.network.address(2)}: the connection was lost" in err, err)
    check("starting again with 1 rank (restart 1 of 1)" in err, err)
    check(process.returncode == 128 + signal.SIGTERM, f"status {process.returncode}: {err}")


def unreachable_host(cluster):
    hostfile = cluster.hostfile(1, extra="10.213.7.99 slots=2\n")
    program = ["bash", "-c", "echo $WORLD_SIZE ranks"]
    result = cluster.run(["--hostfile", hostfile], program)
    check(result.returncode == 3 and not result.stdout, f"status {result.returncode}: {result.stdout}")
    check("host 10.213.7.99: it cannot be reached (ssh exited with status 255" in result.stderr, result.stderr)
    result = cluster.run(["--hostfile", hostfile, "--max-restarts", 1], program)
    check(result.returncode == 0 and result.stdout == "[rank 0] 1 ranks\n", f"{result.returncode}: {result.stdout}{result.stderr}")
    result = cluster.run(["--hostfile", hostfile, "--include", "10.213.7.99", "--max-restarts", 1], program)
    check(result.returncode == 3 and "no host is left" in result.stderr, f"{result.returncode}: {result.stderr}")


def restarts(cluster):
    script = ("echo start $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE; "
              "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && kill -KILL $$; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || sleep 300")
    result = cluster.run(["--hostfile", cluster.hostfile(1, 1), "--max-restarts", 2], ["bash", "-c", script])
    check(result.returncode == 0, f"status {result.returncode}: {result.stderr}")
    check(result.stdout.count("start 2 of 2") == 2, result.stdout)
    check(result.stderr.count("was killed by signal 9 (SIGKILL); starting again with 2 ranks on 2 hosts") == 2, result.stderr)
    result = cluster.run(["--hostfile", cluster.hostfile(1, 1), "--max-restarts", 1], ["bash", "-c", script])
    check(result.returncode == 137, f"status {result.returncode} after the last restart")
    result = cluster.run(["--hostfile", cluster.hostfile(1, 1), "--max-restarts", 5], ["bash", "-c", "echo start; exit 2"])
    check(result.returncode == 2 and result.stdout.count("start") <= 2, f"a wrong option was tried again: {result.stdout}")


def blocked_output(cluster):
    """A terminal or pager that takes no output for a while is no reason to end the job."""
    read_end, write_end = os.pipe()
    process = cluster.start(["--hostfile", cluster.hostfile(1, 1), "--host-timeout", 4],
                            ["bash", "-c", "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo end of $RANK"], stdout=write_end)
    os.close(write_end)
    time.sleep(9)
    check(process.poll() is None, f"the job ended: {process.stderr.read() if process.poll() is not None else ''}")
    with os.fdopen(read_end) as stream:
        text = stream.read()
    check(process.wait(timeout=30) == 0, process.stderr.read())
    check(text.count("x") == 6000000 and "end of 0" in text and "end of 1" in text, f"{len(text)} bytes")


def without_ssh(cluster):
    hostfile = cluster.hostfile(1, 2)
    script = ["bash", "-c", "echo $RANK/$LOCAL_RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"]
    lines = []
    for node in (0, 1):
        result = cluster.run(["--hostfile", hostfile, "--no_ssh", "--node_rank", node], script, where=node + 1)
        check(result.returncode == 0, result.stderr)
        lines += result.stdout.splitlines()
    address = f"{cluster.network.address(1)}:29500"
    expected = [f"[rank 0] 0/0/3 {address}", f"[rank 1] 1/0/3 {address}", f"[rank 2] 2/1/3 {address}"]
    check(sorted(lines) == expected, f"{lines}")


CONFIG = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": 2}}


def training(cluster):
    """A host is lost in the middle: the job ends on the other one, with the losses of one that never stopped."""
    if not Path(cluster.train_gpt).exists():
        print("training: there is no train_gpt")
        return
    root = cluster.root
    (root / "config.json").write_text(json.dumps(CONFIG))
    (root / "data.txt").write_text("".join(chr(32 + (i * i * 7 + i) % 90) for i in range(20000)))

    def program(name, steps):
        return [cluster.train_gpt, "--config", root / "config.json", "--data", root / "data.txt", "--model", "nano",
                "--layers", 1, "--width", 16, "--heads", 1, "--context", 8, "--steps", steps, "--save", root / name,
                "--save-interval", 1, "--keep-last", 2, "--resume", "--losses", root / f"{name}.jsonl"]

    def losses(name):
        found = {}
        path = root / f"{name}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                found.setdefault(row["step"], set()).add(row["loss"])
        return found

    steps = 60
    options = ["--interface", "eth0", "--timeout", 20, "--host-timeout", 6]
    result = cluster.run([*options, "--hostfile", cluster.hostfile(2, 1)], program("undisturbed", steps), timeout=120)
    check(result.returncode == 0, f"status {result.returncode}: {result.stderr}")
    process = cluster.start([*options, "--hostfile", cluster.hostfile(2, 1), "--max-restarts", 3], program("disturbed", steps))
    check(eventually(lambda: len(losses("disturbed")) >= 10, 60), "the training does not start")
    at = len(losses("disturbed"))
    check(at < steps, "the training ended before the host was lost")
    cluster.network.plug(2, "down")
    try:
        out, err = process.communicate(timeout=120)
    finally:
        cluster.network.plug(2, "up")
    check(process.returncode == 0, f"status {process.returncode}: {out}{err}")
    check("starting again with 2 ranks" in err, err)
    check(len(losses("undisturbed")) == steps, "the undisturbed run has other steps")
    check(losses("disturbed") == losses("undisturbed"), "the losses differ")
    print(f"training: host lost after step {at}, the losses of {steps} steps are equal")


CHECKS = [a_folder_in_use_stays, variables_and_words, filters, failures, signals, dead_launcher, dead_connection, dead_agent, cut_cable,
          unreachable_host, restarts, blocked_output, without_ssh, training]


def missing():
    if os.geteuid() != 0:
        return "namespaces need root"
    for program in ("ip", "ssh", "sshd", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    probe = f"us{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return "" if made.returncode == 0 else f"no network namespace can be made: {made.stderr.strip()}"


@contextlib.contextmanager
def server_folder(folder=Path("/run/sshd")):
    """The folder that sshd insists on, also after its start. Other tests may need it longer than the one that made it."""
    while True:
        is_new = not folder.exists()
        folder.mkdir(mode=0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the test that made it has just removed it
            held = os.open(folder, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(held), folder.stat()):
                break
    try:
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # in use
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder.rmdir()
        os.close(held)


def run_checks(options, root):
    status = 0
    with server_folder(), Network(3) as network:
        cluster = Cluster(root, network, options.bin)
        try:
            if not cluster.start_servers():
                return 77
            for each in CHECKS:
                if options.only not in (None, each.__name__):
                    continue
                started = time.monotonic()
                try:
                    each(cluster)
                    print(f"passed  {each.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
                except (Failed, subprocess.TimeoutExpired) as failure:
                    print(f"FAILED  {each.__name__}: {failure}", flush=True)
                    status = 1
        finally:
            cluster.stop()
    return status


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", help="name of one check")
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    why = missing()
    if why:
        print("SKIP:", why)
        return 77
    signal.signal(signal.SIGTERM, lambda *ignored: sys.exit(1))  # cleans up
    with tempfile.TemporaryDirectory(prefix="unishard-hosts-") as root:
        return run_checks(options, Path(root))


if __name__ == "__main__":
    sys.exit(main())
