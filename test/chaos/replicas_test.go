package chaos

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// replicasVariable says how long two replicas work side by side, as Go writes it; default 10s.
const replicasVariable = "CHAOS_REPLICAS"

// Two replicas without leader election serve the same claims at the same time. Neither ends, nothing leaks, and no claim ever
// has two volumes. In a run of two minutes or more one is killed and replaced: what it leaves is taken over when its Leases
// have not been renewed for a minute.
func TestTwoReplicasWithoutLeaderElection(t *testing.T) {
	t.Parallel()
	duration := 10 * time.Second
	if text := os.Getenv(replicasVariable); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", replicasVariable, err)
		}
	}
	s := newStage(t, cluster.Shared(t), memdriver.Config{}, "--kube-api-qps=-1", "--worker-threads=10")
	s.Driver.Add(memdriver.Slow("CreateVolume", 30*time.Millisecond), memdriver.Slow("DeleteVolume", 30*time.Millisecond))
	class := s.Class(t, fixture.Class("c"))
	first, second := s.start(t), s.start(t)
	busy, rest := context.WithTimeout(t.Context(), duration)
	defer rest()
	var load sync.WaitGroup
	load.Go(func() { s.load(busy, 0, class) })
	begin, killed := time.Now(), duration < 2*time.Minute
	for busy.Err() == nil {
		volumes := map[string]string{} // name → ID
		for _, volume := range s.Driver.Volumes() {
			if other, twice := volumes[volume.Name]; twice {
				t.Errorf("%s has two volumes, %s and %s", volume.Name, other, volume.ID)
			}
			volumes[volume.Name] = volume.ID
		}
		select {
		case <-busy.Done():
		case <-time.After(100 * time.Millisecond):
		}
		if !killed && time.Since(begin) > duration/2 {
			second.Kill()
			second, killed = s.start(t), true
		}
	}
	load.Wait()
	s.settle(t, "two replicas", patience)
	t.Logf("%d calls for claims of %s", len(s.Driver.Calls("CreateVolume")), duration)
	first.Terminate()
	second.Terminate()
	for _, replica := range []*sidecar.Sidecar{first, second} {
		if code := replica.Exits(t, patience); code != 0 {
			t.Errorf("a replica ended with %d", code)
		}
	}
}
