package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// stallReport is how often a part that does not end is named in the log.
const stallReport = 10 * time.Second

// Group runs the parts of a process: started one after the other, stopped in reverse order, each only after
// the one before has ended. Its methods are called by one goroutine.
//
//	Go(http) → Go(informers) → Go(leader) → Wait ─ signal, or a part fails ─▶ leader ends → informers end → http ends
type Group struct {
	logger   klog.Logger
	stopping <-chan struct{}         // the end of the group's context
	cause    func() error            // why it has ended; nil while it lives
	fail     context.CancelCauseFunc // ends it
	parts    []*part
}

type part struct {
	name string
	stop context.CancelCauseFunc
	done chan struct{}
	err  error // written before done is closed
}

// NewGroup returns a group and its context, which ends when ctx does or when a part fails. Whatever happens
// between two parts, like waiting for caches, takes that context.
func NewGroup(ctx context.Context) (*Group, context.Context) {
	stopping, fail := context.WithCancelCause(ctx)
	return &Group{
		logger: klog.FromContext(ctx), stopping: stopping.Done(), fail: fail,
		cause: func() error { return context.Cause(stopping) },
	}, stopping
}

// Go starts a part. Its context has the values of ctx, but ends only when it is this part's turn to stop; then
// run must return. An error before that, or a panic, fails the group with it as the cause: what holds a lease still
// releases it. nil before that means that the part has no more to do. After the group's context has ended nothing is started.
func (g *Group) Go(ctx context.Context, name string, run func(context.Context) error) {
	if g.cause() != nil {
		return
	}
	partCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &part{name: name, stop: stop, done: make(chan struct{})}
	g.parts = append(g.parts, p)
	go func() {
		defer close(p.done)
		err := loop.Guard(partCtx, name, func() error { return run(partCtx) })
		told := partCtx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(partCtx)))
		if err == nil || told {
			return
		}
		p.err = fmt.Errorf("%s: %w", name, err)
		g.fail(p.err)
	}()
}

// Wait waits for the end of the group's context, stops all parts, the last one first, and returns the cause:
// nil after a signal, or else the error of the first part that failed; errors of parts that failed while
// stopping are joined to it.
func (g *Group) Wait() error {
	<-g.stopping
	return g.Stop(nil)
}

// Stop is Wait without waiting: err is the cause, when there is none yet, and may be nil. Use it when starting
// fails half-way: an error that only repeats why the group is stopping adds nothing. After a signal no error of starting
// does: it is what the end of the context looks like to the step that was under way.
func (g *Group) Stop(err error) error {
	cause := g.cause()
	switch {
	case err == nil || cause == nil:
	case errors.Is(cause, ErrSignal):
		g.logger.V(2).Info("Starting has ended with the signal", "err", err)
		err = nil
	case errors.Is(err, context.Canceled), errors.Is(err, cause):
		err = nil
	}
	g.fail(err)
	reason := g.cause()
	g.logger.Info("Stopping", "reason", reason.Error())
	all := []error{err}
	if !errors.Is(reason, ErrSignal) && !errors.Is(reason, context.Canceled) && !errors.Is(err, reason) {
		all = []error{reason, err}
	}
	for _, p := range slices.Backward(g.parts) {
		p.stop(reason)
		p.wait(g.logger)
		if p.err != nil && !errors.Is(reason, p.err) {
			all = append(all, p.err)
		}
	}
	g.parts = nil
	return errors.Join(all...)
}

func (p *part) wait(logger klog.Logger) {
	begin := time.Now()
	for {
		select {
		case <-p.done:
			logger.V(2).Info("Part has stopped", "part", p.name)
			return
		case <-time.After(stallReport):
			logger.Info("Still waiting for a part to stop", "part", p.name, "waited", time.Since(begin).Round(time.Second))
		}
	}
}
