package provision

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// edit changes an object of the API server without a request, as another client does.
func (a *apiServer) edit(key string, change func(pv *corev1.PersistentVolume)) {
	pv, ok := clone(a.objects[key]).(*corev1.PersistentVolume)
	if !ok {
		panic(key + " is no PersistentVolume")
	}
	change(pv)
	a.store(key, pv)
}

// An admission webhook may deny a DELETE with the code of a conflict. Then the object is still there, and the DELETE is
// repeated; the volume is not deleted again.
func TestAConflictOnDeleteIsNotGone(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		begin := time.Now()
		w.api.failing(func(verb, resource, name string) error {
			switch {
			case verb == "delete" && time.Since(begin) < 20*time.Second:
				return apierrors.NewConflict(schema.GroupResource{Resource: resource}, name, errors.New(`admission webhook "guard" denied the request`))
			case verb == "get" && resource == "persistentvolumes" && w.api.deletes > 0 && time.Since(begin) < 10*time.Second:
				return errors.New("no connection")
			}
			return nil
		})
		w.put(released().Obj())
		w.pass(15 * time.Second)
		w.deletes(1, true)
		if n := len(w.events.having("Warning VolumeFailedDelete", "cannot be removed", "guard")); n < 3 {
			t.Errorf("%d events that tell of the webhook: %v", n, w.events.having())
		}
		w.pass(time.Minute)
		w.deletes(1, false)
	})
}

// A PersistentVolume is released at the moment in which it gets our finalizer: the cache shows it released and without
// the finalizer. The finalizer is removed with the object.
func TestAFinalizerAddedAtTheMomentOfRelease(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		const key = "persistentvolumes//pv"
		added, reads := false, 0
		w.api.failing(func(verb, resource, _ string) error { // mu is held
			switch {
			case verb == "patch" && resource == "persistentvolumes" && !added:
				added = true
				w.api.edit(key, func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased })
				w.api.lagging = true // the finalizer is not shown yet
			case verb == "get" && resource == "persistentvolumes" && w.api.deletes > 0:
				if reads++; reads == 1 {
					return errors.New("no connection")
				}
			}
			return nil
		})
		w.put(fixture.PV("pv").UID("pv-uid").Driver(driverName).Class("fast").BoundTo(fixture.Claim("c").UID("claim-uid").Obj()).Phase(corev1.VolumeBound).Obj())
		w.pass(10 * time.Second)
		w.api.lag(false)
		w.pass(time.Minute)
		w.deletes(1, false)
		if !added {
			t.Error("the finalizer was never added")
		}
		if n := w.api.wrote("delete persistentvolumes"); n != 1 {
			t.Errorf("%d DELETE requests, want 1", n)
		}
	})
}

// While the driver deletes the volume, another PersistentVolume takes the name. It is left alone.
func TestADeletionIsOfOneUID(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.deletes = []answer{{after: time.Second}}
		w.put(released().Obj())
		w.pass(500 * time.Millisecond)
		w.api.lag(true)
		w.api.mu.Lock()
		another := fixture.PV("pv").UID("another-uid").ProvisionedBy(driverName).Handle("another").Phase(corev1.VolumeBound).Obj()
		w.api.objects[keyOf(another)] = another
		w.api.mu.Unlock()
		w.pass(time.Minute)
		w.deletes(1, true)
		if pv := w.pv("pv"); pv.DeletionTimestamp != nil || !slices.Contains(pv.Finalizers, wellknown.FinalizerPV) {
			t.Errorf("the other PersistentVolume is being deleted: %v, finalizers %v", pv.DeletionTimestamp, pv.Finalizers)
		}
		if told := w.events.having("Warning"); len(told) != 0 {
			t.Errorf("events: %v", told)
		}
	})
}

// The class of a static PersistentVolume makes the name of the secret from an annotation of the claim. The claim is looked
// at while it is cached; when it is gone, the volume is deleted without a secret, and that is told.
func TestDeletionSecretsFromAnnotations(t *testing.T) {
	t.Parallel()
	const template = "${pvc.annotations['example.com/key']}"
	claim := func(uid string) *fixture.ClaimBuilder {
		return fixture.Claim("c").UID(uid).Class("templated").For("other")
	}
	for name, tc := range map[string]struct {
		claim           *corev1.PersistentVolumeClaim // nil: gone
		name, namespace string
		deleted         bool
		wantKeys        int
		event           string
	}{
		"the claim is gone":            {nil, template, "default", true, 0, "without a secret"},
		"the claim is cached":          {claim("claim-uid").Annotation("example.com/key", "s").Obj(), template, "default", true, 1, ""},
		"without the annotation":       {claim("claim-uid").Obj(), template, "default", true, 0, "without a secret"},
		"it was created anew":          {claim("another").Annotation("example.com/key", "s").Obj(), template, "default", true, 0, "without a secret"},
		"the namespace cannot be told": {nil, "s", template, false, 0, "invalid tokens"},
		"another token cannot be told": {nil, template + "${x}", "default", false, 0, "invalid tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				secret := fixture.Secret("default", "s", nil)
				secret.Data = map[string][]byte{"key": []byte("value")}
				w.put(secret)
				w.put(fixture.Class("templated").Provisioner(driverName).Parameter(wellknown.ParamSecretName, tc.name).Parameter(wellknown.ParamSecretNamespace, tc.namespace).Obj())
				if tc.claim != nil {
					w.put(tc.claim)
				}
				w.put(fixture.PV("pv").UID("pv-uid").Driver(driverName).Class("templated").Phase(corev1.VolumeReleased).BoundTo(claim("claim-uid").Obj()).Obj())
				w.pass(500 * time.Millisecond)
				calls := w.driver.deleteCalls()
				if (len(calls) == 1) != tc.deleted || (tc.deleted && len(calls[0].keys) != tc.wantKeys) {
					t.Errorf("DeleteVolume calls %v", calls)
				}
				warnings := w.events.having("Warning VolumeFailedDelete", tc.event)
				if all := w.events.having("Warning"); (tc.event != "") != (len(warnings) == 1) || len(all) != len(warnings) {
					t.Errorf("warnings %v", all)
				}
			})
		})
	}
}

// elsewhere translates every PersistentVolume to one of another driver.
type elsewhere struct{ oneWay }

func (elsewhere) IsMigratable(pv *corev1.PersistentVolume) bool { return pv.Spec.CSI == nil }

func (elsewhere) TranslateToCSI(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	pv = pv.DeepCopy()
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.example.com", VolumeHandle: "h"}}
	return pv, nil
}

// An in-tree volume that belongs to another driver is not deleted by this one, whatever the annotations say.
func TestATranslatedVolumeOfAnotherDriver(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.InTree, cfg.Translator = inTreeName, elsewhere{} }, func(t *testing.T, w *world) {
		pv := released().Annotation(wellknown.AnnProvisionedBy, inTreeName).Obj()
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}
		w.put(pv)
		w.pass(time.Minute)
		w.deletes(0, true)
		if len(w.events.having("Warning VolumeFailedDelete", "other.example.com")) == 0 {
			t.Errorf("events: %v", w.events.having())
		}
	})
}

// A PersistentVolume that does not have our finalizer needs no PATCH, and so no right for it.
func TestNoPatchWithoutOurFinalizer(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fixture.PV("pv").Driver(driverName).Phase(corev1.VolumeReleased).Obj())
		w.pass(time.Minute)
		w.deletes(1, false)
		if n := w.api.wrote("patch persistentvolumes"); n != 0 {
			t.Errorf("%d PATCH requests, want none", n)
		}
	})
}
