#!/usr/bin/env bash
# Runs every fuzz test of the module for a while, one after another.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:-10s}
grep -rl --include='*_test.go' '^func Fuzz' internal cmd test | xargs -n1 dirname | sort -u | while read -r dir; do
  for fuzz in $(grep -h '^func Fuzz' "$dir"/*_test.go | sed 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/'); do
    echo "== $dir $fuzz"
    go test "./$dir" -run '^$' -fuzz "^$fuzz\$" -fuzztime "$time"
  done
done
