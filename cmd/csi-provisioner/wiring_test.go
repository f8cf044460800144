package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/features"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// electing is a configuration with leader election whose retries take longer than any test.
func electing(socket string) Config {
	return Config{
		Driver: DriverConfig{Address: socket, Timeout: time.Minute},
		Election: ElectionConfig{
			Enabled: true, Namespace: "ns", Pod: "me", LeaseDuration: 3 * time.Hour, RenewDeadline: 2 * time.Hour, RetryPeriod: time.Hour,
		},
	}
}

// testComponents returns what the tests of the wiring need, with an API server that only keeps leases.
func testComponents(t *testing.T, cfg Config, leases *fake.Clientset) (*startup, *components) {
	t.Helper()
	s := &startup{cfg: cfg, api: &api{clients: &cluster.Clients{Lease: leases, Events: leases}}}
	d, err := driver.Connect(t.Context(), s.driverConfig(nil))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var supervising sync.WaitGroup
	supervising.Go(func() { _ = d.Supervise(ctx) })
	t.Cleanup(func() { cancel(); supervising.Wait(); d.Close() })
	return s, &components{cfg: cfg, api: s.api, driver: d, name: d.Identity().Name, holder: holderOf(t), events: cluster.NewEvents(ctx, leases)}
}

// holderOf returns a holder of the test's own.
func holderOf(t *testing.T) process.Holder {
	t.Helper()
	holder, err := process.NewHolder(memdriver.DefaultName, "me", t.Name()+time.Now().String())
	if err != nil {
		t.Log(err) // as on systems without process locks
	}
	return holder
}

// eventually fails the test unless cond holds soon.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// open reports whether a gate lets work through now.
func open(gate func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	return gate(ctx) == nil
}

// lead runs a leader until the test ends and returns a channel that is closed when it leads.
func lead(t *testing.T, leader *process.Leader) <-chan struct{} {
	t.Helper()
	leads := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := leader.Run(ctx, func(stop, _ context.Context) error { close(leads); <-stop.Done(); return nil }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return leads
}

func newLeader(t *testing.T, cfg process.LeaderConfig) *process.Leader {
	t.Helper()
	leader, err := process.NewLeader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return leader
}

// heldBy returns the lease of memdriver with a holder, "" for none.
func heldBy(holder string) *coordinationv1.Lease {
	seconds, now := int32(3*3600), metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: process.LeaseName(memdriver.DefaultName)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now, AcquireTime: &now},
	}
}

// A standby whose driver is away does not take the lease when it is released, and takes it as soon as the driver is back.
func TestAStandbyContendsOnlyWithItsDriver(t *testing.T) {
	t.Parallel()
	mem, server := memdriver.Serve(t, memdriver.Config{}), fake.NewClientset(heldBy("other"))
	s, r := testComponents(t, electing(mem.Socket()), server)
	leader := newLeader(t, s.leaderConfig(r))
	leads := lead(t, leader)
	asked := func(verb string) bool {
		return slices.ContainsFunc(server.Actions(), func(a k8stesting.Action) bool { return a.Matches(verb, "leases") })
	}
	eventually(t, "the lease is read and watched", func() bool { return asked("get") && asked("watch") })
	mem.Stop()
	eventually(t, "the loss is noticed", func() bool { return !open(r.driver.Gate) })
	if _, err := server.CoordinationV1().Leases("ns").Update(t.Context(), heldBy(""), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-leads:
		t.Error("it leads without its driver")
	case <-time.After(300 * time.Millisecond):
	}
	if err := mem.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-leads:
	case <-time.After(time.Minute):
		t.Error("it does not contend when its driver is back")
	}
}

// Only a leader calls its driver, and gives it up so that another replica can lead.
func TestOnlyALeaderCallsAndGivesUpItsDriver(t *testing.T) {
	t.Parallel()
	mem := memdriver.Serve(t, memdriver.Config{})
	for holder, want := range map[string]bool{"other": false, "": true} {
		s, r := testComponents(t, electing(mem.Socket()), fake.NewClientset(heldBy(holder)))
		cfg := s.driverConfig(nil)
		if cfg.AwayLimit != driverAwayLimit {
			t.Errorf("limit %s, want %s", cfg.AwayLimit, driverAwayLimit)
		}
		if cfg.MayGiveUp() || cfg.MayCall() == nil {
			t.Error("it may give up or call its driver before the election has begun")
		}
		leader := newLeader(t, s.leaderConfig(r))
		leads := lead(t, leader)
		s.leader.Store(leader)
		if want {
			<-leads
		}
		if got := cfg.MayGiveUp(); got != want {
			t.Errorf("it may give up: %v, while %q holds the lease, want %v", got, holder, want)
		}
		if err := cfg.MayCall(); (err == nil) != want {
			t.Errorf("it may not call: %v, while %q holds the lease, want nil: %v", err, holder, want)
		}
	}
	without := electing(mem.Socket())
	without.Election.Enabled = false
	if cfg := (&startup{cfg: without, api: &api{}}).driverConfig(nil); cfg.AwayLimit != 0 {
		t.Errorf("limit %s without leader election, want none", cfg.AwayLimit)
	}
}

// No key is begun while the driver is away, nor by a leader that cannot renew the lease.
func TestGateOfTheControllers(t *testing.T) {
	t.Parallel()
	mem := memdriver.Serve(t, memdriver.Config{})
	s, r := testComponents(t, electing(mem.Socket()), fake.NewClientset(heldBy("")))
	if !open(r.gate) {
		t.Error("shut without leader election")
	}
	r.leader = newLeader(t, s.leaderConfig(r))
	if open(r.gate) {
		t.Error("open although the lease was not renewed")
	}
	<-lead(t, r.leader)
	if !open(r.gate) {
		t.Error("shut while it leads")
	}
	mem.Stop()
	eventually(t, "shut while the driver is away", func() bool { return !open(r.gate) })
}

// get returns the answer to a request to the diagnostics server.
func get(t *testing.T, address, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", response.StatusCode, body)
}

// A lease that may not be used makes the process not ready.
func TestReadinessOfTheLease(t *testing.T) {
	t.Parallel()
	mem, server := memdriver.Serve(t, memdriver.Config{}), fake.NewClientset()
	server.PrependReactor("get", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "x", errors.New("no right"))
	})
	cfg := electing(mem.Socket())
	cfg.HTTP = HTTPConfig{Address: "127.0.0.1:0", MetricsPath: "/metrics"}
	s, r := testComponents(t, cfg, server)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	group, ctx := process.NewGroup(ctx)
	s.group = group
	defer func() {
		cancel(process.ErrSignal)
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.startHTTP(ctx); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s.http.Addr(), "/readyz"); strings.Contains(got, "lease") {
		t.Errorf("readyz %q before the election", got)
	}
	if err := s.startWork(ctx, r); err != nil {
		t.Fatal(err)
	}
	eventually(t, "not ready because of the lease", func() bool {
		got := get(t, s.http.Addr(), "/readyz")
		return strings.HasPrefix(got, "503") && strings.Contains(got, "not ready: lease: leader lease ns/mem-csi-example-com") && strings.Contains(got, "no right")
	})
	if s.leader.Load() == nil || r.leader != s.leader.Load() {
		t.Error("the controllers' gate and the driver's limit do not know the leader")
	}
}

// A process is not ready before it has its driver, nor while the driver is away.
func TestReadinessOfTheDriver(t *testing.T) {
	t.Parallel()
	mem := memdriver.Serve(t, memdriver.Config{})
	mem.Stop()
	p := start(t, "run", nil, "--master=http://127.0.0.1:9", "--csi-address="+mem.Socket(), "--http-endpoint=127.0.0.1:0")
	p.waitFor(t, "Serving HTTP")
	address := regexp.MustCompile(`"Serving HTTP" address="([^"]+)"`).FindStringSubmatch(p.said())[1]
	if got := get(t, address, "/readyz"); !strings.HasPrefix(got, "503") || !strings.Contains(got, "not ready: driver: not connected yet") {
		t.Errorf("readyz %q, want the driver in it", got)
	}
	for range 2 {
		if err := mem.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the driver is ready", func() bool {
			got := get(t, address, "/readyz")
			return strings.Contains(got, "not ready: caches") && !strings.Contains(got, "driver:")
		})
		mem.Stop()
		eventually(t, "the driver is away", func() bool {
			return strings.Contains(get(t, address, "/readyz"), "not ready: driver: the driver is away")
		})
	}
}

// A driver that comes back with another topology of its node ends the process; a restart asks anew.
func TestAnotherTopologyOfTheNodeEndsTheProcess(t *testing.T) {
	t.Parallel()
	mem := memdriver.Serve(t, memdriver.Config{Topology: map[string]string{"zone": "a"}})
	p := start(t, "run", []string{"NODE_NAME=n"}, "--master=http://127.0.0.1:9", "--csi-address="+mem.Socket(), "--node-deployment")
	p.waitFor(t, "Serving one node")
	mem.Stop()
	mem.Change(func(c *memdriver.Config) { c.Topology = map[string]string{"zone": "b"} })
	if err := mem.Start(); err != nil {
		t.Fatal(err)
	}
	got := p.wait(t)
	if want := "came back changed: the topology of its node was map[zone:a] and is map[zone:b]"; got.code != 1 || !strings.Contains(got.lastWords, want) {
		t.Errorf("exit %d, termination message %q, want 1 and %q", got.code, got.lastWords, want)
	}
}

// The lease of the clean-up is another one than the leader's, for all instances the same, and its contenders spread.
func TestLeaseOfTheCleanUp(t *testing.T) {
	t.Parallel()
	mem := memdriver.Serve(t, memdriver.Config{})
	cfg := electing(mem.Socket())
	cfg.Election.Labels = map[string]string{"a": "b"}
	s, r := testComponents(t, cfg, fake.NewClientset())
	got, leader := r.cleanupLease(), s.leaderConfig(r)
	if name := process.LeaseName(got.Lock); name != "mem-csi-example-com-cleanup" || got.Namespace != "ns" || got.Identity != r.holder.Identity() || got.Labels["a"] != "b" {
		t.Errorf("lease %s/%s of %s with labels %v, want ns/mem-csi-example-com-cleanup of this process with a=b", got.Namespace, name, got.Identity, got.Labels)
	}
	if got.Spread < 10*time.Second || got.Gate != nil {
		t.Errorf("spread %s, gate %v, want some seconds, and no gate: it asks the driver nothing", got.Spread, got.Gate != nil)
	}
	if leader.Lock != memdriver.DefaultName || leader.Spread != 0 {
		t.Errorf("leader lease for %s with a spread of %s, want none: its failover must be fast", leader.Lock, leader.Spread)
	}
	newLeader(t, got)
}

// Feature gate Topology takes the capability away, and nothing else does.
func TestTopologyNeedsGateAndCapability(t *testing.T) {
	t.Parallel()
	for _, gate := range []bool{false, true} {
		for _, capable := range []bool{false, true} {
			identity := driver.Identity{Plugin: driver.PluginSet{}}
			if capable {
				identity.Plugin[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] = struct{}{}
			}
			if got := capabilitiesOf(identity, Config{Gates: features.Gates{Topology: gate}}).Topology; got != (gate && capable) {
				t.Errorf("topology %v with gate %v and capability %v", got, gate, capable)
			}
		}
	}
	if cfg := complete(t, environment{}, "--feature-gates=Topology=false"); cfg.Gates.Topology {
		t.Error("the flag does not reach the gate")
	}
}
