#!/usr/bin/env bash
# Measures what a volume costs on a real control plane: LOAD=no leaves that out, else LOAD has arguments for it, and
# AGAINST is another binary to compare with. Then runs all micro benchmarks ten times (COUNT changes that). With BASE
# set to a git revision, runs these there too, in a worktree of its own, and compares. All results stay in bin/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
mkdir -p bin/bench

run() { # run DIR FILE
  (cd "$1" && go test -tags=grpcnotrace -run='^$' -bench=. -benchmem -count="${COUNT:-10}" ./cmd/... ./pkg/...) | tee "$2"
}

if [[ ${LOAD:-} != no ]]; then
  go build -tags=grpcnotrace -o bin/load ./test/bench
  # shellcheck disable=SC2086 # several arguments
  bin/load ${AGAINST:+-against "$AGAINST"} ${LOAD:-}
fi
run . "$root/bin/bench/new.txt"
if [[ -n ${BASE:-} ]]; then
  base=$(mktemp -d)
  trap 'git worktree remove --force "$base"' EXIT
  git worktree add --detach "$base" "$BASE"
  run "$base" "$root/bin/bench/base.txt"
  go tool -modfile=hack/tools/go.mod benchstat "$root/bin/bench/base.txt" "$root/bin/bench/new.txt"
fi
