package loop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newLoop(t *testing.T, cfg Config[string]) *Loop[string] {
	t.Helper()
	cfg.Name = "test"
	if cfg.RetryStart == 0 {
		cfg.RetryStart, cfg.RetryMax = time.Second, 5*time.Minute
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestNewNamesEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := New(Config[string]{})
	if err == nil {
		t.Fatal("an empty Config was accepted")
	}
	for _, want := range []string{"no name", "no Process", "RetryStart"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not mention %q", err, want)
		}
	}
}

// Delays after failures in a row are 1, 2, 4, … seconds up to the cap; Done resets them.
func TestAgainDoublesUpToTheCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begin := time.Now()
		l := newLoop(t, Config[string]{Workers: 2, RetryStart: time.Second, RetryMax: 10 * time.Second, Process: func(context.Context, string) Verdict {
			at = append(at, time.Since(begin))
			if len(at) == 6 {
				return Done()
			}
			return Again()
		}})
		stop, cancel := context.WithCancel(t.Context())
		l.Add("a")
		go l.Run(stop, t.Context())
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		want := []time.Duration{0, 1, 3, 7, 15, 25}
		if len(at) != len(want) {
			t.Fatalf("processed at %v, want %v seconds", at, want)
		}
		for i, w := range want {
			if at[i].Round(time.Second) != w*time.Second {
				t.Errorf("turn %d at %s, want %ds", i, at[i], w)
			}
		}
	})
}

// Parked schedules nothing, and forgets nothing of the back-off.
func TestParkedWaitsForAnAdd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begin := time.Now()
		verdicts := []Verdict{Again(), Parked(), Again(), Done()}
		l := newLoop(t, Config[string]{Workers: 1, Process: func(context.Context, string) Verdict {
			at = append(at, time.Since(begin).Round(time.Second))
			return verdicts[len(at)-1]
		}})
		stop, cancel := context.WithCancel(t.Context())
		l.Add("a")
		go l.Run(stop, t.Context())
		time.Sleep(time.Hour)
		l.Add("a")
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
		want := []time.Duration{0, time.Second, time.Hour, time.Hour + 2*time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("turns at %v, want %v", at, want)
		}
	})
}

// What failed before a success is forgotten: the next failure waits as long as the first one did.
func TestDoneResetsTheBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		var begin time.Time
		verdicts := []Verdict{Again(), Busy(), Again(), Busy(), Done(), Again(), Busy(), Done()}
		l := newLoop(t, Config[string]{Workers: 1, Process: func(context.Context, string) Verdict {
			at = append(at, time.Since(begin))
			return verdicts[len(at)-1]
		}})
		stop, cancel := context.WithCancel(t.Context())
		l.Add("a")
		go l.Run(stop, t.Context())
		time.Sleep(time.Hour)
		synctest.Wait()
		begin = time.Now()
		l.Add("a")
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
		if want := []time.Duration{0, time.Second, 2 * time.Second}; len(at) != len(verdicts) || !slices.Equal(at[5:], want) {
			t.Errorf("processed at %v; after the success at %v, want %v", at, at[min(5, len(at)):], want)
		}
	})
}

// However long the driver says that it is busy, no wait is longer than BusyMax, nor than RetryMax.
func TestBusyIsCapped(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retryMax, busyMax, want time.Duration
	}{
		"by default at ten times the first wait": {time.Hour, 0, 10 * time.Second},
		"at what is configured":                  {time.Hour, 25 * time.Second, 25 * time.Second},
		"at the cap of all waits":                {4 * time.Second, 25 * time.Second, 4 * time.Second},
		"at the cap of all waits by default":     {4 * time.Second, 0, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var longest time.Duration
				last := time.Now()
				l := newLoop(t, Config[string]{Workers: 1, RetryStart: time.Second, RetryMax: tc.retryMax, BusyMax: tc.busyMax, Process: func(context.Context, string) Verdict {
					longest = max(longest, time.Since(last))
					last = time.Now()
					return Busy()
				}})
				stop, cancel := context.WithCancel(t.Context())
				l.Add("a")
				go l.Run(stop, t.Context())
				time.Sleep(2 * time.Hour)
				cancel()
				synctest.Wait()
				// Half of each wait is chance: of some hundred the longest is close to the cap.
				if longest > tc.want || longest < tc.want*9/10 {
					t.Errorf("the longest wait was %s, want %s", longest, tc.want)
				}
			})
		})
	}
}

func TestBusyStaysShortAndSpread(t *testing.T) {
	t.Parallel()
	b := backoff[string]{start: time.Second, max: 5 * time.Minute, busyMax: 10 * time.Second, tries: map[string]tries{}}
	if got := b.next("a", true); got != time.Second {
		t.Errorf("first wait %s, want 1s", got)
	}
	seen := map[time.Duration]bool{}
	for range 50 {
		wait := b.next("a", true)
		if wait < time.Second || wait > 10*time.Second {
			t.Errorf("wait %s, want between 1s and 10s", wait)
		}
		seen[wait] = true
	}
	if len(seen) < 10 {
		t.Errorf("only %d different waits of 50", len(seen))
	}
	if got := b.next("a", false); got != time.Second {
		t.Errorf("busy answers moved the schedule of errors to %s", got)
	}
}

// A key is never held by two workers, and one that is added while it is processed runs again.
func TestOneWorkerHoldsAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, runs atomic.Int32
		l := newLoop(t, Config[string]{Workers: 4, Process: func(context.Context, string) Verdict {
			if running.Add(1) != 1 {
				t.Error("two workers hold one key")
			}
			time.Sleep(time.Second)
			running.Add(-1)
			runs.Add(1)
			return Done()
		}})
		stop, cancel := context.WithCancel(t.Context())
		go l.Run(stop, t.Context())
		for range 10 {
			l.Add("a")
		}
		time.Sleep(500 * time.Millisecond)
		l.Add("a")
		time.Sleep(time.Minute)
		if got := runs.Load(); got != 2 {
			t.Errorf("%d runs, want 2: ten equal adds merge, one during work runs again", got)
		}
		cancel()
		synctest.Wait()
	})
}

// After stop the key at hand is finished with a living context, and no other one is begun.
func TestStopFinishesTheKeyAtHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var finished, begun atomic.Int32
		l := newLoop(t, Config[string]{Workers: 1, Process: func(ctx context.Context, _ string) Verdict {
			begun.Add(1)
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
				finished.Add(1)
			}
			return Again()
		}})
		stop, cancel := context.WithCancel(t.Context())
		work, release := Drain(stop, 20*time.Second)
		defer release()
		ended := make(chan struct{})
		go func() { l.Run(stop, work); close(ended) }()
		l.Add("a")
		l.Add("b")
		time.Sleep(time.Second)
		cancel()
		<-ended
		if begun.Load() != 1 || finished.Load() != 1 {
			t.Errorf("begun %d, finished %d, want 1 and 1", begun.Load(), finished.Load())
		}
	})
}

func TestDrainEndsLateAndSaysWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop, cancel := context.WithCancel(t.Context())
		work, release := Drain(stop, 20*time.Second)
		defer release()
		cancel()
		time.Sleep(19 * time.Second)
		if work.Err() != nil {
			t.Fatal("the work context ended with the stop")
		}
		time.Sleep(2 * time.Second)
		if !errors.Is(context.Cause(work), context.DeadlineExceeded) {
			t.Errorf("cause %v, want the drain's deadline", context.Cause(work))
		}
	})
}

func TestRunUntil(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		f    func(context.Context)
		want time.Duration // the stop comes after a minute
	}{
		"it ends by itself":       {func(context.Context) { time.Sleep(time.Second) }, time.Second},
		"it ends with the stop":   {func(ctx context.Context) { <-ctx.Done() }, time.Minute},
		"it has to put things by": {func(ctx context.Context) { <-ctx.Done(); time.Sleep(100 * time.Millisecond) }, time.Minute + 100*time.Millisecond},
		"it sleeps":               {func(context.Context) { time.Sleep(time.Hour) }, time.Minute + 200*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				RunUntil(ctx, tc.f)
				if took := time.Since(begin); took != tc.want {
					t.Errorf("took %s, want %s", took, tc.want)
				}
				time.Sleep(time.Hour) // until what was left behind has noticed
			})
		})
	}
}

// A closed gate pauses the loop and loses no key.
func TestGateHoldsWorkersBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		var runs atomic.Int32
		l := newLoop(t, Config[string]{
			Workers: 3,
			Gate: func(ctx context.Context) error {
				select {
				case <-open:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			},
			Process: func(context.Context, string) Verdict { runs.Add(1); return Done() },
		})
		stop, cancel := context.WithCancel(t.Context())
		go l.Run(stop, t.Context())
		for _, key := range []string{"a", "b", "c", "d", "a"} {
			l.Add(key)
		}
		time.Sleep(time.Minute)
		if runs.Load() != 0 {
			t.Errorf("%d runs behind a closed gate, want 0", runs.Load())
		}
		close(open)
		synctest.Wait()
		if got := runs.Load(); got < 4 || got > 5 {
			t.Errorf("%d runs after the gate opened, want each key once, and a again at most once", got)
		}
		cancel()
		synctest.Wait()
	})
}
