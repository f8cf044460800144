package driveraway_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/driveraway"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// world is a driver that goes and comes, and claims that wait for it.
type world struct {
	mu     sync.Mutex
	since  time.Time
	claims int
	broken bool // the cache panics
}

func (w *world) away() (time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.since, errors.New("no such file")
}

func (w *world) waiting() (claims []*corev1.PersistentVolumeClaim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken {
		panic("broken")
	}
	for i := range w.claims {
		name := "c" + strconv.Itoa(i)
		claims = append(claims, fixture.Claim(name).UID(name).Obj())
	}
	return claims
}

func (w *world) set(change func(*world)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func TestClaimsAreToldOfADriverThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{claims: 102}
		events := record.NewFakeRecorder(1000)
		c, err := driveraway.New(driveraway.Config{
			Driver: "d", Away: w.away, Waiting: w.waiting, Recorder: events, Pod: &corev1.ObjectReference{Kind: "Pod", Name: "p"},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, ctx := ktesting.NewTestContext(t)
		stop, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- c.Run(stop, ctx) }()
		pass := func(d time.Duration) (got []string) {
			time.Sleep(d)
			synctest.Wait()
			for len(events.Events) > 0 {
				got = append(got, <-events.Events)
			}
			return got
		}

		if got := pass(time.Hour); len(got) != 0 {
			t.Errorf("a driver that is there: %v", got)
		}
		w.set(func(w *world) { w.since = time.Now() })
		if got := pass(20 * time.Second); len(got) != 0 {
			t.Errorf("too early: %v", got)
		}
		got := pass(10 * time.Second)
		if len(got) != 101 {
			t.Fatalf("%d events, want one for each of 100 claims and one about all: %v", len(got), got)
		}
		last := got[100]
		for _, text := range append(got[:100:100], last) {
			if !strings.HasPrefix(text, "Warning DriverNotConnected ") || !strings.Contains(text, `CSI driver "d"`) || !strings.Contains(text, "no such file") {
				t.Fatalf("event %q", text)
			}
		}
		if !strings.Contains(last, "102 claims") || slices.ContainsFunc(got[:100], func(s string) bool { return strings.Contains(s, "102 claims") }) {
			t.Errorf("the last event is %q", last)
		}
		if got := pass(time.Hour); len(got) != 0 {
			t.Errorf("told again: %v", got)
		}

		w.set(func(w *world) { w.since, w.broken = time.Now(), true })
		pass(time.Minute)
		w.set(func(w *world) { w.broken, w.claims = false, 1 })
		if got := pass(time.Minute); len(got) != 1 {
			t.Errorf("the next absence, after a panic: %v", got)
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestWhatIsRequired(t *testing.T) {
	t.Parallel()
	if _, err := driveraway.New(driveraway.Config{Driver: "d"}); err == nil {
		t.Error("a controller that knows no claims")
	}
}
