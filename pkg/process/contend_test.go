package process

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// gate is a gate that a test opens and shuts.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // guarded by mu; nil while it is open, and closed when it opens
}

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut == nil {
		return nil
	}
	select {
	case <-shut:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

// tries returns the requests since the last call but those of watches.
func (s *leaseServer) tries() []string {
	var all []string
	for _, request := range s.asked() {
		if request != "watch" {
			all = append(all, request)
		}
	}
	return all
}

// However the lease becomes free, a contender whose gate is shut does not try to take it, and does when the gate opens.
func TestAShutGateKeepsAStandbyFromContending(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(s *leaseServer){
		"the lease is released": func(s *leaseServer) { s.take("", 1) },
		"its holder is dead":    func(s *leaseServer) { s.take("dead", 15) },
		"the lease is deleted":  func(s *leaseServer) { s.take("dead", 15); s.remove() },
	} {
		for when, shutFirst := range map[string]bool{"from the start": true, "later": false} {
			t.Run(name+", shut "+when, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newLeaseServer()
					s.take("other", 3600)
					var driver gate
					a := newContender(t, s, "a")
					a.cfg.Gate = driver.pass
					if shutFirst {
						driver.close()
					}
					a.start(t)
					time.Sleep(time.Minute)
					if !shutFirst {
						driver.close()
					}
					s.asked()
					free(s)
					time.Sleep(10 * time.Minute)
					if got := s.tries(); len(got) != 0 || a.leads() {
						t.Errorf("requests %q while the gate is shut, want none", got)
					}
					driver.open()
					within(t, 10*time.Millisecond, "a leads", a.leads)
					if _, err := a.end(t); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A leader keeps the lease whatever its gate says, and a standby that waits for the gate stops at once.
func TestAShutGateIsForStandbys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		var driver gate
		a, b := newContender(t, s, "a"), newContender(t, s, "b")
		a.cfg.Gate, b.cfg.Gate = driver.pass, driver.pass
		a.start(t)
		within(t, time.Second, "a leads", a.leads)
		driver.close()
		b.start(t)
		time.Sleep(10 * time.Minute)
		if !a.leads() || s.holder() != "a" {
			t.Errorf("holder %q, want a", s.holder())
		}
		for _, c := range []*contender{b, a} {
			if took, err := c.end(t); err != nil || took > 10*time.Millisecond {
				t.Errorf("ended after %s with %v, want at once and nil", took, err)
			}
		}
	})
}

// remote is a contender's way to the lease server; a request takes a while to get there.
type remote struct {
	*leaseServer
	delay time.Duration
}

func (r remote) Leases(string) coordinationv1client.LeaseInterface { return r }

func (r remote) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	time.Sleep(r.delay)
	return r.leaseServer.Get(ctx, name, o)
}

func (r remote) Create(ctx context.Context, lease *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	time.Sleep(r.delay)
	return r.leaseServer.Create(ctx, lease, o)
}

func (r remote) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	time.Sleep(r.delay)
	return r.leaseServer.Update(ctx, lease, o)
}

// A lease with hundreds of contenders costs a few requests when it becomes free, and has a leader soon.
func TestSpreadContendersDoNotComeAllAtOnce(t *testing.T) {
	t.Parallel()
	const n, spread = 500, 15 * time.Second
	for name, tc := range map[string]struct {
		held bool                 // by another at the start
		free func(s *leaseServer) // nil: it is free at the start
		wait time.Duration        // until it is seen to be free
	}{
		"all start and there is no lease": {},
		"all start and it is held":        {held: true, free: func(s *leaseServer) { s.take("", 1) }},
		"the lease is deleted":            {held: true, free: func(s *leaseServer) { s.take("dead", 60); s.remove() }, wait: time.Minute},
		"its holder is dead":              {held: true, free: func(s *leaseServer) { s.take("dead", 60) }, wait: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseServer()
				if tc.held {
					s.take("other", 3600)
				}
				all := make([]*contender, 0, n)
				for i := range n {
					c := newContender(t, s, fmt.Sprintf("n%d", i))
					c.cfg.Leases, c.cfg.Spread = remote{s, 5 * time.Millisecond}, spread
					c.cfg.LeaseDuration, c.cfg.RenewDeadline, c.cfg.RetryPeriod = time.Minute, 45*time.Second, 15*time.Second
					all = append(all, c.start(t))
				}
				leader := func() *contender {
					for _, c := range all {
						if c.leads() {
							return c
						}
					}
					return nil
				}
				if tc.free != nil {
					time.Sleep(time.Minute)
					tc.free(s)
				}
				within(t, tc.wait+spread+time.Second, "somebody leads", func() bool { return leader() != nil })
				time.Sleep(2 * spread)
				// The expected number is four: of 500 instances one more begins within the 10 ms of the winner's requests.
				if got := s.tries(); len(got) > 50 {
					t.Errorf("%d requests, want a few", len(got))
				}
				for _, c := range all {
					c.cancel()
				}
				for _, c := range all {
					if err := <-c.done; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// Without the right to watch, a spread contender reads the lease every now and then like any other.
func TestSpreadWithoutWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.deny(forbidden("watch"), "watch")
		s.take("other", 3600)
		a := newContender(t, s, "a")
		a.cfg.Spread = 5 * time.Second
		a.start(t)
		time.Sleep(10 * time.Minute)
		if gets := len(s.tries()); gets < 30 || gets > 120 {
			t.Errorf("%d reads in 10 minutes, want one every 5 to 16 s", gets)
		}
		s.take("", 1)
		within(t, 17*time.Second, "a leads", a.leads)
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

// Who stands by for a lease that never becomes free sends nothing.
func TestSpreadStandbyIsQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 3600)
		a := newContender(t, s, "a")
		a.cfg.Spread = time.Minute
		a.start(t)
		time.Sleep(30 * time.Minute)
		if got := s.tries(); len(got) != 0 {
			t.Errorf("requests %s, want none but the watch", strings.Join(got, ", "))
		}
		if took, err := a.end(t); err != nil || took > 10*time.Millisecond {
			t.Errorf("ended after %s with %v, want at once and nil", took, err)
		}
	})
}
