package provision

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// What the API server does not take is kept, told once a try, and saved when it does.
func TestSavingIsNeverGivenUp(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "create" && resource == "persistentvolumes" {
				return errors.New("no connection")
			}
			return nil
		})
		claim := w.claim("c")
		w.pass(time.Second)
		if !w.marked("c") {
			t.Error("the claim of a volume without a PersistentVolume is not marked")
		}
		w.remove(claim)
		w.pass(time.Hour)
		w.calls(0) // never made again, never deleted
		if len(w.driver.deleteCalls()) != 0 || len(w.events.having("Warning ProvisioningFailed", "cannot be saved", "no connection")) == 0 {
			t.Errorf("%d DeleteVolume calls, events %v", len(w.driver.deleteCalls()), w.events.having())
		}
		w.api.failing(nil)
		w.pass(time.Minute)
		if w.pv("pvc-uid-of-c") == nil || w.live("c") != nil {
			t.Errorf("PersistentVolume %v, claim %v", w.pv("pvc-uid-of-c"), w.live("c"))
		}
	})
}

// From "saved" until the cache shows it, the claim is not provisioned again; its events do not matter.
func TestSavedIsNotMadeAgainBeforeTheCacheShowsIt(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.claim("c")
		w.pass(0)
		w.api.lag(true)
		w.driver.answers(answer{after: 10 * time.Millisecond})
		w.put(fixture.Claim("d").UID("uid-of-d").Class("fast").For(driverName).Obj())
		w.c.claims.Add("uid-of-c")
		w.pass(20 * time.Second)
		w.api.lag(false)
		w.pass(20 * time.Second)
		names := map[string]int{}
		for _, call := range w.driver.createCalls() {
			names[call.name]++
		}
		if diff := cmp.Diff(map[string]int{"pvc-uid-of-c": 1, "pvc-uid-of-d": 1}, names); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// Create, delete, create: the cache shows a claim without a volume whose PersistentVolume has come and gone. The
// API server is asked before anything is made again.
func TestAStaleClaimMakesNoSecondVolume(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		claim := w.claim("c")
		w.pass(0)
		w.driver.answers(answer{after: 100 * time.Millisecond})
		w.pass(time.Second)
		// The claim's watch stands still; that of PersistentVolumes is played by hand.
		w.api.lag(true)
		w.bind("c")
		w.remove(claim)
		pv := w.api.PV("pvc-uid-of-c")
		w.phase(pv.Name, corev1.VolumeReleased)
		w.api.mu.Lock()
		delete(w.api.objects, "persistentvolumes//"+pv.Name)
		delete(w.api.cached, "persistentvolumes//"+pv.Name)
		w.api.mu.Unlock()
		w.c.onPV(pv, nil)
		w.pass(time.Minute)
		w.calls(0)
		w.api.lag(false)
		w.pass(time.Minute)
		w.calls(0)
	})
}

// The claim lives and its PersistentVolume was deleted before it was bound: then a new volume is wanted.
func TestAClaimWhosePVWasDeletedGetsAnother(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.claim("c")
		w.pass(500 * time.Millisecond)
		w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations["a"] = "b" })
		w.pass(500 * time.Millisecond)
		w.calls(0)
		pv := w.pv("pvc-uid-of-c")
		pv.Finalizers = nil
		w.put(pv)
		w.remove(pv)
		w.pass(4 * time.Second)
		w.calls(0, 1)
	})
}

// Two claims get one volume name at the same moment: the second is told, and never gets the volume of the first, also
// when that is deleted.
func TestTwoClaimsOfOneVolumeName(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.VolumeNameUUIDLength = 3 }, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: 20 * time.Millisecond}, answer{after: 30 * time.Millisecond})
		first := w.claim("c")
		w.pass(0)
		w.claim("d")
		w.pass(100 * time.Millisecond)
		pv := w.pv("pvc-uid")
		if pv == nil || pv.Spec.ClaimRef.UID != first.UID {
			t.Fatalf("PersistentVolume %v", pv)
		}
		if len(w.events.having("Warning ProvisioningFailed", "in use", "pvc-uid")) != 1 {
			t.Errorf("events: %v", w.events.having())
		}
		w.pass(10 * time.Second)
		if got := len(w.driver.createCalls()); got != 2 {
			t.Errorf("%d calls, want 2", got)
		}
		w.remove(first)
		w.phase("pvc-uid", corev1.VolumeReleased)
		w.pass(10 * time.Minute)
		if got := w.pv("pvc-uid"); got == nil || got.UID == pv.UID || got.Spec.ClaimRef.UID != "uid-of-d" {
			t.Errorf("the second claim got %v", got)
		}
		if len(w.driver.createCalls()) != 3 || len(w.driver.deleteCalls()) != 1 || w.driver.volumeCount() != 1 {
			t.Errorf("%d creates, %d deletes, %d volumes", len(w.driver.createCalls()), len(w.driver.deleteCalls()), w.driver.volumeCount())
		}
	})
}

// Two claims of one volume name, and no PersistentVolume can be saved for a while: the first one gets it, the second is
// told, and provisioned anew when the name is free.
func TestTwoUnsavedPVsOfOneName(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.VolumeNameUUIDLength = 3 }, func(t *testing.T, w *world) {
		begin := time.Now()
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "create" && resource == "persistentvolumes" && time.Since(begin) < 10*time.Second {
				return errors.New("no connection")
			}
			return nil
		})
		claims := []*corev1.PersistentVolumeClaim{w.claim("c"), w.claim("d")}
		w.pass(time.Minute)
		pv := w.pv("pvc-uid")
		if pv == nil || len(w.events.having("Warning ProvisioningFailed", "in use", "pvc-uid")) != 1 {
			t.Fatalf("PersistentVolume %v, events %v", pv, w.events.having())
		}
		first, second := claims[0], claims[1]
		if pv.Spec.ClaimRef.UID != first.UID {
			first, second = second, first
		}
		if n := len(w.c.creates.where(create.outstanding)); n != 0 {
			t.Errorf("%d creates are outstanding", n)
		}
		w.remove(first)
		w.phase("pvc-uid", corev1.VolumeReleased)
		w.pass(10 * time.Minute)
		if got := w.pv("pvc-uid"); got == nil || got.Spec.ClaimRef.UID != second.UID {
			t.Errorf("the second claim got %v", got)
		}
	})
}
