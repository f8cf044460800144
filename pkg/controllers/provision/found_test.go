package provision

import (
	"errors"
	"slices"
	"testing"
	"time"

	snapclientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// intercept lets react answer requests of the running instance before the API server does.
func (w *world) intercept(verb, resource string, react func(action clienttesting.Action) (handled bool, object runtime.Object, err error)) {
	w.Helper()
	client, ok := w.c.cfg.Client.(*fake.Clientset)
	if !ok {
		w.Fatalf("the client is a %T", w.c.cfg.Client)
	}
	client.PrependReactor(verb, resource, react)
}

// vanish takes the object away at once.
func (w *world) vanish(key string) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.api.edit(key, func(pv *corev1.PersistentVolume) {
		now := pv.CreationTimestamp
		pv.DeletionTimestamp, pv.Finalizers = &now, nil
	})
}

// The API server takes a PersistentVolume, and the answer is lost. Before the create is repeated, the claim goes and the
// volume is deleted. Then the PersistentVolume is not created again for the volume that is gone.
func TestALostAnswerCreatesNoPVForADeletedVolume(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Operations = nil }, func(t *testing.T, w *world) {
		begin, tries := time.Now(), 0
		w.intercept("create", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			tries++
			switch {
			case tries == 1:
				_, _ = w.api.react(action)
				return true, nil, apierrors.NewTimeoutError("the answer is lost", 0)
			case time.Since(begin) < time.Minute:
				return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
			}
			return false, nil, nil
		})
		claim := w.claim("c")
		w.pass(30 * time.Second)
		w.remove(claim)
		w.phase("pvc-uid-of-c", corev1.VolumeReleased)
		w.pass(time.Hour)
		if n := len(w.driver.deleteCalls()); n != 1 || w.pv("pvc-uid-of-c") != nil {
			t.Errorf("%d DeleteVolume calls, PersistentVolume %v", n, w.pv("pvc-uid-of-c"))
		}
		if n := len(w.c.creates.where(func(create) bool { return true })); n != 0 {
			t.Errorf("%d creates are remembered", n)
		}
		w.calls(0)
	})
}

// The deletion of one PersistentVolume says nothing about another one that is not saved yet.
func TestADeletionEndsOnlyItsOwnCreate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pv   func(claim *corev1.PersistentVolumeClaim) *fixture.PVBuilder
		want bool // the create has ended
	}{
		"the very one": {func(claim *corev1.PersistentVolumeClaim) *fixture.PVBuilder {
			return fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).Handle("id-of-pvc-uid-of-c").BoundTo(claim)
		}, true},
		"another handle": {func(claim *corev1.PersistentVolumeClaim) *fixture.PVBuilder {
			return fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).Handle("another").BoundTo(claim)
		}, false},
		"another name": {func(claim *corev1.PersistentVolumeClaim) *fixture.PVBuilder {
			return fixture.PV("pv").ProvisionedBy(driverName).Handle("id-of-pvc-uid-of-c").BoundTo(claim)
		}, false},
		"no claim": {func(*corev1.PersistentVolumeClaim) *fixture.PVBuilder {
			return fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).Handle("id-of-pvc-uid-of-c")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.api.failing(refuseNewPVs)
				claim := w.claim("c")
				w.pass(time.Second)
				w.end()
				w.c.noteSaved(t.Context(), tc.pv(claim).Obj())
				cr, _ := w.c.creates.get(claim.UID)
				if ended := cr.unsaved == nil; ended != tc.want || (ended && cr.saved != "pvc-uid-of-c") {
					t.Errorf("ended %v, saved as %q", ended, cr.saved)
				}
			})
		})
	}
}

// A PersistentVolume of the name is being deleted, and nobody deletes its volume with it. The volume of the claim is the
// same one: it is not forgotten, and gets a PersistentVolume when the name is free.
func TestAVolumeOutlivesItsFormerPV(t *testing.T) {
	former := func() *fixture.PVBuilder {
		return fixture.PV("pvc-uid-of-c").UID("former").Driver(driverName).Handle("id-of-pvc-uid-of-c").Phase(corev1.VolumeReleased).
			Finalizer("kubernetes.io/pv-protection").BoundTo(fixture.Claim("c").UID("uid-of-c").Obj()).Terminating()
	}
	kept := corev1.PersistentVolumeReclaimRetain
	t.Parallel()
	for name, tc := range map[string]struct {
		pv    *corev1.PersistentVolume
		seen  bool // the cache shows it while the create is unanswered
		inUse bool // its volume goes with it
	}{
		"without our finalizer":           {pv: former().Obj()},
		"with our finalizer, to be kept":  {pv: former().Finalizer(wellknown.FinalizerPV).Policy(kept).Obj()},
		"without our finalizer, and seen": {pv: former().Obj(), seen: true},
		"with our finalizer":              {pv: former().Finalizer(wellknown.FinalizerPV).Obj(), inUse: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				const key = "persistentvolumes//pvc-uid-of-c"
				w.driver.answers(answer{after: time.Second, code: map[bool]codes.Code{true: codes.DeadlineExceeded}[tc.seen], made: true})
				claim := w.claim("c")
				w.pass(500 * time.Millisecond)
				w.put(tc.pv)
				if !tc.seen {
					w.api.mu.Lock()
					delete(w.api.cached, key) // it is on its way
					w.api.mu.Unlock()
				}
				w.remove(claim)
				w.pass(20 * time.Second)
				if inUse := len(w.events.having("Warning ProvisioningFailed", "in use")) != 0; inUse != tc.inUse {
					t.Fatalf("in use: %v, events %v", inUse, w.events.having())
				}
				if tc.inUse {
					return
				}
				if n := len(w.c.creates.where(create.outstanding)); n != 1 || !w.recorded("c") {
					t.Fatalf("%d creates are outstanding, recorded %v", n, w.recorded("c"))
				}
				w.vanish(key)
				w.pass(time.Minute)
				if pv := w.pv("pvc-uid-of-c"); pv == nil || pv.UID == "former" || !slices.Contains(pv.Finalizers, wellknown.FinalizerPV) {
					t.Errorf("PersistentVolume %v", pv)
				}
			})
		})
	}
}

// An unanswered restore is ended by a PersistentVolume that is found. Its snapshot is released as after any other end.
func TestASnapshotIsReleasedWhenThePVIsFound(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"by the process that called": false, "by the next process": true} {
		t.Run(name, func(t *testing.T) {
			var snapshots snapclientset.Interface
			inWorld(t, func(cfg *Config) { snapshots = withSnapshot(cfg) }, func(t *testing.T, w *world) {
				w.driver.answers(madeInBad, answer{after: time.Hour})
				w.put(restore("a").Obj())
				w.pass(500 * time.Millisecond)
				if !protects(t, snapshots) || !w.recorded("a") {
					t.Fatalf("protected %v, recorded %v", protects(t, snapshots), w.recorded("a"))
				}
				if restarted {
					w.die()
				}
				w.put(fixture.PV("pvc-uid-of-a").ProvisionedBy(driverName).Handle("id-of-pvc-uid-of-a").BoundTo(w.live("a")).Phase(corev1.VolumeBound).Obj())
				if restarted {
					w.start()
				}
				w.pass(10 * time.Second)
				if protects(t, snapshots) || w.recorded("a") {
					t.Errorf("protected %v, recorded %v", protects(t, snapshots), w.recorded("a"))
				}
			})
		})
	}
}
