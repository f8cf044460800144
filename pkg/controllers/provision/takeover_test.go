package provision

import (
	"errors"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// A standby whose watches are behind wins the lease. Its caches show a PersistentVolume as it was when its volume was to be
// deleted; what has happened since is known to the API server alone.
func TestATakeoverDeletesNothingByOldCaches(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(w *world, pv *corev1.PersistentVolume){
		"its policy is Retain now": func(w *world, pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			w.put(pv)
		},
		"it is bound again": func(w *world, pv *corev1.PersistentVolume) {
			pv.Status.Phase = corev1.VolumeBound
			w.put(pv)
		},
		// The driver makes handles of names: the claim was made anew.
		"it is gone, and another has its volume": func(w *world, pv *corev1.PersistentVolume) {
			w.vanishUnseen(pv)
			w.put(otherPV(pv, corev1.VolumeBound))
		},
		"another has its volume": func(w *world, pv *corev1.PersistentVolume) {
			w.put(otherPV(pv, corev1.VolumeBound))
		},
		"it was made anew": func(w *world, pv *corev1.PersistentVolume) {
			w.vanishUnseen(pv)
			pv.UID = "another"
			w.put(pv)
		},
		"it is attached": func(w *world, pv *corev1.PersistentVolume) {
			w.put(&storagev1.VolumeAttachment{ObjectMeta: fixture.Node("va", nil).ObjectMeta, Spec: storagev1.VolumeAttachmentSpec{
				NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
			}})
		},
		"the API server cannot tell": func(w *world, _ *corev1.PersistentVolume) {
			w.api.failing(func(verb, resource, _ string) error {
				if verb == "list" && resource == "persistentvolumes" {
					return errors.New("no connection")
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.term(0)
				w.put(released().Obj())
				w.api.fallBehind()
				happens(w, w.pv("pv"))
				w.start()
				w.pass(30 * time.Second)
				if calls := w.driver.deleteCalls(); len(calls) != 0 {
					t.Errorf("DeleteVolume calls %v", calls)
				}
				w.api.catchUpAtLast()
			})
		})
	}
}

// What is still to be deleted is deleted at once, however long the caches need.
func TestATakeoverDoesNotWaitForItsCaches(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.term(0)
		w.put(released().Obj())
		w.api.fallBehind()
		w.start()
		w.pass(time.Second)
		w.deletes(1, false)
		w.claim("c")
		w.api.catchUpAtLast()
		w.pass(time.Second)
		if w.pv("pvc-uid-of-c") == nil {
			t.Error("a claim is not provisioned after the takeover")
		}
	})
}

// The caches of a new leader show a claim without its volume. A second CreateVolume would find the volume in use, and an answer
// without its content source would be cleaned up.
func TestATakeoverMakesNoSecondVolume(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(w *world){
		"the claim is bound":  func(w *world) { w.bind("c") },
		"the volume is saved": func(*world) {},
		"the claim is gone":   func(w *world) { w.remove(w.live("c")) },
		"the claim was made anew": func(w *world) {
			w.remove(w.live("c"))
			w.put(fixture.Claim("c").UID("new").Class("fast").For(driverName).Obj())
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(answer{after: 20 * time.Millisecond}, answer{edit: func(v *csi.Volume) { v.ContentSource = nil }})
				w.origin("src")
				w.clone("c", "src")
				w.pass(10 * time.Millisecond)
				w.api.fallBehind()
				w.pass(100 * time.Millisecond)
				if w.pv("pvc-uid-of-c") == nil {
					t.Fatal("not saved")
				}
				w.term(drainTime)
				happens(w)
				w.start()
				w.pass(200 * time.Millisecond)
				if n := len(w.driver.at()); n != 1 {
					t.Errorf("%d CreateVolume calls, want the one of the former leader", n)
				}
				if calls := w.driver.deleteCalls(); len(calls) != 0 {
					t.Errorf("DeleteVolume calls %v", calls)
				}
				w.api.catchUpAtLast()
			})
		})
	}
}

func otherPV(pv *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	other := pv.DeepCopy()
	other.Name, other.UID, other.Status.Phase = "pv-2", "pv-2-uid", phase
	return other
}

// vanishUnseen takes the PersistentVolume out of the API server, and not out of the caches that have fallen behind.
func (w *world) vanishUnseen(pv *corev1.PersistentVolume) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	delete(w.api.objects, keyOf(pv))
}
