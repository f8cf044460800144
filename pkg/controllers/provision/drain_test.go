package provision

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const drainTime = 20 * time.Second

// endless takes longer than any stop. In the moment in which the stop ends another call may begin.
var endless = answer{after: time.Hour}

// forbidLeases takes the right to record operations.
func forbidLeases(_, resource, name string) error {
	if resource == "leases" {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, nil)
	}
	return nil
}

// A call in flight is finished, its PersistentVolume saved, its operation ended; no other claim is begun.
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
		if w.pv("pvc-uid-of-c") == nil || w.recorded("c") {
			t.Errorf("PersistentVolume %v, recorded %v", w.pv("pvc-uid-of-c"), w.recorded("c"))
		}
	})
}

// A create in back-off whose operation is recorded is left to the next process.
func TestAStopLeavesWhatIsRecorded(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad, noAnswer, noAnswer, noAnswer, noAnswer, noAnswer, noAnswer)
		w.claim("c")
		w.pass(500 * time.Millisecond)
		if took := w.term(drainTime); took > time.Second {
			t.Errorf("the stop took %s", took)
		}
		w.calls(0)
		if !w.recorded("c") {
			t.Error("not recorded")
		}
		if !w.inLog("Left to the next process", `PVC="default/c"`, `volume="pvc-uid-of-c"`) || w.inLog("may be lost") {
			t.Error("the log does not say that the create is left to the next process")
		}
	})
}

// The same with an operation that this process has taken over and could not go on with: its volume has a name, too.
func TestAStopNamesWhatWasTakenOver(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.withSecret()
		w.driver.answers(madeInBad)
		w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		w.remove(w.api.Class("fast"))
		w.start()
		w.pass(time.Second)
		w.term(drainTime)
		w.calls(0)
		if !w.inLog("Left to the next process", `volume="pvc-uid-of-c"`) {
			t.Error("the log does not name the volume")
		}
	})
}

// A create in back-off that only this process knows of is driven to an end.
func TestAStopFinishesWhatNobodyElseKnows(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(w *world){
		"the claim is there": func(*world) {},
		"the claim is gone":  func(w *world) { w.remove(w.api.Claim("default", "c")) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.api.failing(forbidLeases)
				w.driver.answers(madeInBad, noAnswer, noAnswer)
				w.claim("c")
				w.pass(100 * time.Millisecond)
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

// The same while another call takes all the time that there is: nothing waits for that.
func TestALongCallHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script []answer // the first for the create, the second for the long call, the third for the create again
		wantAt []int
	}{
		"the create is in back-off":               {[]answer{madeInBad, endless, {}, endless}, []int{0, 0}},
		"its call has no answer during the stop":  {[]answer{{after: 5 * time.Second, code: codes.DeadlineExceeded, made: true}, endless, {}, endless}, []int{0, 5}},
		"the long call ends and is driven itself": {[]answer{madeInBad, {after: 5 * time.Second, code: codes.DeadlineExceeded}}, []int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Timeout = time.Minute }, func(t *testing.T, w *world) {
				w.api.failing(forbidLeases)
				w.driver.answers(tc.script...)
				claim := w.claim("c")
				w.pass(10 * time.Millisecond)
				w.claim("long")
				w.pass(100 * time.Millisecond)
				w.remove(claim)
				took := w.term(drainTime)
				var at []int
				for _, call := range w.driver.createCalls() {
					if call.name == "pvc-uid-of-c" {
						at = append(at, int(call.at/time.Second))
					}
				}
				if diff := cmp.Diff(tc.wantAt, at); diff != "" {
					t.Errorf("calls of the create at (-want +got):\n%s", diff)
				}
				if w.pv("pvc-uid-of-c") == nil {
					t.Error("the volume has no PersistentVolume")
				}
				if inTime := w.pv("pvc-uid-of-long") != nil; inTime != (took < drainTime) || inTime == w.inLog("A volume may be lost", `volume="pvc-uid-of-long"`) {
					t.Errorf("the stop took %s, the other volume was saved: %v", took, inTime)
				}
			})
		})
	}
}

// What cannot be finished in time ends with the drain, and the log says by which name to look for the volume.
func TestADrainHasAnEnd(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(forbidLeases)
		w.driver.answers(madeInBad, endless, endless)
		w.claim("c")
		w.pass(100 * time.Millisecond)
		if took := w.term(drainTime); took != drainTime {
			t.Errorf("the stop took %s, want %s", took, drainTime)
		}
		if !w.inLog("ERROR", "A volume may be lost", `PVC="default/c"`, `volume="pvc-uid-of-c"`) {
			t.Error("the log does not name the volume")
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
		if w.pv("pvc-uid-of-c") == nil || w.recorded("c") {
			t.Errorf("PersistentVolume %v, recorded %v", w.pv("pvc-uid-of-c"), w.recorded("c"))
		}
	})
}

// The same when its next turn is further away than the end of the drain: it is tried at once.
func TestAStopWaitsForNoBackOffOfASave(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(refuseNewPVs)
		w.claim("c")
		w.pass(102 * time.Second) // the last try was at 101 s, the next one is at 131 s
		w.api.failing(nil)
		w.pass(time.Second)
		if w.pv("pvc-uid-of-c") != nil {
			t.Fatal("the PersistentVolume is saved too soon for this test")
		}
		if took := w.term(drainTime); took > time.Second {
			t.Errorf("the stop took %s", took)
		}
		if w.pv("pvc-uid-of-c") == nil || w.recorded("c") {
			t.Errorf("PersistentVolume %v, recorded %v", w.pv("pvc-uid-of-c"), w.recorded("c"))
		}
	})
}

// A volume that is deleted is not deleted again by the next process: its PersistentVolume goes during the stop.
func TestAStopFinishesHalfADeletion(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{"delete", "patch"} {
		t.Run(refused, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				begin := time.Now()
				w.api.failing(func(verb, resource, _ string) error {
					if verb == refused && resource == "persistentvolumes" && time.Since(begin) < 10*time.Second {
						return apierrors.NewInternalError(errors.New("not now"))
					}
					return nil
				})
				w.put(released().Obj())
				w.pass(time.Second)
				w.deletes(1, true)
				if took := w.term(drainTime); took < 9*time.Second || took > 10*time.Second {
					t.Errorf("the stop took %s", took)
				}
				w.start()
				w.pass(time.Minute)
				w.deletes(1, false)
			})
		})
	}
}

// When that does not come to its end, the log tells.
func TestAStopNamesHalfADeletion(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(func(verb, _, _ string) error {
			if verb == "patch" {
				return apierrors.NewInternalError(errors.New("not now"))
			}
			return nil
		})
		w.put(released().Obj())
		w.pass(time.Second)
		if took := w.term(drainTime); took != drainTime {
			t.Errorf("the stop took %s", took)
		}
		if !w.inLog("its PersistentVolume is left to the next process", `PV="pv"`) {
			t.Error("the log does not name the PersistentVolume")
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
	inWorld(t, func(cfg *Config) { cfg.Operations = nil }, func(t *testing.T, w *world) {
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

// During a stop no more creates are worked on at a time than before, and each of them comes to its turn.
func TestAStopKeepsToTheCreateThreads(t *testing.T) {
	const claims, threads = 20, 2
	inWorld(t, func(cfg *Config) { cfg.Operations, cfg.CreateWorkers = nil, threads }, func(t *testing.T, w *world) {
		w.driver.answers(slices.Repeat([]answer{noAnswer}, 10000)...)
		for i := range claims {
			w.claim(fmt.Sprint("c", i))
		}
		w.pass(10 * time.Second)
		// Two calls are in flight when the stop begins.
		w.driver.answers(slices.Repeat([]answer{{after: time.Second}}, claims)...)
		w.pass(time.Second)
		if took := w.term(drainTime); took > (claims/threads+1)*time.Second {
			t.Errorf("the stop took %s, want about a second for each %d claims", took, threads)
		}
		if got := w.driver.mostFrom(""); got > threads {
			t.Errorf("%d CreateVolume calls at once, want at most %d", got, threads)
		}
		if got := w.driver.volumeCount(); got != claims {
			t.Errorf("%d volumes, want %d", got, claims)
		}
	})
}

// A PersistentVolume is saved during a stop while calls take all slots.
func TestAStopSavesBesideLongCalls(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.CreateWorkers = 1 }, func(t *testing.T, w *world) {
		w.api.failing(refuseNewPVs)
		w.driver.answers(answer{}, endless, endless)
		w.claim("c")
		w.pass(102 * time.Second) // its next save is far away
		w.claim("long")
		w.pass(time.Second)
		w.api.failing(nil)
		w.term(drainTime)
		if w.pv("pvc-uid-of-c") == nil {
			t.Error("the PersistentVolume is not saved")
		}
	})
}

// A stop has no back-off, and repeats a call that was answered finally only when the next answer would count.
func TestAStopMakesNoCallThatCannotCount(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Operations = nil }, func(t *testing.T, w *world) {
		w.driver.answers(append([]answer{noAnswer}, slices.Repeat([]answer{final}, 100)...)...)
		w.claim("c")
		w.pass(1600 * time.Millisecond)
		w.term(drainTime)
		w.calls(0, 1, 10, 20)
	})
}
