package capacity

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// slow answers after d, or when the call is cut.
func slow(d time.Duration) roomFor {
	return func(ctx context.Context, _ *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
		select {
		case <-time.After(d):
			return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// A stop releases the lease only when all controllers have ended: it waits neither for the driver's answer nor for the
// turn of a write that is limited to one a second.
func TestStopWaitsForNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		room roomFor
		// turns makes creates wait for their turn as a client with a rate limit does.
		turns    time.Duration
		want     time.Duration
		wantDone string
	}{
		"the driver is slow":            {room: slow(9 * time.Second)},
		"writes wait for their turn":    {room: always(1), turns: 10 * time.Second, want: writeGrace},
		"a write is under way":          {room: always(1), turns: 500 * time.Millisecond, want: 300 * time.Millisecond, wantDone: "create 20"},
		"the driver ignores the cancel": {room: deaf(time.Second), want: 800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.cfg.Threads = 20
				s.segments.set = map[topology.Segment]bool{}
				for n := range 20 {
					s.segments.set[zone(fmt.Sprintf("z%02d", n))] = true
				}
				s.driver.set(tc.room)
				s.server.turns = tc.turns
				s.run() // the first calls begin after 100 ms, and it returns after 300 ms
				begin := time.Now()
				s.stop()
				if took := time.Since(begin); took != tc.want {
					t.Errorf("the stop took %s, want %s", took, tc.want)
				}
				if got := s.server.written(); got != tc.wantDone {
					t.Errorf("written %q, want %q", got, tc.wantDone)
				}
			})
		})
	}
}

// deaf answers after d, whatever becomes of the call.
func deaf(d time.Duration) roomFor {
	return func(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
		time.Sleep(d)
		return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
	}
}

// What is at hand when the controller stops is no error.
func TestStopIsNoError(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		log := s.bufferLog()
		s.driver.set(slow(9 * time.Second))
		s.run()
		s.stop()
		if text := log(); text != "" {
			t.Errorf("the log has errors:\n%s", text)
		}
	})
}

// Nothing is judged before segments and classes are known: what an earlier process published looks obsolete until then.
func TestNothingIsJudgedBeforeAllIsKnown(t *testing.T) {
	t.Parallel()
	for _, late := range []string{"segments", "classes"} {
		t.Run(late, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.server = newServer(published("fast", zone("a"), 1<<30), published("fast", zone("b"), 1<<30))
				segments, classes := s.segments.set, s.classes.classes
				if late == "segments" {
					s.segments.set, s.segments.late = map[topology.Segment]bool{}, true
				} else {
					s.classes.classes, s.classes.late = map[string]*storagev1.StorageClass{}, true
				}
				s.run()
				time.Sleep(time.Minute)
				if got := s.server.written(); got != "" {
					t.Errorf("before all is known: %s", got)
				}
				if late == "segments" {
					s.segments.change(slices.Collect(maps.Keys(segments)), nil)
				}
				if late == "classes" {
					s.classes.set(classes["fast"])
				}
				s.segments.markSynced()
				s.classes.markSynced()
				time.Sleep(time.Minute)
				if got := s.server.written(); got != "" || len(s.server.get()) != 2 {
					t.Errorf("after it is known: %s, %d objects, want no write and two", got, len(s.server.get()))
				}
			})
		})
	}
}

// GetCapacity may take long: what is written depends on what is there after it.
func TestWhatChangedDuringGetCapacity(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(s *stage)
		want   string
	}{
		"the segment went":              {func(s *stage) { s.segments.change(nil, []topology.Segment{zone("a")}) }, ""},
		"an object came that is right":  {func(s *stage) { s.server.add(published("fast", zone("a"), 1)) }, ""},
		"an object came with old value": {func(s *stage) { s.server.add(published("fast", zone("a"), 7)) }, "update 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.segments.set = map[topology.Segment]bool{zone("a"): true}
				s.driver.set(slow(9 * time.Second))
				s.run()
				tc.change(s)
				time.Sleep(10 * time.Second)
				s.settle()
				if got := s.server.written(); got != tc.want {
					t.Errorf("written %q, want %q", got, tc.want)
				}
			})
		})
	}
}
