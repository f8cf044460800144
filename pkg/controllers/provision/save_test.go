package provision

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// What the API server does not take is kept, told once a try, and saved when it does.
func TestSavingIsNeverGivenUp(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(refuseNewPVs)
		claim := w.claim("c")
		w.pass(time.Second)
		if !w.recorded("c") {
			t.Error("the operation of a volume without a PersistentVolume is not recorded")
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
		w.pass(10 * time.Millisecond)
		w.api.lag(true) // the second one is begun before the cache shows the PersistentVolume of the first
		w.pass(200 * time.Millisecond)
		w.api.lag(false)
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

// Claims of one volume name share its volume, as far as the driver can tell: no call for the one is made while the volume
// of the other is created or deleted.
func TestCallsForOneVolumeNameDoNotOverlap(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.VolumeNameUUIDLength = 3 }, func(t *testing.T, w *world) {
		const create, wait, del = 50 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond
		w.driver.answers(answer{after: create}, answer{code: codes.Aborted}, answer{after: 2 * time.Second})
		w.driver.deletes = []answer{{after: del}}
		first := w.claim("c")
		w.pass(0)
		w.claim("d")
		w.pass(10 * time.Millisecond)
		w.api.lag(true) // the second one is begun before the cache shows the PersistentVolume of the first
		w.pass(wait)
		w.api.lag(false)
		w.remove(first)
		w.phase("pvc-uid", corev1.VolumeReleased)
		w.pass(time.Minute)
		creates, deletes := w.driver.createCalls(), w.driver.deleteCalls()
		if len(creates) != 3 || len(deletes) != 1 || creates[1].at > deletes[0].at {
			t.Fatalf("CreateVolume %v, DeleteVolume %v", creates, deletes)
		}
		if creates[1].at < creates[0].at+create {
			t.Errorf("the second claim's call began at %s, during the first one's", creates[1].at)
		}
		if creates[2].at < deletes[0].at+del {
			t.Errorf("the second claim's call began at %s, while the volume was deleted from %s on", creates[2].at, deletes[0].at)
		}
		if pv := w.pv("pvc-uid"); pv == nil || pv.Spec.ClaimRef.UID != "uid-of-d" || w.driver.volumeCount() != 1 {
			t.Errorf("PersistentVolume %v, %d volumes", pv, w.driver.volumeCount())
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

// bothWays translates classes and PersistentVolumes.
type bothWays struct{ oneWay }

func (bothWays) TranslateToInTree(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	pv = pv.DeepCopy()
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}
	return pv, nil
}

// A PersistentVolume that the API server refuses is tried for as long as somebody may want its volume. When the claim has
// gone and the volume would be deleted anyway, it is: at once if the object is invalid, and after a minute if the refusal
// may pass.
func TestARefusedPVWhoseClaimIsGone(t *testing.T) {
	resource := schema.GroupResource{Resource: "persistentvolumes"}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, "pvc-uid-of-c", nil)
	forbidden := apierrors.NewForbidden(resource, "pvc-uid-of-c", nil)
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 403, Message: `admission webhook "w" denied the request`}}
	t.Parallel()
	for name, tc := range map[string]struct {
		err     error
		class   func(*fixture.ClassBuilder)
		then    func(w *world) // before the claim goes
		atOnce  bool           // deleted when the next try is refused
		deleted bool           // deleted in the end
	}{
		"invalid":                    {err: invalid, atOnce: true, deleted: true},
		"forbidden":                  {err: forbidden, deleted: true},
		"denied by a webhook":        {err: webhook, deleted: true},
		"a bad request":              {err: apierrors.NewBadRequest("no"), deleted: true},
		"a conflict":                 {err: apierrors.NewConflict(resource, "pvc-uid-of-c", nil)},
		"the API server is overrun":  {err: apierrors.NewTooManyRequests("later", 1)},
		"the API server fails":       {err: apierrors.NewInternalError(errors.New("etcd"))},
		"invalid, and to be kept":    {err: invalid, class: func(b *fixture.ClassBuilder) { b.Policy(corev1.PersistentVolumeReclaimRetain) }},
		"forbidden, and to be kept":  {err: forbidden, class: func(b *fixture.ClassBuilder) { b.Policy(corev1.PersistentVolumeReclaimRetain) }},
		"invalid, and it is there":   {err: invalid, then: putPVOfC},
		"forbidden, and it is there": {err: forbidden, then: putPVOfC},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				class := fixture.Class("fast").UID("class-1").Provisioner(driverName)
				if tc.class != nil {
					tc.class(class)
				}
				w.put(class.Obj())
				w.api.failing(func(verb, resource, _ string) error {
					if verb == "create" && resource == "persistentvolumes" {
						return tc.err
					}
					return nil
				})
				claim := w.claim("c")
				w.pass(10 * time.Minute)
				if tc.then != nil {
					tc.then(w)
				}
				deleted := func() bool { return len(w.driver.deleteCalls()) > 0 }
				if deleted() || !w.recorded("c") {
					t.Fatalf("deleted %v, recorded %v while the claim is there", deleted(), w.recorded("c"))
				}
				w.remove(claim)
				w.pass(45 * time.Second) // tries are 30 s apart
				if deleted() != tc.atOnce {
					t.Errorf("deleted after the first try without the claim: %v", deleted())
				}
				w.pass(time.Hour)
				if deleted() != tc.deleted || tc.deleted == w.recorded("c") || tc.deleted != (w.driver.volumeCount() == 0) {
					t.Errorf("deleted in the end: %v, recorded %v", deleted(), w.recorded("c"))
				}
				w.calls(0)
			})
		})
	}
}

// putPVOfC is what a try does whose answer is lost.
func putPVOfC(w *world) {
	w.put(fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).Handle("id-of-pvc-uid-of-c").BoundTo(w.live("c")).Phase(corev1.VolumeBound).Obj())
}

// A right that is missing for a moment costs no volume.
func TestARightThatComesBack(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(func(verb, resource, name string) error {
			if verb == "create" && resource == "persistentvolumes" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, nil)
			}
			return nil
		})
		claim := w.claim("c")
		w.pass(10 * time.Minute)
		w.remove(claim)
		w.pass(50 * time.Second)
		w.api.failing(nil)
		w.pass(time.Minute)
		if n := len(w.driver.deleteCalls()); n != 0 || w.pv("pvc-uid-of-c") == nil || w.live("c") != nil {
			t.Errorf("%d DeleteVolume calls, PersistentVolume %v, claim %v", n, w.pv("pvc-uid-of-c"), w.live("c"))
		}
	})
}

// The object names a volume of the in-tree plugin in its own way; the driver is told its own.
func TestARefusedPVOfTheInTreePlugin(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.InTree, cfg.Translator = inTreeName, bothWays{} }, func(t *testing.T, w *world) {
		w.api.failing(func(verb, resource, name string) error {
			if verb == "create" && resource == "persistentvolumes" {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, name, nil)
			}
			return nil
		})
		w.put(fixture.Class("legacy").UID("class-2").Provisioner(inTreeName).Obj())
		w.put(fixture.Claim("c").UID("uid-of-c").Class("legacy").For(inTreeName).Annotation(wellknown.AnnMigratedTo, driverName).Obj())
		w.pass(time.Minute)
		w.remove(w.live("c"))
		w.pass(time.Minute)
		if calls := w.driver.deleteCalls(); len(calls) != 1 || calls[0].id != "id-of-pvc-uid-of-c" {
			t.Errorf("DeleteVolume calls %v", calls)
		}
		if w.live("c") != nil {
			t.Error("the claim is still held")
		}
	})
}

// Only an answer of the API server says that the claim or the PersistentVolume is not there. While one cannot be read, the
// volume of a PersistentVolume that is refused is not given up.
func TestAFailedReadGivesNoVolumeUp(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		unreadable string // resource
		claim      func(w *world, claim *corev1.PersistentVolumeClaim)
		deleted    bool
	}{
		"the claim is there and cannot be read": {unreadable: "persistentvolumeclaims"},
		"the claim is there":                    {},
		"the claim is gone":                     {claim: func(w *world, claim *corev1.PersistentVolumeClaim) { w.remove(claim) }, deleted: true},
		"the claim is gone, and the PersistentVolume cannot be read": {
			unreadable: "persistentvolumes", claim: func(w *world, claim *corev1.PersistentVolumeClaim) { w.remove(claim) },
		},
		"another claim has the name": {claim: func(w *world, claim *corev1.PersistentVolumeClaim) {
			w.remove(claim)
			w.put(fixture.Claim("c").UID("another").For("other").Obj())
		}, deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Operations = nil }, func(t *testing.T, w *world) {
				w.api.failing(func(verb, resource, name string) error {
					switch {
					case verb == "create" && resource == "persistentvolumes":
						return apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, name, nil)
					case verb == "get" && resource == tc.unreadable:
						return errors.New("no connection")
					}
					return nil
				})
				claim := w.claim("c")
				w.pass(time.Second)
				if tc.claim != nil {
					tc.claim(w, claim)
				}
				w.pass(10 * time.Minute)
				if deleted := len(w.driver.deleteCalls()) != 0; deleted != tc.deleted {
					t.Errorf("deleted: %v, want %v", deleted, tc.deleted)
				}
			})
		})
	}
}
