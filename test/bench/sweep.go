package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// bench is one run of the program.
type bench struct {
	binary, out, args      string
	claims, nodes, foreign sizes
	each                   int
	log                    io.Writer // gets a line for each step
}

// dimension is what a sweep lets grow.
type dimension string

const (
	overClaims  dimension = "claims"
	overNodes   dimension = "nodes"
	overForeign dimension = "foreign claims"
)

// sweep is a series of measurements on one control plane.
type sweep struct {
	Over  dimension
	sizes sizes
}

// caseLimit bounds one measurement; it is there for what hangs.
const caseLimit = 15 * time.Minute

// sweep starts a control plane, measures each size on it, and stops it again.
func (b *bench) sweep(ctx context.Context, s sweep) ([]result, error) {
	c, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	counter, err := startProxy(ctx, c.Config(), filepath.Join(c.Dir(), "bench.kubeconfig"))
	if err != nil {
		return nil, err
	}
	defer counter.stop()
	w := &world{cluster: c, proxy: counter, topology: s.Over == overNodes}
	if err := w.createClasses(ctx); err != nil {
		return nil, err
	}
	var results []result
	for _, size := range s.sizes {
		n := b.each
		switch s.Over {
		case overClaims:
			n = size
		case overNodes:
			err = w.growNodes(ctx, size)
		case overForeign:
			err = w.growForeign(ctx, size)
		}
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(b.log, "%s: %d, making and deleting %d volumes\n", s.Over, size, n)
		r, err := b.measure(ctx, w, n)
		if err != nil {
			return nil, fmt.Errorf("%d %s: %w", size, s.Over, err)
		}
		r.Over, r.Size = s.Over, size
		results = append(results, r)
	}
	return results, nil
}

// measure runs the program for one case.
func (b *bench) measure(ctx context.Context, w *world, n int) (result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, caseLimit, fmt.Errorf("not done after %s", caseLimit))
	defer cancel()
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return result{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // A leftover in the temporary folder harms nobody.
	cfg := memdriver.Config{Name: driverName, Socket: filepath.Join(dir, "csi.sock"), Capabilities: []memdriver.Capability{memdriver.CreateDelete}}
	if w.topology {
		cfg.Topology = map[string]string{topologyKey: nodeName(0)}
	}
	driver, err := memdriver.New(cfg)
	if err != nil {
		return result{}, err
	}
	if err := driver.Start(); err != nil {
		return result{}, err
	}
	defer driver.Stop()
	s, err := b.startSubject(w, dir, driver.Socket())
	if err != nil {
		return result{}, err
	}
	defer s.process.Stop(30 * time.Second)
	return s.measure(ctx, w, n)
}

// startSubject starts the program that is measured.
func (b *bench) startSubject(w *world, dir, socket string) (*subject, error) {
	port, err := cluster.FreePort()
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	args := append([]string{
		"--csi-address=" + socket, "--kubeconfig=" + w.proxy.kubeconfig, "--http-endpoint=" + address,
		"--kube-api-qps=1000", "--kube-api-burst=2000", "--v=2",
	}, strings.Fields(b.args)...)
	p, err := cluster.StartProcess(cluster.Command{
		Name: "csi-provisioner", Path: b.binary, Args: args, LogFile: filepath.Join(dir, "csi-provisioner.log"),
	})
	if err != nil {
		return nil, err
	}
	return &subject{process: p, address: address}, nil
}
