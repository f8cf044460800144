package provision

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const drainTime = 20 * time.Second

func forbidMarkers(verb, resource, name string) error {
	if verb == "update" && resource == "persistentvolumeclaims" {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, nil)
	}
	return nil
}

// A call in flight is finished, its PersistentVolume saved, the marker taken off; no other claim is begun.
func TestAStopFinishesTheCallInFlight(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.CreateWorkers, cfg.DeleteWorkers = 1, 1 }, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: 5 * time.Second})
		w.claim("c")
		w.pass(time.Second)
		w.claim("d")
		took := w.term(drainTime)
		if took < 4*time.Second || took > 5*time.Second {
			t.Errorf("the stop took %s", took)
		}
		w.calls(0)
		if w.pv("pvc-uid-of-c") == nil || w.marked("c") {
			t.Errorf("PersistentVolume %v, marked %v", w.pv("pvc-uid-of-c"), w.marked("c"))
		}
	})
}

// A create in back-off that a marker remembers is left to the next process.
func TestAStopLeavesWhatIsMarked(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad, noAnswer, noAnswer, noAnswer, noAnswer, noAnswer, noAnswer)
		w.claim("c")
		w.pass(500 * time.Millisecond)
		if took := w.term(drainTime); took > time.Second {
			t.Errorf("the stop took %s", took)
		}
		w.calls(0)
		if !w.marked("c") {
			t.Error("not marked")
		}
	})
}

// A create in back-off that only this process knows of is driven to an end.
func TestAStopFinishesWhatNobodyElseKnows(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(w *world){
		"the claim cannot be marked": func(*world) {},
		"the claim is gone":          func(w *world) { w.remove(w.api.Claim("default", "c")) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.api.failing(forbidMarkers)
				w.driver.answers(madeInBad, noAnswer, noAnswer)
				w.claim("c")
				w.pass(100 * time.Millisecond)
				w.api.failing(func(verb, resource, n string) error {
					if verb == "update" && resource == "persistentvolumeclaims" && !w.dead.Load() {
						return forbidMarkers(verb, resource, n)
					}
					return nil
				})
				forget(w)
				if took := w.term(drainTime); took > 10*time.Second {
					t.Errorf("the stop took %s", took)
				}
				if w.pv("pvc-uid-of-c") == nil {
					t.Error("the volume has no PersistentVolume")
				}
			})
		})
	}
}

// What cannot be finished in time ends with the drain.
func TestADrainHasAnEnd(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(forbidMarkers)
		w.driver.answers(madeInBad, answer{after: time.Hour})
		w.claim("c")
		w.pass(100 * time.Millisecond)
		if took := w.term(drainTime); took != drainTime {
			t.Errorf("the stop took %s, want %s", took, drainTime)
		}
	})
}

// A PersistentVolume that is not saved yet is tried until the drain ends.
func TestAStopSavesWhatIsUnsaved(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		begin := time.Now()
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "create" && resource == "persistentvolumes" && time.Since(begin) < 10*time.Second {
				return errors.New("no connection")
			}
			return nil
		})
		w.claim("c")
		w.pass(100 * time.Millisecond)
		if took := w.term(drainTime); took > 15*time.Second {
			t.Errorf("the stop took %s", took)
		}
		if w.pv("pvc-uid-of-c") == nil || w.marked("c") {
			t.Errorf("PersistentVolume %v, marked %v", w.pv("pvc-uid-of-c"), w.marked("c"))
		}
	})
}

// A deletion in flight is finished too: object and finalizer go with it.
func TestAStopFinishesTheDeletionInFlight(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.deletes = []answer{{after: 3 * time.Second}}
		w.put(released().Obj())
		w.pass(time.Second)
		if took := w.term(drainTime); took != 2*time.Second {
			t.Errorf("the stop took %s", took)
		}
		w.deletes(1, false)
	})
}

// While creates of gone claims run, their sources are in use.
func TestForSourceKnowsOutstandingCreates(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.MarkerDelay = -1 }, func(t *testing.T, w *world) {
		uid := w.claim("c").UID
		w.pass(0)
		cr := create{claim: w.api.ClaimByUID(uid).DeepCopy(), proto: protocol{unanswered: true}}
		cr.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "src"}
		w.c.creates.put(cr)
		if !w.c.ForSource("PersistentVolumeClaim/default/src") || w.c.ForSource("PersistentVolumeClaim/default/other") {
			t.Error("the source of an outstanding create is not known")
		}
		w.c.creates.drop(uid)
		if w.c.ForSource("PersistentVolumeClaim/default/src") {
			t.Error("the source of a create that has ended is still in use")
		}
	})
}
