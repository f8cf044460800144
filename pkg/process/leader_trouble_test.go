package process

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
			time.Sleep(8900 * time.Millisecond) // so that it does not end in the moment of a try
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

// Not ready is who could never lead, and nobody else: an outage is no reason to take the metrics out of service.
func TestReadyWhileTheLeaseMayBeUsed(t *testing.T) {
	t.Parallel()
	away := errors.New("connection refused")
	unauthorized := apierrors.NewUnauthorized("no token")
	for name, tc := range map[string]struct {
		held    bool             // by another replica
		refuse  map[string]error // verb → answer
		later   map[string]error // the same, a minute later
		wantErr string
	}{
		"it leads":                                   {},
		"another leads":                              {held: true},
		"it may not read the lease":                  {refuse: map[string]error{"get": forbidden("get")}, wantErr: "cannot get"},
		"it has no valid token":                      {refuse: map[string]error{"get": unauthorized}, wantErr: "no token"},
		"it may not make the lease":                  {refuse: map[string]error{"create": forbidden("create")}, wantErr: "cannot create"},
		"the API server is away":                     {refuse: map[string]error{"get": away, "create": away, "update": away}},
		"the API server is away after it refused":    {refuse: map[string]error{"get": forbidden("get")}, later: map[string]error{"get": away}, wantErr: "cannot get"},
		"the right is granted":                       {refuse: map[string]error{"get": forbidden("get")}, later: map[string]error{"get": nil}},
		"a right is taken away while another leads":  {held: true, later: map[string]error{"get": forbidden("get")}},
		"it may not watch the lease, and polls":      {refuse: map[string]error{"watch": forbidden("watch")}},
		"it may not take the lease that another has": {held: true, refuse: map[string]error{"update": forbidden("update")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseServer()
				if tc.held {
					s.take("other", 3600)
				}
				a := newContender(t, s, "a")
				if err := a.Ready(); err != nil {
					t.Errorf("before anything was asked: %v", err)
				}
				for _, refuse := range []map[string]error{tc.refuse, tc.later} {
					for verb, err := range refuse {
						s.deny(err, verb)
					}
					if a.cancel == nil {
						a.start(t)
					}
					time.Sleep(time.Minute)
				}
				if err := a.Ready(); (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("Ready = %v, want %q", err, tc.wantErr)
				}
				if _, err := a.end(t); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
