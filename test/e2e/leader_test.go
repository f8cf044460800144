package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

func TestTheNextLeaderServesSoon(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end    func(*sidecar.Sidecar)
		within time.Duration
	}{
		// The promise is 2 s after the release; the rest is for a busy machine under the race detector.
		"after a stop": {end: (*sidecar.Sidecar).Terminate, within: 5 * time.Second},
		"after a kill": {end: (*sidecar.Sidecar).Kill, within: 12 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
			class := w.Class(t, fixture.Class("c"))
			first := startCandidate(t, w, "first")
			waitForHolder(t, w, "first")
			startCandidate(t, w, "second").MustBeReady(t)
			w.Claim(t, fixture.Claim("before").Class(class))
			w.Bound(t, "before")

			begin := time.Now()
			tc.end(first)
			w.Claim(t, fixture.Claim("after").Class(class))
			w.Bound(t, "after")
			if took := time.Since(begin); took > tc.within {
				t.Errorf("the next leader served after %s, want within %s", took.Round(time.Millisecond), tc.within)
			}
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
	if code := standby.Exits(t, 5*time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	waitForHolder(t, w, "first")
}

func startCandidate(t *testing.T, w *sidecar.World, identity string) *sidecar.Sidecar {
	t.Helper()
	o := w.Options("--leader-election", "--leader-election-lease-duration=6s",
		"--leader-election-renew-deadline=4s", "--leader-election-retry-period=1s")
	o.Env = append(o.Env, "POD_NAME="+identity)
	return sidecar.Start(t, o)
}

func waitForHolder(t *testing.T, w *sidecar.World, identity string) {
	t.Helper()
	name := strings.ReplaceAll(w.Driver.Name(), ".", "-")
	sidecar.Eventually(t, identity+" leads", func(ctx context.Context) (bool, error) {
		lease, err := w.Client.CoordinationV1().Leases(w.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, sidecar.IgnoreNotFound(err)
		}
		return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == identity, nil
	})
}
