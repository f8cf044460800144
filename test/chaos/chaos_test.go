package chaos

import (
	"context"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// The two environment variables that change a run.
const (
	durationVariable = "CHAOS_DURATION" // of both tests together, as Go writes it; default 60s
	seedVariable     = "CHAOS_SEED"     // default: another one each time
)

func TestMain(m *testing.M) {
	os.Exit(sidecar.Main(func() int { return cluster.Main(m, cluster.Options{}) }))
}

// ending is how the sidecar ends now and then.
type ending struct {
	args []string
	// kill is the share of ends that are SIGKILL; the rest is SIGTERM.
	kill float64
}

// The tests do not run in parallel: each restarts the API server, and time is part of what is tested.
func TestStopsLeakNothing(t *testing.T) { //nolint:paralleltest // restarts a control plane of its own, on all CPUs
	runChaos(t, ending{})
}

func TestKillsLeakNothing(t *testing.T) { //nolint:paralleltest // see above
	runChaos(t, ending{kill: 0.7, args: []string{"--max-creates-per-source=1"}})
}

// play is one run of chaos.
type play struct {
	*stage
	t      *testing.T
	dice   *dice
	ending ending
	until  context.Context // the run's time
	cuts   []time.Time     // when sidecar or driver have died; guarded by mu
	mu     sync.Mutex

	claims, stops, kills, driverRestarts, apiRestarts, refused, stopping atomic.Int64
}

func runChaos(t *testing.T, e ending) {
	t.Helper()
	seed, duration := seedOf(t), durationOf(t)
	t.Logf("%s=%d %s=%s", seedVariable, seed, durationVariable, 2*duration)
	c := cluster.StartForTest(t, cluster.Options{})
	until, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	p := &play{
		stage: newStage(t, c, memdriver.Config{Topology: segments()[0], Segments: segments()}, e.args...),
		t:     t, dice: newDice(seed), ending: e, until: until,
	}
	p.nodes()
	immediate := p.Class(t, fixture.Class("immediate"))
	late := p.Class(t, fixture.Class("late").WaitForFirstConsumer())

	p.golden(immediate)
	p.Driver.Add(driverRules(p.dice)...)
	faults := apiFaults(p.dice)
	p.proxy.judgeBy(func(r *http.Request) fate {
		f := faults(r)
		if f.status != 0 || f.loseAnswer || f.loseRequest {
			p.refused.Add(1)
		}
		return f
	})
	scheduling, stopScheduling := context.WithCancel(t.Context())
	var scheduler sync.WaitGroup
	scheduler.Go(func() { p.schedule(scheduling, late) })
	defer func() {
		stopScheduling()
		scheduler.Wait()
	}()
	var acts sync.WaitGroup
	for user := range users {
		acts.Go(func() { p.user(user, immediate) })
		acts.Go(func() { p.user(users+user, late) })
	}
	acts.Go(p.restartDriver)
	acts.Go(func() { p.restartAPIServer(duration) })
	acts.Go(p.restartSidecar)
	acts.Wait()
	p.verdict()
}
