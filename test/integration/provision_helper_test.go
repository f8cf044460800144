package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/cloneprotect"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/snapshotprotect"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// ground is a site with one driver, which outlives the processes beside it.
type ground struct {
	*site
	driver *memdriver.Driver
	// protects has processes let go of the sources of clones and restores, as the program does. It is off where a test
	// has no sources: a controller serves those of all namespaces.
	protects bool
}

func newGround(t *testing.T, mem memdriver.Config, edit ...func(*fixture.ClassBuilder)) *ground {
	t.Helper()
	s := newSite(t, edit...)
	mem.Name = s.ns
	g := &ground{site: s, driver: memdriver.Serve(t, mem)}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, call := range g.driver.Calls("CreateVolume", "DeleteVolume") {
			t.Log(call)
		}
	})
	return g
}

// life is one process beside the driver of a ground: its own clients, caches, connection and memory.
type life struct {
	*ground
	registry *prometheus.Registry
	caches   *cluster.Informers
	requests traffic
	dead     atomic.Bool
	mu       sync.Mutex
	fault    func(*http.Request) *http.Response // answers in place of the API server; nil: it does itself
	after    func(*http.Request, *http.Response)

	stopping, killing context.CancelFunc
	controllers       sync.WaitGroup
	rest              sync.WaitGroup
}

// begin starts a process with the admin's rights. It retries fast.
func (g *ground) begin(edit ...func(*provision.Config)) *life {
	g.Helper()
	return g.beginAs(controlplane.Shared(g.T).Config(), edit...)
}

func (g *ground) beginAs(config *rest.Config, edit ...func(*provision.Config)) *life {
	g.Helper()
	l := &life{ground: g, registry: prometheus.NewRegistry()}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return l.over(l.requests.over(next)) })
	unlimited := cluster.Limits{QPS: -1}
	c, err := cluster.NewClients(config, cluster.ClientConfig{Version: "test", Provisioning: unlimited, Capacity: unlimited})
	if err != nil {
		g.Fatal(err)
	}
	l.caches, err = cluster.NewInformers(cluster.InformersConfig{Client: c.Core, Driver: g.ns, Attachments: true, Gateway: c.Gateway})
	if err != nil {
		g.Fatal(err)
	}
	work, killing := context.WithCancel(context.WithoutCancel(g.Context()))
	stop, stopping := context.WithCancel(work)
	l.stopping, l.killing = stopping, killing
	g.Cleanup(l.kill)
	l.rest.Go(func() { l.caches.Run(work) })
	d, err := driver.Connect(work, driver.Config{Address: g.driver.Socket(), Timeout: callTimeout})
	if err != nil {
		g.Fatal(err)
	}
	context.AfterFunc(work, d.Close)
	if err := l.caches.WaitForSync(g.Context()); err != nil {
		g.Fatal(err)
	}
	l.rest.Go(func() { l.caches.CatchUp(work) })
	cfg := provision.Config{
		Client: c.Core, Snapshots: c.Snapshot, Cache: l.caches, Events: l.caches,
		Driver: d, Recorder: g.events.Recorder(cluster.Component(g.ns, "test")), OwnRecorder: g.events.Recorder(wellknown.EventComponent),
		Registerer: l.registry, WantsVAC: func() bool { return true },
		Settings: provision.Settings{
			Driver: g.ns, Identity: "1-1-" + g.ns, VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1, PreventModeConversion: true, CrossNamespace: true,
			Capabilities: provision.Capabilities{ControllerService: true, CreateDeleteVolume: true, Clone: true, Snapshot: true, Modify: true, PublishUnpublish: true},
		},
		CreateWorkers: 10, DeleteWorkers: 10, RetryStart: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond, Timeout: time.Second,
		Operations: operationsIn(g.ns, g.ns, "", c, true),
	}
	for _, change := range edit {
		change(&cfg)
	}
	controller, err := provision.New(cfg)
	if err != nil {
		g.Fatal(err)
	}
	l.run(stop, work, controller.Run)
	if g.protects {
		l.protect(stop, work, c, controller)
	}
	return l
}

// protect runs the controllers that let go of sources.
func (l *life) protect(stop, work context.Context, c *cluster.Clients, creates *provision.Controller) {
	l.Helper()
	clones, errClones := cloneprotect.New(cloneprotect.Config{
		Claims: l.caches, Client: c.Core, Outstanding: creates, Grants: l.caches.Grants, Threads: 1,
		RetryStart: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
	})
	snapshots, errSnapshots := snapshotprotect.New(snapshotprotect.Config{
		Claims: l.caches, Client: c.Core, Snapshots: c.Snapshot, Discovery: c.Core.Discovery(), Driver: l.ns, Grants: l.caches.Grants,
		Outstanding: creates, Interval: 100 * time.Millisecond,
	})
	if err := errors.Join(errClones, errSnapshots); err != nil {
		l.Fatal(err)
	}
	l.run(stop, work, clones.Run)
	l.run(stop, work, snapshots.Run)
}

func (l *life) run(stop, work context.Context, run func(stop, work context.Context) error) {
	l.controllers.Go(func() {
		if err := run(stop, work); err != nil && !l.dead.Load() {
			l.Error(err)
		}
	})
}

// over lets a dead process reach nobody, and faults be played.
func (l *life) over(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		l.mu.Lock()
		fault, after := l.fault, l.after
		l.mu.Unlock()
		if l.dead.Load() {
			return nil, errors.New("this process is dead")
		}
		if fault != nil {
			if response := fault(r); response != nil {
				return response, nil
			}
		}
		response, err := next.RoundTrip(r)
		if err == nil && after != nil {
			after(r, response)
		}
		return response, err
	})
}

// faults plays an API server that answers code to the requests that are like that; none when like is nil.
func (l *life) faults(code int32, reason metav1.StatusReason, like func(*http.Request) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = func(r *http.Request) *http.Response {
		if like == nil || !like(r) {
			return nil
		}
		body, err := json.Marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: "played " + string(reason),
		})
		if err != nil {
			panic(err)
		}
		return &http.Response{
			StatusCode: int(code), Status: http.StatusText(int(code)), Request: r,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}
	}
}

// afterwards is told of each answer.
func (l *life) afterwards(after func(*http.Request, *http.Response)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = after
}

// on says whether a request is of the method and about one object, or the collection, of the resource.
func on(method, resource string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == method && (path.Base(r.URL.Path) == resource || path.Base(path.Dir(r.URL.Path)) == resource)
	}
}

// kill ends the process as SIGKILL does. It may be called more than once.
func (l *life) kill() {
	l.dead.Store(true)
	l.killing()
	l.controllers.Wait()
	l.rest.Wait()
}

// term ends the process as SIGTERM does, and fails when the drain does not end.
func (l *life) term() {
	l.Helper()
	l.stopping()
	done := make(chan struct{})
	go func() { l.controllers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		l.Fatalf("the stop takes longer than %s", patience)
	}
	l.kill()
}

// sum returns the sum of a counter over its labels.
func (l *life) sum(metric string) float64 {
	return counted(l.T, &instance{registry: l.registry}, metric)
}

// started waits until n calls of the method have begun, ended until they have ended.
func (g *ground) started(method string, n int) []memdriver.Call {
	g.Helper()
	return g.waitCalls(g.driver.WaitStarted, method, n)
}

func (g *ground) ended(method string, n int) []memdriver.Call {
	g.Helper()
	return g.waitCalls(g.driver.WaitEnded, method, n)
}

func (g *ground) waitCalls(wait func(context.Context, string, int) ([]memdriver.Call, error), method string, n int) []memdriver.Call {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), patience)
	defer cancel()
	calls, err := wait(ctx, method, n)
	if err != nil {
		g.Fatal(err)
	}
	return calls
}

// creates and deletes return how many calls have begun.
func (g *ground) creates() int { return len(g.driver.Calls("CreateVolume")) }
func (g *ground) deletes() int { return len(g.driver.Calls("DeleteVolume")) }

// ours is a claim that is for the driver already: no test waits for kube-controller-manager to say so, and nothing is
// left for it to change.
func (g *ground) ours(name string) *fixture.ClaimBuilder {
	return g.claim(name).For(g.ns).Annotation(wellknown.AnnBetaStorageProvisioner, g.ns)
}

// processes counts what records operations, so that each has an identity of its own.
var processes atomic.Int64

// operationsIn describes how one more process of the driver, on that node in node deployment, records operations.
func operationsIn(namespace, driver, node string, c *cluster.Clients, exclusive bool) *operations.Config {
	return &operations.Config{
		Leases: c.Lease.CoordinationV1().Leases(namespace), Rights: cluster.NewNamespacedAccess(c.Background, coordinationv1.Resource("leases"), namespace),
		LeaseName: process.LeaseName(driver), Driver: driver, Node: node, Identity: fmt.Sprint("process-", processes.Add(1)), Exclusive: exclusive,
	}
}

// recorded reports whether a Lease says the operation of a claim of that name.
func (g *ground) recorded(name string) bool {
	g.Helper()
	return g.leaseOf(name) != nil
}

// leaseOf returns the Lease that says the operation of a claim of that name, nil for none.
func (g *ground) leaseOf(name string) *coordinationv1.Lease {
	g.Helper()
	records, err := operations.List(g.Context(), *operationsIn(g.ns, g.ns, "", g.clients, true))
	if err != nil {
		g.Fatal(err)
	}
	for _, record := range records {
		if record.Err != nil {
			g.Fatalf("Lease %s: %v", record.Lease.Name, record.Err)
		}
		if record.Operation.Claim.Name == name {
			return record.Lease
		}
	}
	return nil
}

// clean waits until the site has no claim, no volume and no PersistentVolume any more.
func (g *ground) clean() {
	g.Helper()
	var left string
	defer func() {
		if g.Failed() {
			g.Log("left: " + left)
		}
	}()
	eventually(g.T, "nothing is left", func() bool {
		claims, err := g.clients.Core.CoreV1().PersistentVolumeClaims(g.ns).List(g.Context(), metav1.ListOptions{})
		if err != nil {
			g.Fatal(err)
		}
		var names []string
		for _, claim := range claims.Items {
			names = append(names, claim.Name+" "+strings.Join(claim.Finalizers, ","))
		}
		pvs := g.pvs()
		left = strings.Join(names, " ") + "; PersistentVolumes " + strings.Join(pvs, " ")
		return len(claims.Items)+len(pvs)+len(g.driver.Volumes()) == 0
	})
}

// pvs returns the names of the PersistentVolumes of the driver.
func (g *ground) pvs() []string {
	g.Helper()
	list, err := g.clients.Core.CoreV1().PersistentVolumes().List(g.Context(), metav1.ListOptions{})
	if err != nil {
		g.Fatal(err)
	}
	var names []string
	for _, pv := range list.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == g.ns {
			names = append(names, pv.Name)
		}
	}
	return names
}

func (g *ground) createPV(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	g.Helper()
	created, err := g.clients.Core.CoreV1().PersistentVolumes().Create(g.Context(), pv, metav1.CreateOptions{})
	if err != nil {
		g.Fatal(err)
	}
	return created
}

func (g *ground) deletePV(name string) {
	g.Helper()
	if err := g.clients.Core.CoreV1().PersistentVolumes().Delete(g.Context(), name, metav1.DeleteOptions{}); err != nil {
		g.Fatal(err)
	}
}
