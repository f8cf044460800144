package main

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
)

// api is everything that talks to the API server.
type api struct {
	config  *rest.Config
	clients *cluster.Clients
	tracer  *trace.Tracer // sees the requests, and what else is traced; nil when nothing is
}

// reachAPI reads the configuration and makes the clients; nothing is asked yet.
func reachAPI(ctx context.Context, cfg Config) (*api, error) {
	config, err := cluster.RESTConfig(ctx, cfg.Kube.address())
	if err != nil {
		return nil, err
	}
	tracer, err := newTracer(ctx, config, cfg)
	if err != nil {
		return nil, err
	}
	a, err := newAPI(config, cfg)
	if err != nil {
		return nil, err
	}
	a.tracer = tracer
	return a, nil
}

// newTracer makes the tracer and lets it see the requests of the clients that are made of config; nil when no traces
// are wanted.
func newTracer(ctx context.Context, config *rest.Config, cfg Config) (*trace.Tracer, error) {
	if cfg.Traces == nil {
		return nil, nil //nolint:nilnil // not wanted
	}
	tracer, err := trace.New(ctx, *cfg.Traces)
	if err != nil {
		return nil, err
	}
	config.Wrap(tracer.Transport)
	return tracer, nil
}

func newAPI(config *rest.Config, cfg Config) (*api, error) {
	clients, err := cluster.NewClients(config, cluster.ClientConfig{
		Version:      cfg.Version,
		Provisioning: cluster.Limits{QPS: cfg.Kube.QPS, Burst: cfg.Kube.Burst},
		Capacity:     cluster.Limits{QPS: cfg.Capacity.QPS, Burst: cfg.Capacity.Burst},
	})
	if err != nil {
		return nil, err
	}
	return &api{config: config, clients: clients}, nil
}

// driverConfig says how to reach the driver; nobody watches the calls.
func driverConfig(cfg Config) driver.Config {
	return driver.Config{
		Address: cfg.Driver.Address, Timeout: cfg.Driver.Timeout, Timeouts: cfg.Driver.Timeouts, Migrated: migrated, Node: cfg.Node.Enabled,
	}
}
