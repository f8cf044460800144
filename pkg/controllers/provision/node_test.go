package provision

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// roomy is a driver that has room for everything.
type roomy struct{}

func (roomy) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: 1 << 60}, nil
}

// full is a driver that has no room for anything.
type full struct{}

func (full) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{}, nil
}

// onNode makes the controller that of the node "here", which takes claims at once.
func onNode(cfg *Config) {
	race, err := nodelocal.NewRace(nodelocal.RaceConfig{Random: func() float64 { return 0 }})
	if err != nil {
		panic(err)
	}
	info := &csi.NodeGetInfoResponse{AccessibleTopology: &csi.Topology{Segments: map[string]string{"host": "here"}}}
	cfg.Node = &NodeDeployment{Local: nodelocal.NewLocal(driverName, "here", info), Race: race, Room: roomy{}, ImmediateBinding: true}
}

func markerOfNode(uid, node string) string {
	return fmt.Sprintf(`{"v":1,"uid":%q,"driver":%q,"node":%q}`, uid, driverName, node)
}

// markedBy builds a claim that the node's instance has begun a create for.
func markedBy(node string) *fixture.ClaimBuilder {
	return fixture.Claim("c").UID("u").Class("fast").For(driverName).
		Finalizer(wellknown.FinalizerProvisioningInProgress).
		Annotation(wellknown.AnnProvisioningInProgress, markerOfNode("u", node))
}

// A claim that another node has begun a create for is left to it, whether it is given to this node by now or to
// nobody; when the marker goes, it is served like any other.
func TestAClaimIsLeftToTheNodeThatHasMarkedIt(t *testing.T) {
	t.Parallel()
	for name, selected := range map[string]string{"given to this node": "here", "given to nobody": ""} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, onNode, func(t *testing.T, w *world) {
				claim := markedBy("there")
				if selected != "" {
					claim.SelectedNode(selected)
				}
				w.put(claim.Obj())
				w.pass(time.Hour)
				if n := len(w.driver.createCalls()); n != 0 {
					t.Fatalf("%d calls for a claim of another node", n)
				}
				live := w.live("c")
				if live.Annotations[wellknown.AnnProvisioningInProgress] != markerOfNode("u", "there") {
					t.Fatalf("the marker of the other node: %v", live.Annotations)
				}
				if live.Annotations[wellknown.AnnSelectedNode] != selected {
					t.Errorf("the claim was taken: %v", live.Annotations)
				}
				if told := w.events.having("there"); (len(told) > 0) != (selected != "") {
					t.Errorf("told %q", told)
				}
				w.change("c", func(live *corev1.PersistentVolumeClaim) { clearMarker(live) })
				w.pass(time.Minute)
				if n := len(w.driver.createCalls()); n != 1 {
					t.Errorf("%d calls after the marker has gone, want one", n)
				}
			})
		})
	}
}

// asked is a driver that has room and notes what it is asked for.
type asked struct{ parameters []map[string]string }

func (a *asked) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	a.parameters = append(a.parameters, req.GetParameters())
	return roomy{}.GetCapacity(ctx, req)
}

// The room of a node is asked for as the class has it; what the claim says is for the create alone.
func TestRoomIsAskedForWithoutTheClaimsMetadata(t *testing.T) {
	room := &asked{}
	edit := func(cfg *Config) {
		onNode(cfg)
		cfg.Node.Room = room
		cfg.Settings.CreateMetadata.Labels = volume.Keys{"team"}
	}
	inWorld(t, edit, func(t *testing.T, w *world) {
		w.put(fixture.Claim("c").UID("u").Class("fast").For(driverName).Label("team", "blue").Obj())
		w.pass(time.Minute)
		if diff := cmp.Diff([]map[string]string{{}}, room.parameters); diff != "" {
			t.Errorf("parameters of GetCapacity (-want +got):\n%s", diff)
		}
		calls := w.driver.createCalls()
		if len(calls) != 1 {
			t.Fatalf("%d calls of CreateVolume, want one", len(calls))
		}
		if diff := cmp.Diff(map[string]string{"csi.storage.k8s.io/pvc/labels/team": "blue"}, calls[0].req.GetParameters()); diff != "" {
			t.Errorf("parameters of CreateVolume (-want +got):\n%s", diff)
		}
	})
}

// The marker of another node is neither overwritten nor removed.
func TestTheMarkerOfAnotherNodeIsNotTouched(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.m.driver, d.m.node = driverName, "here"
		d.m.want(d.ctx, d.cached, markerOfNode("u", "here"))
		d.pass(time.Second)
		d.says(markerOfNode("u", "here"))
		// Behind our back the claim goes to another node, which marks it.
		d.change("c", func(live *corev1.PersistentVolumeClaim) {
			live.Annotations[wellknown.AnnProvisioningInProgress] = markerOfNode("u", "there")
		})
		d.m.end(d.ctx, "u")
		d.pass(time.Minute)
		d.says(markerOfNode("u", "there"))
		if err := d.m.ensure(d.ctx, d.cached, markerOfNode("u", "here")); err == nil {
			t.Error("the claim can be marked a second time")
		}
		d.pass(time.Minute)
		d.says(markerOfNode("u", "there"))
	})
}
