#!/bin/bash
# The probes in order, each with a time limit; JSON lines and progress of each go to $OUT.
#
#   bash bench/cuda/all.sh                      all of them
#   bash bench/cuda/all.sh build bits           these, in this order
#   LIMIT_S=300 bash bench/cuda/all.sh steps    no probe longer than that
#   ARGS="--device cpu --tiny" bash bench/cuda/all.sh        where there is no GPU
#   WHEELS=folder                               wheels for build.py
#   CACHE=triton-cache.tgz                      compiled kernels that an earlier run left in its $OUT
set -u
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
OUT=${OUT:-/tmp/octavo-cuda}
LIMIT_S=${LIMIT_S:-570}
PYTHON=${PYTHON:-python}
mkdir -p "$OUT"
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/octavo-triton}
mkdir -p "$TRITON_CACHE_DIR"
[ -f "${CACHE:-}" ] && tar xzf "$CACHE" -C "$TRITON_CACHE_DIR"
failed=0
names=("$@")
[ $# -eq 0 ] && names=(build bits exactness attention products steps-0.6B steps-8B exact_cost transfers endurance)
for name in "${names[@]}"; do
  script=${name%%-*}
  more=()
  [ "$script" != "$name" ] && more=(--shape "${name#*-}")
  if [ "$script" = build ]; then
    [ -n "${WHEELS:-}" ] && more+=(--wheels "$WHEELS")
  else
    more+=(--limit-s $((LIMIT_S - 25)))
  fi
  started=$SECONDS
  # shellcheck disable=SC2086
  timeout -k 10 "$LIMIT_S" "$PYTHON" "bench/cuda/$script.py" ${ARGS:-} "${more[@]}" \
    > "$OUT/$name.jsonl" 2> "$OUT/$name.log"
  status=$?
  lines=$(wc -l < "$OUT/$name.jsonl")
  echo "$name: status $status, $lines lines, $((SECONDS - started)) s; $(tail -n 1 "$OUT/$name.jsonl" | cut -c1-300)"
  if [ $status -ne 0 ]; then
    failed=1
    tail -n 3 "$OUT/$name.log"
  fi
done
tar czf "$OUT/triton-cache.tgz" -C "$TRITON_CACHE_DIR" . 2>/dev/null
exit $failed
