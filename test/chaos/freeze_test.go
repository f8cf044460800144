package chaos

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

const (
	freezesVariable = "CHAOS_FREEZES" // how many leaders are stopped; default 2
	freezeWorkers   = 10              // of each sidecar, for claims and for PersistentVolumes
)

// candidate is a sidecar that calls the driver through a door of its own.
type candidate struct {
	*sidecar.Sidecar
	door *door
}

// A leader is stopped for longer than its lease, somebody else leads, and the leader goes on. Only what had passed its last
// check of the lease before the stop still reaches the driver then, at once, and nothing leaks.
func TestAFrozenLeaderCallsNoMore(t *testing.T) {
	t.Parallel()
	freezes := 2
	if text := os.Getenv(freezesVariable); text != "" {
		var err error
		if freezes, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", freezesVariable, err)
		}
	}
	s := newStage(t, cluster.Shared(t), memdriver.Config{},
		"--leader-election", "--leader-election-lease-duration=6s", "--leader-election-renew-deadline=5s", "--leader-election-retry-period=500ms",
		"--worker-threads="+strconv.Itoa(freezeWorkers), "--kube-api-qps=-1", "--vmodule=exchange=6")
	s.Driver.Add(memdriver.Slow("CreateVolume", 30*time.Millisecond), memdriver.Slow("DeleteVolume", 30*time.Millisecond))
	class := s.Class(t, fixture.Class("c"))

	leader := s.candidate(t)
	holder := s.leaderOtherThan(t, "")
	for run := range freezes {
		next := s.candidate(t)
		next.Says(t, "Standing by", patience)
		busy, rest := context.WithCancel(t.Context())
		var load sync.WaitGroup
		load.Go(func() { s.load(busy, run, class) })
		// Different moments of the renewals, and calls in flight in each of them.
		calls := len(leader.door.since(time.Time{}))
		sidecar.Eventually(t, "the leader calls the driver", func(context.Context) (bool, error) {
			return len(leader.door.since(time.Time{})) >= calls+20+3*run, nil
		})
		if err := leader.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		holder = s.leaderOtherThan(t, holder)
		sidecar.Eventually(t, "the next leader calls the driver", func(context.Context) (bool, error) {
			return len(next.door.since(time.Time{})) >= 10, nil
		})
		woken := time.Now()
		if err := leader.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if code := leader.Exits(t, patience); code != 1 {
			t.Errorf("the leader of run %d ended with %d, want 1", run, code)
		}
		leader.judge(t, run, woken)
		rest()
		load.Wait()
		leader = next
	}
	s.settle(t, "the last run", patience)
}

// candidate starts a sidecar with a door.
func (s *stage) candidate(t *testing.T) candidate {
	t.Helper()
	d := newDoor(t, s.Driver.Socket())
	return candidate{s.start(t, "--csi-address="+d.socket), d}
}

// judge looks at the calls of a leader that was woken at that time and has ended.
func (c candidate) judge(t *testing.T, run int, woken time.Time) {
	t.Helper()
	late, calls, checks := c.door.since(woken), c.door.since(time.Time{}), c.checks(t)
	t.Logf("run %d: %d calls, %d checks, %d calls after SIGCONT", run, len(calls), len(checks), len(late))
	if len(late) > 2*freezeWorkers {
		t.Errorf("run %d: %d calls after SIGCONT, want no more than workers, %d", run, len(late), 2*freezeWorkers)
	}
	for _, call := range late {
		if after := call.at.Sub(woken); after > time.Second {
			t.Errorf("run %d: %s %s after SIGCONT, want none later than 1s", run, call.method, after)
		}
	}
	if len(calls) > len(checks) {
		t.Errorf("run %d: %d calls and %d checks of the lease, want one before each call", run, len(calls), len(checks))
	}
	// A check that was passed before the stop may be logged after it, and its call comes then.
	passed := slices.DeleteFunc(checks, func(at time.Time) bool { return !at.After(woken) })
	if len(passed) > len(late) {
		t.Errorf("run %d: %d checks of the lease were passed after SIGCONT, and %d calls came", run, len(passed), len(late))
	}
}

// checks returns when the sidecar has logged that a call may be sent, by klog's clock.
func (c candidate) checks(t *testing.T) []time.Time {
	t.Helper()
	var all []time.Time
	now := time.Now()
	for line := range strings.Lines(c.Log()) {
		// I1201 10:25:27.103477    9749 exchange.go:91] "The call may be sent" …; the log is that of all sidecars.
		words := strings.Fields(line)
		if !strings.Contains(line, `"The call may be sent"`) || words[2] != strconv.Itoa(c.PID()) {
			continue
		}
		at, err := time.ParseInLocation("20060102 15:04:05.000000", now.Format("2006")+words[0][1:]+" "+words[1], now.Location())
		if err != nil {
			t.Fatalf("read the time of a line: %v", err)
		}
		all = append(all, at)
	}
	return all
}

// leaderOtherThan waits until somebody else holds the lease and returns the identity.
func (s *stage) leaderOtherThan(t *testing.T, holder string) string {
	t.Helper()
	now := ""
	sidecar.Eventually(t, "somebody leads after "+holder, func(ctx context.Context) (bool, error) {
		lease, err := s.Client.CoordinationV1().Leases(s.Namespace).Get(ctx, process.LeaseName(s.Driver.Name()), metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, sidecar.IgnoreNotFound(err)
		}
		now = *lease.Spec.HolderIdentity
		return now != "" && now != holder, nil
	})
	return now
}

// load makes claims and deletes them again, until ctx ends; all are deleted in the end.
func (s *stage) load(ctx context.Context, run int, class string) {
	const alive = 20 // how many claims there are at a time
	claims := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace)
	name := func(i int) string { return fmt.Sprintf("frozen-%d-%d", run, i) }
	remove := func(i int) {
		_ = claims.Delete(context.WithoutCancel(ctx), name(i), metav1.DeleteOptions{}) // if it lives, the end finds it bound
	}
	i := 0
	for ; ctx.Err() == nil; i++ {
		claim := fixture.Claim(name(i)).Class(class).Size("1Mi").Namespace(s.Namespace).Obj()
		_, _ = claims.Create(ctx, claim, metav1.CreateOptions{})
		if i >= alive {
			remove(i - alive)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	for left := max(0, i-alive); left < i; left++ {
		remove(left)
	}
}
