#!/usr/bin/env bash
# Builds the container image NAME of version VERSION with the container builder at hand.
set -euo pipefail
cd "$(dirname "$0")/.."
image=$1 version=$2

args=(--build-arg "VERSION=$version" --build-arg "SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)")
if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
  docker build "${args[@]}" --tag "$image" .
elif command -v podman >/dev/null; then
  podman build --timestamp "$(git log -1 --format=%ct)" "${args[@]}" --tag "$image" .
elif command -v buildah >/dev/null; then
  buildah build --timestamp "$(git log -1 --format=%ct)" "${args[@]}" --tag "$image" .
else
  echo "make image: no container builder at hand: neither a docker with a running daemon, nor podman, nor buildah." >&2
  echo "bin/csi-provisioner of 'make build' is the very binary that the image holds." >&2
  exit 1
fi
echo "built $image"
