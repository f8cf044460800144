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
	against                string // another program to compare with; empty for none
	rounds                 int    // how often both are measured then
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

// sweep starts a control plane, measures each size on it, and stops it again. Compared with another program, a
// result is that of the last round.
func (b *bench) sweep(ctx context.Context, s sweep) ([]result, []comparison, error) {
	c, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return nil, nil, err
	}
	defer c.Stop()
	counter, err := startProxy(ctx, c.Config(), filepath.Join(c.Dir(), "bench.kubeconfig"))
	if err != nil {
		return nil, nil, err
	}
	defer counter.stop()
	w := &world{cluster: c, proxy: counter, topology: s.Over == overNodes}
	if err := w.createClasses(ctx); err != nil {
		return nil, nil, err
	}
	var results []result
	var comparisons []comparison
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
			return nil, nil, err
		}
		fmt.Fprintf(b.log, "%s: %d, making and deleting %d volumes\n", s.Over, size, n)
		rounds, err := b.inTurn(ctx, w, n)
		if err != nil {
			return nil, nil, fmt.Errorf("%d %s: %w", size, s.Over, err)
		}
		for i := range rounds {
			rounds[i].ours.Over, rounds[i].ours.Size = s.Over, size
		}
		results = append(results, rounds[len(rounds)-1].ours)
		if b.against != "" {
			comparisons = append(comparisons, compare(rounds))
		}
	}
	return results, comparisons, nil
}

// inTurn measures the program once, or in turn with the one to compare with, so that what changes on the machine
// meanwhile meets both.
func (b *bench) inTurn(ctx context.Context, w *world, n int) ([]pair, error) {
	if b.against == "" {
		r, err := b.measure(ctx, b.binary, w, n)
		return []pair{{ours: r}}, err
	}
	rounds := make([]pair, b.rounds)
	for i := range rounds {
		var err error
		if rounds[i].ours, err = b.measure(ctx, b.binary, w, n); err != nil {
			return nil, err
		}
		if rounds[i].other, err = b.measure(ctx, b.against, w, n); err != nil {
			return nil, fmt.Errorf("%s: %w", b.against, err)
		}
	}
	return rounds, nil
}

// measure runs a program for one case.
func (b *bench) measure(ctx context.Context, binary string, w *world, n int) (result, error) {
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
	s, err := b.startSubject(binary, w, dir, driver.Socket())
	if err != nil {
		return result{}, err
	}
	defer s.process.Stop(30 * time.Second)
	return s.measure(ctx, w, n)
}

// startSubject starts the program that is measured.
func (b *bench) startSubject(binary string, w *world, dir, socket string) (*subject, error) {
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
		Name: "csi-provisioner", Path: binary, Args: args, LogFile: filepath.Join(dir, "csi-provisioner.log"),
	})
	if err != nil {
		return nil, err
	}
	return &subject{process: p, address: address}, nil
}
