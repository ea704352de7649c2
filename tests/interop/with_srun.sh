#!/usr/bin/env bash
# with_srun.sh UNISHARD TRAIN_GPT: starts a Slurm of its own with two nodes on this machine, trains with srun on 3 ranks, goes on
# on 2, and lets srun's processes share the work of the tools; the results must be those of one process, bit by bit. Ends with 77
# where Slurm or munge is not installed (Debian: slurmctld slurmd slurm-client munge) or cannot run.
set -euo pipefail
self=$(realpath "$0") unishard=$1 train_gpt=$2
PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd srun; do
  command -v $program >/dev/null || { echo "SKIP: no $program"; exit 77; }
done
work=$(mktemp -d)
stop() {
  daemons=$(cat "$work"/*.pid 2>/dev/null) || true
  for daemon in $daemons; do kill "$daemon" 2>/dev/null || true; done
  for _ in $(seq 100); do   # they save their state before they go
    kill -0 $daemons 2>/dev/null || break
    sleep 0.1
  done
  rm -rf "$work" || true
}
trap stop EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
host=$(hostname -s)
mkdir "$work/state" "$work/out"
(umask 077; head -c 1024 /dev/urandom > "$work/key")
cat > "$work/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$work/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=first NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=2
NodeName=second NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=2
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:8 State=UP
CONF
export SLURM_CONF=$work/slurm.conf
chmod 755 "$work"
munged --force --socket="$work/munge" --key-file="$work/key" --seed-file="$work/seed" --pid-file="$work/munged.pid" \
  --log-file="$work/munged.log"
slurmctld
slurmd -N first
slurmd -N second
for _ in $(seq 100); do
  timeout 5 srun -Q -N 2 -n 2 true 2>/dev/null && break
  sleep 0.1
done
timeout 10 srun -N 2 -n 2 true || { echo "SKIP: Slurm does not start here"; cat "$work"/*.log; exit 77; }

cd "$work/out"
spread() { timeout 120 srun -N 2 -n "$1" --overcommit "${@:2}"; }
cat "$self" "$self" "$self" "$self" > text
echo '{"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > config.json
train=("$train_gpt" --config config.json --data text --model tiny)
export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1   # Slurm's names of the nodes are no hosts
spread 3 "${train[@]}" --stage 2 --steps 4 --save run | tee trained
grep -q "world size 3 (srun)" trained
spread 2 "${train[@]}" --stage 3 --steps 6 --save run --resume
"${train[@]}" --stage 2 --steps 6 --save alone
"$unishard" diff run alone
spread 3 "$unishard" reshard run wide --world-size 5 --stage 1
"$unishard" diff run wide
spread 2 "$unishard" verify wide --deep
spread 2 "$unishard" zero_to_fp32 wide merged.safetensors
"$unishard" zero_to_fp32 run alone.safetensors --procs 1
cmp merged.safetensors alone.safetensors
timeout 60 srun -N 1 -n 2 --overcommit "$unishard" convert wide dcp --to dcp
"$unishard" diff run dcp
if find . -name '.unishard-team-*' | grep .; then echo "the processes left this behind"; exit 1; fi
echo "equal: 3 and 2 ranks and the tools under $(srun --version) as one process"
