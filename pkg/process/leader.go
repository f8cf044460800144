package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_master_status
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// ErrLeaseLost is the cause of a work's stop context, and of the error of Run, when the lease could not be
// renewed or somebody else has taken it.
var ErrLeaseLost = errors.New("the leader lease is lost")

const (
	// healthMargin is how long after the end of its lease a leader that does not renew is still called healthy.
	healthMargin = 20 * time.Second
	// abandonAfter is how long work may take to return after its contexts have ended.
	abandonAfter = 5 * time.Second
	// lastTry is how long a standby that stops waits for a request that may be making it the leader.
	lastTry = time.Second
	// component is the leader's name in the metric of panics.
	component = "leader election"
)

// LeaderConfig describes the lease and the contender. All fields are required unless they say otherwise.
type LeaderConfig struct {
	// Leases is a client of its own, so that no other traffic delays a renewal. It must have no overall timeout,
	// which would end the watch: each request gets a deadline here.
	Leases coordinationv1client.LeasesGetter
	// Lock is what is locked: the driver's name. The lease is called LeaseName(Lock).
	Lock string
	// Namespace of the lease; see LeaseNamespace.
	Namespace string
	// Identity of this contender, which no other may ever have: that of a Holder.
	Identity string
	// Replaces reports whether the contender of an identity is certainly dead and has this one in its place, so that its
	// lease may be taken at once. Nil means that none is. See Holder.
	Replaces func(identity string) bool
	// LeaseDuration, RenewDeadline and RetryPeriod: LeaseDuration > RenewDeadline > 1.2 × RetryPeriod > 0.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// DrainTimeout is how long work may go on after a stop that somebody asked for. 0 means not at all.
	DrainTimeout time.Duration
	// Labels are set on the lease whenever it is written; others are left alone. Optional.
	Labels map[string]string
	// Gate blocks while this contender must not try to take the lease, and returns an error only when its context has
	// ended. It is asked before each try, and not while leading. Nil means that it may always try.
	Gate func(context.Context) error
	// Spread is for a lease with hundreds of contenders: each waits for a random part of it before it tries to take a free
	// lease, and does not try when it has seen somebody else take it. 0 means that all try at once: the fastest failover.
	Spread time.Duration
	// Events takes the two events of a term. Its component should be EventComponent(Lock, pod). Optional.
	Events resourcelock.EventRecorder
}

// Leader contends for one lease and does the work of the one who holds it. Its methods may be called concurrently.
//
//	standby ──lease is free, or unchanged for its duration──▶ leading ──stop asked for──▶ draining ─▶ release ─▶ nil
//	   │ stop                                                    │ not renewed, or stolen
//	   ▼                                                         ▼
//	  nil, lease untouched                          draining, not beyond the lease's end ─▶ ErrLeaseLost
type Leader struct {
	cfg  LeaderConfig
	name string // of the lease
	seen *sightings
	log  throttle

	mu      sync.Mutex
	leading bool          // guarded by mu
	lost    bool          // guarded by mu: the term is over although nobody asked for its end
	renewed time.Time     // guarded by mu: when the last successful renewal was sent
	signal  chan struct{} // guarded by mu: closed at the next renewal
	allowed bool          // guarded by mu: a request for the lease was answered
	refused error         // guarded by mu: why the API server has refused all so far; nil when it has not
}

// NewLeader checks cfg; nothing runs before Run.
func NewLeader(cfg LeaderConfig) (*Leader, error) {
	var errs []error
	if cfg.Leases == nil {
		errs = append(errs, errors.New("no client for leases"))
	}
	if cfg.Lock == "" || cfg.Namespace == "" || cfg.Identity == "" {
		errs = append(errs, fmt.Errorf("lock %q, namespace %q and identity %q must not be empty", cfg.Lock, cfg.Namespace, cfg.Identity))
	}
	if cfg.LeaseDuration <= cfg.RenewDeadline || cfg.RetryPeriod <= 0 ||
		cfg.RenewDeadline <= time.Duration(leaderelection.JitterFactor*float64(cfg.RetryPeriod)) {
		errs = append(errs, fmt.Errorf("lease duration %s, renew deadline %s and retry period %s do not follow each other", cfg.LeaseDuration, cfg.RenewDeadline, cfg.RetryPeriod))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	if cfg.Replaces == nil {
		cfg.Replaces = func(string) bool { return false }
	}
	return &Leader{
		cfg: cfg, name: LeaseName(cfg.Lock), seen: newSightings(cfg),
		log: throttle{last: map[string]time.Time{}}, signal: make(chan struct{}),
	}, nil
}

// Run contends until ctx ends or a term is over. Leading, it calls work once: stop ends when ctx does or when
// the lease is lost (cause ErrLeaseLost), and then no new work may begin; the other context is for calls in
// flight and ends later: DrainTimeout after ctx, or lease-duration − renew-deadline after a loss. It never ends later than
// LeaseDuration after the last successful renewal was sent, when others may lead. The lease is renewed until work has
// returned and only then released.
//
// Run returns nil when ctx ended before there was a term, and else what work returned, joined to ErrLeaseLost
// if that is what happened; a panic of work is an error. A standby that is told to stop returns at once and leaves the lease alone.
func (l *Leader) Run(ctx context.Context, work func(stop, work context.Context) error) error {
	logger := klog.FromContext(ctx)
	logger.Info("Contending for the leader lease", "lease", klog.KRef(l.cfg.Namespace, l.name), "identity", l.cfg.Identity)
	watchCtx, endWatch := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { loop.Restart(watchCtx, component, l.watch) })
	stopWatch := func() { endWatch(); watching.Wait() }
	defer stopWatch()
	for l.mayTry(ctx) {
		before := l.seen.get().version
		e, err := l.begin(ctx)
		if err != nil {
			return err
		}
		if e.won(ctx) {
			stopWatch()
			return l.lead(ctx, e, work)
		}
		_, failed, _ := e.lock.state()
		l.await(ctx, before, failed)
	}
	return nil
}

// lead does the work of one term.
func (l *Leader) lead(ctx context.Context, e *election, work func(stop, work context.Context) error) error {
	logger := klog.FromContext(ctx)
	logger.Info("Leading", "lease", klog.KRef(l.cfg.Namespace, l.name), "identity", l.cfg.Identity)
	l.setLeading(true)
	defer l.setLeading(false)
	if ctx.Err() != nil {
		l.release(ctx, e)
		return nil
	}
	stop, cancelStop := context.WithCancelCause(ctx)
	defer cancelStop(context.Canceled)
	calls, cancelCalls := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelCalls(context.Canceled)
	result := make(chan error, 1)
	go func() { result <- loop.Guard(calls, component, func() error { return work(stop, calls) }) }()

	t := term{asked: ctx.Done(), ended: e.done}
	expiry := time.NewTimer(l.left())
	defer expiry.Stop()
	lose := func() {
		l.setLost()
		t.loss, t.ended = l.lossOf(e), nil
		logger.Error(t.loss, "No new work, calls in flight may end", "within", l.grace().Round(time.Millisecond))
		cancelStop(t.loss)
		t.limit(l.grace())
	}
	for {
		select {
		case err := <-result:
			if t.loss != nil {
				return errors.Join(t.loss, err)
			}
			l.release(ctx, e)
			return err
		case <-t.ended:
			lose()
		case <-expiry.C:
			if left := l.left(); left > 0 {
				expiry.Reset(left)
			} else if t.loss == nil {
				e.end() // with some deadlines it would go on trying
				lose()
			}
		case <-t.asked:
			t.asked = nil
			logger.Info("Draining", "within", l.cfg.DrainTimeout)
			t.limit(l.cfg.DrainTimeout)
		case <-t.timer:
			if calls.Err() != nil {
				// Still at work: the lease must run out by itself.
				e.end()
				<-e.done
				return errors.Join(t.loss, fmt.Errorf("work has not returned %s after its contexts ended", abandonAfter))
			}
			cancelCalls(fmt.Errorf("not finished in time after the stop: %w", context.DeadlineExceeded))
			t.end = time.Time{}
			t.limit(abandonAfter)
		}
	}
}

// term is the state of leading.
type term struct {
	asked, ended <-chan struct{} // a stop was asked for; the elector has ended: the lease is lost
	loss         error           // why the lease is lost; nil while it is ours
	end          time.Time       // when timer fires; zero: never
	timer        <-chan time.Time
}

// limit makes the timer fire after d, unless it fires earlier anyway.
func (t *term) limit(d time.Duration) {
	end := time.Now().Add(d)
	if t.end.IsZero() || end.Before(t.end) {
		t.end, t.timer = end, time.After(d)
	}
}

// grace is how long calls in flight may go on when the lease is lost.
func (l *Leader) grace() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, min(time.Until(l.renewed.Add(l.cfg.LeaseDuration)), l.cfg.LeaseDuration-l.cfg.RenewDeadline))
}

// left is how long others still take the lease for held, at least.
func (l *Leader) left() time.Duration {
	_, renewed := l.state()
	return time.Until(renewed.Add(l.cfg.LeaseDuration))
}

func (l *Leader) lossOf(e *election) error {
	if _, _, stolen := e.lock.state(); stolen {
		return fmt.Errorf("%w: %s holds it", ErrLeaseLost, l.seen.get().holder)
	}
	_, renewed := l.state()
	return fmt.Errorf("%w: not renewed for %s", ErrLeaseLost, time.Since(renewed).Round(time.Second))
}

// release ends the elector and clears the lease.
func (l *Leader) release(ctx context.Context, e *election) {
	logger := klog.FromContext(ctx)
	e.end()
	<-e.done
	if e.lock.release(context.WithoutCancel(ctx)) {
		logger.Info("Released the leader lease", "lease", klog.KRef(l.cfg.Namespace, l.name))
	} else {
		logger.Info("The leader lease is not released: others wait until it runs out", "lease", klog.KRef(l.cfg.Namespace, l.name))
	}
}
