#!/usr/bin/env bash
# documents.sh UNISHARD MAKE_EXAMPLE: runs the `unishard` commands of README and guides, as they stand there, on small checkpoints of
# the names that they use. Left out: `launch` and train_gpt, which examples/quickstart.sh runs.
set -euo pipefail
unishard=$(realpath "$1")
make_example=$(realpath "$2")
source=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unishard() { "$unishard" "$@" 2>"$work/errors" || { cat "$work/errors"; return 1; }; }

prepare() {
  mkdir -p runs
  "$make_example" -w 4 runs/gpt >/dev/null
  unishard convert runs/gpt ds_run --to deepspeed
  cp -r ds_run checkpoint-500
  unishard zero_to_fp32 runs/gpt model.pt
}

count=0
for document in README.md examples/guides/operating.md examples/guides/other_formats.md; do
  mkdir "$work/$(basename "$document")"
  cd "$work/$(basename "$document")"
  prepare
  while read -r command; do
    read -r -a words <<<"$command"
    case ${words[1]} in
      launch) continue ;;
      zero_to_fp32 | reshard | convert) rm -rf "${words[3]}" ;;   # each example may be the reader's first
    esac
    echo "$document: $command"
    eval "$command" >/dev/null
    count=$((count + 1))
  done < <(sed -nE 's/^    (\$ )?(unishard [a-z])/\2/p' "$source/$document")
done
[ "$count" -ge 15 ] || { echo "only $count commands were found"; exit 1; }
echo "$count commands of the documents ran"
