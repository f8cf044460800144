package operations

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

const testDriver = "csi.example.com"

// operation returns a small operation for a claim.
func operation(uid string) Operation {
	name := "pvc-" + uid
	return Operation{
		Driver: testDriver, VolumeName: name,
		Claim:   Object{Namespace: "team", Name: "claim-" + uid, UID: types.UID(uid)},
		Class:   Object{Name: "fast", UID: "class-uid"},
		Request: &csi.CreateVolumeRequest{Name: name, Parameters: map[string]string{"tier": "gold"}},
		Secrets: volume.SecretRefs{Provisioner: &corev1.SecretReference{Namespace: "storage", Name: "key"}},
		PersistentVolume: PersistentVolume{
			Provisioner: testDriver, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
}

// process is one process with a Store, and what its listener has heard.
type process struct {
	*Store
	t      *testing.T
	rights *rights
	stop   func()

	mu        sync.Mutex
	changes   []types.UID
	recovered []Operation
	reported  []string
}

func (p *process) Changed(claim types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes = append(p.changes, claim)
}

func (p *process) Recovered(op Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recovered = append(p.recovered, op)
}

func (p *process) Reported(lease *coordinationv1.Lease, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reported = append(p.reported, lease.Name+": "+reason.Error())
}

// changed returns the claims that have changed since the last call.
func (p *process) changed() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.changes
	p.changes = nil
	return c
}

// took returns the claims of the operations that were recovered since the last call, sorted.
func (p *process) took() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var uids []types.UID
	for _, op := range p.recovered {
		uids = append(uids, op.Claim.UID)
	}
	p.recovered = nil
	slices.Sort(uids)
	return uids
}

// start runs a process; it ends with the test. change, nil for nothing, changes its configuration.
func start(t *testing.T, a *api, identity string, change func(*Config)) *process {
	t.Helper()
	p := &process{t: t, rights: &rights{denied: map[string]bool{}}}
	cfg := Config{
		Leases: a, Rights: p.rights, LeaseName: "csi-example-com", Driver: testDriver, Identity: identity, Exclusive: true, Listener: p,
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if p.Store, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	_, base := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(base)
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	p.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(p.stop)
	return p
}

// want fails the test unless Begin returns the state for the claim.
func (p *process) want(uid string, want State) {
	p.t.Helper()
	if got := p.Begin(operation(uid)); got.State != want {
		p.t.Errorf("claim %s: state %d (%v), want %d", uid, got.State, got.Err, want)
	}
}

// begin begins an operation and waits until it is recorded.
func (p *process) begin(uid string) {
	p.t.Helper()
	p.Begin(operation(uid))
	synctest.Wait()
	p.want(uid, Recorded)
}

func (a *api) wantSaid(t *testing.T, want map[string]string) {
	t.Helper()
	if got := a.says(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the Leases say %v, want %v", got, want)
	}
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d) // in a bubble
	synctest.Wait()
}
