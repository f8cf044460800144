package snapshotprotect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

// run runs c in a bubble of time until the returned function is called, which returns the log.
func run(t *testing.T, c *Controller) (end func() string) {
	t.Helper()
	var mu sync.Mutex
	var lines strings.Builder
	logger := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(&lines, prefix, args)
	}, funcr.Options{})
	work := klog.NewContext(t.Context(), logger)
	stop, cancel := context.WithCancel(work)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(stop, work) }()
	return func() string {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		return lines.String()
	}
}

// The first sweep comes at once, each later one an interval after the last, give or take a tenth.
func TestSweepsComeAtTheirInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		c := w.controller(t)
		failure := failing(&w.snap.Fake, "list", "volumesnapshots")
		end := run(t, c)
		synctest.Wait()
		lists := func() int { return requests(&w.snap.Fake)["list volumesnapshots"] - 1 } // one is the question whether we may
		if got := lists(); got != 1 {
			t.Errorf("%d sweeps at the start, want 1", got)
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if got := lists(); got != 1 {
			t.Errorf("%d sweeps after 4 minutes, want 1", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := lists(); got != 2 {
			t.Errorf("%d sweeps after 6 minutes, want 2", got)
		}
		// A sweep that fails is told, and the next one comes all the same.
		broken := errors.New("broken")
		failure.Store(&broken)
		time.Sleep(12 * time.Minute)
		if got := lists(); got < 4 {
			t.Errorf("%d sweeps after a failure, want 4 or 5", got)
		}
		if log := end(); !strings.Contains(log, "could not be swept") || !strings.Contains(log, "broken") {
			t.Errorf("log: %s", log)
		}
	})
}

// A cluster without snapshots, or an API server that does not tell, is asked again; then sweeping begins.
func TestTheAPIMayComeLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)}}
		c := w.controller(t)
		absent := error(apierrors.NewNotFound(schema.GroupResource{}, groupVersion))
		down := errors.New("down")
		failure := failing(w.disc.Fake, "get", "resource")
		failure.Store(&down)
		end := run(t, c)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		failure.Store(&absent)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := requests(&w.snap.Fake); len(got) != 0 {
			t.Errorf("requests %v while there are no snapshots", got)
		}
		failure.Store(nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := w.stripped(t); len(got) != 1 {
			t.Errorf("stripped %v, want one", got)
		}
		log := end()
		for text, want := range map[string]int{
			"does not tell whether": 2, "does not serve them": 1, "Sweeping snapshots": 1,
		} {
			if got := strings.Count(log, text); got != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, log)
			}
		}
	})
}

// Without the right to list snapshots there is one message, with the rule, and no more requests.
func TestWithoutTheRightToList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		c := w.controller(t)
		fail(&w.snap.Fake, "list", "volumesnapshots", apierrors.NewForbidden(schema.GroupResource{Resource: "volumesnapshots"}, "", nil))
		end := run(t, c)
		time.Sleep(time.Hour)
		if got := requests(&w.snap.Fake)["list volumesnapshots"]; got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
		if log := end(); strings.Count(log, "volumesnapshots.snapshot.storage.k8s.io") != 1 || strings.Count(log, "\n") != 1 {
			t.Errorf("log: %s", log)
		}
	})
}

// Instances on many nodes do not begin together.
func TestTheFirstSweepIsSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)}}
		c := w.controller(t)
		c.cfg.Spread = time.Minute
		end := run(t, c)
		synctest.Wait()
		if got := w.stripped(t); len(got) != 0 {
			t.Error("swept at once")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.stripped(t); len(got) != 1 {
			t.Errorf("stripped %v after the spread, want one", got)
		}
		end()
	})
}
