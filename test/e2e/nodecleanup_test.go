package e2e

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// startOnNode starts the instance of a node, which also contends for the clean-up after others.
func startOnNode(t *testing.T, w *sidecar.World, node string) *sidecar.Sidecar {
	t.Helper()
	o := w.Options("--node-deployment", "--node-deployment-cleanup", "--node-deployment-base-delay=100ms", "--node-deployment-max-delay=200ms")
	o.Env = append(o.Env, "NODE_NAME="+node, "POD_NAME=pod-"+node)
	return sidecar.Start(t, o)
}

// waitForCleaner waits until the lease of the clean-up says that the node's instance does it.
func waitForCleaner(t *testing.T, w *sidecar.World, node string) {
	t.Helper()
	sidecar.Eventually(t, "the instance of "+node+" cleans up", func(ctx context.Context) (bool, error) {
		lease, err := w.Client.CoordinationV1().Leases(w.Namespace).Get(ctx, leaseName(w)+"-cleanup", metav1.GetOptions{})
		if err != nil {
			return false, sidecar.IgnoreNotFound(err)
		}
		return podOf(lease) == "pod-"+node, nil
	})
}

// One instance cleans up. When it stops another one goes on at once; when it loses the lease it only ceases to clean
// up: its own node is still served.
func TestOneInstanceCleansUpAfterNodes(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{Topology: map[string]string{"example.com/host": "h"}})
	class := w.Class(t, fixture.Class("c"))
	first := startOnNode(t, w, "a")
	waitForCleaner(t, w, "a")
	second := startOnNode(t, w, "b")
	second.MustBeReady(t)
	second.Says(t, "Standing by", time.Minute)
	first.Terminate()
	if code := first.Exits(t, 30*time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	waitForCleaner(t, w, "b")

	// A thief of the lease is noticed at the next renewal.
	steal(t, w, leaseName(w)+"-cleanup")
	second.Says(t, "contending again", time.Minute)
	w.Claim(t, fixture.Claim("served").Class(class))
	w.Bound(t, "served")
	if err := second.Ready(t.Context()); err != nil {
		t.Errorf("after the loss of the lease: %v", err)
	}
}
