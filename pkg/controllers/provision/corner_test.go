package provision

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// oneWay translates classes, and cannot translate the PersistentVolume back.
type oneWay struct{}

func (oneWay) TranslateClass(_ string, class *storagev1.StorageClass) (*storagev1.StorageClass, error) {
	translated := class.DeepCopy()
	translated.Provisioner = driverName
	return translated, nil
}

func (oneWay) TranslateToInTree(*corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return nil, errors.New("odd handle")
}

func (oneWay) TranslateToCSI(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return pv, nil
}

func (oneWay) IsMigratable(*corev1.PersistentVolume) bool { return false }

// R11: a volume whose PersistentVolume cannot be translated back is deleted by its CSI handle; done, the create has
// ended; not done, it goes on.
func TestAFailedTranslationCleansUp(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		deletes      []answer
		wantDeletes  int
		wantRecorded bool
		event        string
	}{
		"the clean-up succeeds": {nil, 1, false, "odd handle"},
		"the clean-up fails":    {[]answer{final, final, final, final, final}, 5, true, "orphaned"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Settings.InTree, cfg.Translator = inTreeName, oneWay{} }, func(t *testing.T, w *world) {
				w.driver.deletes = tc.deletes
				w.put(fixture.Class("legacy").UID("class-2").Provisioner(inTreeName).Obj())
				w.put(fixture.Claim("c").UID("uid-of-c").Class("legacy").For(inTreeName).Annotation(wellknown.AnnMigratedTo, driverName).Obj())
				w.pass(500 * time.Millisecond)
				calls := w.driver.deleteCalls()
				if len(calls) != tc.wantDeletes {
					t.Fatalf("%d DeleteVolume calls, want %d", len(calls), tc.wantDeletes)
				}
				if calls[0].id != "id-of-pvc-uid-of-c" {
					t.Errorf("deleted %q", calls[0].id)
				}
				if w.recorded("c") != tc.wantRecorded {
					t.Errorf("recorded %v, want %v", w.recorded("c"), tc.wantRecorded)
				}
				if len(w.events.having("Warning ProvisioningFailed", inTreeName, tc.event)) != 1 {
					t.Errorf("events: %v", w.events.having())
				}
			})
		})
	}
}

// P23: with names of another form, too, a claim that waits to be bound is not provisioned again, in this process or the
// next.
func TestANameOfAnotherFormIsRecognized(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.VolumeNamePrefix, cfg.Settings.VolumeNameUUIDLength = "foo", 5 }, func(t *testing.T, w *world) {
		w.claim("c")
		w.pass(time.Second)
		if w.pv("foo-uidof") == nil {
			t.Fatal("no PersistentVolume")
		}
		touch := func(value string) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations["a"] = value })
			w.pass(time.Minute)
		}
		touch("1")
		w.die()
		w.start()
		touch("2")
		w.calls(0)
	})
}

// nodeGone is a topology in which the selected node is not there any more.
type nodeGone struct{ asked []topology.Request }

func (n *nodeGone) Require(_ context.Context, r topology.Request) (*csi.TopologyRequirement, error) {
	n.asked = append(n.asked, r)
	if r.Hint != nil {
		segment := []*csi.Topology{{Segments: r.Hint}}
		return &csi.TopologyRequirement{Requisite: segment, Preferred: segment}, nil
	}
	return nil, topology.ErrNodeGone
}

// A node that is gone costs the claim its node, and no call.
func TestAMissingNodeIsReplaced(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.Capabilities.Topology, cfg.Topologies = true, &nodeGone{} }, func(t *testing.T, w *world) {
		w.put(fixture.Class("late").UID("class-2").Provisioner(driverName).WaitForFirstConsumer().Obj())
		w.put(fixture.Claim("c").UID("uid-of-c").Class("late").For(driverName).SelectedNode("n").Annotation("a", "b").Obj())
		w.pass(time.Hour)
		w.calls([]int(nil)...)
		claim := w.live("c")
		if _, selected := claim.Annotations[wellknown.AnnSelectedNode]; selected || claim.Annotations["a"] != "b" {
			t.Errorf("annotations %v", claim.Annotations)
		}
		if got := w.api.wrote("update persistentvolumeclaims"); got != 1 {
			t.Errorf("%d writes of the claim, want 1", got)
		}
	})
}

// A requirement that was too long for the Lease is asked for again, with the term first that came first.
func TestAReducedRequirementIsAskedForAgain(t *testing.T) {
	places := &nodeGone{}
	inWorld(t, func(cfg *Config) { cfg.Settings.Capabilities.Topology, cfg.Topologies = true, places }, func(t *testing.T, w *world) {
		plan := &Plan{
			Claim: fixture.Claim("c").UID("uid-of-c").Obj(), Class: fixture.Class("fast").UID("class-1").Provisioner(driverName).Obj(), SelectedNode: "n",
			Request: &csi.CreateVolumeRequest{Name: "pvc-uid-of-c", AccessibilityRequirements: &csi.TopologyRequirement{
				Preferred: []*csi.Topology{{Segments: map[string]string{"zone": "z"}}},
			}},
		}
		op := operationOf(plan)
		op.TopologyReduced = true
		operationListener{w.c}.Recovered(op)
		w.pass(time.Minute)
		w.calls(0)
		if len(places.asked) != 1 || places.asked[0].SelectedNode != "n" || places.asked[0].Hint["zone"] != "z" {
			t.Fatalf("asked %v", places.asked)
		}
		if got := w.driver.createCalls()[0].req.GetAccessibilityRequirements(); len(got.GetRequisite()) != 1 || w.pv("pvc-uid-of-c") == nil {
			t.Errorf("requirement %v, PersistentVolume %v", got, w.pv("pvc-uid-of-c"))
		}
	})
}

// A driver that has no room on the node: the claim loses the node and is not tried again by us. While an earlier call
// is unanswered it keeps it.
func TestNoRoomOnTheNode(t *testing.T) {
	t.Parallel()
	full := answer{code: codes.ResourceExhausted}
	for name, tc := range map[string]struct {
		script   []answer
		want     []int
		selected bool // at 5 s
	}{
		"at the first call":                            {[]answer{full}, []int{0}, false},
		"after an answer that was not final":           {[]answer{away, full}, []int{0, 1}, false},
		"after none":                                   {[]answer{noAnswer, full}, []int{0, 1, 2}, true},
		"until the third time, ten seconds in between": {append([]answer{noAnswer}, slices.Repeat([]answer{full}, 9)...), []int{0, 1, 2, 4, 8, 16, 32, 64}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Settings.Capabilities.Topology = true }, func(t *testing.T, w *world) {
				w.driver.answers(tc.script...)
				w.put(fixture.Class("late").UID("class-2").Provisioner(driverName).WaitForFirstConsumer().Obj())
				w.put(fixture.Claim("c").UID("uid-of-c").Class("late").For(driverName).SelectedNode("n").Obj())
				w.pass(5 * time.Second)
				if _, selected := w.live("c").Annotations[wellknown.AnnSelectedNode]; selected != tc.selected {
					t.Errorf("node selected: %v, want %v", selected, tc.selected)
				}
				w.pass(10 * time.Minute)
				w.calls(tc.want...)
				if _, selected := w.live("c").Annotations[wellknown.AnnSelectedNode]; selected != (w.pv("pvc-uid-of-c") != nil) || w.recorded("c") {
					t.Errorf("at the end: node selected %v, PersistentVolume %v, recorded %v", selected, w.pv("pvc-uid-of-c"), w.recorded("c"))
				}
			})
		})
	}
}

// A claim that is being deleted and was never begun is not begun.
func TestATerminatingClaimIsNotBegun(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Terminating().Finalizer("example.com/held").Obj())
		w.pass(time.Minute)
		w.calls([]int(nil)...)
	})
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}); err == nil {
		t.Error("an empty Config was accepted")
	}
}

// The node that had no room is taken off the claim, and not the one that is selected by then, which gets its own call.
func TestAnotherNodeIsNotTakenOff(t *testing.T) {
	t.Parallel()
	late := func() *fixture.ClaimBuilder { return fixture.Claim("c").UID("uid-of-c").Class("late").For(driverName) }
	full := answer{after: 5 * time.Second, code: codes.ResourceExhausted}
	for name, tc := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		script []answer
		cached bool // the caches show the other node before the answer comes
		killed bool // after the first call began
	}{
		"the cache shows the other node":                             {late().SelectedNode("n1").Obj(), []answer{full}, true, false},
		"the cache shows the failed node":                            {late().SelectedNode("n1").Obj(), []answer{full}, false, false},
		"an earlier process began the operation for the failed node": {late().SelectedNode("n1").Obj(), slices.Repeat([]answer{full}, 4), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Settings.Capabilities.Topology, cfg.Timeout = true, time.Second }, func(t *testing.T, w *world) {
				w.put(fixture.Class("late").UID("class-2").Provisioner(driverName).WaitForFirstConsumer().Obj())
				w.driver.answers(tc.script...)
				w.put(tc.claim)
				w.pass(time.Second)
				if tc.killed {
					w.die()
					w.start()
				}
				w.api.lag(!tc.cached)
				w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations[wellknown.AnnSelectedNode] = "n2" })
				w.pass(5 * time.Second)
				w.api.lag(false)
				w.pass(time.Minute)
				if got := w.live("c").Annotations[wellknown.AnnSelectedNode]; got != "n2" {
					t.Errorf("selected node %q, want n2", got)
				}
				if w.pv("pvc-uid-of-c") == nil {
					t.Errorf("no volume for the other node; calls at %v", w.driver.at())
				}
			})
		})
	}
}
