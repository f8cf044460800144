package capacity

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Threads: -1})
	if err == nil {
		t.Fatal("an empty Config was accepted")
	}
	want := "capacity controller: no Driver\nno Segments\nno Classes\nno Objects\npoll interval 0s is not above zero\n-1 threads"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

// The watch shows a create only after half a minute, and a poll, a class update and a refresh come before it.
func TestOneObjectAPairHoweverLateTheWatch(t *testing.T) {
	t.Parallel()
	for _, threads := range []int{1, 10} {
		t.Run(fmt.Sprint(threads, " threads"), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				for i := range 20 {
					s.segments.set[zone(fmt.Sprint(i))] = true
				}
				s.cfg.Threads, s.cfg.PollInterval, s.server.lag = threads, 10*time.Second, 30*time.Second
				s.run()
				if diff := cmp.Diff([3]float64{22, 0, 0}, s.gauges()); diff != "" {
					t.Errorf("gauges before the watch shows anything (-want +got):\n%s", diff)
				}
				time.Sleep(12 * time.Second)
				s.classes.set(lateClass("fast"))
				s.controller.CreateFailed("fast")
				time.Sleep(2 * time.Minute)
				s.settle()
				if got := s.server.written(); got != "create 22" {
					t.Errorf("writes %q, want exactly 22 creates", got)
				}
				if diff := cmp.Diff([3]float64{22, 22, 0}, s.gauges()); diff != "" {
					t.Errorf("gauges (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestObjectIsComplete(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		yes := true
		s.cfg.Owner = &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "csi", UID: "u", Controller: &yes}
		s.segments.set = map[topology.Segment]bool{{}: true}
		s.run()
		want := []*storagev1.CSIStorageCapacity{{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName: "csisc-",
				Namespace:    testNamespace,
				Labels: map[string]string{
					"csi.storage.k8s.io/drivername": testDriver,
					"csi.storage.k8s.io/managed-by": "external-provisioner",
				},
				OwnerReferences: []metav1.OwnerReference{*s.cfg.Owner},
			},
			NodeTopology:     &metav1.LabelSelector{},
			StorageClassName: "fast",
		}}
		got := s.server.get()
		for _, object := range got {
			if object.Capacity.String() != "1Gi" {
				t.Errorf("capacity %s, want 1Gi", object.Capacity)
			}
			object.Name, object.UID, object.ResourceVersion, object.CreationTimestamp, object.Capacity = "", "", "", metav1.Time{}, nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		// A driver without topology: the selector of what comes back is empty, and that is no reason to write.
		time.Sleep(5 * time.Minute)
		s.settle()
		if got := s.server.written(); got != "create 1" {
			t.Errorf("writes over five polls %q, want one create", got)
		}
		if got := s.driver.calls[0].GetAccessibleTopology(); got == nil || len(got.GetSegments()) != 0 {
			t.Errorf("asked for topology %v, want a message without segments", got)
		}
	})
}

// What happens while the controller runs, and what it does about it before the next poll.
func TestEvents(t *testing.T) {
	t.Parallel()
	anyObject := func(s *stage) string { return s.server.get()[0].Name }
	immediate := func(class *storagev1.StorageClass) *storagev1.StorageClass {
		mode := storagev1.VolumeBindingImmediate
		class.VolumeBindingMode = &mode
		return class
	}
	for name, tc := range map[string]struct {
		event      func(s *stage)
		wantWrites string
		wantAsked  []string
		wantGauges [3]float64
	}{
		"nothing": {event: func(*stage) {}, wantGauges: [3]float64{4, 4, 0}},
		"class appears": {event: func(s *stage) { s.classes.set(lateClass("new")) },
			wantWrites: "create 2", wantAsked: []string{" zone=a", " zone=b"}, wantGauges: [3]float64{6, 6, 0}},
		"class of another driver appears": {event: func(s *stage) {
			class := lateClass("new")
			class.Provisioner = "other"
			s.classes.set(class)
		}, wantGauges: [3]float64{4, 4, 0}},
		"class that binds at once appears": {event: func(s *stage) { s.classes.set(immediate(lateClass("new"))) }, wantGauges: [3]float64{4, 4, 0}},
		"class changes": {event: func(s *stage) { s.classes.set(lateClass("fast")) },
			wantAsked: []string{" zone=a", " zone=b"}, wantGauges: [3]float64{4, 4, 0}},
		"class comes again as it is": {event: func(s *stage) {
			class := s.classes.classes["fast"]
			for _, handler := range s.classes.handlers {
				handler(class, class)
			}
		}, wantGauges: [3]float64{4, 4, 0}},
		"class has changed, and its event is late": {event: func(s *stage) {
			s.classes.classes["fast"] = immediate(lateClass("fast"))
			s.controller.CreateFailed("fast")
		}, wantGauges: [3]float64{4, 4, 0}},
		"class is gone, and its event is late": {event: func(s *stage) {
			delete(s.classes.classes, "fast")
			s.controller.CreateFailed("fast")
		}, wantGauges: [3]float64{4, 4, 0}},
		"class is gone":                   {event: func(s *stage) { s.classes.remove("fast") }, wantWrites: "delete 2", wantGauges: [3]float64{2, 2, 0}},
		"class is made anew as immediate": {event: func(s *stage) { s.classes.set(immediate(lateClass("fast"))) }, wantWrites: "delete 2", wantGauges: [3]float64{2, 2, 0}},
		"class is deleted and made anew": {event: func(s *stage) {
			s.classes.remove("fast")
			s.settle()
			s.classes.set(lateClass("fast"))
		}, wantWrites: "create 2, delete 2", wantAsked: []string{" zone=a", " zone=b"}, wantGauges: [3]float64{4, 4, 0}},
		"segment appears": {event: func(s *stage) { s.segments.change([]topology.Segment{zone("c")}, nil) },
			wantWrites: "create 2", wantAsked: []string{"fast zone=c", "slow zone=c"}, wantGauges: [3]float64{6, 6, 0}},
		"segment that is there appears": {event: func(s *stage) { s.segments.change([]topology.Segment{zone("b")}, nil) }, wantGauges: [3]float64{4, 4, 0}},
		"segment is gone": {event: func(s *stage) { s.segments.change(nil, []topology.Segment{zone("b")}) },
			wantWrites: "delete 2", wantGauges: [3]float64{2, 2, 0}},
		"segment is replaced": {event: func(s *stage) { s.segments.change([]topology.Segment{zone("c")}, []topology.Segment{zone("b")}) },
			wantWrites: "create 2, delete 2", wantAsked: []string{"fast zone=c", "slow zone=c"}, wantGauges: [3]float64{4, 4, 0}},
		"class and segment go together": {event: func(s *stage) {
			s.classes.remove("fast")
			s.segments.change(nil, []topology.Segment{zone("b")})
		}, wantWrites: "delete 3", wantGauges: [3]float64{1, 1, 0}},
		"segment and class go together": {event: func(s *stage) {
			s.segments.change(nil, []topology.Segment{zone("b")})
			s.classes.remove("fast")
		}, wantWrites: "delete 3", wantGauges: [3]float64{1, 1, 0}},
		"somebody deletes an object": {event: func(s *stage) { s.server.edit(anyObject(s), func(*storagev1.CSIStorageCapacity) bool { return false }) },
			wantWrites: "create 1", wantAsked: []string{"fast zone=a"}, wantGauges: [3]float64{4, 4, 0}},
		"somebody takes its labels": {event: func(s *stage) {
			s.server.edit(anyObject(s), func(o *storagev1.CSIStorageCapacity) bool { o.Labels = nil; return true })
		}, wantWrites: "create 1", wantAsked: []string{"fast zone=a"}, wantGauges: [3]float64{4, 4, 0}},
		"the label comes back": {event: func(s *stage) {
			name := anyObject(s)
			s.server.edit(name, func(o *storagev1.CSIStorageCapacity) bool { delete(o.Labels, wellknown.LabelManagedBy); return true })
			s.settle()
			s.server.edit(name, func(o *storagev1.CSIStorageCapacity) bool {
				o.Labels[wellknown.LabelManagedBy] = testManagedBy
				return true
			})
		}, wantWrites: "create 1, delete 1", wantAsked: []string{"fast zone=a", "fast zone=a"}, wantGauges: [3]float64{4, 4, 0}},
		"somebody edits its capacity": {event: func(s *stage) {
			s.server.edit(anyObject(s), func(o *storagev1.CSIStorageCapacity) bool { o.Capacity = nil; return true })
		}, wantGauges: [3]float64{4, 4, 0}},
		"somebody makes one for a class that is not there": {event: func(s *stage) { s.server.add(published("gone", zone("a"), 1)) },
			wantWrites: "delete 1", wantGauges: [3]float64{4, 4, 0}},
		"somebody makes a second one": {event: func(s *stage) { s.server.add(published("slow", zone("b"), 1)) },
			wantWrites: "delete 1", wantAsked: []string{"slow zone=b"}, wantGauges: [3]float64{4, 4, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.classes.classes["slow"] = lateClass("slow")
				s.run()
				if got := s.server.written(); got != "create 4" {
					t.Fatalf("writes at start %q, want four creates", got)
				}
				s.driver.taken()
				time.Sleep(2 * time.Second) // so that what is made now is younger
				tc.event(s)
				s.settle()
				if diff := cmp.Diff(tc.wantWrites, s.server.written()); diff != "" {
					t.Errorf("writes (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.wantAsked, s.driver.taken(), equateEmpty); diff != "" {
					t.Errorf("driver calls (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.wantGauges, s.gauges()); diff != "" {
					t.Errorf("gauges (-want +got):\n%s", diff)
				}
				s.settle()
				s.checkBook()
			})
		})
	}
}

var equateEmpty = cmp.FilterValues(func(a, b []string) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())

// Reserved keys never reach the driver, as in CreateVolume.
func TestParametersAreStripped(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.run()
		class := lateClass("new")
		class.Parameters = map[string]string{
			"pool": "ssd", "csi.storage.k8s.io/fstype": "xfs", "csi.storage.k8s.io/provisioner-secret-name": "s",
		}
		s.driver.taken()
		s.classes.set(class)
		s.settle()
		s.driver.mu.Lock()
		defer s.driver.mu.Unlock()
		for _, req := range s.driver.calls {
			if diff := cmp.Diff(map[string]string{"pool": "ssd"}, req.GetParameters()); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
			if len(req.GetVolumeCapabilities()) > 0 {
				t.Errorf("volume capabilities %v, want none", req.GetVolumeCapabilities())
			}
		}
		if len(s.driver.calls) != 2 {
			t.Errorf("%d calls, want 2", len(s.driver.calls))
		}
	})
}

// A class may be kept from publishing where its allowedTopologies forbid volumes, and follows their change.
func TestRespectAllowedTopologies(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		restricted := func(zones ...string) *storagev1.StorageClass {
			class := lateClass("fast")
			class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
				{Key: "zone", Values: zones}, {Key: "unknown", Values: []string{"1"}},
			}}}
			return class
		}
		s.cfg.RespectAllowedTopologies = true
		s.classes.classes["fast"] = restricted("a", "c")
		s.run()
		for _, step := range []struct {
			change func()
			want   []string
		}{
			{func() {}, []string{"fast zone=a 1Gi"}},
			{func() { s.segments.change([]topology.Segment{zone("c"), zone("d")}, nil) }, []string{"fast zone=a 1Gi", "fast zone=c 1Gi"}},
			{func() { s.classes.set(restricted("b", "c")) }, []string{"fast zone=b 1Gi", "fast zone=c 1Gi"}},
			{func() { s.segments.change(nil, []topology.Segment{zone("c")}) }, []string{"fast zone=b 1Gi"}},
			{func() { s.classes.set(lateClass("fast")) }, []string{"fast zone=a 1Gi", "fast zone=b 1Gi", "fast zone=d 1Gi"}},
		} {
			step.change()
			s.settle()
			if diff := cmp.Diff(step.want, s.server.pairs()); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		}
		s.checkBook()
	})
}

func TestImmediateClassesOnRequest(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.cfg.ForImmediateBinding = true
		mode := storagev1.VolumeBindingImmediate
		s.classes.classes["fast"].VolumeBindingMode = &mode
		s.classes.classes["unset"] = lateClass("unset")
		s.classes.classes["unset"].VolumeBindingMode = nil
		s.run()
		want := []string{"fast zone=a 1Gi", "fast zone=b 1Gi", "unset zone=a 1Gi", "unset zone=b 1Gi"}
		if diff := cmp.Diff(want, s.server.pairs()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	})
}

// Values follow the driver at the next poll, in one update for each pair that changed: also a change of just
// the maximum size.
func TestPollFollowsTheDriver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.run()
		s.server.written()
		s.driver.set(func(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
			if req.GetAccessibleTopology().GetSegments()["zone"] == "a" {
				return &csi.GetCapacityResponse{AvailableCapacity: 1 << 30, MaximumVolumeSize: &wrapperspb.Int64Value{Value: 1 << 20}}, nil
			}
			return &csi.GetCapacityResponse{}, nil
		})
		time.Sleep(time.Minute)
		s.settle()
		if got := s.server.written(); got != "update 2" {
			t.Errorf("writes %q, want two updates", got)
		}
		want := []string{"fast zone=a 1Gi", "fast zone=b 0"}
		if diff := cmp.Diff(want, s.server.pairs()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		sizes := []string{}
		for _, object := range s.server.get() {
			sizes = append(sizes, object.MaximumVolumeSize.String())
		}
		slices.Sort(sizes)
		if diff := cmp.Diff([]string{"1Mi", "<nil>"}, sizes); diff != "" {
			t.Errorf("maximum sizes (-want +got):\n%s", diff)
		}
		s.driver.taken()
		time.Sleep(10 * time.Minute)
		s.settle()
		if got := s.server.written(); got != "" {
			t.Errorf("writes for equal values %q, want none", got)
		}
		if got := len(s.driver.taken()); got < 20 || got > 22 {
			t.Errorf("%d calls in ten intervals, want each of two pairs once an interval", got)
		}
	})
}
