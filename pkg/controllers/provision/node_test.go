package provision

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	snapfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

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

// asked is a driver that notes what it is asked for.
type asked struct {
	of         RoomDriver
	parameters []map[string]string
}

func (a *asked) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	a.parameters = append(a.parameters, req.GetParameters())
	return a.of.GetCapacity(ctx, req)
}

// The room of a node is asked for as the class has it; what the claim says is for the create alone.
func TestRoomIsAskedForWithoutTheClaimsMetadata(t *testing.T) {
	room := &asked{of: roomy{}}
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

// A full node asks for room as often as it likes and reads neither the snapshot nor the VolumeAttributesClass for that:
// whether they can be read is a matter for the node that takes the claim.
func TestRoomIsAskedForWithoutTheSource(t *testing.T) {
	room := &asked{of: full{}}
	snapshots := &snapfake.Clientset{}
	snapshots.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the snapshot cannot be read")
	})
	edit := func(cfg *Config) {
		onNode(cfg)
		cfg.Node.Room, cfg.Snapshots = room, snapshots
		cfg.WantsVAC = func() bool { return true }
	}
	inWorld(t, edit, func(t *testing.T, w *world) {
		var read atomic.Int32 // VolumeAttributesClasses
		w.api.failing(func(_, resource, _ string) error {
			if resource != "volumeattributesclasses" {
				return nil
			}
			read.Add(1)
			return errors.New("the class cannot be read")
		})
		w.put(fixture.Claim("c").UID("u").Class("fast").For(driverName).FromSnapshot("snap").AttributesClass("gold").Obj())
		w.pass(time.Minute)
		if len(room.parameters) < 2 {
			t.Errorf("asked for room %d times, want again and again", len(room.parameters))
		}
		if got := len(snapshots.Actions()) + int(read.Load()); got != 0 {
			t.Errorf("%d requests about snapshots and attributes, want none", got)
		}
		if live := w.live("c"); live.Annotations[wellknown.AnnSelectedNode] != "" {
			t.Errorf("a full node took the claim: %v", live.Annotations)
		}
	})
}

// A node that may not write its name on a claim tells that on it, and takes the claim once it may. That another writer
// was faster is nothing to tell.
func TestANodeThatCannotTakeAClaimTellsIt(t *testing.T) {
	t.Parallel()
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for name, tc := range map[string]struct {
		refusal error
		told    bool
	}{
		"forbidden": {apierrors.NewForbidden(claims, "c", errors.New("no right to update")), true},
		"conflict":  {apierrors.NewConflict(claims, "c", errors.New("somebody was faster")), false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, onNode, func(t *testing.T, w *world) {
				w.api.failing(func(verb, resource, _ string) error {
					if verb == "update" && resource == claims.Resource {
						return tc.refusal
					}
					return nil
				})
				w.put(fixture.Claim("c").UID("u").Class("fast").For(driverName).Obj())
				w.pass(time.Minute)
				told := w.events.having("Warning ProvisioningFailed", `select node "here" for the claim`, tc.refusal.Error())
				if (len(told) > 0) != tc.told || len(told) != len(w.events.having()) {
					t.Errorf("events %q", w.events.having())
				}
				if n := len(w.driver.createCalls()); n != 0 {
					t.Errorf("%d calls for a claim that the node does not have", n)
				}
				w.api.failing(nil)
				w.pass(time.Hour)
				if got := w.live("c").Annotations[wellknown.AnnSelectedNode]; got != "here" || len(w.driver.createCalls()) != 1 {
					t.Errorf("selected node %q, %d calls, want here and one", got, len(w.driver.createCalls()))
				}
			})
		})
	}
}

// A populator's claim is taken by one node, as any other of its class, and that node tells once who is to fill it.
func TestANodeTakesAPopulatorsClaim(t *testing.T) {
	inWorld(t, onNode, func(t *testing.T, w *world) {
		w.put(fixture.Claim("c").UID("u").Class("fast").For(driverName).From("example.com", "Recipe", "r").Obj())
		w.pass(time.Minute)
		w.change("c", func(live *corev1.PersistentVolumeClaim) { live.Annotations["a"] = "b" })
		w.pass(time.Hour)
		if got := w.live("c").Annotations[wellknown.AnnSelectedNode]; got != "here" {
			t.Errorf("selected node %q, want here", got)
		}
		told := w.events.having()
		if len(told) != 1 || !strings.HasPrefix(told[0], "Normal Provisioning Assuming an external populator will provision the volume") {
			t.Errorf("events %q, want the one about a populator", told)
		}
		if n := len(w.driver.createCalls()); n != 0 {
			t.Errorf("%d calls for a populator's claim", n)
		}
	})
}

// A node takes no claim that is bound, being deleted or taken by now, whatever its cache shows.
func TestANodeTakesNoClaimThatNeedsNone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(live *corev1.PersistentVolumeClaim){
		"it is bound":         func(live *corev1.PersistentVolumeClaim) { live.Spec.VolumeName = "another" },
		"it is being deleted": func(live *corev1.PersistentVolumeClaim) { live.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
		"another node has it": func(live *corev1.PersistentVolumeClaim) { live.Annotations[wellknown.AnnSelectedNode] = "there" },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, onNode, func(t *testing.T, w *world) {
				// The cache shows the claim as it was before the change.
				claim := fixture.Claim("c").UID("u").Class("fast").For(driverName).Finalizer("example.com/held").Obj()
				changed := claim.DeepCopy()
				change(changed)
				key := keyOf(claim)
				w.api.mu.Lock()
				w.api.objects[key], w.api.cached[key] = changed, claim
				w.api.mu.Unlock()
				w.c.onClaim(nil, claim)
				w.pass(time.Minute)
				if got := w.api.wrote("update persistentvolumeclaims"); got != 0 {
					t.Errorf("%d writes of the claim: %v", got, w.live("c").ObjectMeta)
				}
				if n := len(w.driver.createCalls()); n != 0 {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}
