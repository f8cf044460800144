package capacity

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// What one pair's turn sees after a few steps.
func TestSteps(t *testing.T) {
	t.Parallel()
	key := Key{Class: "fast", Segment: zone("a")}
	now := time.Unix(1000, 0)
	version := func(name, resourceVersion string) *storagev1.CSIStorageCapacity {
		object := published("fast", zone("a"), 1)
		object.Name, object.UID, object.ResourceVersion = name, types.UID("uid-"+name), resourceVersion
		object.CreationTimestamp = metav1.NewTime(now)
		return object
	}
	terminating := func() *storagev1.CSIStorageCapacity {
		object := version("x", "1")
		at := metav1.NewTime(now)
		object.DeletionTimestamp = &at
		return object
	}
	turn := func(b *book) { b.begin(key); b.view(key, now); b.end(key, false, now) }
	type seen struct {
		Object  string // name@version of the one that stands for the pair
		Surplus []string
	}
	for name, tc := range map[string]struct {
		steps      func(b *book)
		want       seen
		wantCounts counts
	}{
		"nothing there": {func(*book) {}, seen{}, counts{1, 0, 0}},
		"created":       {func(b *book) { b.created(key, version("x", "1"), now) }, seen{Object: "x@1"}, counts{1, 0, 0}},
		"created, shown": {func(b *book) { b.created(key, version("x", "1"), now); b.observe(version("x", "1")) },
			seen{Object: "x@1"}, counts{1, 1, 0}},
		"shown, created": {func(b *book) { b.observe(version("x", "2")); b.created(key, version("x", "1"), now) },
			seen{Object: "x@2"}, counts{1, 1, 0}},
		"created long ago and never shown": {func(b *book) { b.created(key, version("x", "1"), now.Add(-pendingFor-1)) }, seen{}, counts{1, 0, 0}},
		"created, refused":                 {func(b *book) { b.created(key, version("x", "1"), now); b.refused("uid-x") }, seen{}, counts{1, 0, 0}},
		"updated":                          {func(b *book) { b.observe(version("x", "1")); b.updated(version("x", "1"), version("x", "2"), now) }, seen{Object: "x@2"}, counts{1, 1, 0}},
		"updated, a resync": {func(b *book) {
			b.observe(version("x", "1"))
			b.updated(version("x", "1"), version("x", "2"), now)
			b.observe(version("x", "1"))
		}, seen{Object: "x@2"}, counts{1, 1, 0}},
		"updated, and the watch was faster": {func(b *book) {
			b.observe(version("x", "1"))
			b.observe(version("x", "3"))
			b.updated(version("x", "1"), version("x", "2"), now)
		}, seen{Object: "x@3"}, counts{1, 1, 0}},
		"updated, refused": {func(b *book) {
			b.observe(version("x", "1"))
			b.updated(version("x", "1"), version("x", "2"), now)
			b.refused("uid-x")
		}, seen{Object: "x@1"}, counts{1, 1, 0}},
		"updated long ago and never shown": {func(b *book) {
			b.observe(version("x", "1"))
			b.updated(version("x", "1"), version("x", "2"), now.Add(-pendingFor-1))
		}, seen{Object: "x@1"}, counts{1, 1, 0}},
		"being deleted": {func(b *book) { b.observe(terminating()) }, seen{}, counts{1, 0, 1}},
		"begins to be":  {func(b *book) { b.observe(version("x", "1")); o := terminating(); o.ResourceVersion = "2"; b.observe(o) }, seen{}, counts{1, 0, 1}},
		"two, one is ours and not shown": {func(b *book) { b.created(key, version("z", "1"), now); b.observe(version("x", "2")) },
			seen{Object: "x@2"}, counts{1, 1, 0}},
		"two": {func(b *book) { b.observe(version("z", "1")); b.observe(version("x", "2")) },
			seen{Object: "x@2", Surplus: []string{"z"}}, counts{1, 1, 1}},
		"two, the older one is the second by name": {func(b *book) {
			b.observe(version("x", "1"))
			older := version("z", "2")
			older.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
			b.observe(older)
		}, seen{Object: "z@2", Surplus: []string{"x"}}, counts{1, 1, 1}},
		"two, the other deleted already": {func(b *book) { b.observe(version("z", "1")); b.observe(version("x", "2")); turn(b) },
			seen{Object: "x@2"}, counts{1, 1, 1}},
		"two, and the other could not be deleted": {func(b *book) {
			b.observe(version("z", "1"))
			b.observe(version("x", "2"))
			turn(b)
			b.kept("uid-z")
		}, seen{Object: "x@2", Surplus: []string{"z"}}, counts{1, 1, 1}},
		"deleted by us, then wanted again": {func(b *book) {
			b.observe(version("x", "1"))
			b.removeClass("fast")
			turn(b)
			b.setClass("fast", nil)
		}, seen{}, counts{1, 0, 1}},
		"not deleted yet when wanted again": {func(b *book) {
			b.observe(version("x", "1"))
			b.removeClass("fast")
			b.setClass("fast", nil)
		}, seen{Object: "x@1"}, counts{1, 1, 0}},
		"created, then not wanted for a moment": {func(b *book) {
			b.created(key, version("x", "1"), now)
			b.removeClass("fast")
			b.setClass("fast", nil)
		}, seen{}, counts{1, 0, 0}},
		"created when not wanted any more": {func(b *book) {
			b.removeClass("fast")
			b.created(key, version("x", "1"), now)
		}, seen{}, counts{}},
		"moves to another pair": {func(b *book) {
			b.observe(version("x", "1"))
			moved := version("x", "2")
			moved.StorageClassName = "other"
			b.observe(moved)
		}, seen{}, counts{1, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook()
			b.changeSegments([]topology.Segment{zone("a")}, nil)
			b.setClass("fast", nil)
			b.takeWake()
			tc.steps(b)
			checkBook(t, b)
			v := b.view(key, now)
			got := seen{}
			if v.object != nil {
				got.Object = v.object.Name + "@" + v.object.ResourceVersion
			}
			for _, object := range v.surplus {
				got.Surplus = append(got.Surplus, object.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("seen (-want +got):\n%s", diff)
			}
			if b.counts != tc.wantCounts {
				t.Errorf("counts %+v, want %+v", b.counts, tc.wantCounts)
			}
			checkBook(t, b)
		})
	}
}

// When a pair gets a turn, and when it does not.
func TestTurns(t *testing.T) {
	t.Parallel()
	key := Key{Class: "fast", Segment: zone("a")}
	b := newBook()
	b.changeSegments([]topology.Segment{zone("a")}, nil)
	b.setClass("fast", nil)
	now := time.Unix(1000, 0)
	wakes := func(what string, want int) {
		t.Helper()
		if got := len(b.takeWake()); got != want {
			t.Errorf("%s: handed over %d times, want %d", what, got, want)
		}
	}
	begins := func(what string, want bool) {
		t.Helper()
		if got := b.begin(key); got != want {
			t.Errorf("%s: turn begins %v, want %v", what, got, want)
		}
	}
	p := newPoller(time.Minute)

	b.refreshClass("fast")
	b.setClass("fast", nil)
	wakes("new and refreshed", 1)
	b.refreshClass("fast")
	wakes("refreshed while in the queue", 0)
	begins("in the queue", true)
	begins("again, without a reason", false)
	b.refreshClass("fast")
	wakes("refreshed while with a worker", 1)
	b.end(key, false, now)
	p.poll(b, now.Add(time.Hour))
	wakes("polled while in the queue", 0)
	begins("in the queue again", true)
	b.end(key, true, now)
	p.poll(b, now.Add(time.Hour))
	wakes("polled in its back-off", 0)
	begins("its back-off has ended", true)
	b.end(key, true, now)
	b.refreshClass("fast")
	wakes("refreshed in its back-off", 1)
	begins("refreshed in its back-off", true)
	b.end(key, false, now)
	begins("left over from the back-off", false)
	p.poll(b, now.Add(30*time.Second))
	wakes("polled before its time", 0)
	p.poll(b, now.Add(time.Minute))
	wakes("polled", 1)
	begins("polled", true)
	object := published("fast", zone("a"), 1)
	at := metav1.NewTime(now)
	object.Name, object.UID, object.DeletionTimestamp = "x", "uid-x", &at
	b.observe(object)
	b.end(key, false, now)
	b.removeClass("fast") // what it has left is being deleted: nothing to do
	p.poll(b, now.Add(time.Hour))
	wakes("polled when not wanted any more", 0)
	checkBook(t, b)
	b.forget("uid-x")
	wakes("gone", 0)
	if len(b.items) != 0 {
		t.Errorf("%d items are left, want none", len(b.items))
	}
}
