package provision

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// fromKind is a claim with a source of that kind.
func fromKind(name, class, kind string) *corev1.PersistentVolumeClaim {
	return fixture.Claim(name).UID("uid-of-"+name).Class(class).For(driverName).From("example.com", kind, "x").Obj()
}

// The API server takes any bytes as a kind when the request is in protobuf. The process lives through them, and other claims
// are served.
func TestLabelsAreValidUTF8(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fromKind("c", "fast", "\xff\xfe"))
		w.put(fromKind("d", "\xff", ""))
		w.put(fixture.Claim("e").UID("uid-of-e").Class("fast").For(driverName).Obj())
		gone := released().Obj()
		gone.Spec.StorageClassName = "\xff"
		w.put(gone)
		w.pass(500 * time.Millisecond)
		want := map[string]string{"fast,\ufffd": "1", "\ufffd,": "1"}
		if diff := cmp.Diff(want, samples(t, w.c.metrics.PersistentVolumeClaimProvisionFailedTotal)); diff != "" {
			t.Errorf("failed (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"fast,": "1"}, samples(t, w.c.metrics.PersistentVolumeClaimProvisionTotal)); diff != "" {
			t.Errorf("provisioned (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"\ufffd": "1"}, samples(t, w.c.metrics.PersistentVolumeDeleteTotal)); diff != "" {
			t.Errorf("deleted (-want +got):\n%s", diff)
		}
	})
}

// What a user has chosen as a class or as the kind of a source is a series for as long as a claim says so.
func TestSeriesGoWithTheirClaims(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		failed := func() map[string]string { return samples(t, w.c.metrics.PersistentVolumeClaimProvisionFailedTotal) }
		w.put(fixture.Claim("missing").UID("uid-of-missing").Class("none").For(driverName).Obj())
		w.put(fromKind("one", "fast", "Recipe"))
		w.put(fromKind("two", "fast", "Recipe"))
		w.pass(500 * time.Millisecond)
		if diff := cmp.Diff(map[string]string{"none,": "1", "fast,Recipe": "2"}, failed()); diff != "" {
			t.Errorf("while there are claims (-want +got):\n%s", diff)
		}
		w.remove(w.live("missing"))
		w.remove(w.live("one"))
		w.pass(time.Hour)
		if diff := cmp.Diff(map[string]string{"fast,Recipe": "2"}, failed()); diff != "" {
			t.Errorf("with one claim left (-want +got):\n%s", diff)
		}
		w.remove(w.live("two"))
		w.pass(time.Hour)
		if diff := cmp.Diff(map[string]string{}, failed()); diff != "" {
			t.Errorf("without claims (-want +got):\n%s", diff)
		}
	})
}

// However many claims there are at a time, the number of series is bounded, and what is too much is counted under one name.
func TestSeriesAreBounded(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		const claims = maxSeries + 50
		for n := range claims {
			w.put(fromKind(fmt.Sprint("c", n), "fast", fmt.Sprint("Kind", n)))
		}
		w.pass(500 * time.Millisecond)
		got := samples(t, w.c.metrics.PersistentVolumeClaimProvisionFailedTotal)
		if len(got) != maxSeries+1 || got["(other),(other)"] != fmt.Sprint(claims-maxSeries) {
			t.Errorf("%d series, %s claims counted under one name; want %d and %d", len(got), got["(other),(other)"], maxSeries+1, claims-maxSeries)
		}
	})
}

// What was counted of a class goes with the class. Claims that still name it are counted on.
func TestSeriesGoWithTheirClass(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.claim("c")
		w.put(released().Obj())
		w.pass(500 * time.Millisecond)
		m := w.c.metrics
		families := func() []map[string]string {
			return []map[string]string{samples(t, m.PersistentVolumeClaimProvisionTotal), samples(t, m.PersistentVolumeClaimProvisionDurationSeconds), samples(t, m.endToEnd), samples(t, m.PersistentVolumeDeleteTotal)}
		}
		for n, family := range families() {
			if len(family) != 1 {
				t.Errorf("family %d: %v, want the class", n, family)
			}
		}
		w.remove(w.api.Class("fast"))
		w.pass(500 * time.Millisecond)
		for n, family := range families() {
			if len(family) != 0 {
				t.Errorf("family %d without the class: %v, want nothing", n, family)
			}
		}
		w.put(fixture.Claim("late").UID("uid-of-late").Class("fast").For(driverName).Obj())
		w.pass(500 * time.Millisecond)
		if diff := cmp.Diff(map[string]string{"fast,": "1"}, samples(t, m.PersistentVolumeClaimProvisionFailedTotal)); diff != "" {
			t.Errorf("failed (-want +got):\n%s", diff)
		}
	})
}

// An object that is gone makes no series of its own: nobody would tell when to drop that.
func TestNoSeriesForWhatIsGone(t *testing.T) {
	t.Parallel()
	alive := map[types.UID]bool{"a": true}
	var dropped []labelPair
	s := &series{
		exists: func(string) bool { return false }, alive: func(uid types.UID) bool { return alive[uid] },
		drop: func(pair labelPair) { dropped = append(dropped, pair) }, pairs: map[labelPair]map[types.UID]struct{}{},
	}
	var got []labelPair
	count := func(uid types.UID, pair labelPair) {
		s.count(uid, pair, func(pair labelPair) { got = append(got, pair) })
	}
	count("gone", labelPair{"x", ""})
	count("gone", labelPair{"x", "Kind"})
	count("a", labelPair{"x", ""})
	count("gone", labelPair{"x", ""})
	want := []labelPair{{otherLabel, ""}, {otherLabel, otherLabel}, {"x", ""}, {"x", ""}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(labelPair{})); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	s.forget("a")
	if len(s.pairs) != 0 || len(dropped) != 1 {
		t.Errorf("%d pairs are kept and %d were dropped, want none and one", len(s.pairs), len(dropped))
	}
}
