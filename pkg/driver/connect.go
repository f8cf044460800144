package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// probeEvery is the pause between probes of a driver that is not ready.
const probeEvery = time.Second

var (
	// errNotYet marks the answers of a driver that is there and not ready.
	errNotYet = errors.New("the CSI driver is not ready")
	// errRestarted means that the driver went away while it was being looked at.
	errRestarted = errors.New("the CSI driver closed the connection before it could be asked who it is")
)

// Config describes the connection.
type Config struct {
	// Address is the socket: an absolute path, or unix:// and an absolute path. Required; --csi-address.
	Address string
	// Timeout is the deadline of each call. Required, above zero; --timeout.
	Timeout time.Duration
	// Timeouts are the deadlines of calls that have one of their own.
	Timeouts Timeouts
	// AwayLimit is how long the driver may be away before Supervise gives up. Zero means for ever.
	AwayLimit time.Duration
	// MayGiveUp is asked whenever the driver was away for another AwayLimit; false means to go on waiting. It must not
	// block. Nil means yes.
	MayGiveUp func() bool
	// Migrated tells whether a driver of this name serves the volumes of an in-tree plugin. Then it is
	// probed a second time after its name is known, and the call metrics carry the label "migrated".
	// Nil means that none does.
	Migrated func(driverName string) bool
	// Node asks the driver about its node as well (NodeGetInfo); its topology then belongs to its identity. For node
	// deployment.
	Node bool
	// Metrics, if not nil, gets a sample for each call.
	Metrics *Metrics
	// MayCall is asked immediately before each call that makes, deletes or measures volumes is sent; an error keeps the call
	// from being sent. It must not block. Nil means that there is nothing to ask: without a leader everybody may call.
	MayCall func() error
	// Intercept, if not nil, is around each call and sees its error without secrets.
	Intercept grpc.UnaryClientInterceptor

	// dial opens the socket. Tests replace it; nil means the real thing.
	dial func(ctx context.Context, path string) (net.Conn, error)
}

// Driver is the connected driver. Its methods may be called concurrently, except Supervise and Close.
type Driver struct {
	cfg      Config
	path     string
	identity Identity

	// mu guards what follows.
	mu sync.Mutex
	// link is the connection, also a lost one until the next is there.
	link *link
	// back is nil while the driver is there; while it is away, it is closed when the driver returns.
	back chan struct{}
	// wait is the wait for its return, or the last one.
	wait *patience
	// hooks are called when the driver has returned.
	hooks []func()
}

// Connect waits for the driver and learns who it is. It waits without limit for the socket and for the
// driver to call itself ready, with at most one log line every ten seconds; the end of ctx ends that. It
// returns an error at once when cfg is unusable, when the driver answers its first questions with an error
// or without a name, and when a probe fails with anything but "not yet".
// Call Supervise afterwards, and Close when all calls have ended.
func Connect(ctx context.Context, cfg Config) (*Driver, error) {
	path, err := socketPath(cfg.Address)
	if err != nil {
		return nil, err
	}
	if cfg.Timeout <= 0 {
		return nil, fmt.Errorf("timeout %s of CSI calls must be above zero", cfg.Timeout)
	}
	if cfg.dial == nil {
		cfg.dial = dialUnix
	}
	if cfg.Migrated == nil {
		cfg.Migrated = func(string) bool { return false }
	}
	d := &Driver{cfg: cfg, path: path}
	d.link, d.identity, err = d.establish(ctx, newPatience(cfg.Address), d.meet)
	if err != nil {
		return nil, err
	}
	cfg.Metrics.setConnected(true)
	klog.FromContext(ctx).Info("Connected to the CSI driver", "driver", d.identity.Name, "address", cfg.Address,
		"pluginCapabilities", names(d.identity.Plugin), "controllerCapabilities", names(d.identity.Controller))
	return d, nil
}

// Identity returns who the driver is; it stays the same for the life of d.
func (d *Driver) Identity() Identity { return d.identity }

// Close ends the connection when the last call has ended. Supervise must have returned.
func (d *Driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.link.retire()
}

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// establish connects and asks the questions in ask until they are answered. It starts over when the
// driver goes away meanwhile, and returns any other error.
func (d *Driver) establish(ctx context.Context, wait *patience, ask questions) (*link, Identity, error) {
	for redial := firstRedial; ; redial = min(2*redial, maxRedial) {
		l, err := d.open(ctx)
		if err == nil {
			var identity Identity
			if identity, err = ask(ctx, l, wait); err == nil {
				return l, identity, nil
			}
			l.retire()
			if ctx.Err() == nil && !errors.Is(err, errRestarted) {
				return nil, Identity{}, fmt.Errorf("CSI driver at %q: %w", d.cfg.Address, err)
			}
		}
		if ctx.Err() == nil {
			wait.setback(ctx, err)
		}
		if !pause(ctx, redial) {
			return nil, Identity{}, wait.ended(ctx)
		}
	}
}

// open makes one attempt to connect.
func (d *Driver) open(ctx context.Context) (*link, error) {
	raw, err := d.cfg.dial(ctx, d.path)
	if err != nil {
		return nil, osError(err)
	}
	interceptors := []grpc.UnaryClientInterceptor{logCalls, d.cfg.Metrics.intercept}
	if d.cfg.Intercept != nil {
		interceptors = append([]grpc.UnaryClientInterceptor{d.cfg.Intercept}, interceptors...)
	}
	return newLink(ctx, raw, interceptors...)
}

// osError strips what the log line says anyway: the network and the address.
func osError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}

// questions are what is asked of a driver over a new connection.
type questions func(ctx context.Context, l *link, wait *patience) (Identity, error)

// meet asks a driver that is new to us.
func (d *Driver) meet(ctx context.Context, l *link, wait *patience) (Identity, error) {
	if err := d.probe(ctx, l, wait); err != nil {
		return Identity{}, err
	}
	name, err := d.askName(ctx, l)
	if err != nil {
		return Identity{}, err
	}
	migrated := d.cfg.Migrated(name)
	d.cfg.Metrics.setDriver(name, migrated)
	if migrated {
		klog.FromContext(ctx).V(2).Info("The CSI driver serves the volumes of an in-tree plugin", "driver", name)
		if err := d.probe(ctx, l, wait); err != nil {
			return Identity{}, err
		}
	}
	return d.askRest(ctx, l, name)
}

// probe asks until the driver is ready.
func (d *Driver) probe(ctx context.Context, l *link, wait *patience) error {
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		resp, err := ask(ctx, d, l, l.identity.Probe, &csi.ProbeRequest{})
		switch {
		case err == nil && (resp.GetReady() == nil || resp.GetReady().GetValue()):
			return nil
		case err == nil:
			wait.setback(ctx, errNotYet)
		case ctx.Err() == nil && notYet(err):
			wait.setback(ctx, fmt.Errorf("%w: %w", errNotYet, err))
		default:
			return fmt.Errorf("probe: %w", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// notYet reports whether err says that the same question may get an answer later.
func notYet(err error) bool {
	switch status.Code(err) { //nolint:exhaustive // the rest is an answer
	case codes.Unavailable, codes.Aborted, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

func (d *Driver) askName(ctx context.Context, l *link) (string, error) {
	resp, err := ask(ctx, d, l, l.identity.GetPluginInfo, &csi.GetPluginInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("ask for its name: %w", err)
	}
	if resp.GetName() == "" {
		return "", errors.New("ask for its name: the name is empty")
	}
	return resp.GetName(), nil
}

// askRest asks for what belongs to the identity beside the name.
func (d *Driver) askRest(ctx context.Context, l *link, name string) (Identity, error) {
	plugin, err := ask(ctx, d, l, l.identity.GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return Identity{}, fmt.Errorf("ask %q for its plugin capabilities: %w", name, err)
	}
	controller, err := ask(ctx, d, l, l.controller.ControllerGetCapabilities, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return Identity{}, fmt.Errorf("ask %q for its controller capabilities: %w", name, err)
	}
	identity := Identity{Name: name, Plugin: pluginSet(plugin), Controller: controllerSet(controller)}
	if d.cfg.Node {
		if identity.Node, err = ask(ctx, d, l, l.node.NodeGetInfo, &csi.NodeGetInfoRequest{}); err != nil {
			return Identity{}, fmt.Errorf("ask %q about its node: %w", name, err)
		}
	}
	return identity, nil
}
