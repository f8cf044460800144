package integration

import (
	"os"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// One control plane serves all tests of this package: each test keeps to a namespace, and to names, of its own.
func TestMain(m *testing.M) { os.Exit(cluster.Main(m, cluster.Options{Scheduler: true})) }
