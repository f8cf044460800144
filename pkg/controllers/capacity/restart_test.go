package capacity

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// What is found at a start, and what is made of it.
func TestRestart(t *testing.T) {
	t.Parallel()
	yes := true
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "csi", UID: "u1", Controller: &yes}
	old := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "old", UID: "u0", Controller: &yes}
	friend := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "friend", UID: "u2"}
	right := []string{"fast zone=a 1Gi", "fast zone=b 1Gi"}
	type found = storagev1.CSIStorageCapacity
	edited := func(edit func(*found)) *found {
		object := published("fast", zone("a"), 1<<30)
		object.Name = "x"
		edit(object)
		return object
	}
	for name, tc := range map[string]struct {
		found      *found
		owner      *metav1.OwnerReference
		wantWrites string
		wantPairs  []string
		wantOwners []metav1.OwnerReference // of object x
	}{
		"right as it is":     {found: edited(func(*found) {}), wantWrites: "create 1", wantPairs: right},
		"capacity differs":   {found: published("fast", zone("a"), 5), wantWrites: "create 1, update 1", wantPairs: right},
		"no capacity at all": {found: edited(func(o *found) { o.Capacity = nil }), wantWrites: "create 1, update 1", wantPairs: right},
		"a maximum that is told no more": {found: edited(func(o *found) { o.MaximumVolumeSize = o.Capacity }),
			wantWrites: "create 1, update 1", wantPairs: right},
		"class is gone":   {found: published("gone", zone("a"), 1<<30), wantWrites: "create 2, delete 1", wantPairs: right},
		"segment is gone": {found: published("fast", zone("z"), 1<<30), wantWrites: "create 2, delete 1", wantPairs: right},
		"absent selector": {found: edited(func(o *found) { o.NodeTopology = nil }), wantWrites: "create 2, delete 1", wantPairs: right},
		"selector with expressions": {found: edited(func(o *found) {
			o.NodeTopology = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpExists}}}
		}), wantWrites: "create 2, delete 1", wantPairs: right},
		"of another instance": {found: edited(func(o *found) { o.Labels[wellknown.LabelManagedBy] = "external-provisioner-n1" }),
			wantWrites: "create 2", wantPairs: []string{"fast zone=a 1Gi", "fast zone=a 1Gi", "fast zone=b 1Gi"}},
		"of another driver": {found: edited(func(o *found) { o.Labels[wellknown.LabelDriverName] = "other" }),
			wantWrites: "create 2", wantPairs: []string{"fast zone=a 1Gi", "fast zone=a 1Gi", "fast zone=b 1Gi"}},
		"owner is missing": {found: edited(func(*found) {}), owner: &owner, wantWrites: "create 1, update 1", wantPairs: right,
			wantOwners: []metav1.OwnerReference{owner}},
		"owner is there": {found: edited(func(o *found) { o.OwnerReferences = []metav1.OwnerReference{friend, owner} }), owner: &owner,
			wantWrites: "create 1", wantPairs: right, wantOwners: []metav1.OwnerReference{friend, owner}},
		"another controller": {found: edited(func(o *found) { o.OwnerReferences = []metav1.OwnerReference{old, friend} }), owner: &owner,
			wantWrites: "create 1, update 1", wantPairs: right, wantOwners: []metav1.OwnerReference{friend, owner}},
		"an owner that nobody configured": {found: edited(func(o *found) { o.OwnerReferences = []metav1.OwnerReference{old} }),
			wantWrites: "create 1", wantPairs: right, wantOwners: []metav1.OwnerReference{old}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.server = newServer(tc.found)
				s.cfg.Owner = tc.owner
				s.run()
				if diff := cmp.Diff(tc.wantWrites, s.server.written()); diff != "" {
					t.Errorf("writes (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.wantPairs, s.server.pairs()); diff != "" {
					t.Errorf("objects (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff([3]float64{2, 2, 0}, s.gauges()); diff != "" {
					t.Errorf("gauges (-want +got):\n%s", diff)
				}
				for _, object := range s.server.get() {
					if object.Name == "x" {
						if diff := cmp.Diff(tc.wantOwners, object.OwnerReferences); diff != "" {
							t.Errorf("owners (-want +got):\n%s", diff)
						}
					}
				}
				// And all that holds: nothing is written by the next start, nor by its polls.
				s.run()
				time.Sleep(5 * time.Minute)
				s.settle()
				if got := s.server.written(); got != "" {
					t.Errorf("the next start writes %q, want nothing", got)
				}
			})
		})
	}
}

// Before anything is processed the gauges tell what a start has found.
func TestGaugesAtStart(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.server = newServer(
			published("fast", zone("a"), 1), published("fast", zone("a"), 1), // a duplicate is obsolete too
			published("fast", zone("b"), 1), published("gone", zone("a"), 1), published("gone", zone("b"), 1),
		)
		s.segments.set[zone("c")], s.segments.set[zone("d")] = true, true
		s.cfg.Threads = 0
		s.run()
		if diff := cmp.Diff([3]float64{4, 2, 3}, s.gauges()); diff != "" {
			t.Errorf("gauges (-want +got):\n%s", diff)
		}
	})
}

// Of two objects for a pair the oldest stays, then the first by name: every observer decides alike.
func TestSurvivorAmongDuplicates(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		at := metav1.NewTime(time.Now().Add(-time.Hour))
		for _, name := range []string{"0-young", "b", "a", "c"} {
			object := published("fast", zone("a"), 1<<30)
			object.Name = name
			object.CreationTimestamp = at
			if name == "0-young" {
				object.CreationTimestamp = metav1.NewTime(at.Add(time.Minute))
			}
			s.server.add(object)
		}
		delete(s.segments.set, zone("b"))
		s.run()
		got := s.server.get()
		if len(got) != 1 || got[0].Name != "a" {
			t.Errorf("left are %d objects with %q, want just a", len(got), got[0].Name)
		}
	})
}
