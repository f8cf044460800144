package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// sourceOf is the handle of what a CreateVolume call copies; empty for nothing.
func sourceOf(call memdriver.Call) string {
	from := call.Create().GetVolumeContentSource()
	return from.GetVolume().GetVolumeId() + from.GetSnapshot().GetSnapshotId()
}

// mostAtOnce returns how many of the calls ran at the same moment.
func mostAtOnce(calls []memdriver.Call) int {
	most := 0
	for _, call := range calls {
		n := 0
		for _, other := range calls {
			if !other.Begin.After(call.Begin) && (!other.Ended() || other.End.After(call.Begin)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// No more volumes than may be are made at once from one source, and what waits for that keeps nothing else waiting.
func TestOneSourceDoesNotTakeAllThreads(t *testing.T) {
	t.Parallel()
	s := openStage(t, play{}, shippedRights(t, baseRights, "rbac-snapshots.yaml", "rbac-topology.yaml"),
		"--create-threads=5", "--delete-threads=1", "--max-creates-per-source=2", "--timeout=1m")
	class := s.Class(t, fixture.Class("c"))
	s.Claim(t, fixture.Claim("data").Class(class))
	s.snapshotOf("snap", "data")
	rule, release := memdriver.Block("CreateVolume")
	rule.When = func(call memdriver.Call) bool { return sourceOf(call) != "" }
	s.Driver.Add(rule, memdriver.Slow("DeleteVolume", 100*time.Millisecond))
	t.Cleanup(release)

	var names []string
	for i := range 5 {
		clone, restored := fmt.Sprintf("clone-%d", i), fmt.Sprintf("restored-%d", i)
		s.Claim(t, fixture.Claim(clone).Class(class).FromClaim("data"))
		s.Claim(t, fixture.Claim(restored).Class(class).FromSnapshot("snap"))
		names = append(names, clone, restored)
	}
	copies := func() (calls []memdriver.Call) {
		for _, call := range s.Driver.Calls("CreateVolume") {
			if sourceOf(call) != "" {
				calls = append(calls, call)
			}
		}
		return calls
	}
	sidecar.Eventually(t, "two calls from each source have begun", func(context.Context) (bool, error) { return len(copies()) == 4, nil })
	sidecar.Eventually(t, "the other claims wait for their source", func(ctx context.Context) (bool, error) {
		_, page, err := s.sidecar.Get(ctx, "/metrics")
		return strings.Contains(page, "\ncontroller_creates_waiting_for_source 6\n"), err
	})
	for _, name := range []string{"plain-1", "plain-2"} {
		s.Claim(t, fixture.Claim(name).Class(class))
		s.Bound(t, name)
		names = append(names, name)
	}
	if got := len(copies()); got != 4 {
		t.Errorf("%d calls from two sources, want two each", got)
	}
	release()
	bySource := map[string][]memdriver.Call{}
	for _, name := range names {
		s.Bound(t, name)
	}
	for _, call := range copies() {
		bySource[sourceOf(call)] = append(bySource[sourceOf(call)], call)
	}
	for from, calls := range bySource {
		if most := mostAtOnce(calls); most > 2 || len(calls) != 5 {
			t.Errorf("%d calls from %s, up to %d at once, want 5, up to 2", len(calls), from, most)
		}
	}
	for _, name := range append(names, "data") {
		s.DeleteClaim(t, name)
	}
	s.Empty(t)
	if most := mostAtOnce(s.Driver.Calls("DeleteVolume")); most != 1 {
		t.Errorf("up to %d calls of DeleteVolume at once, want 1", most)
	}
}
