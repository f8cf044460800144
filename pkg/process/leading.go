package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Leading reports whether this process holds the lease, as far as it knows.
func (l *Leader) Leading() bool {
	leading, _ := l.state()
	return leading
}

// Healthy returns an error when this process believes to lead but has not renewed the lease until 20 s after
// its end: something hangs that should have ended the process. A standby is always healthy.
func (l *Leader) Healthy() error {
	leading, renewed := l.state()
	if quiet := time.Since(renewed); leading && quiet > l.cfg.LeaseDuration+healthMargin {
		return fmt.Errorf("failed to renew the leader lease %s/%s for %s", l.cfg.Namespace, l.name, quiet.Round(time.Second))
	}
	return nil
}

// Ready returns an error while the lease can be neither read nor taken because the API server refuses that, and always has:
// then nobody may ever lead. Once it was read or taken, and while the API server is only away, there is none.
func (l *Leader) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused != nil {
		return fmt.Errorf("leader lease %s/%s: %w", l.cfg.Namespace, l.name, l.refused)
	}
	return nil
}

// Holds returns nil while this process may begin something as the leader, also while it drains: the last successful renewal
// of its lease was sent within the renew deadline, and the lease is not lost. Afterwards somebody else may soon lead. It never
// blocks.
func (l *Leader) Holds() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds()
}

// holds is Holds for who has l.mu.
func (l *Leader) holds() error {
	switch quiet := time.Since(l.renewed); {
	case !l.leading:
		return errors.New("this process does not hold the leader lease")
	case l.lost:
		return ErrLeaseLost
	case quiet >= l.cfg.RenewDeadline:
		return fmt.Errorf("the leader lease was last renewed %s ago, and may soon be somebody else's", quiet.Round(time.Millisecond))
	}
	return nil
}

// Gate returns nil at once while Holds does. Otherwise it waits for the next renewal, and returns an error only when ctx
// ends before. No new work should begin before Gate has returned nil.
func (l *Leader) Gate(ctx context.Context) error {
	for {
		l.mu.Lock()
		err, signal := l.holds(), l.signal
		l.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-signal:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *Leader) state() (leading bool, renewed time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leading, l.renewed
}

func (l *Leader) setLeading(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading = on
}

func (l *Leader) setLost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// noteAnswer takes how a request for the lease ended. That there is no lease is no answer: it may be one that we are not
// allowed to make.
func (l *Leader) noteAnswer(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.allowed, l.refused = true, nil
	case !l.allowed && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
		l.refused = err
	}
}

// noteRenewal takes the time when a successful request for the lease was sent: others count from the time
// when they see it, which is later.
func (l *Leader) noteRenewal(begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed = begun
	close(l.signal)
	l.signal = make(chan struct{})
}
