#!/usr/bin/env bash
# Runs the linters. Their versions are pinned in hack/tools/go.mod; they are built from the module proxy.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
tool() { go tool -modfile=hack/tools/go.mod "$@"; }

echo "golangci-lint (the first time it is built from source: about 3 minutes)"
tool golangci-lint run --allow-serial-runners --config hack/golangci.yml || status=1

echo "logcheck: contextual logging"
tool logcheck -tags grpcnotrace -config hack/logcheck.conf -check-contextual -check-with-helpers -check-key ./cmd/... ./pkg/... || status=1

if command -v shellcheck >/dev/null; then
  echo "shellcheck"
  shellcheck .ci/run hack/*.sh || status=1
else
  echo "SKIPPED shellcheck: it is not installed"
fi
exit $status
