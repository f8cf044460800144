package memdriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Driver is the driver with its volumes and its record. Its methods may be called concurrently, except that
// Start, Stop and Restart are for one caller at a time.
type Driver struct {
	mu      sync.Mutex
	cfg     Config
	store   store
	rules   []*active
	calls   []Call
	seq     int              // of the newest call
	running map[string][]int // key → calls that have not ended
	busy    map[string]int   // name → call that works on it, also after its caller has left
	changed chan struct{}    // closed and replaced at each change

	observing sync.Mutex // keeps Observe to one call at a time

	registered bool  // kubelet has taken the driver
	refusal    error // of kubelet

	server   *grpc.Server
	registry *grpc.Server       // nil without Config.Registration
	stopping context.CancelFunc // ends what runs in this life of the driver
	life     context.Context    //nolint:containedctx // the life is what the context stands for
	workers  sync.WaitGroup
}

// New checks cfg and returns a driver that is not serving yet.
func New(cfg Config) (*Driver, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	store, err := load(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("memdriver: %w", err)
	}
	return &Driver{
		cfg:     cfg,
		store:   store,
		running: map[string][]int{},
		busy:    map[string]int{},
		changed: make(chan struct{}),
	}, nil
}

// Start serves the socket and returns when it can be dialled. A socket file that is left over is replaced.
func (d *Driver) Start() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server != nil {
		return errors.New("memdriver: already started")
	}
	if err := os.Remove(d.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("memdriver: remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", d.cfg.Socket)
	if err != nil {
		return fmt.Errorf("memdriver: %w", err)
	}
	if d.registry, err = d.startRegistrar(); err != nil {
		return errors.Join(err, listener.Close())
	}
	//nolint:gosec // Stop calls it
	d.life, d.stopping = context.WithCancel(context.Background())
	d.server = grpc.NewServer(grpc.UnaryInterceptor(d.intercept), grpc.WaitForHandlers(true))
	csi.RegisterIdentityServer(d.server, &identity{d: d})
	csi.RegisterControllerServer(d.server, &controller{d: d})
	csi.RegisterNodeServer(d.server, &node{d: d})
	server := d.server
	d.workers.Go(func() { _ = server.Serve(listener) })
	return nil
}

// Stop ends the driver as a kill does: connections break, and work that had not begun is never done. It
// returns when nothing runs any more. Volumes, snapshots, rules and the record stay.
func (d *Driver) Stop() {
	d.mu.Lock()
	server, registry, stopping := d.server, d.registry, d.stopping
	d.server, d.registry = nil, nil
	d.mu.Unlock()
	if server == nil {
		return
	}
	stopping()
	if registry != nil {
		registry.Stop()
	}
	server.Stop()
	d.workers.Wait()
}

// Restart is Stop and Start on the same socket; nothing is forgotten.
func (d *Driver) Restart() error {
	d.Stop()
	return d.Start()
}

// Forget drops all volumes and snapshots, but not what they hold below Config.Dir; ids are not used again. The record stays.
func (d *Driver) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.store = newStore(d.store.made)
	d.notify()
}

// Change edits the configuration; the next call sees it. A changed Socket is used by the next Start.
// What a client has asked before (name, capabilities) it will notice only when it asks again.
func (d *Driver) Change(edit func(*Config)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	edit(&d.cfg)
}

// Add puts rules in force, above those that are there. remove takes them out again; calls that
// already follow them go on.
func (d *Driver) Add(rules ...Rule) (remove func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	added := make([]*active, 0, len(rules))
	for _, rule := range rules {
		added = append(added, &active{Rule: rule, left: rule.Times})
	}
	d.rules = append(slices.Clone(added), d.rules...)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.rules = slices.DeleteFunc(d.rules, func(rule *active) bool { return slices.Contains(added, rule) })
	}
}

// ClearRules takes out all rules.
func (d *Driver) ClearRules() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = nil
}

// Name is the plugin name.
func (d *Driver) Name() string { return d.config().Name }

// Socket is the path of the socket.
func (d *Driver) Socket() string { return d.config().Socket }

func (d *Driver) config() Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg
}

// Volumes returns the volumes that exist, sorted by id.
func (d *Driver) Volumes() []Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.store.listVolumes()
}

// Snapshots returns the snapshots that exist, sorted by id.
func (d *Driver) Snapshots() []SnapshotOf {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.store.listSnapshots()
}

// Calls returns the record in the order the calls began: those of the named methods, or all without a name.
func (d *Driver) Calls(methods ...string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []Call{}
	for _, call := range d.calls {
		if len(methods) == 0 || slices.Contains(methods, call.Method) {
			list = append(list, call)
		}
	}
	return list
}

// ForgetCalls drops the record of the calls that have ended.
func (d *Driver) ForgetCalls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = slices.DeleteFunc(d.calls, Call.Ended)
}

// WaitFor returns as soon as reached is true, asking again after each change of the record, the volumes or
// the snapshots; an error only when ctx has ended. reached may call the Driver's accessors.
func (d *Driver) WaitFor(ctx context.Context, reached func() bool) error {
	for {
		d.mu.Lock()
		changed := d.changed
		d.mu.Unlock()
		if reached() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("memdriver: wait: %w", context.Cause(ctx))
		}
	}
}

// WaitStarted waits until n calls of the method have begun and returns all of them.
func (d *Driver) WaitStarted(ctx context.Context, method string, n int) ([]Call, error) {
	var calls []Call
	err := d.WaitFor(ctx, func() bool {
		calls = d.Calls(method)
		return len(calls) >= n
	})
	if err != nil {
		return calls, fmt.Errorf("%d of %d calls of %s have begun: %w", len(calls), n, method, err)
	}
	return calls, nil
}

// WaitEnded waits until n calls of the method have ended and returns those.
func (d *Driver) WaitEnded(ctx context.Context, method string, n int) ([]Call, error) {
	var calls []Call
	err := d.WaitFor(ctx, func() bool {
		calls = slices.DeleteFunc(d.Calls(method), func(call Call) bool { return !call.Ended() })
		return len(calls) >= n
	})
	if err != nil {
		return calls, fmt.Errorf("%d of %d calls of %s have ended: %w", len(calls), n, method, err)
	}
	return calls, nil
}

// WaitVolumes waits until exactly n volumes exist.
func (d *Driver) WaitVolumes(ctx context.Context, n int) error {
	if err := d.WaitFor(ctx, func() bool { return len(d.Volumes()) == n }); err != nil {
		return fmt.Errorf("%d volumes, want %d: %w", len(d.Volumes()), n, err)
	}
	return nil
}

// notify wakes those who wait; the lock is held.
func (d *Driver) notify() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// TB is what Serve needs of testing.TB.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Serve starts a driver for a test on a socket of its own and stops it when the test ends.
func Serve(t TB, cfg Config) *Driver {
	t.Helper()
	if cfg.Socket == "" {
		// A test's own directory may be too long for the path of a socket.
		dir, err := os.MkdirTemp("", "memdriver")
		if err != nil {
			t.Fatalf("socket directory: %v", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		cfg.Socket = dir + "/csi.sock"
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := d.Start(); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(d.Stop)
	return d
}
