package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/rest"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/segments"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

const (
	// driverWait is the longest wait for a driver: one that is there answers at once.
	driverWait = 5 * time.Second
	// cachePoll is the pause between two looks whether the caches are in sync.
	cachePoll = 20 * time.Millisecond
)

// explainNow asks the driver who it is, reads the cluster, and has the claim controller explain. What it started
// has ended when it returns, or is about to.
func explainNow(ctx context.Context, cfg explainConfig) (*explainReport, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Wait, fmt.Errorf("no answer within %s (--wait)", cfg.Wait))
	defer cancel()
	config, err := cluster.RESTConfig(ctx, cfg.Kube.address())
	if err != nil {
		return nil, err
	}
	if cfg.Namespace == "" && cfg.PV == "" {
		if cfg.Namespace, err = cluster.Namespace(ctx, cfg.Kube.address()); err != nil {
			return nil, err
		}
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnly{next} })
	api, err := newAPI(config, cfg.Config)
	if err != nil {
		return nil, err
	}
	identity, d, err := meetDriver(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if d != nil {
		defer d.Close()
	}
	r, err := newComponents(ctx, cfg.Config, api, identity)
	if err != nil {
		return nil, err
	}
	controller, err := r.explainer(ctx, d)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	for _, task := range r.background {
		parts.Go(func() { _ = task.run(running) })
	}
	if err := r.awaitCaches(ctx); err != nil {
		return nil, err
	}
	report := &explainReport{Driver: identity, Node: cfg.Node.Name}
	if cfg.PV != "" {
		report.Volume, err = controller.ExplainDeletion(cfg.PV)
	} else {
		report.Claim, err = controller.ExplainClaim(ctx, cfg.Namespace, cfg.Claim)
	}
	return report, err
}

// meetDriver returns who the driver is, and the driver itself when it was asked.
func meetDriver(ctx context.Context, cfg explainConfig) (driver.Identity, *driver.Driver, error) {
	if cfg.Driver.Name != "" {
		return cfg.Driver, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, driverWait)
	defer cancel()
	d, err := driver.Connect(ctx, driverConfig(cfg.Config))
	if err != nil {
		return driver.Identity{}, nil, fmt.Errorf("%w; where the driver's socket cannot be reached, give --driver and --capabilities", err)
	}
	return d.Identity(), d, nil
}

// explainer builds the claim controller as the sidecar does, with nothing that it could call. d is nil when the driver
// was not asked.
func (r *components) explainer(ctx context.Context, d *driver.Driver) (*provision.Controller, error) {
	there, err := cluster.HasKind(ctx, r.api.clients.Core.Discovery(), "storage.k8s.io/v1", "VolumeAttributesClass")
	if err != nil {
		return nil, err
	}
	node, err := r.explainedNode(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := r.watchTopology(); err != nil {
		return nil, err
	}
	p := r.provisionConfig(ctx)
	p.Driver, p.Node, p.Operations = notCalled{}, node, r.operationsConfig()
	gates := r.cfg.Gates
	p.WantsVAC = func() bool { return gates.VolumeAttributesClass && (there || gates.VolumeAttributesClassSet) }
	return provision.New(p)
}

// explainedNode is the node of this deployment as its driver reports it or, when the driver cannot be asked, as it has
// once told the kubelet; nil in central mode.
func (r *components) explainedNode(ctx context.Context, d *driver.Driver) (*provision.NodeDeployment, error) {
	if !r.cfg.Node.Enabled {
		return nil, nil //nolint:nilnil // central mode
	}
	if d != nil {
		return r.serveNode(ctx, d.Identity().Node, d)
	}
	index, err := segments.New(segments.Config{Driver: r.name, Client: r.api.clients.Core, Metadata: r.api.clients.Metadata})
	if err != nil {
		return nil, err
	}
	member, err := index.Live(ctx, r.cfg.Node.Name)
	if err != nil {
		return nil, err
	}
	info, err := infoOf(r.cfg.Node.Name, member)
	if err != nil {
		return nil, err
	}
	return r.serveNode(ctx, info, nil)
}

// infoOf returns what the driver must have told the kubelet of the node.
func infoOf(node string, m topology.Member) (*csi.NodeGetInfoResponse, error) {
	if len(m.Keys) == 0 && m.Registered {
		return &csi.NodeGetInfoResponse{}, nil
	}
	segment, err := m.Select(node)
	if err != nil {
		return nil, fmt.Errorf("the topology of node %q, which the driver is not asked for: %w", node, err)
	}
	return &csi.NodeGetInfoResponse{AccessibleTopology: &csi.Topology{Segments: segment.Map()}}, nil
}

// awaitCaches returns when all that counts has been read, or with what cannot be.
func (r *components) awaitCaches(ctx context.Context) error {
	for !r.informers.Synced() {
		if err := r.informers.Refused(); err != nil {
			return fmt.Errorf("not everything that counts may be read: %w", err)
		}
		select {
		case <-time.After(cachePoll):
		case <-ctx.Done():
			return r.informers.WaitForSync(ctx) // says what is missing
		}
	}
	return nil
}

// errNotCalled is for what must not happen while explaining.
var errNotCalled = errors.New("explain makes no call")

// notCalled is the driver of a controller that only explains.
type notCalled struct{}

func (notCalled) CreateVolume(context.Context, *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return nil, errNotCalled
}

func (notCalled) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) error { return errNotCalled }

// readOnly lets nothing through to the API server but reads: a mistake in here must not change a cluster.
type readOnly struct{ next http.RoundTripper }

// RoundTrip refuses everything that could write.
func (r readOnly) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return nil, fmt.Errorf("%s %s: explain only reads", request.Method, request.URL.Path)
	}
	return r.next.RoundTrip(request)
}

// WrappedRoundTripper shows client-go what is inside.
func (r readOnly) WrappedRoundTripper() http.RoundTripper { return r.next }
