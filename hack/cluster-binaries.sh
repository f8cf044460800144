#!/usr/bin/env bash
# Builds the control plane for tests, demo and benchmarks into bin/cluster, from the Go module proxy.
# With KUBEBUILDER_ASSETS set, what is found in that folder is taken from there and only the rest is built.
set -euo pipefail
cd "$(dirname "$0")/.."

out=bin/cluster
assets=${KUBEBUILDER_ASSETS:-}
packages=(
  etcd=go.etcd.io/etcd/server/v3
  kube-apiserver=k8s.io/kubernetes/cmd/kube-apiserver
  kube-controller-manager=k8s.io/kubernetes/cmd/kube-controller-manager
  kube-scheduler=k8s.io/kubernetes/cmd/kube-scheduler
  kubectl=k8s.io/kubernetes/cmd/kubectl
)

# What the binaries are made from: up to date means that this is in the stamp file.
want="$(git hash-object hack/cluster/go.mod hack/cluster/go.sum hack/cluster-binaries.sh | tr '\n' ' ')$(go env GOVERSION) $assets"
stamp=$out/.stamp
complete=yes
for package in "${packages[@]}"; do
  [[ -x $out/${package%%=*} ]] || complete=no
done
if [[ $complete == yes && -f $stamp && $(<"$stamp") == "$want" ]]; then
  exit 0
fi

mkdir -p "$out"
rm -f "$stamp"
version=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' hack/cluster/go.mod)
echo "Building the control plane (etcd, Kubernetes $version) into $out from the Go module proxy."
echo "The first time this takes about 10 minutes on two cores and 3 GB of disk; later it comes from Go's build cache."
stamped="-X k8s.io/component-base/version.gitVersion=$version"
stamped+=" -X k8s.io/component-base/version.gitMajor=$(cut -d. -f1 <<<"${version#v}")"
stamped+=" -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$version")"

if [[ ! -d $(go env GOMODCACHE)/k8s.io/kubernetes@$version ]]; then
  echo "  downloading modules ..."
  go -C hack/cluster mod download k8s.io/kubernetes go.etcd.io/etcd/server/v3
fi
number=0
for package in "${packages[@]}"; do
  name=${package%%=*}
  number=$((number + 1))
  started=$SECONDS
  if [[ -n $assets && -x $assets/$name ]]; then
    echo "  $number of ${#packages[@]}: $name is taken from $assets"
    cp "$assets/$name" "$out/$name.new"
  else
    echo "  $number of ${#packages[@]}: $name is being built ..."
    go -C hack/cluster build -tags=grpcnotrace -ldflags "-s -w $stamped" -o "../../$out/$name.new" "${package#*=}"
    echo "      done after $((SECONDS - started)) s"
  fi
  mv "$out/$name.new" "$out/$name" # In one step: the old one may be running.
done
printf '%s' "$want" >"$stamp"
echo "The control plane is in $out."
