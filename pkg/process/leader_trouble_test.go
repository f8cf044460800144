package process

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// The API server is away: no new work after the renew deadline, calls in flight end with the lease, then Run
// says that the lease is lost.
func TestLeaseIsLostWhenItCannotBeRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a")
		a.inCall = time.Hour
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		time.Sleep(31 * time.Second)
		begin := time.Now()
		s.deny(errors.New("connection refused"), "get", "update", "watch", "create")
		time.Sleep(10 * time.Second)
		closed, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		if a.Gate(closed) == nil {
			t.Error("new work may begin although the lease was not renewed within the renew deadline")
		}
		err := <-a.done
		took := time.Since(begin)
		if !errors.Is(err, ErrLeaseLost) || took > 15*time.Second {
			t.Errorf("ended after %s with %v, want ErrLeaseLost within 15s", took, err)
		}
		if !errors.Is(a.cause, ErrLeaseLost) {
			t.Errorf("cause of the stop %v, want ErrLeaseLost", a.cause)
		}
		if a.cut.After(begin.Add(15 * time.Second)) {
			t.Errorf("calls in flight were cut %s after the last renewal, want before others may lead", a.cut.Sub(begin))
		}
	})
}

// A short outage costs nothing: the gate closes and opens again.
func TestShortOutageIsSurvived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a").start(t)
		within(t, time.Second, "a leads", a.leads)
		for range 5 {
			s.deny(errors.New("connection refused"), "get", "update")
			time.Sleep(9 * time.Second)
			s.deny(nil, "get", "update")
			if err := a.Gate(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(20 * time.Second)
		}
		if !a.leads() {
			t.Error("the lease was lost")
		}
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// One request that hangs does not cost the lease.
func TestAHangingRenewalIsSurvived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a").start(t)
		within(t, time.Second, "a leads", a.leads)
		time.Sleep(4 * time.Second)
		s.freeze(true, "update")
		time.Sleep(6 * time.Second)
		s.freeze(false, "update")
		time.Sleep(time.Minute)
		if !a.leads() || a.Healthy() != nil {
			t.Error("the lease was lost")
		}
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// Somebody else in the lease ends the term at the next renewal, and their lease is not touched.
func TestAStolenLeaseEndsTheTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a")
		a.inCall = time.Hour
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		time.Sleep(30 * time.Second)
		s.take("thief", 3600)
		begin := time.Now()
		err := <-a.done
		if !errors.Is(err, ErrLeaseLost) || time.Since(begin) > 11*time.Second {
			t.Errorf("ended after %s with %v, want ErrLeaseLost within retry period and grace", time.Since(begin), err)
		}
		if got := a.cut.Sub(a.stopped).Round(time.Second); got != 5*time.Second {
			t.Errorf("calls in flight had %s, want 5s", got)
		}
		if !strings.Contains(a.cause.Error(), "thief") || !strings.Contains(err.Error(), "thief") {
			t.Errorf("cause %q and error %q do not both name the holder", a.cause, err)
		}
		if s.holder() != "thief" {
			t.Errorf("holder %q, want the thief untouched", s.holder())
		}
	})
}

// Without the right to watch, the lease is polled; everything else works.
func TestPollingWithoutWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.deny(forbidden("watch"), "watch")
		s.take("other", 15)
		a := newContender(t, s, "a").start(t)
		for range 12 {
			time.Sleep(5 * time.Second)
			s.take("other", 15)
		}
		gets := len(slices.DeleteFunc(s.asked(), func(r string) bool { return r != "get" }))
		if gets < 5 || gets > 13 {
			t.Errorf("%d reads a minute, want one every 5 to 11 s", gets)
		}
		s.take("", 1)
		within(t, 11*time.Second+100*time.Millisecond, "a leads", a.leads)
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// A watch that breaks is begun again, and a release while it was away is not missed.
func TestBrokenWatchIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 3600)
		a := newContender(t, s, "a").start(t)
		time.Sleep(time.Second)
		s.breakWatches()
		s.take("", 1)
		within(t, 2*time.Second, "a leads", a.leads)
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// Forbidden: it keeps trying, names the rule every 30 s, and leads soon after it is granted.
func TestForbiddenIsToldAndRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.deny(forbidden("get"), "get", "watch", "create", "update")
		a := newContender(t, s, "a")
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		a.cancel = cancel
		go func() { a.done <- a.Run(ctx, a.work) }()
		time.Sleep(2 * time.Minute)
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		told := strings.Count(log, "The leader lease may not be used")
		if told < 3 || told > 5 || !strings.Contains(log, "coordination.k8s.io") {
			t.Errorf("told %d times in 2 minutes, want every 30 s with the rule:\n%s", told, log)
		}
		if a.Healthy() != nil {
			t.Error("a standby is unhealthy")
		}
		s.deny(nil, "get", "watch", "create", "update")
		within(t, 11*time.Second, "a leads", a.leads)
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}
