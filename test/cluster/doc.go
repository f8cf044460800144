// Package cluster starts a real control plane on loopback ports: etcd, kube-apiserver, kube-controller-manager
// and, if asked, kube-scheduler, for tests, the demo and benchmarks.
// In go the binaries that `make cluster-binaries` builds and a few options; out come a client config, kubeconfig
// files and a way to stop all of it, and nothing it started outlives the process that started it.
// It never runs a kubelet, needs no container engine, and is no part of the product.
package cluster
