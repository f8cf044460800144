package provision

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// formerly returns the annotation that pre-releases put on claims.
func formerly(uid, driver, node string) string {
	return fmt.Sprintf(`{"v":1,"uid":%q,"driver":%q,"node":%q}`, uid, driver, node)
}

func marked(b *fixture.ClaimBuilder, annotation string) *corev1.PersistentVolumeClaim {
	return b.Finalizer(wellknown.FinalizerProvisioningInProgress).Annotation(wellknown.AnnProvisioningInProgress, annotation).Obj()
}

// isMarked reports whether the claim carries the finalizer or the annotation.
func (w *world) isMarked(name string) bool {
	claim := w.live(name)
	if claim == nil {
		return false
	}
	_, annotated := claim.Annotations[wellknown.AnnProvisioningInProgress]
	return annotated || slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
}

// Finalizer and annotation of a pre-release go from all claims of ours; what they speak of is tried once, if it is about
// this claim.
func TestFormerMarkersGo(t *testing.T) {
	t.Parallel()
	claim := func() *fixture.ClaimBuilder { return fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName) }
	own := formerly("uid-of-c", driverName, "")
	for name, tc := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		edit  func(*Config)
		calls int
		stays bool
		stuck bool
	}{
		"its own":                             {claim: marked(claim(), own), calls: 1},
		"its own, of a claim that goes":       {claim: marked(claim().Terminating(), own), calls: 1},
		"its own, and the class is gone":      {claim: marked(claim().Class("gone").Terminating(), own), stuck: true},
		"its own, and the source is gone":     {claim: marked(claim().FromClaim("gone").Terminating(), own), stuck: true},
		"of a bound claim":                    {claim: marked(claim().Bound("pv"), own)},
		"about another claim":                 {claim: marked(claim().Terminating(), formerly("another", driverName, ""))},
		"no JSON":                             {claim: marked(claim().Terminating(), "yes")},
		"of another driver's class":           {claim: marked(claim().For("other"), own)},
		"of another driver":                   {claim: marked(claim().For("other"), formerly("uid-of-c", "other", "")), stays: true},
		"of another node":                     {claim: marked(claim().SelectedNode("there"), formerly("uid-of-c", driverName, "there")), edit: onNode, stays: true},
		"of another node, and the claim goes": {claim: marked(claim().SelectedNode("there").Terminating(), formerly("uid-of-c", driverName, "there")), edit: onNode},
		"of this node":                        {claim: marked(claim().SelectedNode("here"), formerly("uid-of-c", driverName, "here")), edit: onNode, calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tc.edit, func(t *testing.T, w *world) {
				w.put(tc.claim)
				w.pass(time.Second)
				if w.isMarked("c") != tc.stays {
					t.Errorf("marked: %v, want %v", w.isMarked("c"), tc.stays)
				}
				if got := len(w.driver.createCalls()); got != tc.calls {
					t.Errorf("%d calls, want %d", got, tc.calls)
				}
				if (w.pv("pvc-uid-of-c") != nil) != (tc.calls > 0) {
					t.Errorf("PersistentVolume %v", w.pv("pvc-uid-of-c"))
				}
				if stuck := w.events.having("Warning ProvisioningFailed", driverName, `"pvc-uid-of-c"`, "cannot be finished"); (len(stuck) == 1) != tc.stuck {
					t.Errorf("events: %v", w.events.having())
				}
			})
		})
	}
}

// A marked claim counts as one of which a call may be at work, and its operation is recorded before the marker goes.
func TestAFormerMarkerBecomesAnOperation(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(slices.Repeat([]answer{noAnswer}, 3)...)
		w.put(marked(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Terminating(), formerly("uid-of-c", driverName, "")))
		w.pass(time.Second / 2)
		if !w.recorded("c") || w.isMarked("c") || w.live("c") != nil {
			t.Errorf("recorded %v, marked %v, claim %v", w.recorded("c"), w.isMarked("c"), w.live("c"))
		}
		w.pass(time.Minute)
		if w.pv("pvc-uid-of-c") == nil {
			t.Error("no PersistentVolume")
		}
	})
}
