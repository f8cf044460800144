package provision

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// samples returns what a family holds: labels as "a,b" → the value of a counter, or "<count> in <sum>s".
func samples(t *testing.T, c prometheus.Collector) map[string]string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			value := fmt.Sprint(m.GetCounter().GetValue())
			if h := m.GetHistogram(); h != nil {
				value = fmt.Sprintf("%d in %vs", h.GetSampleCount(), h.GetSampleSum())
			}
			found[strings.Join(labels, ",")] = value
		}
	}
	return found
}

func refuseNewPVs(verb, resource, _ string) error {
	if verb == "create" && resource == "persistentvolumes" {
		return errors.New("no connection")
	}
	return nil
}

// selectedAt makes the claim one whose node was selected that long ago, as managed fields say.
func selectedAt(claim *corev1.PersistentVolumeClaim, ago time.Duration) {
	at := metav1.NewTime(time.Now().Add(-ago))
	claim.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kube-scheduler", Operation: metav1.ManagedFieldsOperationUpdate, Time: &at,
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:` + wellknown.AnnSelectedNode + `":{}}}}`),
	}}
}

// Whichever way a PersistentVolume is saved, that is observed once, from the claim's beginning to the end.
func TestEndToEndIsObservedOnce(t *testing.T) {
	t.Parallel()
	late := func(w *world, edit func(*corev1.PersistentVolumeClaim)) {
		w.put(fixture.Class("late").UID("class-2").Provisioner(driverName).WaitForFirstConsumer().Obj())
		claim := fixture.Claim("c").UID("uid-of-c").Class("late").For(driverName).SelectedNode("n").Obj()
		claim.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		edit(claim)
		w.put(claim)
	}
	for name, tc := range map[string]struct {
		play func(w *world)
		want map[string]string
	}{
		"at the first attempt": {func(w *world) {
			w.driver.answers(answer{after: 3 * time.Second})
			w.claim("c")
		}, map[string]string{"fast,none": "1 in 3s"}},
		"at the third": {func(w *world) {
			w.driver.answers(final, final)
			w.claim("c")
		}, map[string]string{"fast,none": "1 in 3s"}},
		"by the queue of the unsaved": {func(w *world) {
			w.api.failing(refuseNewPVs)
			w.claim("c")
			w.pass(10 * time.Second)
			w.api.failing(nil)
		}, map[string]string{"fast,none": "1 in 10.235s"}},
		"by another process": {func(w *world) {
			w.driver.answers(madeInBad)
			w.claim("c")
			w.pass(100 * time.Millisecond)
			w.die()
			w.pass(20 * time.Second)
			w.start()
		}, map[string]string{"fast,none": "1 in 20.1s"}},
		"while the process stops": {func(w *world) {
			w.driver.answers(answer{after: 5 * time.Second})
			w.claim("c")
			w.pass(time.Second)
			w.term(drainTime)
		}, map[string]string{"fast,none": "1 in 5s"}},
		"for a claim that is gone": {func(w *world) {
			w.driver.answers(madeInBad)
			claim := w.claim("c")
			w.pass(100 * time.Millisecond)
			w.remove(claim)
		}, map[string]string{"fast,none": "1 in 0.1s"}},
		"from the selection of a node": {func(w *world) {
			late(w, func(claim *corev1.PersistentVolumeClaim) { selectedAt(claim, 7*time.Second) })
		}, map[string]string{"late,none": "1 in 7s"}},
		"from the creation where nothing tells the selection": {func(w *world) {
			late(w, func(*corev1.PersistentVolumeClaim) {})
		}, map[string]string{"late,none": "1 in 3600s"}},
		"a node that was selected for a class that does not wait is nothing": {func(w *world) {
			claim := fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).SelectedNode("n").Obj()
			selectedAt(claim, 7*time.Second)
			w.put(claim)
		}, map[string]string{"fast,none": "1 in 0s"}},
		"never less than nothing, with a clock that is behind": {func(w *world) {
			claim := fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Obj()
			claim.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
			w.put(claim)
		}, map[string]string{"fast,none": "1 in 0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				tc.play(w)
				w.pass(time.Minute)
				if w.pv("pvc-uid-of-c") == nil {
					t.Fatal("no PersistentVolume")
				}
				if diff := cmp.Diff(tc.want, samples(t, w.c.metrics.endToEnd)); diff != "" {
					t.Errorf("observed (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// What failed is counted by why, what was left alone is not among it; the original's family counts by its own rule.
func TestFailuresAndWhatIsNone(t *testing.T) {
	t.Parallel()
	claim := func() *fixture.ClaimBuilder { return fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName) }
	for name, tc := range map[string]struct {
		play                    func(w *world)
		failed, ignored, before map[string]string
	}{
		"answers of the driver": {
			play: func(w *world) {
				w.driver.answers(answer{code: codes.ResourceExhausted}, answer{code: codes.Internal}, answer{code: codes.Aborted}, answer{edit: func(v *csi.Volume) { v.CapacityBytes = 1 }})
				w.put(claim().Obj())
			},
			failed: map[string]string{"fast,NoRoom": "1", "fast,DriverError": "1", "fast,Busy": "1", "fast,BadVolume": "1"}, before: map[string]string{"fast,": "4"},
		},
		"a plan that cannot be made": {
			play:   func(w *world) { w.put(claim().Selector("a", "b").Obj()) },
			failed: map[string]string{"fast,Refused": "5"}, before: map[string]string{"fast,": "5"},
		},
		"a class that is not there": {
			play:   func(w *world) { w.put(fixture.Claim("c").Class("none").For(driverName).Obj()) },
			failed: map[string]string{",ClassMissing": "5"}, before: map[string]string{"none,": "5"},
		},
		"a secret that is not there": {
			play: func(w *world) {
				w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).
					Parameter(wellknown.ReservedPrefix+"provisioner-secret-name", "s").Parameter(wellknown.ReservedPrefix+"provisioner-secret-namespace", "default").Obj())
				w.put(claim().Obj())
			},
			failed: map[string]string{"fast,SecretNotReady": "5"}, before: map[string]string{"fast,": "5"},
		},
		"a PersistentVolume that is not taken at once": {
			play: func(w *world) {
				w.api.failing(refuseNewPVs)
				w.put(claim().Obj())
				w.pass(10 * time.Second)
				w.api.failing(nil)
			},
			failed: map[string]string{"fast,NotSaved": "1"},
		},
		"a populator's claim": {
			play:    func(w *world) { w.put(claim().From("example.com", "Recipe", "r").Obj()) },
			ignored: map[string]string{"fast,Populator": "1"}, before: map[string]string{"fast,Recipe": "1"},
		},
		"a claim that is about to be bound": {
			play: func(w *world) {
				w.put(fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).BoundTo(claim().Obj()).Obj())
				w.put(claim().Obj())
			},
			ignored: map[string]string{"fast,AboutToBind": "1"}, before: map[string]string{"fast,": "1"},
		},
		"a class of another provisioner": {
			play: func(w *world) {
				w.put(fixture.Class("other").Provisioner("other").Obj())
				w.put(claim().Class("other").Obj())
			},
			ignored: map[string]string{"other,OtherProvisioner": "1"}, before: map[string]string{"other,": "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				tc.play(w)
				w.pass(20 * time.Second)
				m := w.c.metrics
				for _, family := range []struct {
					name string
					c    prometheus.Collector
					want map[string]string
				}{{"failed", m.attemptsFailed, tc.failed}, {"ignored", m.claimsIgnored, tc.ignored}, {"the original's", m.PersistentVolumeClaimProvisionFailedTotal, tc.before}} {
					want := family.want
					if want == nil {
						want = map[string]string{}
					}
					if diff := cmp.Diff(want, samples(t, family.c)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", family.name, diff)
					}
				}
			})
		})
	}
}
