// Package e2e looks at the whole program: the built binary as a process under its own service account and the
// shipped rights, on a real control plane, with claims and pods as users make them.
package e2e

import (
	"os"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

func TestMain(m *testing.M) {
	os.Exit(sidecar.Main(func() int { return cluster.Main(m, cluster.Options{Scheduler: true}) }))
}
