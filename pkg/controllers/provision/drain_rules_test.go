package provision

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// A stop does not wait for PersistentVolumes that no right allows to create, if a Lease tells the next process.
// Without it only this process knows of the volume, and it uses all the time that it has.
func TestAStopDoesNotWaitForASaveThatIsNotGranted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		denied []string
		leases func(verb, resource, name string) error
		want   time.Duration
		logged string
	}{
		"recorded":     {[]string{"create"}, nil, 0, "Left to the next process"},
		"not recorded": {[]string{"create"}, forbidLeases, drainTime, "A volume may be lost"},
		"refused by a webhook": {nil, func(verb, resource, _ string) error {
			if verb == "create" && resource == "persistentvolumes" {
				return apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("denied by a webhook"))
			}
			return nil
		}, drainTime, "Left to the next process"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, denying(tc.denied...), func(t *testing.T, w *world) {
				w.api.failing(tc.leases)
				w.claim("c")
				w.pass(5 * time.Second)
				if took := w.term(drainTime); took != tc.want {
					t.Errorf("the stop took %s, want %s", took, tc.want)
				}
				if !w.inLog(tc.logged, `volume="pvc-uid-of-c"`) {
					t.Errorf("the log does not say %q", tc.logged)
				}
				w.api.failing(nil)
				w.api.deny()
				w.start()
				w.pass(5 * time.Minute)
				if w.pv("pvc-uid-of-c") == nil {
					t.Error("the next process does not save the PersistentVolume")
				}
			})
		})
	}
}

// The last call of a stop is waited for also when its operation is not recorded, and so is the save that follows.
func TestAStopSavesWhatItsLastCallHasMade(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(forbidLeases)
		w.driver.answers(noAnswer, answer{after: 5 * time.Second}) // the second call is made during the stop
		w.claim("c")
		w.pass(100 * time.Millisecond)
		begin := time.Now()
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "create" && resource == "persistentvolumes" && time.Since(begin) < 7*time.Second {
				return errors.New("no connection")
			}
			return nil
		})
		took := w.term(drainTime)
		if w.pv("pvc-uid-of-c") == nil || w.recorded("c") {
			t.Errorf("PersistentVolume %v, recorded %v, after %s", w.pv("pvc-uid-of-c"), w.recorded("c"), took)
		}
	})
}

// A call that was not answered is repeated half a second after the stop has begun, or a multiple of it, and not at once.
func TestAStopRepeatsCallsAtItsOwnPace(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Operations, cfg.CreateWorkers = nil, 1 }, func(t *testing.T, w *world) {
		slow := noAnswer
		slow.after = 700 * time.Millisecond
		w.driver.answers(noAnswer, slow, slow, slow, answer{})
		w.claim("c")
		w.pass(100 * time.Millisecond)
		stop := time.Since(w.driver.begin)
		w.term(drainTime)
		var at []time.Duration
		for _, call := range w.driver.createCalls()[1:] {
			at = append(at, call.at-stop)
		}
		if diff := cmp.Diff([]time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}, at); diff != "" {
			t.Errorf("calls at (-want +got):\n%s", diff)
		}
	})
}

// A stop ends in the moment in which all is done, and in the moment in which its time is over.
func TestAStopEndsAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer answer
		drain  time.Duration
		want   time.Duration
	}{
		"the call in flight ends": {answer{after: 2300 * time.Millisecond}, drainTime, 2200 * time.Millisecond},
		"the time is over":        {noAnswer, 1300 * time.Millisecond, 1300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Operations = nil }, func(t *testing.T, w *world) {
				w.driver.answers(tc.answer, endless, endless)
				w.claim("c")
				w.pass(100 * time.Millisecond)
				if took := w.term(tc.drain); took != tc.want {
					t.Errorf("the stop took %s, want %s", took, tc.want)
				}
			})
		})
	}
}

// lateDriver is a driver whose calls take a second more to return when they are cut off.
type lateDriver struct {
	VolumeDriver
	running atomic.Int64
}

func (d *lateDriver) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.running.Add(1)
	defer d.running.Add(-1)
	answer, err := d.VolumeDriver.CreateVolume(ctx, req)
	if ctx.Err() != nil {
		time.Sleep(time.Second)
	}
	return answer, err
}

// No call of the stop outlives it.
func TestNoCallOutlivesTheStop(t *testing.T) {
	late := &lateDriver{}
	inWorld(t, func(cfg *Config) {
		cfg.Operations = nil
		late.VolumeDriver, cfg.Driver = cfg.Driver, late
	}, func(t *testing.T, w *world) {
		w.driver.answers(noAnswer, endless)
		w.claim("c")
		w.pass(100 * time.Millisecond)
		if took := w.term(time.Second); took != 2*time.Second {
			t.Errorf("the stop took %s", took)
		}
		if n := late.running.Load(); n != 0 {
			t.Errorf("%d calls run on", n)
		}
	})
}

// A create that ends while a step of the stop waits for its slot is not begun again.
func TestAStopBeginsNothingAnew(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.CreateWorkers = 0 }, func(t *testing.T, w *world) { // one slot, and no worker
		free, ok := w.c.slots.wait(t.Context())
		if !ok {
			t.Fatal("no slot")
		}
		claim := w.claim("c")
		w.c.creates.put(create{claim: claim, proto: protocol{unanswered: true}})
		ended := make(chan struct{})
		go func() { defer close(ended); w.c.driveOn(t.Context(), claim.UID) }()
		w.pass(time.Second)
		w.c.creates.drop(claim.UID)
		free()
		<-ended
		w.pass(time.Second)
		if calls := w.driver.createCalls(); len(calls) != 0 {
			t.Errorf("%d CreateVolume calls", len(calls))
		}
	})
}

// A step of the stop makes no call beside that of a worker for the same claim.
func TestAStopMakesNoSecondCall(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Operations, cfg.CreateWorkers = nil, 2 }, func(t *testing.T, w *world) {
		w.driver.answers(noAnswer, answer{after: 5 * time.Second})
		w.claim("c")
		w.pass(3 * time.Second)
		before := len(w.driver.createCalls())
		if before != 2 {
			t.Fatalf("%d calls before the stop", before)
		}
		w.term(drainTime)
		if n := len(w.driver.createCalls()) - before; n != 0 || w.pv("pvc-uid-of-c") == nil {
			t.Errorf("%d more calls, PersistentVolume %v", n, w.pv("pvc-uid-of-c"))
		}
	})
}

// What still waits for a slot when the time is over is told of, and not begun.
func TestAStopEndsWhileCreatesWaitForASlot(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Operations, cfg.CreateWorkers = nil, 1 }, func(t *testing.T, w *world) {
		w.driver.answers(noAnswer, noAnswer, endless, endless)
		w.claim("c")
		w.claim("d")
		w.pass(100 * time.Millisecond)
		if took := w.term(time.Second); took != time.Second {
			t.Errorf("the stop took %s", took)
		}
		if n := len(w.driver.createCalls()); n != 3 { // two before the stop, and one that took the only slot
			t.Errorf("%d CreateVolume calls", n)
		}
		for _, volume := range []string{"pvc-uid-of-c", "pvc-uid-of-d"} {
			if !w.inLog("A volume may be lost", volume) {
				t.Errorf("the log does not name the volume %s", volume)
			}
		}
	})
}

// All PersistentVolumes that are left to remove are tried at once when a stop begins.
func TestAStopRemovesAllThatIsLeftAtOnce(t *testing.T) {
	const volumes = 20
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(func(verb, _, _ string) error {
			if verb == "patch" {
				return apierrors.NewInternalError(errors.New("not now"))
			}
			return nil
		})
		for i := range volumes {
			pv := released().UID(fmt.Sprint("uid-", i)).BoundTo(fixture.Claim("c").UID(fmt.Sprint("claim-", i)).Obj()).Obj()
			pv.Name = fmt.Sprint("pv-", i)
			w.put(pv)
		}
		w.pass(100 * time.Second) // each waits for its next try
		w.api.failing(nil)
		if took := w.term(drainTime); took > drainRetry {
			t.Errorf("the stop took %s", took)
		}
		for i := range volumes {
			if w.pv(fmt.Sprint("pv-", i)) != nil {
				t.Errorf("PersistentVolume %d is there", i)
			}
		}
	})
}

// A volume that the driver did not delete is left to the next process, which sees its PersistentVolume.
func TestAStopDeletesNoVolume(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.mu.Lock()
		w.driver.deletes = []answer{{code: codes.Internal}}
		w.driver.mu.Unlock()
		w.put(released().Obj())
		w.pass(100 * time.Millisecond)
		if took := w.term(drainTime); took != 0 {
			t.Errorf("the stop took %s", took)
		}
		w.deletes(1, true)
		if w.inLog("The volume is deleted") {
			t.Error("the log says that the volume is deleted")
		}
	})
}

// The operation of a claim that is gone is left to the next process, too.
func TestAStopLeavesTheOperationOfAGoneClaim(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad)
		w.claim("c")
		w.pass(500 * time.Millisecond)
		w.remove(w.live("c"))
		if took := w.term(drainTime); took > time.Second || w.live("c") != nil || !w.recorded("c") {
			t.Errorf("the stop took %s, claim %v, recorded %v", took, w.live("c"), w.recorded("c"))
		}
		w.start()
		w.pass(time.Second)
		if w.pv("pvc-uid-of-c") == nil {
			t.Error("the volume has no PersistentVolume")
		}
	})
}

// When the lease is lost, somebody else may call the driver. A create without an answer is theirs; the PersistentVolume of an
// answer is saved.
func TestALossOfTheLeaseSavesWhatWasAnsweredAndNoMore(t *testing.T) {
	var lost atomic.Bool
	inWorld(t, func(cfg *Config) {
		cfg.MayCall = func() error {
			if lost.Load() {
				return errors.New("the lease is lost")
			}
			return nil
		}
	}, func(t *testing.T, w *world) {
		var refuse atomic.Bool
		refuse.Store(true)
		w.api.failing(func(verb, resource, name string) error {
			if verb == "create" && resource == "persistentvolumes" && refuse.Load() {
				return errors.New("no connection")
			}
			return forbidLeases(verb, resource, name)
		})
		w.driver.answers(answer{}, noAnswer)
		w.claim("answered")
		w.pass(100 * time.Millisecond)
		w.claim("open")
		w.pass(100 * time.Millisecond)
		w.calls(0, 0)
		lost.Store(true)
		refuse.Store(false)
		if took := w.term(drainTime); took > time.Second {
			t.Errorf("the stop took %s", took)
		}
		w.calls(0, 0)
		if w.pv("pvc-uid-of-answered") == nil {
			t.Error("the PersistentVolume of the answered call was not saved")
		}
		if !w.inLog("A volume may be lost", `volume="pvc-uid-of-open"`) {
			t.Error("the log does not name the volume that is left open")
		}
	})
}
