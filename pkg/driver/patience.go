package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

const (
	// reportEvery is how often a wait is mentioned in the log.
	reportEvery = 10 * time.Second
	// firstRedial and maxRedial bound the pause between attempts to connect.
	firstRedial = 50 * time.Millisecond
	maxRedial   = time.Second
)

// patience is one wait for the driver: it keeps the latest reason and says now and then what is waited for.
type patience struct {
	address string
	began   time.Time
	// reported is when the log last heard of it; zero means never.
	reported time.Time

	mu sync.Mutex
	// reason is the latest, nil before the first setback.
	reason error
}

func newPatience(address string) *patience {
	return &patience{address: address, began: time.Now()}
}

// setback notes why there is no driver yet and writes a line about it if the last one is long ago.
func (p *patience) setback(ctx context.Context, reason error) {
	p.mu.Lock()
	p.reason = reason
	p.mu.Unlock()
	now := time.Now()
	if !p.reported.IsZero() && now.Sub(p.reported) < reportEvery {
		return
	}
	p.reported = now
	klog.FromContext(ctx).Info("Waiting for the CSI driver",
		"address", p.address, "waited", p.waited(), "reason", reason.Error(), "hint", hint(reason))
}

func (p *patience) waited() time.Duration {
	return time.Since(p.began).Round(time.Millisecond)
}

// ended turns the end of ctx into an error that says what was waited for, how long and why in vain.
func (p *patience) ended(ctx context.Context) error {
	err := fmt.Errorf("wait of %s for the CSI driver at %q: %w", p.waited(), p.address, context.Cause(ctx))
	if reason := p.latest(); reason != nil {
		return fmt.Errorf("%w; last seen: %w", err, reason)
	}
	return err
}

// latest returns why there was no driver when it was last looked for, with what an operator should look at; nil before
// the first setback. Safe for concurrent use.
func (p *patience) latest() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == nil {
		return nil
	}
	return fmt.Errorf("%w (%s)", p.reason, hint(p.reason))
}

// hint says what an operator should look at.
func hint(reason error) string {
	switch {
	case errors.Is(reason, fs.ErrNotExist):
		return "the driver container must create this socket, in a volume that both containers mount"
	case errors.Is(reason, syscall.ECONNREFUSED):
		return "the socket is left from an earlier process: the driver container must create it anew and listen"
	case errors.Is(reason, fs.ErrPermission):
		return "the driver container must create this socket so that our user may open it"
	case errors.Is(reason, errNoGRPC):
		return "the driver container must serve CSI over gRPC on this socket"
	case errors.Is(reason, errNotYet):
		return "the driver container is there but not ready; see its log"
	default:
		return "the driver container must create this socket and listen on it; see its log"
	}
}

// pause waits for d; it returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
