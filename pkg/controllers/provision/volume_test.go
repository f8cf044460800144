package provision

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// released is a PersistentVolume of ours whose claim has gone.
func released() *fixture.PVBuilder {
	return fixture.PV("pv").UID("pv-uid").ProvisionedBy(driverName).Class("fast").Phase(corev1.VolumeReleased).
		BoundTo(fixture.Claim("c").UID("claim-uid").Obj())
}

// deletes compares the number of DeleteVolume calls, and whether the PersistentVolume is still there.
func (w *world) deletes(want int, there bool) {
	w.Helper()
	if got := len(w.driver.deleteCalls()); got != want {
		w.Errorf("%d DeleteVolume calls, want %d", got, want)
	}
	if got := w.pv("pv") != nil; got != there {
		w.Errorf("PersistentVolume there: %v, want %v", got, there)
	}
}

func TestWhatIsDeleted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pv        *corev1.PersistentVolume
		wantCalls int
		wantThere bool
		wantOurs  bool // our finalizer is on it at the end
	}{
		"released":                             {released().Obj(), 1, false, false},
		"released without our finalizer":       {fixture.PV("pv").Driver(driverName).Phase(corev1.VolumeReleased).Obj(), 1, false, false},
		"released and going, with ours":        {released().Terminating().Obj(), 1, false, false},
		"released and going, without ours":     {fixture.PV("pv").Driver(driverName).Phase(corev1.VolumeReleased).Terminating().Finalizer("other").Obj(), 0, true, false},
		"failed":                               {released().Phase(corev1.VolumeFailed).Obj(), 0, true, true},
		"failed and going":                     {released().Phase(corev1.VolumeFailed).Terminating().Obj(), 1, false, false},
		"available and going, never claimed":   {fixture.PV("pv").ProvisionedBy(driverName).Phase(corev1.VolumeAvailable).Terminating().Obj(), 0, false, false},
		"bound":                                {released().Phase(corev1.VolumeBound).Obj(), 0, true, true},
		"bound and made by hand":               {fixture.PV("pv").Driver(driverName).Phase(corev1.VolumeBound).Obj(), 0, true, true},
		"bound and going":                      {released().Phase(corev1.VolumeBound).Terminating().Obj(), 0, true, true},
		"kept":                                 {released().Policy(corev1.PersistentVolumeReclaimRetain).Obj(), 0, true, false},
		"kept and going":                       {released().Policy(corev1.PersistentVolumeReclaimRetain).Terminating().Obj(), 0, false, false},
		"another driver's":                     {fixture.PV("pv").ProvisionedBy("other").Phase(corev1.VolumeReleased).Obj(), 0, true, true},
		"ours, with the CSI of another driver": {released().Driver("other").Obj(), 0, true, true},
		"another's provisioner, our CSI":       {fixture.PV("pv").Driver(driverName).Annotation(wellknown.AnnProvisionedBy, "other").Phase(corev1.VolumeReleased).Obj(), 0, true, false},
		"released, with another finalizer too": {released().Finalizer("other").Obj(), 1, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.put(tc.pv)
				w.pass(time.Minute)
				w.deletes(tc.wantCalls, tc.wantThere)
				if pv := w.pv("pv"); pv != nil && slices.Contains(pv.Finalizers, wellknown.FinalizerPV) != tc.wantOurs {
					t.Errorf("finalizers %v", pv.Finalizers)
				}
				kept := name == "available and going, never claimed"
				if told := len(w.events.having("Normal VolumeKept")); (told == 1) != kept {
					t.Errorf("%d events that the volume is kept", told)
				}
			})
		})
	}
}

// One DELETE, one PATCH and one DeleteVolume a volume, however late the cache shows them.
func TestEachVolumeIsDeletedOnce(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(released().Obj())
		w.api.lag(true) // the cache goes on showing a released PersistentVolume with our finalizer
		w.pass(time.Second)
		for range 5 {
			w.c.volumes.Add("pv")
			w.pass(time.Second)
		}
		w.api.lag(false)
		w.pass(time.Minute)
		w.deletes(1, false)
		if del, patch := w.api.wrote("delete persistentvolumes"), w.api.wrote("patch persistentvolumes"); del != 1 || patch != 1 {
			t.Errorf("%d DELETE and %d PATCH requests, want 1 and 1", del, patch)
		}
	})
}

// Without the right to patch, the volume is deleted once and only the patch is tried again, with the right's name told.
func TestAMissingPatchRightRepeatsNoDeleteVolume(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(func(verb, resource, name string) error {
			if verb == "patch" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, errors.New("cannot patch resource"))
			}
			return nil
		})
		w.put(released().Obj())
		w.pass(10 * time.Minute)
		w.deletes(1, true)
		if got := w.api.wrote("delete persistentvolumes"); got != 1 {
			t.Errorf("%d DELETE requests, want 1", got)
		}
		if len(w.events.having("Warning VolumeFailedDelete", "The volume is deleted", "cannot patch resource")) == 0 {
			t.Errorf("events: %v", w.events.having())
		}
		w.api.failing(nil)
		w.pass(5 * time.Minute)
		w.deletes(1, false)
	})
}

// Only OK is success: NotFound too is told and tried again, with growing distance; "busy" on the short schedule.
func TestDeleteErrorsAreTriedAgain(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.deletes = []answer{{code: codes.NotFound}, {code: codes.Internal}, {code: codes.Aborted}}
		w.put(released().Obj())
		w.pass(time.Minute)
		w.deletes(4, false)
		calls := w.driver.deleteCalls()
		for i, want := range []time.Duration{0, time.Second, 3 * time.Second, 4 * time.Second} {
			if calls[i].at != want {
				t.Errorf("call %d at %s, want %s", i, calls[i].at, want)
			}
		}
		for _, code := range []string{"NotFound", "Internal", "Aborted"} {
			if len(w.events.having("Warning VolumeFailedDelete rpc error: code = "+code+" desc = as told")) != 1 {
				t.Errorf("no event of %s: %v", code, w.events.having())
			}
		}
	})
}

// A volume that is attached is no failure: one Normal event, and the attachment's end wakes it at once.
func TestAnAttachedVolumeWaits(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		attachment := fixture.Attachment("va", driverName, "pv", "node-1")
		w.put(attachment)
		w.put(released().Obj())
		w.pass(1000 * time.Second) // the next try by back-off is minutes away
		w.deletes(0, true)
		if got := w.events.having(); len(got) != 1 || !strings.HasPrefix(got[0], "Normal VolumeDelete ") || !strings.Contains(got[0], "persistentvolume pv is still attached to node node-1") {
			t.Errorf("events: %v", got)
		}
		if got := counted(t, w.c.metrics.PersistentVolumeDeleteFailedTotal); got != 0 {
			t.Errorf("failures counted: %v", got)
		}
		w.remove(attachment)
		w.pass(0)
		w.deletes(1, false)
	})
}

// The duration that is told is that of the attempt that succeeded: neither the wait for an attachment's end is in it nor
// attempts that failed.
func TestTheDurationOfADeletion(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.deletes = []answer{{after: 7 * time.Second, code: codes.Internal}, {after: 3 * time.Second}}
		attachment := fixture.Attachment("va", driverName, "pv", "node-1")
		w.put(attachment)
		w.put(released().Obj())
		w.pass(time.Hour)
		w.remove(attachment)
		w.pass(time.Hour)
		w.deletes(2, false)
		if diff := cmp.Diff(map[string]string{"fast": "1 in 3s"}, samples(t, w.c.metrics.PersistentVolumeDeleteDurationSeconds)); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
	})
}

func TestDeletionSecrets(t *testing.T) {
	t.Parallel()
	pv := func() *fixture.PVBuilder { return released().DeletionSecret("default", "s") }
	failing := func(err error) func(w *world) {
		return func(w *world) {
			w.api.failing(func(verb, resource, _ string) error {
				if verb == "get" && resource == "secrets" {
					return err
				}
				return nil
			})
		}
	}
	for name, tc := range map[string]struct {
		prepare  func(w *world)
		edit     func(*Config)
		wantKeys int
		deleted  bool
		event    string
	}{
		"the secret is there":       {func(*world) {}, nil, 1, true, ""},
		"the secret is gone":        {func(w *world) { w.remove(fixture.Secret("default", "s", nil)) }, nil, 0, true, ""},
		"the secret is forbidden":   {failing(apierrors.NewForbidden(schema.GroupResource{}, "s", nil)), nil, 0, true, ""},
		"the API server fails":      {failing(apierrors.NewInternalError(context.DeadlineExceeded)), nil, 0, false, "read secret s in namespace default"},
		"the namespace is allowed":  {func(*world) {}, func(cfg *Config) { cfg.DeletionSecretNamespaces = []string{"x", "default"} }, 1, true, ""},
		"the namespace is not read": {func(*world) {}, func(cfg *Config) { cfg.DeletionSecretNamespaces = []string{"x"} }, 0, true, "--deletion-secret-namespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tc.edit, func(t *testing.T, w *world) {
				secret := fixture.Secret("default", "s", nil)
				secret.Data = map[string][]byte{"key": []byte("value")}
				w.put(secret)
				tc.prepare(w)
				w.put(pv().Obj())
				w.pass(500 * time.Millisecond)
				calls := w.driver.deleteCalls()
				if (len(calls) == 1) != tc.deleted {
					t.Fatalf("%d calls", len(calls))
				}
				if tc.deleted && len(calls[0].keys) != tc.wantKeys {
					t.Errorf("secrets %v", calls[0].keys)
				}
				if tc.event != "" && len(w.events.having("Warning VolumeFailedDelete", tc.event)) != 1 {
					t.Errorf("events: %v", w.events.having())
				}
			})
		})
	}
}

// Creating and deleting for one claim never overlap: who comes second comes back later.
func TestCreateAndDeleteOfOneClaimExclude(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: 2 * time.Second})
		claim := w.claim("c")
		w.pass(time.Second)
		w.put(fixture.PV("pv").UID("pv-uid").ProvisionedBy(driverName).Phase(corev1.VolumeReleased).BoundTo(claim).Obj())
		w.pass(900 * time.Millisecond)
		w.deletes(0, true)
		w.pass(time.Second)
		w.deletes(1, false)
	})
}

// Without the capability for it no volume is deleted, and that is told.
func TestADriverThatCannotDelete(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Settings.Capabilities.CreateDeleteVolume = false }, func(t *testing.T, w *world) {
		w.put(released().Obj())
		w.pass(100 * time.Millisecond)
		w.deletes(0, true)
		if len(w.events.having("Warning VolumeFailedDelete", "CREATE_DELETE_VOLUME")) != 1 {
			t.Errorf("events: %v", w.events.having())
		}
	})
}

// A worker that has read the PersistentVolume just before it left the cache does not delete its volume again, and
// nothing is remembered of it.
func TestAGonePVIsNotDeletedAgain(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(released().Obj())
		stale := w.api.PV("pv")
		w.pass(time.Second)
		w.deletes(1, false)
		if n := len(w.c.deletions.byUID); n != 0 {
			t.Errorf("%d deletions are remembered", n)
		}
		w.c.deleteVolume(t.Context(), stale)
		w.deletes(1, false)
	})
}
