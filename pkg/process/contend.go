package process

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// election is one elector at work.
type election struct {
	lock    *lock
	started chan struct{}      // closed when the lease is won
	done    chan struct{}      // closed when the elector has ended
	end     context.CancelFunc // ends it
}

// begin starts a fresh elector: its first try is immediate, and unless that wins it ends.
func (l *Leader) begin(ctx context.Context) (*election, error) {
	logger := klog.FromContext(ctx)
	// The elector outlives ctx: the lease is kept while work drains. What it would log is logged here.
	electorCtx, end := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), klog.Logger{}))
	e := &election{started: make(chan struct{}), done: make(chan struct{}), end: end}
	e.lock = &lock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: l.cfg.Namespace, Name: l.name},
			Client:     l.cfg.Leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.cfg.Identity, EventRecorder: l.cfg.Events},
			Labels:     l.cfg.Labels,
		},
		seen: l.seen, timeout: max(time.Second, l.cfg.RenewDeadline/2), pause: min(time.Second, l.cfg.RetryPeriod/5), giveUp: end,
		report: func(verb string, err error) {
			l.noteAnswer(err)
			l.reportFailure(logger, verb, err)
		},
		onUpdate: l.noteRenewal,
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, LeaseDuration: l.cfg.LeaseDuration, RenewDeadline: l.cfg.RenewDeadline, RetryPeriod: l.cfg.RetryPeriod,
		Name: l.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(e.started) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		end()
		return nil, fmt.Errorf("leader election: %w", err)
	}
	go func() {
		defer close(e.done)
		loop.GuardFunc(ctx, component, func() { elector.Run(electorCtx) })
	}()
	return e, nil
}

// won waits for the end of the first try.
func (e *election) won(ctx context.Context) bool {
	select {
	case <-e.started:
		return true
	case <-e.done:
	case <-ctx.Done():
		// A request under way may be making us the leader: know it, so that the lease can be released.
		select {
		case <-e.started:
			return true
		case <-e.done:
		case <-time.After(lastTry):
			e.end()
			<-e.done
		}
	}
	won, _, _ := e.lock.state()
	return won
}

// mayTry waits until it is time to try to take the lease; it returns false when ctx has ended before.
func (l *Leader) mayTry(ctx context.Context) bool {
	for ctx.Err() == nil && !l.spread(ctx) {
		l.await(ctx, l.seen.get().version, false)
	}
	return ctx.Err() == nil && (l.cfg.Gate == nil || l.cfg.Gate(ctx) == nil)
}

// spread waits for a random part of Spread; it returns false when the watch shows somebody else with the lease or when
// ctx ends. Without the watch there is no crowd: each contender reads the lease in its own time.
func (l *Leader) spread(ctx context.Context) bool {
	if l.cfg.Spread <= 0 {
		return true
	}
	turn := time.NewTimer(rand.N(l.cfg.Spread)) //nolint:gosec // spreading requests needs no secrecy
	defer turn.Stop()
	for {
		s := l.seen.get()
		if s.watched && s.taken() {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-turn.C:
			return true
		case <-s.changed:
		}
	}
}

// await returns when the lease may be had, when it is time to look again, or when ctx ends. before is the
// version of the sightings before the last try, failed says that the try ended with an error.
func (l *Leader) await(ctx context.Context, before int, failed bool) {
	logger := klog.FromContext(ctx)
	look := time.NewTimer(wait.Jitter(l.cfg.RetryPeriod, leaderelection.JitterFactor))
	defer look.Stop()
	for {
		s := l.seen.get()
		if s.other {
			l.log.onChange(s.holder, func() { logger.Info("Standing by", "lease", klog.KRef(l.cfg.Namespace, l.name), "holder", s.holder) })
		} else if !failed && !s.since.IsZero() || s.version != before {
			return // free, gone, ours, or of an earlier process that this one replaces
		}
		var again, expired <-chan time.Time
		if failed || !s.watched {
			again = look.C
		}
		if s.other && !failed {
			expired = time.After(time.Until(s.since.Add(s.duration)))
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			return
		case <-expired:
			return
		case <-s.changed:
		}
	}
}
