package provision

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// slowRoom answers after a minute, or when the call is cut.
type slowRoom struct{ calls atomic.Int32 }

func (r *slowRoom) GetCapacity(ctx context.Context, _ *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	r.calls.Add(1)
	select {
	case <-time.After(time.Minute):
		return &csi.GetCapacityResponse{AvailableCapacity: 1 << 60}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A stop waits for no answer about room, and the claim is left to others: an unknown room counts as room only while there is no stop.
func TestStopCutsTheQuestionForRoom(t *testing.T) {
	room := &slowRoom{}
	edit := func(cfg *Config) {
		onNode(cfg)
		cfg.Node.Room = room
	}
	inWorld(t, edit, func(t *testing.T, w *world) {
		w.put(fixture.Claim("c").UID("u").Class("fast").For(driverName).Obj())
		w.pass(time.Second)
		if took := w.term(30 * time.Second); took > 500*time.Millisecond || room.calls.Load() != 1 {
			t.Errorf("%d calls, the stop took %s, want one call that is cut", room.calls.Load(), took)
		}
		if selected := w.live("c").Annotations[wellknown.AnnSelectedNode]; selected != "" {
			t.Errorf("the claim was taken for node %q", selected)
		}
	})
}
