package loop

import (
	"context"
	"time"
)

// stopKey is the key of the stop context in the context of Process.
type stopKey struct{}

func withStop(work, stop context.Context) context.Context {
	return context.WithValue(work, stopKey{}, stop)
}

// UntilStop returns a context with the values of ctx that ends with it, and already grace after the loop was told to
// stop; at once if grace is zero. It is for what a stop need not wait for, like a question that the next leader asks
// anew. The cause of its end is then that of the stop. ctx is the context of Process or one made from it; for any other
// there is no stop. Call the function when the work is done.
func UntilStop(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	until, cancel := context.WithCancelCause(ctx)
	end := func() { cancel(context.Canceled) }
	stop, ok := ctx.Value(stopKey{}).(context.Context)
	if !ok {
		return until, end
	}
	release := context.AfterFunc(stop, func() {
		if grace > 0 {
			select {
			case <-until.Done():
			case <-time.After(grace):
			}
		}
		cancel(context.Cause(stop))
	})
	return until, func() { release(); end() }
}
