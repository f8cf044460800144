package capacity

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// A pair that panics waits for its back-off like one that fails, while the others are published; then it gets its turn.
func TestAPairThatPanicsComesAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		var healed atomic.Bool
		s.driver.set(func(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
			if req.GetAccessibleTopology().GetSegments()["zone"] == "a" && !healed.Load() {
				panic("zone a")
			}
			return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
		})
		s.run()
		if got := s.server.written(); got != "create 1" {
			t.Errorf("written %q, want the other pair", got)
		}
		healed.Store(true)
		time.Sleep(time.Second)
		s.settle()
		if got := s.server.written(); got != "create 1" {
			t.Errorf("after the back-off: written %q, want the pair", got)
		}
		s.driver.set(always(7))
		time.Sleep(2 * time.Minute)
		s.settle()
		if got := s.server.written(); got != "update 2" {
			t.Errorf("after two polls: written %q, want both pairs to be refreshed", got)
		}
	})
}

// An object whose deletion panics is tried again, and does not keep the others.
func TestADeletionThatPanicsComesAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.segments.set = map[topology.Segment]bool{zone("a"): true}
		s.server = newServer(published("fast", zone("a"), 1<<30), published("fast", zone("a"), 1<<30), published("fast", zone("a"), 1<<30))
		panicked := false
		s.server.fail = func(verb, _ string) error {
			if verb == "delete" && !panicked {
				panicked = true
				panic("the first deletion")
			}
			return nil
		}
		s.run()
		time.Sleep(2 * time.Second)
		s.settle()
		if got := len(s.server.get()); got != 1 {
			t.Errorf("%d objects are left, want 1", got)
		}
	})
}

// A tick of the poll that panics is followed by others.
func TestAPollThatPanicsIsFollowedByOthers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.run()
		s.server.written()
		s.controller.mu.Lock()
		line := s.controller.book.line
		s.controller.book.line = nil
		s.controller.mu.Unlock()
		time.Sleep(10 * time.Second)
		s.controller.mu.Lock()
		s.controller.book.line = line
		s.controller.mu.Unlock()
		s.driver.set(always(7))
		time.Sleep(2 * time.Minute)
		s.settle()
		if got := s.server.written(); got != "update 2" {
			t.Errorf("written %q, want both pairs to be refreshed", got)
		}
	})
}

// An object whose deletion panics does not end the sweep, and a list that does not the sweeper.
func TestASweeperSurvivesPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, nodes := sweepable(t, []string{"here"})
		more := published("fast", zone("b"), 1)
		more.Name = "gone-2"
		more.Labels[wellknown.LabelManagedBy] = wellknown.ManagedByBase + "-gone"
		if err := client.Tracker().Add(more); err != nil {
			t.Fatal(err)
		}
		objects := func() int {
			list, err := client.Tracker().List(capacities.WithVersion("v1"), storagev1.SchemeGroupVersion.WithKind("CSIStorageCapacity"), testNamespace)
			if err != nil {
				t.Fatal(err)
			}
			return len(list.(*storagev1.CSIStorageCapacityList).Items)
		}
		lists, deletes := 0, 0
		client.PrependReactor("*", "csistoragecapacities", func(action clienttesting.Action) (bool, runtime.Object, error) {
			switch action.GetVerb() {
			case "list":
				if lists++; lists == 1 {
					panic("the first list")
				}
			case "delete":
				if deletes++; deletes == 1 {
					panic("the first deletion")
				}
			}
			return false, nil, nil
		})
		sweeper, err := NewSweeper(SweeperConfig{Client: client, Metadata: nodes, DriverName: testDriver, Namespace: testNamespace})
		if err != nil {
			t.Fatal(err)
		}
		logger := ktesting.NewLogger(t, ktesting.NewConfig())
		stop, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		ended := make(chan error, 1)
		go func() { ended <- sweeper.Run(stop, stop) }()
		for _, want := range []int{5, 5, 4, 3} { // a panic, a miss, one deletion, the other
			synctest.Wait()
			if got := objects(); got != want {
				t.Errorf("%d objects, want %d", got, want)
			}
			time.Sleep(defaultSweepEvery)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
