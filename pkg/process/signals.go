package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// ErrSignal is the cause of a context that a signal has ended: a wish, not a failure.
var ErrSignal = errors.New("stopped by a signal")

// Signals returns a context that ends with the first SIGTERM or SIGINT; its cause wraps ErrSignal and names
// the signal. The second one calls abort, which must not return: nobody waits any longer. The returned
// function ends the handling.
func Signals(parent context.Context, abort func(os.Signal)) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	received := make(chan os.Signal, 2)
	signal.Notify(received, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-received:
			cancel(fmt.Errorf("%w: %s", ErrSignal, s))
		case <-done:
			return
		}
		select {
		case s := <-received:
			abort(s)
		case <-done:
		}
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(received)
		close(done)
		cancel(context.Canceled)
	})
}
