package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared is the one control plane of a test process.
var shared struct {
	mu      sync.Mutex
	allowed bool // Main is running
	opts    Options
	cluster *Cluster
	err     error
}

// Main is for TestMain: it runs the tests of a package that share one control plane, and stops that. The control
// plane starts with the first call of Shared, so that a run which needs none stays quick. When tests fail, the
// folder with the logs is kept and named. The result is the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(cluster.Main(m, cluster.Options{Scheduler: true})) }
func Main(m *testing.M, opts Options) (exitCode int) {
	shared.mu.Lock()
	shared.allowed, shared.opts = true, opts
	shared.mu.Unlock()
	exitCode = m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.allowed = false
	if shared.cluster == nil {
		return exitCode
	}
	if exitCode != 0 && shared.cluster.removeDir {
		shared.cluster.removeDir = false
		fmt.Fprintln(os.Stderr, "Logs of the control plane are in", shared.cluster.dir)
	}
	shared.cluster.Stop()
	return exitCode
}

// Shared returns the control plane that the tests of this process share, with the CRDs of InstallCRDs. Tests must
// keep apart by namespaces, and by names of classes, nodes and drivers. The test fails if it cannot be started,
// or if Main is not in charge of stopping it.
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.allowed {
		tb.Fatal("cluster.Shared needs a TestMain that calls cluster.Main")
	}
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = startShared(shared.opts)
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.cluster
}

// startShared uses a context of its own, since the cluster outlives the test that happens to start it.
func startShared(opts Options) (*Cluster, error) {
	ctx := context.Background()
	c, err := Start(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := c.InstallCRDs(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// StartForTest starts a control plane that one test does not share, such as one whose API server it restarts, and
// stops it when the test ends.
func StartForTest(tb testing.TB, opts Options) *Cluster {
	tb.Helper()
	c, err := Start(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Stop)
	return c
}
