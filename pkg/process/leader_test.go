package process

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/klog/v2/ktesting"
)

// contender is one Leader under test with a record of its terms.
type contender struct {
	*Leader
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	terms   int
	began   time.Time
	stopped time.Time     // when the stop context of the term ended
	cut     time.Time     // when the context for calls in flight ended
	cause   error         // of the stop
	inCall  time.Duration // how long a call in flight takes after the stop
}

func newContender(t *testing.T, s *leaseServer, identity string) *contender {
	t.Helper()
	l, err := NewLeader(LeaderConfig{
		Leases: s, Lock: "mock.csi.test", Namespace: "ns", Identity: identity,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 5 * time.Second, DrainTimeout: 20 * time.Second,
		Labels: map[string]string{"a": "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &contender{Leader: l, done: make(chan error, 1)}
}

// start runs it in the background; the test's end stops it.
func (c *contender) start(t *testing.T) *contender {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, c.cancel = context.WithCancel(ctx)
	go func() { c.done <- c.Run(ctx, c.work) }()
	return c
}

func (c *contender) work(stop, calls context.Context) error {
	c.mu.Lock()
	c.terms++
	c.began = time.Now()
	c.mu.Unlock()
	<-stop.Done()
	c.mu.Lock()
	c.stopped, c.cause = time.Now(), context.Cause(stop)
	inCall := c.inCall
	c.mu.Unlock()
	select {
	case <-time.After(inCall):
	case <-calls.Done():
		c.mu.Lock()
		c.cut = time.Now()
		c.mu.Unlock()
	}
	return nil
}

func (c *contender) leads() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms > 0 && c.stopped.IsZero()
}

// end stops it and returns what Run said and how long it took.
func (c *contender) end(t *testing.T) (time.Duration, error) {
	t.Helper()
	begin := time.Now()
	c.cancel()
	err := <-c.done
	return time.Since(begin), err
}

// within fails the test unless cond holds in at most d, and returns how long it took.
func within(t *testing.T, d time.Duration, what string, cond func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !cond() {
		if time.Since(begin) > d {
			t.Fatalf("not within %s: %s", d, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begin)
}

func TestFirstContenderCreatesTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a").start(t)
		within(t, 100*time.Millisecond, "a leads", a.leads)
		lease := s.current()
		if *lease.Spec.HolderIdentity != "a" || *lease.Spec.LeaseDurationSeconds != 15 || lease.Labels["a"] != "b" {
			t.Errorf("lease %+v with labels %v, want holder a for 15 s with label a=b", lease.Spec, lease.Labels)
		}
		if lease.Name != "mock-csi-test" || lease.Namespace != "ns" {
			t.Errorf("lease %s/%s, want ns/mock-csi-test", lease.Namespace, lease.Name)
		}
		if !a.Leading() || a.Healthy() != nil || a.Gate(t.Context()) != nil {
			t.Error("a leader that renews is leading, healthy and lets work through")
		}
		if _, err := a.end(t); err != nil {
			t.Errorf("Run = %v, want nil after a stop", err)
		}
	})
}

// Labels of others stay, ours come back with each renewal.
func TestLabelsAreSetOnEachUpdate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a").start(t)
		within(t, time.Second, "a leads", a.leads)
		s.edit(func(l *coordinationv1.Lease) { l.Labels = map[string]string{"theirs": "x"} })
		time.Sleep(12 * time.Second)
		if got := s.current().Labels; got["a"] != "b" || got["theirs"] != "x" {
			t.Errorf("labels %v, want theirs and ours", got)
		}
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// A clean stop: the work drains, the lease is renewed meanwhile and released after the last worker, and the
// standby leads at once.
func TestReleaseHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a")
		a.inCall = 18 * time.Second // longer than the lease
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		b := newContender(t, s, "b").start(t)
		time.Sleep(time.Minute)
		if b.leads() || b.Leading() {
			t.Fatal("b leads beside a")
		}
		took, err := a.end(t)
		if err != nil || took < 18*time.Second || took > 19*time.Second {
			t.Errorf("a ended after %s with %v, want its call to be finished and nil", took, err)
		}
		if !a.cut.IsZero() {
			t.Error("the call in flight was cut")
		}
		if took := within(t, 2*time.Second, "b leads", b.leads); took > 100*time.Millisecond {
			t.Errorf("b leads %s after the release", took)
		}
		if b.began.Before(a.stopped.Add(18 * time.Second)) {
			t.Error("b began before a had drained")
		}
		if _, err := b.end(t); err != nil {
			t.Error(err)
		}
		if got := s.holder(); got != "" {
			t.Errorf("lease is held by %q after all have stopped", got)
		}
	})
}

// A drain that takes too long is cut, and then the lease is released all the same.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a")
		a.inCall = time.Hour
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		took, err := a.end(t)
		if err != nil || took.Round(time.Second) != 20*time.Second {
			t.Errorf("ended after %s with %v, want 20s and nil", took, err)
		}
		if s.holder() != "" {
			t.Error("the lease was not released")
		}
	})
}

// Work that does not return keeps the lease: it must run out by itself.
func TestWorkThatHangsIsAbandonedWithoutRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a")
		ctx, cancel := context.WithCancel(t.Context())
		hang := make(chan struct{})
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx, func(_, _ context.Context) error { <-hang; return nil }) }()
		within(t, time.Second, "a leads", a.Leading)
		cancel()
		begin := time.Now()
		err := <-done
		if err == nil || time.Since(begin) != 25*time.Second {
			t.Errorf("ended after %s with %v, want an error after 25s", time.Since(begin), err)
		}
		if s.holder() != "a" {
			t.Error("the lease was released while work was going on")
		}
		close(hang)
	})
}

// A standby that is told to stop goes at once and has written nothing.
func TestStandbyStopsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 3600)
		a := newContender(t, s, "a").start(t)
		time.Sleep(30 * time.Second)
		took, err := a.end(t)
		if err != nil || took > 10*time.Millisecond {
			t.Errorf("ended after %s with %v, want at once and nil", took, err)
		}
		for _, request := range s.asked() {
			if strings.HasPrefix(request, "update") || strings.HasPrefix(request, "create") {
				t.Errorf("a standby asked to %s", request)
			}
		}
		if a.terms != 0 {
			t.Error("a standby worked")
		}
	})
}

// While somebody holds and renews the lease a standby reads it once and then only watches.
func TestStandbyIsQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 15)
		a := newContender(t, s, "a").start(t)
		for range 60 {
			time.Sleep(5 * time.Second)
			s.take("other", 15)
		}
		got := s.asked()
		slices.Sort(got)
		if want := []string{"get", "watch"}; !slices.Equal(got, want) {
			t.Errorf("requests in 5 minutes %q, want %q", got, want)
		}
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// A stop that comes while the request that makes us the leader is under way: the lease is not left behind.
func TestStopDuringTheWinningRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.freeze(true, "create")
		a := newContender(t, s, "a").start(t)
		time.Sleep(time.Second)
		go func() {
			time.Sleep(500 * time.Millisecond)
			s.freeze(false, "create")
		}()
		took, err := a.end(t)
		if err != nil || took > time.Second {
			t.Errorf("ended after %s with %v", took, err)
		}
		if s.holder() != "" || a.terms != 0 {
			t.Errorf("holder %q after %d terms, want none", s.holder(), a.terms)
		}
	})
}

// Many contenders, stopped one after the other: never two lead, and there is always a next one.
func TestNeverTwoLeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		var all []*contender
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			all = append(all, newContender(t, s, name).start(t))
		}
		leader := func() (found *contender) {
			for _, c := range all {
				if c.leads() {
					if found != nil {
						t.Fatal("two lead")
					}
					found = c
				}
			}
			return found
		}
		for len(all) > 0 {
			within(t, 15*time.Second, "somebody leads", func() bool { return leader() != nil })
			c := leader()
			time.Sleep(17 * time.Second)
			if leader() != c {
				t.Fatal("the leader changed without a reason")
			}
			if _, err := c.end(t); err != nil {
				t.Error(err)
			}
			all = slices.DeleteFunc(all, func(x *contender) bool { return x == c })
		}
		if s.holder() != "" {
			t.Errorf("holder %q at the end", s.holder())
		}
	})
}

func TestWorkThatEndsByItselfReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a")
		broken := errors.New("broken")
		if err := a.Run(t.Context(), func(_, _ context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("Run = %v, want what work returned", err)
		}
		if s.holder() != "" || a.Leading() {
			t.Errorf("holder %q, leading %v, want a released lease", s.holder(), a.Leading())
		}
	})
}

// A leader that hangs without ending becomes unhealthy 35 s after its last renewal.
func TestHealthyNoticesAHangingLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newContender(t, newLeaseServer(), "a").Leader
		l.setLeading(true)
		l.noteRenewal(time.Now())
		time.Sleep(35 * time.Second)
		if err := l.Healthy(); err != nil {
			t.Errorf("unhealthy after 35 s: %v", err)
		}
		time.Sleep(time.Millisecond)
		if err := l.Healthy(); err == nil || !strings.Contains(err.Error(), "failed to renew") {
			t.Errorf("Healthy = %v, want a failed renewal", err)
		}
		l.setLeading(false)
		if err := l.Healthy(); err != nil {
			t.Errorf("a standby is unhealthy: %v", err)
		}
	})
}

func TestNewLeaderNamesEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := NewLeader(LeaderConfig{LeaseDuration: time.Second, RenewDeadline: time.Second})
	for _, want := range []string{"client", "identity", "do not follow"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %q", err, want)
		}
	}
}
