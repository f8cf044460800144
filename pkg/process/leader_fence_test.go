package process

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// line is the way of one contender to the lease server: answers to its updates may come late, and it can be cut.
type line struct {
	*leaseServer
	late time.Duration
	cut  atomic.Bool
}

func (l *line) Leases(string) coordinationv1client.LeaseInterface { return l }

// pass waits for the request's deadline when the line is cut.
func (l *line) pass(ctx context.Context) error {
	if l.cut.Load() {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (l *line) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := l.pass(ctx); err != nil {
		return nil, err
	}
	return l.leaseServer.Get(ctx, name, o)
}

func (l *line) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := l.pass(ctx); err != nil {
		return nil, err
	}
	updated, err := l.leaseServer.Update(ctx, lease, o)
	select {
	case <-time.After(l.late):
		return updated, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Calls in flight end before others may lead: the lease counts from when a renewal was sent, however late its answer comes,
// and whatever the durations are.
func TestCallsAreCutBeforeOthersLead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ renewDeadline, late time.Duration }{
		"the defaults":                         {renewDeadline: 10 * time.Second},
		"the elector gives up after the lease": {renewDeadline: 14 * time.Second},
		"answers are late":                     {renewDeadline: 10 * time.Second, late: 4900 * time.Millisecond},
		"both":                                 {renewDeadline: 14 * time.Second, late: 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseServer()
				a, b, way := newContender(t, s, "a"), newContender(t, s, "b"), &line{leaseServer: s, late: tc.late}
				a.cfg.Leases, a.cfg.RenewDeadline, a.inCall = way, tc.renewDeadline, time.Hour
				a.start(t)
				within(t, 10*time.Second, "a leads", a.leads)
				b.start(t)
				time.Sleep(21 * time.Second)
				renewed := s.current().Spec.RenewTime.Time
				within(t, 20*time.Second, "a renews", func() bool { return !s.current().Spec.RenewTime.Time.Equal(renewed) })
				way.cut.Store(true)
				within(t, time.Minute, "b leads", b.leads)
				if err := <-a.done; !errors.Is(err, ErrLeaseLost) {
					t.Errorf("a ended with %v, want ErrLeaseLost", err)
				}
				if over := a.cut.Sub(b.began); over > 0 {
					t.Errorf("a's calls in flight went on for %s while b led", over)
				}
				if _, err := b.end(t); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// What only the leader may begin it may begin from the win until the renew deadline, a loss, or the release, and while it
// drains.
func TestHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 15)
		a := newContender(t, s, "a")
		a.inCall = 12 * time.Second // of its drain
		a.start(t)
		want := func(holds bool, when string) {
			t.Helper()
			if err := a.Holds(); (err == nil) != holds {
				t.Errorf("%s: Holds = %v, want nil: %v", when, err, holds)
			}
		}
		time.Sleep(10 * time.Second)
		want(false, "a standby")
		within(t, 6*time.Second, "a leads", a.leads)
		for range 10 {
			want(true, "the leader")
			time.Sleep(3 * time.Second)
		}
		within(t, 6*time.Second, "a renews", func() bool { return time.Since(s.current().Spec.RenewTime.Time) < 20*time.Millisecond })
		s.deny(errors.New("connection refused"), "get", "update")
		time.Sleep(9900 * time.Millisecond)
		want(true, "shortly before the renew deadline")
		time.Sleep(200 * time.Millisecond)
		want(false, "after the renew deadline")
		s.deny(nil, "get", "update")
		within(t, 2*time.Second, "a renews again", func() bool { return a.Holds() == nil })
		a.cancel()
		for range 11 {
			time.Sleep(time.Second)
			want(true, "the draining leader")
		}
		if err := <-a.done; err != nil {
			t.Error(err)
		}
		want(false, "after the release")
	})
}

// A thief's lease may have been renewed by its victim a moment ago.
func TestAVictimBeginsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a")
		a.inCall = time.Hour
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		time.Sleep(30 * time.Second)
		s.take("thief", 3600)
		within(t, 6*time.Second, "a has noticed", func() bool { return !a.leads() })
		if err := a.Holds(); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("Holds = %v, want ErrLeaseLost", err)
		}
		if err := <-a.done; !errors.Is(err, ErrLeaseLost) {
			t.Errorf("Run = %v, want ErrLeaseLost", err)
		}
	})
}
