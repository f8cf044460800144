package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// eventsOf returns how often the sidecar of this world has told what about an object, as "<reason> <n>", sorted.
func eventsOf(t *testing.T, w *sidecar.World, namespace, name string) []string {
	t.Helper()
	counts := map[string]int{}
	for _, event := range writtenFor(t, w, namespace, name) {
		counts[event.Reason] += int(event.Count)
	}
	var found []string
	for reason, n := range counts {
		found = append(found, fmt.Sprintf("%s %d", reason, n))
	}
	slices.Sort(found)
	return found
}

// writtenFor returns the sidecar's event objects for the object of that name.
func writtenFor(t *testing.T, w *sidecar.World, namespace, name string) []corev1.Event {
	t.Helper()
	list, err := w.Client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(event corev1.Event) bool { return !strings.HasPrefix(event.Source.Component, w.Driver.Name()) })
}

// With --quiet-events a user hears of the first attempt, of each failure that is another one, and of the volume;
// without it of every attempt.
func TestQuietEvents(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args       []string
		claim, pvs []string
	}{
		"quiet": {
			[]string{"--quiet-events"},
			[]string{"Provisioning 1", "ProvisioningFailed 2", "ProvisioningSucceeded 1"},
			[]string{"VolumeFailedDelete 1"},
		},
		"as ever": {
			nil,
			[]string{"Provisioning 6", "ProvisioningFailed 5", "ProvisioningSucceeded 1"},
			[]string{"VolumeFailedDelete 3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
			class := w.Class(t, fixture.Class("c"))
			sidecar.Start(t, w.Options(tc.args...))

			w.Driver.Add(memdriver.Fail("CreateVolume", codes.ResourceExhausted, 3), memdriver.Fail("CreateVolume", codes.Internal, 2))
			w.Claim(t, fixture.Claim("data").Class(class))
			w.Event(t, "data", "ProvisioningSucceeded")
			if diff := cmp.Diff(tc.claim, eventsOf(t, w, w.Namespace, "data")); diff != "" {
				t.Errorf("events of the claim (-want +got):\n%s", diff)
			}

			_, pv := w.Bound(t, "data")
			w.Driver.Add(memdriver.Fail("DeleteVolume", codes.Internal, 3))
			w.DeleteClaim(t, "data")
			w.Empty(t)
			sidecar.Eventually(t, "the failed deletions are told", func(context.Context) (bool, error) {
				return slices.Equal(eventsOf(t, w, metav1.NamespaceDefault, pv.Name), tc.pvs), nil
			})
		})
	}
}

// A new process tells each claim's user once more.
func TestQuietEventsAfterARestart(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	remove := w.Driver.Add(memdriver.Fail("CreateVolume", codes.Internal, 0))
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	for n := 1; n <= 2; n++ {
		process := sidecar.Start(t, w.Options("--quiet-events"))
		if _, err := w.Driver.WaitStarted(t.Context(), "CreateVolume", 4*n); err != nil {
			t.Fatal(err)
		}
		process.Terminate()
		if code := process.Exits(t, soon); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		want := []string{fmt.Sprintf("Provisioning %d", n), fmt.Sprintf("ProvisioningFailed %d", n)}
		if diff := cmp.Diff(want, eventsOf(t, w, w.Namespace, "data")); diff != "" {
			t.Errorf("events after %d processes (-want +got):\n%s", n, diff)
		}
		if objects := len(writtenFor(t, w, w.Namespace, "data")); objects != 2 {
			t.Errorf("%d event objects after %d processes, want 2", objects, n)
		}
	}
	remove()
}
