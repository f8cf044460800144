package cluster

import (
	"errors"
	"fmt"

	snapclientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1beta1"
)

// ClientConfig describes the clients. The zero value of a Limits takes the default that its field names.
type ClientConfig struct {
	// Version of this program, for the user agent. "" means unknown.
	Version string
	// Provisioning limits the core, snapshot and gateway clients, each in a bucket of its own; --kube-api-qps and
	// --kube-api-burst. Default: that of FleetLimits.
	Provisioning Limits
	// Capacity limits the capacity client and the owner walk; --kube-api-capacity-qps and -burst. Default: that of FleetLimits.
	Capacity Limits
	// Events limits the writing of events. Default: the higher of Provisioning and 20 and 100; events are small,
	// and what waits here waits nowhere else.
	Events Limits
}

// Clients are the ways to the API server, by purpose. Each has its own rate limit and none waits for another.
// They may be used concurrently.
type Clients struct {
	// Core is for everything built in: reads, watches, and the writes of claims and PersistentVolumes.
	Core kubernetes.Interface
	// Events only writes events.
	Events kubernetes.Interface
	// Lease is for the Leases of leaders and operations, and the events about them; it is not limited.
	Lease kubernetes.Interface
	// Background is for what runs beside provisioning: finalizers of PersistentVolumes that are there, the clean-up after
	// nodes, and questions about rights. It takes nothing from the limits of Core; its own are those of backgroundLimits.
	Background kubernetes.Interface
	// Capacity is for CSIStorageCapacity objects.
	Capacity kubernetes.Interface
	// Metadata reads Nodes and the owners of our pod, of each only the metadata; it has limits like those of Core.
	Metadata metadata.Interface
	// Snapshot is for VolumeSnapshots and their contents.
	Snapshot snapclientset.Interface
	// Gateway is for ReferenceGrants.
	Gateway gatewayclient.GatewayV1beta1Interface
}

// backgroundLimits are those of the background client, whatever the flags say.
var backgroundLimits = Limits{QPS: 5, Burst: 10}

const contentTypeProtobuf = "application/vnd.kubernetes.protobuf"

// NewClients makes the clients. It makes no request and does not change cfg. The error names every limit that is wrong.
func NewClients(cfg *rest.Config, clients ClientConfig) (*Clients, error) {
	if cfg == nil {
		return nil, errNoConfig
	}
	clients = clients.withDefaults()
	if err := errors.Join(
		wrapLimits("provisioning client", clients.Provisioning), wrapLimits("capacity client", clients.Capacity),
		wrapLimits("event client", clients.Events),
	); err != nil {
		return nil, err
	}
	unlimited := Limits{QPS: -1}
	c := &Clients{}
	for _, client := range []struct {
		name   string
		into   *kubernetes.Interface
		limits Limits
		writes int // how many may be under way; zero for no bound
	}{
		{"core", &c.Core, clients.Provisioning, maxWrites},
		{"event", &c.Events, clients.Events, 0},
		{"lease", &c.Lease, unlimited, 0},
		{"background", &c.Background, backgroundLimits, 0},
		{"capacity", &c.Capacity, clients.Capacity, 0},
	} {
		config := limited(cfg, clients.Version, client.limits, contentTypeProtobuf)
		if client.writes > 0 {
			config.Wrap(boundTo(client.writes))
		}
		made, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("%s client: %w", client.name, err)
		}
		*client.into = made
	}
	// Custom resources and metadata of any kind are served as JSON.
	json := func(limits Limits) *rest.Config {
		return limited(cfg, clients.Version, limits, runtime.ContentTypeJSON)
	}
	var err error
	if c.Metadata, err = metadata.NewForConfig(json(clients.Provisioning)); err != nil {
		return nil, fmt.Errorf("metadata client: %w", err)
	}
	if c.Snapshot, err = snapclientset.NewForConfig(json(clients.Provisioning)); err != nil {
		return nil, fmt.Errorf("snapshot client: %w", err)
	}
	if c.Gateway, err = gatewayclient.NewForConfig(json(clients.Provisioning)); err != nil {
		return nil, fmt.Errorf("gateway client: %w", err)
	}
	return c, nil
}

func wrapLimits(name string, l Limits) error {
	if err := l.validate(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (c ClientConfig) withDefaults() ClientConfig {
	orDefault := func(l *Limits, limits Limits) {
		if *l == (Limits{}) {
			*l = limits
		}
		if l.QPS == 0 {
			l.QPS = 5
		}
	}
	orDefault(&c.Provisioning, FleetLimits.Provisioning)
	orDefault(&c.Capacity, FleetLimits.Capacity)
	if c.Events == (Limits{}) && c.Provisioning.QPS < 0 {
		c.Events = Limits{QPS: -1}
	}
	orDefault(&c.Events, Limits{QPS: max(c.Provisioning.QPS, 20), Burst: max(c.Provisioning.Burst, 100)})
	return c
}

// limited returns a copy of cfg with one bucket for all API groups of the client that is made from it.
func limited(cfg *rest.Config, version string, limits Limits, contentType string) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.UserAgent = UserAgent(version)
	c.QPS, c.Burst = limits.QPS, limits.Burst
	if limits.QPS < 0 {
		c.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	} else {
		c.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(limits.QPS, limits.Burst)
	}
	c.ContentType = contentType
	if contentType == contentTypeProtobuf {
		c.AcceptContentTypes = contentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return c
}
