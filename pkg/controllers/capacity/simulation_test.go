package capacity

import (
	"context"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Ten hours of a large cluster whose driver is far too slow for the poll interval and fails for every tenth
// segment, while nodes come and go, volumes are made and classes are touched. No pair ever has more than one
// entry in the queue, and memory stays what it was after the first round.
//
// It measures the heap, so nothing may run beside it.
func TestTenHoursOfASlowDriver(t *testing.T) {
	const (
		segments = 5000
		classes  = 4
		pairs    = segments * classes
		workers  = 400
		callTime = 3 * time.Minute
		interval = time.Minute
	)
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.logger = &klog.Logger{} // says nothing
		s.segments = newTestSegments()
		for i := range segments {
			s.segments.set[place(fmt.Sprint(i%3), fmt.Sprint(i))] = true
		}
		s.classes = newTestClasses()
		for i := range classes {
			class := lateClass(fmt.Sprint("class-", i))
			s.classes.classes[class.Name] = class
		}
		s.cfg.Segments, s.cfg.Classes = s.segments, s.classes
		s.cfg.Threads, s.cfg.PollInterval = workers, interval
		driver := &slowDriver{callTime: callTime, inFlight: map[string]bool{}, t: t}
		s.cfg.Driver = driver
		s.run()

		var after4h uint64
		for minute := range 10 * 60 {
			time.Sleep(time.Minute)
			s.segments.change([]topology.Segment{place("new", fmt.Sprint(minute%50))}, []topology.Segment{place("new", fmt.Sprint((minute+25)%50))})
			s.controller.VolumeCreated("class-1", nil)
			if minute%60 != 59 {
				continue
			}
			s.classes.set(lateClass("class-2"))
			synctest.Wait()
			s.checkBook()
			waiting := s.controller.loop.Len()
			if waiting > pairs+50*classes {
				t.Errorf("after %d minutes %d entries in the queue, want at most one a pair", minute+1, waiting)
			}
			if minute == 239 { // every pair had its turn
				after4h = heap()
			}
		}
		after10h := heap()
		if after10h > after4h+after4h/10 {
			t.Errorf("%d bytes in use after ten hours, %d after four: more than a tenth more", after10h, after4h)
		}
		// The workers were never idle, and nobody was asked twice while others had to wait.
		calls := driver.count()
		if want := int(10 * time.Hour / callTime * workers); calls < want*95/100 || calls > want+workers {
			t.Errorf("%d calls, want about %d: all workers at work all the time", calls, want)
		}
		s.stop()
	})
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// slowDriver takes its time, fails for every tenth segment, and complains when two calls for a pair overlap.
type slowDriver struct {
	t        *testing.T
	callTime time.Duration

	mu       sync.Mutex
	inFlight map[string]bool
	calls    int
}

func (d *slowDriver) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	host := req.GetAccessibleTopology().GetSegments()["host"]
	pair := req.GetParameters()["class"] + req.GetAccessibleTopology().GetSegments()["zone"] + "/" + host
	d.mu.Lock()
	if d.inFlight[pair] {
		d.t.Errorf("two calls for %s overlap", pair)
	}
	d.inFlight[pair] = true
	d.calls++
	d.mu.Unlock()
	time.Sleep(d.callTime)
	d.mu.Lock()
	delete(d.inFlight, pair)
	d.mu.Unlock()
	sum := fnv.New32()
	_, _ = sum.Write([]byte(host))
	if sum.Sum32()%10 == 0 {
		return nil, status.Error(codes.Internal, "no")
	}
	return &csi.GetCapacityResponse{AvailableCapacity: 1 << 30}, nil
}

func (d *slowDriver) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// After a start all pairs are fresh at once; from the second round on each second of the interval gets its
// share, every pair still gets a turn in each interval, and what events refresh is not asked for again soon.
func TestPollIsSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.logger = &klog.Logger{}
		s.segments = newTestSegments()
		for i := range 1200 {
			s.segments.set[zone(fmt.Sprint(i))] = true
		}
		s.cfg.Segments = s.segments
		asked := map[string][]time.Time{}
		perSecond := map[int]int{}
		var mu sync.Mutex
		begin := time.Now()
		s.driver.set(func(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			name := req.GetAccessibleTopology().GetSegments()["zone"]
			asked[name] = append(asked[name], time.Now())
			perSecond[int(time.Since(begin)/time.Second)]++
			return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
		})
		s.run()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		s.stop()
		if perSecond[0] != 1200 {
			t.Errorf("%d calls in the first second, want all 1200 pairs", perSecond[0])
		}
		for second := 120; second < 600; second++ {
			if got := perSecond[second]; got < 15 || got > 25 {
				t.Errorf("%d calls in second %d, want about 1200/60", got, second)
			}
		}
		for name, times := range asked {
			for i := range times[1:] {
				gap := times[i+1].Sub(times[i])
				if gap > time.Minute || gap < 6*time.Second {
					t.Errorf("zone %s is asked after %s, want 6s to 1m", name, gap)
				}
			}
			if len(times) < 10 || len(times) > 13 {
				t.Errorf("zone %s is asked %d times in ten intervals", name, len(times))
			}
		}
		if got := len(asked); got != 1200 {
			t.Errorf("%d zones were asked for, want 1200", got)
		}
	})
}

// A single pair, as in node deployment, is polled at each interval, whatever the interval is.
func TestPollOfOnePair(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{10 * time.Millisecond, time.Second, time.Minute, 24 * time.Hour} {
		t.Run(interval.String(), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				delete(s.segments.set, zone("b"))
				s.cfg.PollInterval = interval
				var times []time.Time
				s.driver.set(func(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
					times = append(times, time.Now())
					return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
				})
				s.run()
				time.Sleep(20 * interval)
				s.stop()
				gaps := []time.Duration{}
				for i := range times[1:] {
					gaps = append(gaps, times[i+1].Sub(times[i]))
				}
				if len(gaps) < 18 || slices.Max(gaps) > interval || slices.Min(gaps[1:]) < interval*9/10 {
					t.Errorf("%d gaps from %s to %s, want about one interval", len(gaps), slices.Min(gaps[1:]), slices.Max(gaps))
				}
			})
		})
	}
}
