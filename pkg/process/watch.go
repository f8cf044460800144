package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	// reportEvery is how often the same trouble is told.
	reportEvery = 30 * time.Second
	// watchRetry and watchRefused are the pauses after a watch that broke and after one that is not allowed.
	watchRetry, watchRefused = time.Second, time.Minute
	// watchSeconds is how long the server keeps a watch, up to twice that.
	watchSeconds = 300
	// leaseRule is the right that leader election needs, in the words of a Role.
	leaseRule = `apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get", "watch", "create", "update"]`
)

// watch keeps the sightings up to date until ctx ends. Without the right to watch they only come from the
// tries, one every retry period.
func (l *Leader) watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for ctx.Err() == nil {
		err := l.watchOnce(ctx)
		l.seen.watch(false)
		pause := watchRetry
		if err != nil && ctx.Err() == nil {
			if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
				pause = watchRefused
				l.log.do("watch refused", func() {
					logger.Info("The leader lease may not be watched, so it is read every now and then; add the rule", "reason", err.Error(),
						"namespace", l.cfg.Namespace, "rule", leaseRule)
				})
			} else {
				logger.V(2).Info("Cannot watch the leader lease, reading it every now and then", "reason", err.Error())
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // spreading retries needs no secrecy
		}
	}
}

// watchOnce watches the one lease until the watch ends. It begins with the lease as it is now.
func (l *Leader) watchOnce(ctx context.Context) error {
	timeout := int64(watchSeconds + rand.IntN(watchSeconds)) //nolint:gosec // see above
	w, err := l.cfg.Leases.Leases(l.cfg.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:  fields.OneTermEqualSelector(metav1.ObjectNameField, l.name).String(),
		TimeoutSeconds: &timeout,
	})
	if err != nil {
		return fmt.Errorf("watch the lease: %w", err)
	}
	defer w.Stop()
	l.seen.watch(true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if err := l.take(event); err != nil {
				return fmt.Errorf("watch the lease: %w", err)
			}
		}
	}
}

// take takes in one event.
func (l *Leader) take(event watch.Event) error {
	if event.Type == watch.Error {
		return apierrors.FromObject(event.Object)
	}
	lease, ok := event.Object.(*coordinationv1.Lease)
	switch {
	case !ok:
		return errors.New("the event is of something else")
	case event.Type == watch.Deleted:
		l.seen.see(nil)
	default:
		l.seen.see(resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec))
	}
	return nil
}

// reportFailure tells of a request for the lease that failed, the same trouble only now and then; nil is no trouble.
func (l *Leader) reportFailure(logger klog.Logger, verb string, err error) {
	lease := klog.KRef(l.cfg.Namespace, l.name)
	leading, _ := l.state()
	switch {
	case err == nil, errors.Is(err, context.Canceled): // none, or by ourselves
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		logger.V(2).Info("Somebody else wrote the leader lease first", "lease", lease)
	case apierrors.IsForbidden(err):
		l.log.do("forbidden "+verb, func() {
			logger.Error(err, "The leader lease may not be used, add the rule", "lease", lease, "namespace", l.cfg.Namespace,
				"rule", leaseRule)
		})
	case leading:
		l.log.do("renewing "+verb, func() { logger.Error(err, "Cannot renew the leader lease", "lease", lease, "verb", verb) })
	default:
		l.log.do("failed "+verb, func() { logger.Error(err, "Cannot contend for the leader lease", "lease", lease, "verb", verb) })
	}
}

// throttle keeps the log from saying the same thing over and over.
type throttle struct {
	mu     sync.Mutex
	last   map[string]time.Time // what was said → when
	holder string               // of the last onChange
}

func (t *throttle) do(what string, say func()) {
	t.mu.Lock()
	last, said := t.last[what]
	quiet := said && time.Since(last) < reportEvery
	if !quiet {
		t.last[what] = time.Now()
	}
	t.mu.Unlock()
	if !quiet {
		say()
	}
}

func (t *throttle) onChange(holder string, say func()) {
	t.mu.Lock()
	same := t.holder == holder
	t.holder = holder
	t.mu.Unlock()
	if !same {
		say()
	}
}
