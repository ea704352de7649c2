#!/bin/sh
# with_h5dump.sh TAG_FOLDER: stock h5dump prints every value of every shard; a few are compared with what the manifest says.
command -v h5dump >/dev/null || { echo "SKIP: no h5dump (Debian: hdf5-tools)"; exit 77; }
for shard in "$1"/shard-*.h5; do
  out=$(h5dump "$shard") || { echo "h5dump failed on $shard"; exit 1; }
  for word in 'DATASET "index"' 'DATASET "names"' 'DATASET "fp32.float32"' 'H5T_IEEE_F32LE'; do
    case "$out" in *"$word"*) ;; *) echo "$shard: h5dump shows no $word"; exit 1 ;; esac
  done
  case "$out" in *"DATA {
      }"*) echo "$shard: h5dump shows an empty data set"; exit 1 ;; esac
done
first=$(h5dump -d /data/fp32.float32 -s 0 -c 1 -m '%.9g' "$1/shard-00000-of-00002.h5" | sed -n 's/.*(0): //p' | head -n 1)
echo "first element of wte.weight [fp32]: $first"
expected=$(od -A n -t f4 -j "$(sed -n 's/.*"state":"fp32","dtype":"float32","offset":\([0-9]*\).*/\1/p' "$1/manifest.json" | head -n 1)" -N 4 "$1/shard-00000-of-00002.h5" | tr -d ' ')
echo "the same by its offset in the manifest:  $expected"
[ -n "$first" ] && awk -v a="$first" -v b="$expected" 'BEGIN { exit !(a - b < 1e-6 && b - a < 1e-6) }'
