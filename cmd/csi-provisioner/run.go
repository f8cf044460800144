package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // the workqueue_* families
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
)

// flushEvents is how long a stop that somebody asked for waits for events that are not written yet. After a
// failure there is less time: somebody waits for this process to end.
const (
	flushEvents        = 3 * time.Second
	flushEventsFailing = 500 * time.Millisecond
)

// run does the work until ctx ends. It starts, in this order, and stops in reverse: traces, the diagnostics server,
// events, the driver's watch, caches, and then, with a lease or without, the controllers. It returns nil after
// a stop that somebody asked for, and else what went wrong.
func run(ctx context.Context, cfg Config) error {
	api, err := reachAPI(ctx, cfg)
	if err != nil {
		return err
	}
	group, ctx := process.NewGroup(ctx)
	if api.tracer != nil {
		group.Go(ctx, "traces", api.tracer.Run)
	}
	s := &startup{cfg: cfg, group: group, api: api}
	if err := s.start(ctx); err != nil {
		return group.Stop(err)
	}
	return group.Wait()
}

// startup brings the components up, one after the other.
type startup struct {
	cfg   Config
	group *process.Group
	api   *api
	http  *process.HTTP // nil when nobody asked for one
	// leader is nil before its election begins, and without one.
	leader atomic.Pointer[process.Leader]
}

// start returns when everything runs, or with the error that ended it. Each step may rely on those before it.
func (s *startup) start(ctx context.Context) error {
	calls, registry := driver.NewMetrics(), prometheus.NewRegistry()
	if err := registry.Register(loop.Panics()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	if err := s.startHTTP(ctx, legacyregistry.DefaultGatherer, calls.Gatherer(), registry); err != nil {
		return err
	}
	d, err := s.connectDriver(ctx, calls)
	if err != nil {
		return err
	}
	s.addReady("driver", func() error {
		if !d.Ready() {
			return errors.New("the driver is away")
		}
		return nil
	})
	r, err := assemble(ctx, s.cfg, s.api, d, registry)
	if err != nil {
		d.Close()
		return err
	}
	s.addReady("caches", func() error {
		if missing := r.informers.Missing(); len(missing) > 0 {
			return fmt.Errorf("not synced yet: %s", strings.Join(missing, "; "))
		}
		return nil
	})
	s.group.Go(ctx, "events", func(ctx context.Context) error { return writeEvents(ctx, r.events) })
	s.group.Go(ctx, "driver", func(ctx context.Context) error {
		defer d.Close()
		return d.Supervise(ctx)
	})
	for _, task := range r.background {
		s.group.Go(ctx, task.name, task.run)
	}
	if err := r.informers.WaitForSync(ctx); err != nil {
		return err
	}
	return s.startWork(ctx, r)
}

// startHTTP binds the address at once: a mistake there must not wait for the driver.
func (s *startup) startHTTP(ctx context.Context, metrics ...prometheus.Gatherer) (err error) {
	if s.cfg.HTTP.Address == "" {
		return nil
	}
	s.http, err = process.Listen(ctx, process.HTTPConfig{Address: s.cfg.HTTP.Address, MetricsPath: s.cfg.HTTP.MetricsPath, Pprof: s.cfg.HTTP.Pprof})
	if err != nil {
		return err
	}
	s.http.AddMetrics(metrics...)
	// What takes their place comes later; until then the answer is no.
	s.http.AddReady("driver", func() error { return errors.New("not connected yet") })
	s.http.AddReady("caches", func() error { return errors.New("not synced yet") })
	s.group.Go(ctx, "http", s.http.Run)
	return nil
}

// driverAwayLimit is how long a leader waits for its driver to return before a replica gets its chance.
const driverAwayLimit = 30 * time.Second

// connectDriver waits for the driver, without limit.
func (s *startup) connectDriver(ctx context.Context, calls *driver.Metrics) (*driver.Driver, error) {
	return driver.Connect(ctx, s.driverConfig(calls))
}

// driverConfig says how to reach the driver, and when to give it up.
func (s *startup) driverConfig(calls *driver.Metrics) driver.Config {
	c := driverConfig(s.cfg)
	c.Metrics = calls
	if s.cfg.Election.Enabled {
		c.AwayLimit = driverAwayLimit
		c.MayGiveUp = func() bool { // a standby has nothing to give up
			leader := s.leader.Load()
			return leader != nil && leader.Leading()
		}
		c.MayCall = func() error {
			if leader := s.leader.Load(); leader != nil {
				return leader.Holds()
			}
			return errors.New("the election has not begun")
		}
	}
	if s.api.tracer != nil {
		c.Intercept = s.api.tracer.Intercept
	}
	return c
}

func (s *startup) addReady(name string, check func() error) {
	if s.http != nil {
		s.http.AddReady(name, check)
	}
}

// startWork starts the controllers, at once or when the lease is won. All caches are warm by now, so that a
// standby serves from the moment on that it leads.
func (s *startup) startWork(ctx context.Context, r *components) error {
	if !s.cfg.Election.Enabled {
		s.group.Go(ctx, "controllers", func(stop context.Context) error {
			work, release := loop.Drain(stop, s.cfg.Work.DrainTimeout)
			defer release()
			return r.work(stop, work)
		})
		return nil
	}
	leader, err := process.NewLeader(s.leaderConfig(r))
	if err != nil {
		return err
	}
	if s.http != nil {
		s.http.SetElection(leader.Healthy)
	}
	s.addReady("lease", leader.Ready)
	s.leader.Store(leader)
	r.leader = leader
	s.group.Go(ctx, "leader election", func(stop context.Context) error { return leader.Run(stop, r.work) })
	return nil
}

// leaderConfig describes the leader lease. While the driver is away, a standby does not contend for it.
func (s *startup) leaderConfig(r *components) process.LeaderConfig {
	e := s.cfg.Election
	return process.LeaderConfig{
		Leases: s.api.clients.Lease.CoordinationV1(), Lock: r.name, Namespace: e.Namespace, Identity: r.holder.Identity(), Replaces: r.holder.Replaces,
		LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		DrainTimeout: s.cfg.Work.DrainTimeout, Labels: e.Labels, Gate: r.driver.Gate,
		Events: r.events.QuietRecorder(process.EventComponent(r.name, r.holder.Pod())),
	}
}

// writeEvents writes events until ctx ends, and then what is left, within a bound. What cannot be written by then
// is no reason to call a stop a failure.
func writeEvents(ctx context.Context, events *cluster.Events) error {
	writing, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	written := make(chan error, 1)
	go func() { written <- events.Run(writing) }()
	<-ctx.Done()
	bound := flushEventsFailing
	if errors.Is(context.Cause(ctx), process.ErrSignal) {
		bound = flushEvents
	}
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	_ = events.Flush(flushing) // the error of Run says the same, and is the last word
	end()
	if err := <-written; err != nil {
		klog.FromContext(ctx).Error(err, "Events are lost")
	}
	return nil
}
