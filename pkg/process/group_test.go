package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// diary collects what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) part(name string, stops time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		d.add(name + " runs")
		<-ctx.Done()
		d.add(name + " stops")
		time.Sleep(stops)
		d.add(name + " ended")
		return err
	}
}

func TestGroupStopsInReverseOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithCancelCause(t.Context())
		group, stopping := NewGroup(ctx)
		for _, name := range []string{"http", "informers", "leader"} {
			group.Go(ctx, name, d.part(name, time.Minute, nil))
			synctest.Wait()
		}
		cancel(fmt.Errorf("%w: terminated", ErrSignal))
		if err := group.Wait(); err != nil {
			t.Errorf("Wait = %v, want nil after a signal", err)
		}
		if !errors.Is(context.Cause(stopping), ErrSignal) {
			t.Errorf("cause %v, want the signal", context.Cause(stopping))
		}
		want := []string{
			"http runs", "informers runs", "leader runs", "leader stops", "leader ended", "informers stops", "informers ended", "http stops", "http ended",
		}
		if !slices.Equal(d.lines, want) {
			t.Errorf("order %q, want %q", d.lines, want)
		}
	})
}

func TestAFailingPartStopsTheGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		group, stopping := NewGroup(t.Context())
		broken, late := errors.New("broken"), errors.New("late")
		group.Go(t.Context(), "http", d.part("http", 0, nil))
		group.Go(t.Context(), "informers", d.part("informers", 0, late))
		group.Go(t.Context(), "driver", func(context.Context) error { time.Sleep(time.Hour); return broken })
		group.Go(t.Context(), "leader", d.part("leader", 0, nil))
		err := group.Wait()
		if !errors.Is(err, broken) || !errors.Is(err, late) {
			t.Errorf("Wait = %v, want both errors", err)
		}
		if got, want := err.Error(), "driver: broken\ninformers: late"; got != want {
			t.Errorf("text %q, want %q", got, want)
		}
		if !errors.Is(context.Cause(stopping), broken) {
			t.Errorf("cause %v, want that of the part", context.Cause(stopping))
		}
		if got := d.lines[len(d.lines)-1]; got != "http ended" {
			t.Errorf("last was %q, want http to be stopped", got)
		}
	})
}

func TestAPartThatIsDoneStopsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		group, stopping := NewGroup(ctx)
		group.Go(ctx, "once", func(context.Context) error { return nil })
		time.Sleep(time.Hour)
		if stopping.Err() != nil {
			t.Error("the group stops")
		}
		cancel(ErrSignal)
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// Starting fails half-way: what has been started is stopped and the error is the cause.
func TestStopWhenStartingFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tests := map[string]struct {
		signal bool
		err    func(stopping context.Context) error
		want   error
	}{
		"an error of its own":                 {err: func(context.Context) error { return broken }, want: broken},
		"the signal, as the error of a wait":  {signal: true, err: func(c context.Context) error { return fmt.Errorf("wait: %w", c.Err()) }},
		"the signal, as its cause":            {signal: true, err: func(c context.Context) error { return fmt.Errorf("wait: %w", context.Cause(c)) }},
		"the signal, as a step that hides it": {signal: true, err: func(context.Context) error { return broken }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var d diary
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				group, stopping := NewGroup(ctx)
				group.Go(ctx, "http", d.part("http", 0, nil))
				synctest.Wait()
				if tc.signal {
					cancel(fmt.Errorf("%w: interrupt", ErrSignal))
				}
				err := group.Stop(tc.err(stopping))
				if !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) {
					t.Errorf("Stop = %v, want %v", err, tc.want)
				}
				if got := d.lines[len(d.lines)-1]; got != "http ended" {
					t.Errorf("last was %q, want http to be stopped", got)
				}
			})
		})
	}
}

func TestNothingStartsAfterTheStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		group, _ := NewGroup(ctx)
		cancel(ErrSignal)
		group.Go(ctx, "late", func(context.Context) error { t.Error("started"); return nil })
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// A part that says why its own context has ended has not failed.
func TestCanceledIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		group, _ := NewGroup(ctx)
		group.Go(ctx, "a", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		group.Go(ctx, "b", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		cancel(fmt.Errorf("%w: terminated", ErrSignal))
		if err := group.Wait(); err != nil {
			t.Errorf("Wait = %v, want nil", err)
		}
	})
}
