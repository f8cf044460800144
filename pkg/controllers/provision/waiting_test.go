package provision

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

func TestWhoWaitsForTheDriver(t *testing.T) {
	waiting := func(w *world) (names []string) {
		for _, claim := range w.c.Waiting() {
			names = append(names, claim.Name)
		}
		return names
	}
	away := func(cfg *Config) {
		cfg.Gate = func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}
	inWorld(t, away, func(t *testing.T, w *world) {
		w.put(fixture.Class("late").Provisioner(driverName).WaitForFirstConsumer().Obj())
		old := fixture.Claim("old").UID("old").Class("fast").For(driverName).Obj()
		old.CreationTimestamp.Time = time.Now().Add(-time.Hour)
		w.claim("b")
		w.claim("a")
		w.put(old)
		w.put(fixture.Claim("unplaced").UID("unplaced").Class("late").For(driverName).Obj())
		w.put(fixture.Claim("placed").UID("placed").Class("late").For(driverName).SelectedNode("n").Obj())
		w.put(fixture.Claim("foreign").UID("foreign").Class("fast").For("other").Obj())
		w.put(fixture.Claim("bound").UID("bound").Class("fast").For(driverName).Bound("pv").Obj())
		w.put(fixture.Claim("no-class").UID("no-class").Class("gone").For(driverName).Obj())
		saved := fixture.Claim("saved").UID("saved").Class("fast").For(driverName).Obj()
		w.put(saved)
		w.put(fixture.PV("pvc-saved").Driver(driverName).BoundTo(saved).Phase(corev1.VolumeAvailable).Obj())
		w.pass(time.Second)
		if diff := cmp.Diff([]string{"old", "a", "b", "placed"}, waiting(w)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
