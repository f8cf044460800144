package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// denying makes a world in whose API server the process may not use these verbs on persistentvolumes.
func denying(verbs ...string) func(*Config) {
	return func(cfg *Config) {
		if api, ok := cfg.Cache.(*apiServer); ok {
			api.deny(verbs...)
		}
	}
}

// deny replaces the verbs on persistentvolumes that are not granted.
func (a *apiServer) deny(verbs ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.denied = map[string]bool{}
	for _, verb := range verbs {
		a.denied[verb] = true
	}
}

func (w *world) ours(pvName string) bool {
	w.Helper()
	pv := w.pv(pvName)
	return pv != nil && slices.Contains(pv.Finalizers, wellknown.FinalizerPV)
}

const rule = `{apiGroups: [""], resources: [persistentvolumes], verbs: [patch]}`

// Whatever rights there are to change PersistentVolumes, a claim gets its volume, both go, and nothing delays a stop.
// Without any there is no finalizer, as before v5.0 of external-provisioner.
func TestRolesWithoutPatch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		denied                   []string
		ours                     bool // the new PersistentVolume has our finalizer
		wantPatches, wantUpdates int
		logged                   string
	}{
		"patch":                       {ours: true, wantPatches: 1},
		"update only":                 {denied: []string{"patch"}, ours: true, wantUpdates: 1, logged: "are changed with the verb update"},
		"neither":                     {denied: []string{"patch", "update"}, logged: "new ones are created without"},
		"update, but no right to get": {denied: []string{"patch", "get"}, logged: "new ones are created without"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, denying(tc.denied...), func(t *testing.T, w *world) {
				w.claim("c")
				w.pass(time.Second)
				w.bind("c")
				w.pass(time.Second)
				if got := w.ours("pvc-uid-of-c"); got != tc.ours {
					t.Errorf("the PersistentVolume has our finalizer: %v", got)
				}
				w.remove(w.live("c"))
				w.phase("pvc-uid-of-c", corev1.VolumeReleased)
				w.pass(time.Second)
				if w.pv("pvc-uid-of-c") != nil || w.driver.volumeCount() != 0 || len(w.driver.deleteCalls()) != 1 {
					t.Errorf("PersistentVolume %v, %d volumes, %d DeleteVolume calls", w.pv("pvc-uid-of-c"), w.driver.volumeCount(), len(w.driver.deleteCalls()))
				}
				if patches, updates := w.api.wrote("patch persistentvolumes "), w.api.wrote("update persistentvolumes "); patches != tc.wantPatches || updates != tc.wantUpdates {
					t.Errorf("%d PATCH and %d UPDATE requests, want %d and %d", patches, updates, tc.wantPatches, tc.wantUpdates)
				}
				if tc.logged != "" && !w.inLog(tc.logged, `verbs: [patch]}`) {
					t.Errorf("the log does not say %q", tc.logged)
				}
				if took := w.term(drainTime); took != 0 {
					t.Errorf("the stop took %s", took)
				}
			})
		})
	}
}

// A PersistentVolume that has our finalizer stays while no right allows to remove it. Its volume is deleted once, that
// is told once with the rule to add, no request repeats it, no stop waits for it, and a right that comes is used.
func TestPersistentVolumesThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		denied  []string
		pv      *corev1.PersistentVolume
		calls   int // of DeleteVolume
		request string
		event   string
		granted []string // what is still denied later
	}{
		"a finalizer, no right":     {[]string{"patch", "update"}, released().Obj(), 1, "delete persistentvolumes", rule, []string{"update"}},
		"a finalizer, update later": {[]string{"patch", "update"}, released().Obj(), 1, "delete persistentvolumes", rule, []string{"patch"}},
		"no right to delete":        {[]string{"delete"}, released().Obj(), 1, "delete persistentvolumes", `verbs: [delete]}`, nil},
		"kept, deleted by an operator": {
			[]string{"patch", "update"}, released().Policy(corev1.PersistentVolumeReclaimRetain).Terminating().Obj(), 0, "", rule, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, denying(tc.denied...), func(t *testing.T, w *world) {
				w.put(tc.pv)
				w.pass(time.Hour)
				for range 10 { // as a resync does
					w.c.onPV(w.api.PV("pv"), w.api.PV("pv"))
					w.pass(time.Hour)
				}
				w.deletes(tc.calls, true)
				if told := w.events.having("Warning VolumeFailedDelete", tc.event); len(told) != 1 || len(w.events.having("Warning")) != 1 {
					t.Errorf("events: %v", w.events.having())
				}
				if n := w.api.wrote(tc.request); tc.request != "" && n != 1 {
					t.Errorf("%d requests %q", n, tc.request)
				}
				if n := w.api.wrote("patch") + w.api.wrote("update"); n != 0 {
					t.Errorf("%d requests that are not granted", n)
				}
				stopped := *w
				if took := stopped.term(drainTime); took != 0 {
					t.Errorf("the stop took %s", took)
				}
				w.start()
				w.pass(time.Hour)
				w.api.deny(tc.granted...)
				w.pass(time.Minute)
				w.deletes(2*tc.calls, false) // the next process does not know that the volume is deleted
			})
		})
	}
}

// The right is taken away while the process runs: the first refusal tells.
func TestARightThatIsTakenAway(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.pass(10 * time.Second)
		w.api.deny("patch", "update")
		w.put(released().Obj())
		w.pass(time.Second)
		w.deletes(1, true)
		w.claim("c")
		w.pass(time.Second)
		if w.pv("pvc-uid-of-c") == nil || w.ours("pvc-uid-of-c") {
			t.Error("the PersistentVolume has a finalizer that cannot be removed")
		}
		if n := w.api.wrote("patch"); n != 1 {
			t.Errorf("%d PATCH requests", n)
		}
		if took := w.term(drainTime); took != 0 {
			t.Errorf("the stop took %s", took)
		}
	})
}

// A 403 that does not come from the rights of the account, and a review that nobody answers, deny nothing.
func TestAnotherRefusalDeniesNothing(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pv", errors.New("quota"))
	for name, fail := range map[string]func(verb, resource, _ string) error{
		"a webhook forbids the patch": func(verb, resource, _ string) error {
			if (verb == "patch" || verb == "update") && resource == "persistentvolumes" {
				return forbidden
			}
			return nil
		},
		"and reviews fail": func(verb, resource, _ string) error {
			if ((verb == "patch" || verb == "update") && resource == "persistentvolumes") || resource == "selfsubjectaccessreviews" {
				return forbidden
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.api.failing(fail)
				w.put(released().Obj())
				w.pass(10 * time.Second)
				w.deletes(1, true)
				w.claim("c")
				w.pass(time.Second)
				if !w.ours("pvc-uid-of-c") {
					t.Error("the PersistentVolume is not protected")
				}
				w.api.failing(nil)
				w.pass(time.Minute + 10*time.Second)
				w.deletes(1, false)
			})
		})
	}
}

// PersistentVolumes of old cost no request while the right is missing, and get their finalizer when it is granted.
func TestTheFinalizerIsAddedWhenTheRightComes(t *testing.T) {
	const old = 300
	inWorld(t, denying("patch", "update"), func(t *testing.T, w *world) {
		for i := range old {
			w.put(fixture.PV(fmt.Sprint("old-", i)).Driver(driverName).Phase(corev1.VolumeBound).Obj())
		}
		w.claim("c")
		w.pass(time.Second)
		w.bind("c")
		w.pass(time.Hour)
		if n := w.api.wrote("patch") + w.api.wrote("update persistentvolumes "); n != 0 {
			t.Errorf("%d requests that are not granted", n)
		}
		if told := w.events.having("Warning"); len(told) != 0 {
			t.Errorf("events: %v", told)
		}
		w.api.deny()
		w.pass(time.Minute)
		if n := w.api.wrote("patch"); n != old+1 || !w.ours("pvc-uid-of-c") || !w.ours("old-0") {
			t.Errorf("%d PATCH requests, want %d", n, old+1)
		}
		w.c.upkeep.mu.Lock()
		defer w.c.upkeep.mu.Unlock()
		if n := len(w.c.upkeep.waiting); n != 0 {
			t.Errorf("%d PersistentVolumes still wait", n)
		}
	})
}

// slowPatches is a client whose patches of PersistentVolumes take their time.
type slowPatches struct {
	kubernetes.Interface
	after time.Duration
	count *atomic.Int64
}

func (s *slowPatches) CoreV1() typedcorev1.CoreV1Interface {
	return &slowCore{CoreV1Interface: s.Interface.CoreV1(), slow: s}
}

type slowCore struct {
	typedcorev1.CoreV1Interface
	slow *slowPatches
}

func (s *slowCore) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return &slowVolumes{PersistentVolumeInterface: s.CoreV1Interface.PersistentVolumes(), slow: s.slow}
}

type slowVolumes struct {
	typedcorev1.PersistentVolumeInterface
	slow *slowPatches
}

func (s *slowVolumes) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (*corev1.PersistentVolume, error) {
	s.slow.count.Add(1)
	select {
	case <-time.After(s.slow.after):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.PersistentVolumeInterface.Patch(ctx, name, kind, data, o, subresources...)
}

// The finalizers of PersistentVolumes that are there are changed by the background client alone, and neither claims nor
// deletions wait for that.
func TestUpkeepHoldsUpNothing(t *testing.T) {
	const old = 120
	var patches atomic.Int64
	inWorld(t, func(cfg *Config) {
		api, ok := cfg.Cache.(*apiServer)
		if !ok {
			t.Fatal("another cache")
		}
		cfg.BackgroundClient = &slowPatches{Interface: api.client(func() bool { return false }), after: 10 * time.Second, count: &patches}
	}, func(t *testing.T, w *world) {
		for i := range old {
			w.put(fixture.PV(fmt.Sprint("old-", i)).Driver(driverName).Phase(corev1.VolumeBound).Obj())
		}
		w.pass(time.Second)
		w.put(released().Obj())
		w.claim("c")
		w.pass(0)
		w.deletes(1, false)
		if w.pv("pvc-uid-of-c") == nil {
			t.Error("the claim waits")
		}
		if took := w.term(drainTime); took != 0 {
			t.Errorf("the stop took %s", took)
		}
		patches.Store(0)
		w.start()
		w.pass(time.Hour)
		if n := patches.Load(); n != old {
			t.Errorf("%d PATCH requests of the background client, want %d", n, old)
		}
		if n := w.api.wrote("patch"); n != old+1 {
			t.Errorf("%d PATCH requests, want %d", n, old+1)
		}
	})
}

// A PersistentVolume that is released in the moment in which it is to get our finalizer does not get it: nobody would
// remove that.
func TestWhatIsReleasedMeanwhileGetsNoFinalizer(t *testing.T) {
	t.Parallel()
	for verb, denied := range map[string]string{"patch": "", "get": "patch"} {
		t.Run(verb, func(t *testing.T) {
			inWorld(t, denying(denied), func(t *testing.T, w *world) {
				done := false
				w.api.failing(func(v, resource, _ string) error { // mu is held
					if v != verb || resource != "persistentvolumes" || done {
						return nil
					}
					done = true
					const key = "persistentvolumes//pv"
					pv, ok := clone(w.api.objects[key]).(*corev1.PersistentVolume)
					if !ok {
						return errors.New("no PersistentVolume")
					}
					pv.Status.Phase = corev1.VolumeReleased
					w.api.store(key, pv)
					w.api.lagging = true // the caches show what comes after this later
					return nil
				})
				w.put(fixture.PV("pv").UID("pv-uid").Driver(driverName).Class("fast").BoundTo(fixture.Claim("c").UID("claim-uid").Obj()).Phase(corev1.VolumeBound).Obj())
				w.pass(5 * time.Millisecond)
				w.api.lag(false)
				w.pass(time.Hour)
				w.deletes(1, false)
			})
		})
	}
}
