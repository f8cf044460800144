package capacity

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

func failing(err error) roomFor {
	return func(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) { return nil, err }
}

func answering(answer *csi.GetCapacityResponse) roomFor {
	return func(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) { return answer, nil }
}

// Whatever is wrong with the driver: what is published stays, nothing is written, and each pair is tried again
// in one chain: after 1, 3, 7, 15, 31, 63 seconds, and then once in each poll interval.
func TestDriverTrouble(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]roomFor{
		"fails":                      failing(status.Error(codes.Internal, "no")),
		"is not there":               failing(status.Error(codes.Unavailable, "connection refused")),
		"answers nothing":            answering(nil),
		"reports negative capacity":  answering(&csi.GetCapacityResponse{AvailableCapacity: -1}),
		"reports a negative maximum": answering(&csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(-1)}),
		"fails without a status":     failing(errors.New("broken pipe")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.server = newServer(published("fast", zone("a"), 7))
				s.driver.set(answer)
				s.run()
				time.Sleep(64 * time.Second)
				s.settle()
				if got := len(s.driver.taken()); got != 2*7 {
					t.Errorf("%d calls for two pairs in 64 seconds, want 7 for each", got)
				}
				time.Sleep(20 * time.Minute)
				s.settle()
				if got := len(s.driver.taken()); got < 38 || got > 42 {
					t.Errorf("%d calls for two pairs in 20 minutes, want one a minute for each", got)
				}
				if got := s.server.written(); got != "" {
					t.Errorf("writes %q, want none", got)
				}
				if diff := cmp.Diff([]string{"fast zone=a 7"}, s.server.pairs()); diff != "" {
					t.Errorf("objects (-want +got):\n%s", diff)
				}
				s.driver.set(always(9))
				time.Sleep(61 * time.Second)
				s.settle()
				if diff := cmp.Diff([]string{"fast zone=a 9", "fast zone=b 9"}, s.server.pairs()); diff != "" {
					t.Errorf("objects after it recovered (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// One failing pair does not hold up the others, and events on it do not give it more chains of retries.
func TestFailingPairHasOneChain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.driver.set(func(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
			if req.GetAccessibleTopology().GetSegments()["zone"] == "a" {
				return nil, status.Error(codes.Internal, "no")
			}
			return &csi.GetCapacityResponse{AvailableCapacity: 1 << 30}, nil
		})
		s.run()
		if diff := cmp.Diff([]string{"fast zone=b 1Gi"}, s.server.pairs()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		time.Sleep(2 * time.Minute)
		for range 10 {
			s.controller.CreateFailed("fast")
			s.settle()
		}
		s.driver.taken()
		time.Sleep(20 * time.Minute)
		s.settle()
		// Each event may bring the next retry forward, but adds none that lasts.
		if got := len(s.driver.taken()); got < 40 || got > 44 {
			t.Errorf("%d calls in 20 minutes, want 20 polls of the good pair and 20 retries of the other", got)
		}
	})
}

// A driver without GetCapacity is asked at each poll and not more often, and the log says so once.
func TestUnimplemented(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
		s := newStage(t)
		s.logger = &logger
		// An earlier version of the driver had it. The objects stay: without them the scheduler would place nothing.
		s.server = newServer(published("fast", zone("a"), 7))
		s.driver.set(failing(status.Error(codes.Unimplemented, "unknown method")))
		s.run()
		time.Sleep(10 * time.Minute)
		s.settle()
		if got := len(s.driver.taken()); got < 20 || got > 24 {
			t.Errorf("%d calls for two pairs in ten intervals, want one in each", got)
		}
		if got, pairs := s.server.written(), s.server.pairs(); got != "" || !slices.Equal(pairs, []string{"fast zone=a 7"}) {
			t.Errorf("written %q, objects %v, want what was there", got, pairs)
		}
		s.driver.set(always(9))
		time.Sleep(time.Minute)
		s.settle()
		if diff := cmp.Diff([]string{"fast zone=a 9", "fast zone=b 9"}, s.server.pairs()); diff != "" {
			t.Errorf("objects when the driver has it again (-want +got):\n%s", diff)
		}
		s.stop()
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if got := strings.Count(log, "does not implement GetCapacity"); got != 1 {
			t.Errorf("the log says it %d times, want once:\n%s", got, log)
		}
	})
}

// A driver that hangs holds one worker for as long as its deadline, and the others go on.
func TestHangingDriver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.cfg.Threads = 2
		s.driver.set(func(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
			if req.GetAccessibleTopology().GetSegments()["zone"] == "a" {
				time.Sleep(10 * time.Second) // the deadline of the real one
				return nil, status.Error(codes.DeadlineExceeded, "deadline")
			}
			return &csi.GetCapacityResponse{AvailableCapacity: 1 << 30}, nil
		})
		s.run()
		if diff := cmp.Diff([]string{"fast zone=b 1Gi"}, s.server.pairs()); diff != "" {
			t.Errorf("objects while one call hangs (-want +got):\n%s", diff)
		}
	})
}

// What the API server refuses is tried again with back-off, and the driver is asked before each try.
func TestServerTrouble(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(capacities, "x", errors.New("no role"))
	timeout := apierrors.NewTimeoutError("slow", 1)
	for name, tc := range map[string]struct {
		verb  string
		err   error
		event func(s *stage)
		// wantTries in the 64 seconds from the event on.
		wantTries  int
		wantWrites string
	}{
		"create is forbidden": {"create", forbidden, func(s *stage) { s.segments.change([]topology.Segment{zone("c")}, nil) }, 7, "create 1"},
		"create times out":    {"create", timeout, func(s *stage) { s.segments.change([]topology.Segment{zone("c")}, nil) }, 7, "create 1"},
		"update is forbidden": {"update", forbidden, func(s *stage) { s.driver.set(always(5)); s.classes.set(lateClass("fast")) }, 14, "update 2"},
		"delete is forbidden": {"delete", forbidden, func(s *stage) { s.segments.change(nil, []topology.Segment{zone("b")}) }, 7, "delete 1"},
		"delete times out":    {"delete", timeout, func(s *stage) { s.segments.change(nil, []topology.Segment{zone("b")}) }, 7, "delete 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.cfg.PollInterval = time.Hour
				s.run()
				s.server.written()
				tries := 0
				s.server.mu.Lock()
				s.server.fail = func(verb, _ string) error {
					if verb != tc.verb {
						return nil
					}
					tries++
					return tc.err
				}
				s.server.mu.Unlock()
				tc.event(s)
				time.Sleep(64 * time.Second)
				s.settle()
				if got := s.server.written(); got != "" {
					t.Errorf("writes %q, want none", got)
				}
				s.server.failing(tc.verb, nil)
				if tries != tc.wantTries {
					t.Errorf("%d tries, want %d", tries, tc.wantTries)
				}
				time.Sleep(64 * time.Second)
				s.settle()
				if got := s.server.written(); got != tc.wantWrites {
					t.Errorf("writes when it works again %q, want %q", got, tc.wantWrites)
				}
				s.checkBook()
			})
		})
	}
}

// Somebody writes to an object at the moment that we do: the next try starts from what the watch shows.
func TestConflict(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		delete(s.segments.set, zone("b"))
		s.server.lag = 500 * time.Millisecond
		s.run()
		s.settle()
		s.settle()
		name := s.server.get()[0].Name
		s.server.edit(name, func(o *storagev1.CSIStorageCapacity) bool {
			o.Annotations = map[string]string{"somebody": "else"}
			return true
		})
		s.server.written()
		s.driver.set(always(5))
		s.controller.CreateFailed("fast")
		s.settle()
		if got := s.server.written(); got != "" {
			t.Errorf("writes before the watch shows the change %q, want none", got)
		}
		time.Sleep(2 * time.Second)
		s.settle()
		if got := s.server.written(); got != "update 1" {
			t.Errorf("writes %q, want one update", got)
		}
		if got := s.server.get()[0]; got.Annotations["somebody"] != "else" || got.Capacity.Value() != 5 {
			t.Errorf("object %v, want the other's annotation and our capacity", got)
		}
	})
}

// Own writes count before the watch shows them: an update follows a create, and another update that one.
func TestOwnWritesAreRemembered(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		delete(s.segments.set, zone("b"))
		s.server.lag = time.Minute
		s.run()
		for i, want := range []string{"fast zone=a 10", "fast zone=a 11", "fast zone=a 12"} {
			s.driver.set(always(int64(10 + i)))
			s.controller.CreateFailed("fast")
			s.settle()
			if diff := cmp.Diff([]string{want}, s.server.pairs()); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		}
		if got := s.server.written(); got != "create 1, update 3" {
			t.Errorf("writes %q, want one create and three updates", got)
		}
		time.Sleep(10 * time.Minute)
		s.settle()
		if got := s.server.written(); got != "" {
			t.Errorf("writes after the watch has shown them %q, want none", got)
		}
		s.checkBook()
	})
}

// An object that was taken from us before the watch could show it is believed in for a few minutes, then made
// again.
func TestLostCreateIsMadeAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		delete(s.segments.set, zone("b"))
		s.server.mute = true
		s.run()
		s.server.mu.Lock()
		clear(s.server.objects)
		s.server.mute = false
		s.server.mu.Unlock()
		time.Sleep(5 * time.Minute)
		s.settle()
		if diff := cmp.Diff([]string{"fast zone=a 1Gi"}, s.server.pairs()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([3]float64{1, 1, 0}, s.gauges()); diff != "" {
			t.Errorf("gauges (-want +got):\n%s", diff)
		}
		s.checkBook()
	})
}

// A class that goes while the driver is asked: what is written then is deleted again.
func TestPairGoesDuringItsCall(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.driver.set(func(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
			time.Sleep(5 * time.Second)
			return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
		})
		s.cfg.Threads = 2
		s.run()
		s.classes.remove("fast")
		time.Sleep(10 * time.Second)
		s.settle()
		if got := s.server.pairs(); len(got) != 0 {
			t.Errorf("objects %q, want none", got)
		}
		if diff := cmp.Diff([3]float64{0, 0, 0}, s.gauges()); diff != "" {
			t.Errorf("gauges (-want +got):\n%s", diff)
		}
		s.checkBook()
	})
}

// A stop begins nothing: neither the next pair, nor the write of what a driver answers all the same.
func TestStopBeginsNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.driver.set(func(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
			time.Sleep(5 * time.Second)
			return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
		})
		s.run()
		s.stop()
		if got, calls := s.server.written(), s.driver.taken(); got != "" || len(calls) != 1 {
			t.Errorf("writes %q, calls %q, want no write and the one call that was at hand", got, calls)
		}
	})
}

// The same, but a change of capacity comes first: the server does not know the object, so there is no need to
// believe in it any longer.
func TestLostCreateIsNoticedByAnUpdate(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		delete(s.segments.set, zone("b"))
		s.server.mute = true
		s.run()
		s.server.mu.Lock()
		clear(s.server.objects)
		s.server.mute = false
		s.server.mu.Unlock()
		s.driver.set(always(5))
		s.controller.CreateFailed("fast")
		time.Sleep(2 * time.Second)
		s.settle()
		if diff := cmp.Diff([]string{"fast zone=a 5"}, s.server.pairs()); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		s.checkBook()
	})
}

// An obsolete object that was replaced by another of its name: ours is gone, and the other one is judged when
// the watch shows it.
func TestObsoleteObjectIsReplaced(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.server.lag = 5 * time.Second
		s.run()
		time.Sleep(10 * time.Second)
		before := s.server.get()[1]
		s.server.mu.Lock()
		s.server.objects[before.Name].UID = "uid-of-the-other"
		s.server.objects[before.Name].Labels = nil
		s.server.mu.Unlock()
		s.server.written()
		tries := 0
		s.server.mu.Lock()
		s.server.fail = func(string, string) error { tries++; return nil }
		s.server.mu.Unlock()
		s.segments.change(nil, []topology.Segment{keyOf(before).Segment})
		time.Sleep(time.Minute)
		s.settle()
		if got := s.server.written(); got != "" || tries != 1 {
			t.Errorf("%d tries to delete it, writes %q, want one try and no write", tries, got)
		}
	})
}
