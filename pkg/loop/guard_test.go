package loop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// logged returns a context with a logger, and what it has logged so far.
func logged(t *testing.T) (context.Context, func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(0), ktesting.BufferLogs(true)))
	buffer := logger.GetSink().(ktesting.Underlier).GetBuffer()
	return klog.NewContext(t.Context(), logger), buffer.String
}

// count returns how many panics of the component were counted.
func count(component string) float64 {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Panics())
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == component {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestGuardReturnsThePanicAsAnError(t *testing.T) {
	t.Parallel()
	ctx, log := logged(t)
	before := count("guard test")
	err := Guard(ctx, "guard test", func() error { panic(strings.Repeat("x", 1<<20) + "\xff") })
	panicked, ok := errors.AsType[*PanicError](err)
	if !ok || len(panicked.Error()) > 2*maxPanic {
		t.Errorf("got %T with %d bytes, want a short *PanicError", err, len(err.Error()))
	}
	if got := count("guard test") - before; got != 1 {
		t.Errorf("%v panics counted, want 1", got)
	}
	if got := log(); !strings.Contains(got, "Panic recovered") || !strings.Contains(got, "TestGuardReturnsThePanicAsAnError") {
		t.Errorf("the log lacks the panic or the stack that leads to it: %.500s", got)
	}
	want := errors.New("as it is")
	if got := Guard(ctx, "guard test", func() error { return want }); !errors.Is(got, want) || count("guard test")-before != 1 {
		t.Errorf("without a panic: %v, want %v", got, want)
	}
}

// A key that panics is backed off like one that fails. All other keys are processed meanwhile, by the same worker.
func TestAPanicIsBackedOffLikeAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, _ := logged(t)
		var at []time.Duration
		others := 0
		begin, before := time.Now(), count("panicking")
		l, err := New(Config[string]{Name: "panicking", Workers: 1, RetryStart: time.Second, RetryMax: time.Minute, Process: func(_ context.Context, key string) Verdict {
			if key == "good" {
				others++
				return Done()
			}
			at = append(at, time.Since(begin))
			if len(at) == 4 {
				return Done()
			}
			panic("no such place")
		}})
		if err != nil {
			t.Fatal(err)
		}
		stop, cancel := context.WithCancel(ctx)
		l.Add("bad")
		l.Add("good")
		go l.Run(stop, ctx)
		time.Sleep(time.Hour)
		l.Add("good")
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		if want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("processed at %v, want %v", at, want)
		}
		if others != 2 || count("panicking")-before != 3 {
			t.Errorf("the other key was processed %d times, %v panics were counted; want 2 and 3", others, count("panicking")-before)
		}
	})
}

// A gate that panics loses no key and no worker.
func TestAGateThatPanicsKeepsTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, _ := logged(t)
		asked, runs := 0, 0
		l := newLoop(t, Config[string]{
			Workers: 1,
			Gate: func(context.Context) error {
				if asked++; asked < 3 {
					panic("the gate")
				}
				return nil
			},
			Process: func(context.Context, string) Verdict { runs++; return Done() },
		})
		stop, cancel := context.WithCancel(ctx)
		l.Add("a")
		go l.Run(stop, ctx)
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if asked != 3 || runs != 1 {
			t.Errorf("the gate was asked %d times, the key processed %d times; want 3 and 1", asked, runs)
		}
	})
}

func TestRestartGoesOnAfterAPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, _ := logged(t)
		begin, calls := time.Now(), 0
		RunUntil(ctx, func(context.Context) {
			if calls++; calls < 3 {
				panic("again")
			}
		})
		if took := time.Since(begin); calls != 3 || took != 2*restartAfter {
			t.Errorf("%d calls in %s, want 3 in %s", calls, took, 2*restartAfter)
		}
		ending, cancel := context.WithCancel(ctx)
		cancel()
		Restart(ending, "restart test", func(context.Context) { panic("at the end") })
		if took := time.Since(begin); took != 2*restartAfter {
			t.Errorf("a context that has ended was waited for, %s in all", took)
		}
	})
}
