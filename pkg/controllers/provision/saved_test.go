package provision

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// vanish takes an object away at once, whatever holds it, from the API server and the caches. Nobody is told.
func (a *apiServer) vanish(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects, key)
	delete(a.cached, key)
}

// A claim whose PersistentVolume was saved and is gone gets a second volume only if the API server says that it needs
// one. The cache shows a claim that lives and is not bound in each of these cases.
func TestASavedClaimGetsASecondVolumeOnlyIfItNeedsOne(t *testing.T) {
	t.Parallel()
	failing := func(of string) func(w *world) {
		return func(w *world) {
			w.api.failing(func(verb, resource, _ string) error {
				if verb == "get" && resource == of {
					return apierrors.NewInternalError(errors.New("etcd"))
				}
				return nil
			})
		}
	}
	const pvKey = "persistentvolumes//pvc-uid-of-c"
	gone := func(w *world) { w.api.vanish(pvKey) }
	for name, tc := range map[string]struct {
		meanwhile []func(w *world)
		want      []int
		later     int // calls, when everything can be read
	}{
		"it needs one": {[]func(w *world){gone}, []int{0, 1}, 2},
		"it is bound": {[]func(w *world){func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "pvc-uid-of-c" })
		}, gone}, []int{0}, 1},
		"it is gone": {[]func(w *world){func(w *world) { w.remove(w.live("c")) }, gone}, []int{0}, 1},
		"it is being deleted": {[]func(w *world){func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) {
				claim.Finalizers = append(claim.Finalizers, "example.com/held")
			})
			w.remove(w.live("c"))
		}, gone}, []int{0}, 1},
		"its PersistentVolume cannot be read": {[]func(w *world){gone, failing("persistentvolumes")}, []int{0}, 2},
		"it cannot be read itself":            {[]func(w *world){gone, failing("persistentvolumeclaims")}, []int{0}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.claim("c")
				w.pass(time.Second)
				pv := w.pv("pvc-uid-of-c")
				w.api.lag(true)
				for _, happens := range tc.meanwhile {
					happens(w)
				}
				w.c.onPV(pv, nil)
				w.pass(5 * time.Second)
				w.calls(tc.want...)
				w.api.failing(nil)
				w.pass(time.Minute)
				if got := len(w.driver.createCalls()); got != tc.later {
					t.Errorf("%d calls once everything can be read, want %d", got, tc.later)
				}
			})
		})
	}
}

// The same when the cache shows, one by one, changes from before the binding.
func TestAStaleClaimGetsNoSecondVolume(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		claim := w.claim("c")
		w.pass(time.Second)
		pv := w.pv("pvc-uid-of-c")
		w.api.lag(true)
		w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations["a"] = "b" })
		w.bind("c")
		w.remove(claim)
		w.api.vanish("persistentvolumes//" + pv.Name)
		w.c.onPV(pv, nil)
		w.pass(10 * time.Second)
		for range len(w.api.behind) {
			w.api.showNext()
			w.pass(time.Second)
			w.calls(0)
		}
		w.api.lag(false)
		w.pass(time.Minute)
		w.calls(0)
		if cr, remembered := w.c.creates.get(claim.UID); remembered {
			t.Errorf("the claim is gone, and %q is remembered", cr.saved)
		}
	})
}

// showNext lets the caches show the oldest change that they have not shown yet.
func (a *apiServer) showNext() {
	a.mu.Lock()
	defer a.mu.Unlock()
	rest := a.behind[1:]
	a.behind = a.behind[:1]
	a.catchUp()
	a.behind = rest
}
