package e2e

import (
	"context"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// After a stop the next leader is told: here it would wait too long for the end of the lease, or for its next look.
// After a kill it waits for the end of the lease.
func TestTheNextLeaderServesSoon(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end  func(*sidecar.Sidecar)
		args []string
	}{
		"after a stop": {end: (*sidecar.Sidecar).Terminate, args: []string{
			"--leader-election-lease-duration=20m", "--leader-election-renew-deadline=15m", "--leader-election-retry-period=10m",
		}},
		"after a kill": {end: (*sidecar.Sidecar).Kill, args: []string{
			"--leader-election-lease-duration=6s", "--leader-election-renew-deadline=4s",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
			class := w.Class(t, fixture.Class("c"))
			first := startCandidate(t, w, "first", tc.args...)
			waitForHolder(t, w, "first")
			startCandidate(t, w, "second", tc.args...).Says(t, "Standing by", sidecar.Patience)
			w.Claim(t, fixture.Claim("before").Class(class))
			w.Bound(t, "before")

			tc.end(first)
			w.Claim(t, fixture.Claim("after").Class(class))
			w.Bound(t, "after")
			waitForHolder(t, w, "second")
			if calls := w.Driver.Calls("CreateVolume"); len(calls) != 2 {
				t.Errorf("calls %v, want one a claim", calls)
			}
		})
	}
}

func TestAStandbyStopsAtOnceAndLeavesTheLease(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	startCandidate(t, w, "first")
	waitForHolder(t, w, "first")
	standby := startCandidate(t, w, "second")
	standby.MustBeReady(t)
	standby.Terminate()
	if code := standby.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	waitForHolder(t, w, "first")
}

// startCandidate starts a contender that looks at the lease every second and, once it leads, can be slow for a minute
// before it loses the lease; args may say otherwise.
func startCandidate(t *testing.T, w *sidecar.World, pod string, args ...string) *sidecar.Sidecar {
	t.Helper()
	o := w.Options(append([]string{
		"--leader-election", "--leader-election-lease-duration=2m",
		"--leader-election-renew-deadline=1m", "--leader-election-retry-period=1s",
	}, args...)...)
	o.Env = append(o.Env, "POD_NAME="+pod)
	return sidecar.Start(t, o)
}

// waitForHolder waits until a process of the pod holds the leader lease, nobody if pod is "", and returns its identity.
func waitForHolder(t *testing.T, w *sidecar.World, pod string) string {
	t.Helper()
	var holder string
	sidecar.Eventually(t, pod+" leads", func(ctx context.Context) (bool, error) {
		lease, err := w.Client.CoordinationV1().Leases(w.Namespace).Get(ctx, leaseName(w), metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, sidecar.IgnoreNotFound(err)
		}
		holder = *lease.Spec.HolderIdentity
		return podOf(lease) == pod, nil
	})
	return holder
}

// podOf reads the pod from a lease as people's tools do; "" for a free one.
func podOf(lease *coordinationv1.Lease) string {
	pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return pod
}
