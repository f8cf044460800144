#!/usr/bin/env bash
# Proves that the tree is tidy, formatted, generated, linted and links nothing unwanted. All checks run, whatever
# fails; it changes no file of the tree and installs nothing: tools pinned in hack/tools/go.mod are built into Go's cache.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

failed=()
skipped=()

check() { # check NAME COMMAND...
  local name=$1 started=$SECONDS
  shift
  echo "=== $name"
  if "$@"; then
    echo "--- ok: $name ($((SECONDS - started)) s)"
  else
    echo "--- FAILED: $name ($((SECONDS - started)) s)"
    failed+=("$name")
  fi
}

skip() { # skip NAME REASON
  echo "=== $1"
  echo "--- SKIPPED: $1: $2"
  skipped+=("$1 ($2)")
}

tidy() {
  local status=0
  for dir in . hack/tools hack/cluster; do
    if ! go -C "$dir" mod tidy -diff; then
      echo "$dir/go.mod is not tidy: run 'go -C $dir mod tidy'"
      status=1
    fi
  done
  return $status
}

formatted() {
  local diff
  diff=$(go tool -modfile=hack/tools/go.mod golangci-lint fmt --config hack/golangci.yml --diff 2>&1) && [[ -z $diff ]] && return
  echo "$diff"
  echo "run 'make fmt'"
  return 1
}

vet() { go vet -tags=grpcnotrace ./...; }

generated() { go run -tags=grpcnotrace ./hack/flagsdoc -check && go run -tags=grpcnotrace ./hack/refdoc -check; }

# They made the predecessor's binary twice as big and its image a find for scanners; the
# gateway comes with a client for traces and would never be used.
unwanted() {
  local found
  found=$(go list -deps -tags=grpcnotrace ./cmd/... | grep -E '^(k8s\.io/kubernetes|k8s\.io/apiserver|sigs\.k8s\.io/controller-runtime|github\.com/grpc-ecosystem/grpc-gateway|html/template)(/|$)')
  if [[ -n $found ]]; then
    echo "csi-provisioner must not link:"
    echo "$found"
    return 1
  fi
}


rules() { promtool check rules deploy/monitoring/*.rules.yaml; }

check "modules are tidy" tidy
check "code is formatted" formatted
check "go vet" vet
check "lint" hack/lint.sh
check "derived files are up to date" generated
check "no unwanted module is linked" unwanted
if ! compgen -G 'deploy/monitoring/*.rules.yaml' >/dev/null; then
  skip "alert rules" "there are none"
elif command -v promtool >/dev/null; then
  check "alert rules" rules
else
  skip "alert rules" "promtool is not installed"
fi
skip "known vulnerabilities" "the vulnerability database is not asked here; run 'govulncheck ./...' where it can be reached"

echo
[[ ${#skipped[@]} -eq 0 ]] || printf 'SKIPPED: %s\n' "${skipped[@]}"
if [[ ${#failed[@]} -gt 0 ]]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "verify: all is well"
