package provision

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A stop does not wait for PersistentVolumes that no right allows to create, if the marker tells the next process.
// Without the marker only this process knows of the volume, and it uses all the time that it has.
func TestAStopDoesNotWaitForASaveThatIsNotGranted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		denied  []string
		markers func(verb, resource, name string) error
		want    time.Duration
		logged  string
	}{
		"marked":     {[]string{"create"}, nil, 0, "Left to the next process"},
		"not marked": {[]string{"create"}, forbidMarkers, drainTime, "A volume may be lost"},
		"refused by a webhook": {nil, func(verb, resource, _ string) error {
			if verb == "create" && resource == "persistentvolumes" {
				return apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("denied by a webhook"))
			}
			return nil
		}, drainTime, "Left to the next process"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, denying(tc.denied...), func(t *testing.T, w *world) {
				w.api.failing(tc.markers)
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
