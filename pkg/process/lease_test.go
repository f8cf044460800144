package process

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// flaky is a way to the lease server that a test disturbs.
type flaky struct {
	*leaseServer

	own          sync.Mutex    // guards what follows
	answer       time.Duration // how long the answer to an update is under way
	loseCreate   bool          // the answer to the next create is lost
	beforeUpdate func()        // runs before the next update arrives
	beforeWatch  func()        // runs before the next watch begins
	timeouts     []int64       // of the watches, in seconds
	watched      []time.Time   // when watches were begun
}

// do changes or reads the fields.
func (f *flaky) do(what func()) {
	f.own.Lock()
	defer f.own.Unlock()
	what()
}

func (f *flaky) Leases(string) coordinationv1client.LeaseInterface { return f }

func (f *flaky) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	var before func()
	var answer time.Duration
	f.do(func() { before, f.beforeUpdate, answer = f.beforeUpdate, nil, f.answer })
	if before != nil {
		before()
	}
	got, err := f.leaseServer.Update(ctx, lease, o)
	time.Sleep(answer)
	return got, err
}

func (f *flaky) Create(ctx context.Context, lease *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	got, err := f.leaseServer.Create(ctx, lease, o)
	var lose bool
	f.do(func() { lose, f.loseCreate = f.loseCreate && err == nil, f.loseCreate && err != nil })
	if lose {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return got, err
}

func (f *flaky) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	var before func()
	f.do(func() { before, f.beforeWatch = f.beforeWatch, nil })
	if before != nil {
		before()
	}
	f.do(func() { f.timeouts, f.watched = append(f.timeouts, *o.TimeoutSeconds), append(f.watched, time.Now()) })
	return f.leaseServer.Watch(ctx, o)
}

// newFlaky returns a contender with a flaky way to the server.
func newFlaky(t *testing.T, s *leaseServer, identity string) (*contender, *flaky) {
	t.Helper()
	c, f := newContender(t, s, identity), &flaky{leaseServer: s}
	c.cfg.Leases = f
	return c, f
}

// A renewal counts from when it was sent: others may have seen it then, however long its answer takes.
func TestARenewalCountsFromItsSending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a, way := newFlaky(t, s, "a")
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		way.do(func() { way.answer = 4 * time.Second })
		before := s.current().ResourceVersion
		within(t, 10*time.Second, "a renews", func() bool { return s.current().ResourceVersion != before })
		sent := time.Now()
		time.Sleep(4500 * time.Millisecond)
		if _, renewed := a.state(); renewed.After(sent) || sent.Sub(renewed) > 20*time.Millisecond {
			t.Errorf("renewed %s after the request was sent, want 0s", renewed.Sub(sent))
		}
		way.do(func() { way.answer = 0 })
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// A leader makes a deleted lease anew. That the answer is lost is no reason to give up what it holds, and the term counts
// from the request that was lost.
func TestALostAnswerToCreateIsSurvived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a, way := newFlaky(t, s, "a")
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		way.do(func() { way.loseCreate = true })
		s.remove()
		within(t, 10*time.Second, "the lease is there", func() bool { return s.holder() == "a" })
		sent := time.Now()
		within(t, 10*time.Second, "its answer is lost", func() bool {
			_, renewed := a.state()
			return sent.Sub(renewed).Abs() <= 20*time.Millisecond
		})
		time.Sleep(time.Minute)
		if !a.leads() || s.holder() != "a" {
			t.Errorf("holder %q, a leads: %v (%v)", s.holder(), a.leads(), a.cause)
		}
		if _, err := a.end(t); err != nil || s.holder() != "" {
			t.Errorf("holder %q after the stop, error %v", s.holder(), err)
		}
	})
}

// The lease that somebody else made meanwhile is not taken for the one whose answer was lost.
func TestALostAnswerToCreateAndAnotherLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a, way := newFlaky(t, s, "a")
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		way.do(func() { way.loseCreate = true })
		s.remove()
		within(t, 10*time.Second, "the lease is there", func() bool { return s.holder() == "a" })
		s.take("thief", 3600)
		within(t, time.Minute, "a stops", func() bool { return !a.leads() })
		if err := <-a.done; !errors.Is(err, ErrLeaseLost) {
			t.Errorf("ended with %v, want ErrLeaseLost", err)
		}
		if s.holder() != "thief" {
			t.Errorf("holder %q, want the thief untouched", s.holder())
		}
	})
}

// A lease that changes between the read and the write of its release is released all the same.
func TestReleaseSurvivesAConflict(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		disturb func(s *leaseServer)
		want    string // holder at the end
	}{
		"our own late renewal": {func(s *leaseServer) { s.take("a", 15) }, ""},
		"somebody's label":     {func(s *leaseServer) { s.edit(func(l *coordinationv1.Lease) { l.Labels["x"] = "y" }) }, ""},
		"another holder":       {func(s *leaseServer) { s.take("thief", 15) }, "thief"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseServer()
				a, way := newFlaky(t, s, "a")
				a.start(t)
				within(t, time.Second, "a leads", a.leads)
				way.do(func() { way.beforeUpdate = func() { tc.disturb(s) } })
				if took, err := a.end(t); err != nil || took > 10*time.Millisecond {
					t.Errorf("ended after %s with %v, want at once and nil", took, err)
				}
				if got := s.holder(); got != tc.want {
					t.Errorf("holder %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// Watches that broke at the same moment are begun again at different moments, and last for different times.
func TestWatchesAreSpread(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		disturb  func(s *leaseServer)
		from, to time.Duration
	}{
		"they break": {(*leaseServer).breakWatches, watchRetry / 2, watchRetry * 3 / 2},
		"they are denied": {func(s *leaseServer) {
			s.deny(apierrors.NewForbidden(leaseResource, "", nil), "watch")
			s.breakWatches()
		}, watchRefused / 2, watchRefused * 3 / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseServer()
				s.take("other", 3600*24)
				ways := make([]*flaky, 100)
				contenders := make([]*contender, len(ways))
				for i := range ways {
					contenders[i], ways[i] = newFlaky(t, s, "a")
					contenders[i].start(t)
				}
				synctest.Wait()
				tc.disturb(s)
				time.Sleep(10 * time.Minute)
				var pauses []time.Duration
				var timeouts []int64
				for i, way := range ways {
					way.do(func() {
						last := len(way.watched) - 1
						if last < 1 {
							t.Fatal("a watch was not begun again")
						}
						pauses, timeouts = append(pauses, way.watched[last].Sub(way.watched[last-1])), append(timeouts, way.timeouts[0])
					})
					contenders[i].cancel()
				}
				for _, c := range contenders {
					if err := <-c.done; err != nil {
						t.Error(err)
					}
				}
				// A uniform distribution leaves more than a tenth of its range free at an end once in 37,000 runs.
				span := tc.to - tc.from
				if lo, hi := slices.Min(pauses), slices.Max(pauses); lo < tc.from || hi > tc.to || lo > tc.from+span/10 || hi < tc.to-span/10 {
					t.Errorf("pauses of %s to %s, want all between %s and %s", lo, hi, tc.from, tc.to)
				}
				if lo, hi := slices.Min(timeouts), slices.Max(timeouts); lo < watchSeconds || hi > 2*watchSeconds || lo > watchSeconds*11/10 || hi < watchSeconds*19/10 {
					t.Errorf("watches of %d to %d s, want all between %d and %d", lo, hi, watchSeconds, 2*watchSeconds)
				}
			})
		})
	}
}
