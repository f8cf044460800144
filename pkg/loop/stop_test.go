package loop

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A stop cuts what was begun with UntilStop, after its grace, and leaves the work itself alone.
func TestUntilStop(t *testing.T) {
	t.Parallel()
	cause := errors.New("the lease is lost")
	for name, grace := range map[string]time.Duration{"at once": 0, "after a grace": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := make(chan struct{})
				var took time.Duration
				var cut, work error
				l, err := New(Config[string]{Name: "test", Workers: 1, RetryStart: time.Second, RetryMax: time.Second,
					Process: func(ctx context.Context, _ string) Verdict {
						until, cancel := UntilStop(context.WithoutCancel(ctx), grace)
						defer cancel()
						close(begun)
						time.Sleep(time.Minute)
						stopped := time.Now()
						<-until.Done()
						took, cut, work = time.Since(stopped), context.Cause(until), ctx.Err()
						return Done()
					}})
				if err != nil {
					t.Fatal(err)
				}
				stop, end := context.WithCancelCause(t.Context())
				var running sync.WaitGroup
				running.Go(func() { l.Run(stop, t.Context()) })
				l.Add("key")
				<-begun
				time.Sleep(time.Minute)
				end(cause)
				running.Wait()
				if took != grace || !errors.Is(cut, cause) || work != nil {
					t.Errorf("cut after %s with %v, work %v; want %s, %v, none", took, cut, work, grace, cause)
				}
			})
		})
	}
}

// Without a stop the context ends with its parent, and with its own end.
func TestUntilStopWithoutStop(t *testing.T) {
	t.Parallel()
	parent, end := context.WithCancel(t.Context())
	child, cancel := UntilStop(parent, 0)
	other, cancelOther := UntilStop(parent, time.Hour)
	defer cancelOther()
	if child.Err() != nil {
		t.Errorf("ended from the start: %v", child.Err())
	}
	cancel()
	if child.Err() == nil || other.Err() != nil {
		t.Errorf("its own end: %v, the other's: %v", child.Err(), other.Err())
	}
	end()
	if other.Err() == nil {
		t.Error("the parent has ended and it has not")
	}
}
