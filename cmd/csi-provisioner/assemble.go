package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/cloneprotect"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/driveraway"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/snapshotprotect"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/pkg/segments"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// components are the assembled program: what runs in the background, and the controllers.
type components struct {
	cfg       Config
	api       *api
	driver    *driver.Driver
	events    *cluster.Events
	informers *cluster.Informers
	index     *segments.Index // nil when no Node is watched
	fixed     *segments.Fixed // nil in central mode
	// name is the driver's, inTree that of the plugin which it replaces, empty for none; has are its services.
	name, inTree string
	has          provision.Capabilities
	// holder is who this process is in leases.
	holder    process.Holder
	provision *provision.Controller
	others    []controller
	// leader is set before the controllers run; nil without leader election.
	leader *process.Leader
	// background is what runs beside the controllers, from before they do until after they have ended.
	background []task
}

// task is something that runs until its context ends.
type task struct {
	name string
	run  func(context.Context) error
}

// forever makes a task of something that cannot fail.
func forever(name string, run func(context.Context)) task {
	return task{name: name, run: func(ctx context.Context) error {
		run(ctx)
		return nil
	}}
}

// controller is what the four controllers have in common.
type controller interface {
	Run(stop, work context.Context) error
}

// gate blocks while no key may be begun: the driver is away, or nobody knows whether we still lead.
func (r *components) gate(ctx context.Context) error {
	if r.leader != nil {
		if err := r.leader.Gate(ctx); err != nil {
			return err
		}
	}
	return r.driver.Gate(ctx)
}

// work runs the controllers until stop ends and their work is done. With a lease it is held by now.
func (r *components) work(stop, work context.Context) error {
	var reading sync.WaitGroup
	reading.Go(func() { r.informers.CatchUp(stop) })
	defer reading.Wait()
	return runAll(stop, work, append([]controller{r.provision}, r.others...))
}

// runAll runs the controllers side by side and returns when all have ended. When one fails, or panics, the others are told
// to stop: a process that does half of its work is not noticed, and whoever comes next does all of it.
func runAll(stop, work context.Context, controllers []controller) error {
	stop, fail := context.WithCancelCause(stop)
	defer fail(context.Canceled)
	errs := make([]error, len(controllers))
	var running sync.WaitGroup
	for i, c := range controllers {
		running.Go(func() {
			if errs[i] = loop.Guard(work, "controllers", func() error { return c.Run(stop, work) }); errs[i] != nil {
				fail(errs[i])
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// assemble builds everything for the driver that was found; nothing runs yet.
func assemble(ctx context.Context, cfg Config, api *api, d *driver.Driver, registry prometheus.Registerer) (*components, error) {
	r, err := newComponents(ctx, cfg, api, d.Identity())
	if err != nil {
		return nil, err
	}
	r.driver = d
	if r.holder, err = process.NewHolder(r.name, cfg.Election.Pod, cfg.Election.PodUID); err != nil {
		klog.FromContext(ctx).V(2).Info("A lease of an earlier process of this pod is taken over only when its duration is over", "reason", err.Error())
	}
	node, err := r.nodeDeployment(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.watchPeers(node); err != nil { //nolint:contextcheck // nothing runs yet; what does later has its own
		return nil, err
	}
	if err := r.watchTopology(); err != nil {
		return nil, err
	}
	observer, err := r.publishCapacity(ctx)
	if err != nil {
		return nil, err
	}
	p := r.provisionConfig(ctx)
	p.Driver, p.WithMigrated, p.CreateTimeout = r.driver, driver.WithMigrated, r.driver.CreateTimeout
	p.Gate, p.MayCall, p.WantsVAC, p.Tracer = r.gate, r.driver.MayCall, r.wantsVAC(), r.api.tracer
	p.Registerer, p.Node, p.Operations = registry, node, r.operationsConfig()
	if observer != nil {
		p.Observer = observer
		r.others = append(r.others, observer)
	}
	if r.provision, err = provision.New(p); err != nil {
		return nil, err
	}
	return r, errors.Join(r.tellOfAbsence(), r.cleanUpNodes(), r.protect())
}

// tellOfAbsence builds the controller that tells of a driver that is away.
func (r *components) tellOfAbsence() error {
	c, err := driveraway.New(driveraway.Config{
		Driver: r.name, Away: r.driver.Away, Waiting: r.provision.Waiting,
		Recorder: r.events.Recorder(cluster.Component(r.name, r.cfg.Hostname)),
		Pod:      &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: r.cfg.PodNamespace, Name: r.holder.Pod()},
	})
	if err != nil {
		return err
	}
	r.others = append(r.others, c)
	return nil
}

// newComponents begins with what depends on no more than who the driver is: its caches.
func newComponents(ctx context.Context, cfg Config, api *api, identity driver.Identity) (*components, error) {
	r := &components{
		cfg: cfg, api: api, events: cluster.NewEvents(ctx, api.clients.Events),
		name: identity.Name, inTree: inTreeName(identity.Name), has: capabilitiesOf(identity, cfg),
	}
	var err error
	if r.informers, err = cluster.NewInformers(r.informersConfig()); err != nil {
		return nil, err
	}
	r.background = append(r.background, forever("caches", r.informers.Run))
	return r, nil
}

// provisionConfig describes the claim and volume controller, but for the driver and what not every deployment has.
// What Topologies are made of is there by then.
func (r *components) provisionConfig(ctx context.Context) provision.Config {
	cfg := r.cfg
	p := provision.Config{
		Client:           r.api.clients.Core,
		BackgroundClient: r.api.clients.Background,
		Snapshots:        r.api.clients.Snapshot,
		Cache:            r.informers,
		Events:           r.informers,
		Recorder:         r.events.Recorder(cluster.Component(r.name, cfg.Hostname)),
		OwnRecorder:      r.events.Recorder(wellknown.EventComponent),
		Settings:         r.settings(),

		StrictTopology:           cfg.Volumes.StrictTopology,
		ImmediateTopology:        cfg.Volumes.ImmediateTopology,
		KeepNodeTopology:         cfg.Volumes.KeepNodeTopology,
		DeletionSecretNamespaces: cfg.Volumes.DeletionSecretNamespaces,

		CreateWorkers:       cfg.Work.CreateWorkers,
		DeleteWorkers:       cfg.Work.DeleteWorkers,
		MaxCreatesPerSource: cfg.Work.MaxCreatesPerSource,
		RetryStart:          cfg.Work.RetryStart,
		RetryMax:            cfg.Work.RetryMax,
		Timeout:             cfg.Driver.Timeout,
		QuietEvents:         cfg.Work.QuietEvents,
	}
	if r.has.Topology {
		p.Topologies = r.topologies()
	}
	if r.inTree != "" {
		p.Translator = newTranslator(klog.FromContext(ctx))
	}
	return p
}

// protect builds the controllers that let go of the sources of clones and restores.
func (r *components) protect() error {
	var grants source.Grants
	if r.cfg.Gates.CrossNamespaceVolumeDataSource {
		grants = r.informers.Grants
	}
	if r.has.Clone {
		c, err := cloneprotect.New(cloneprotect.Config{
			Claims: r.informers, Client: r.api.clients.Core, Outstanding: r.provision, Grants: grants, Threads: r.cfg.Work.CloneWorkers,
			RetryStart: r.cfg.Work.RetryStart, RetryMax: r.cfg.Work.RetryMax, Spread: r.spread(),
		})
		if err != nil {
			return err
		}
		r.others = append(r.others, c)
	}
	if r.has.Snapshot && r.cfg.Work.SnapshotSweep > 0 {
		c, err := snapshotprotect.New(snapshotprotect.Config{
			Claims: r.informers, Client: r.api.clients.Core, Snapshots: r.api.clients.Snapshot, Discovery: r.api.clients.Core.Discovery(),
			Driver: r.name, Grants: grants, Outstanding: r.provision,
			Interval: r.cfg.Work.SnapshotSweep, Spread: r.spread(),
		})
		if err != nil {
			return err
		}
		r.others = append(r.others, c)
	}
	return nil
}

// spread is within which time the instances of all nodes do what one of them is enough for.
func (r *components) spread() time.Duration {
	if r.cfg.Node.Enabled {
		return nodeSpread
	}
	return 0
}

const nodeSpread = 10 * time.Second

func (r *components) informersConfig() cluster.InformersConfig {
	c := cluster.InformersConfig{Client: r.api.clients.Core, Driver: r.name, InTree: r.inTree, Attachments: r.has.PublishUnpublish}
	if r.inTree != "" {
		c.Handle = provision.HandleOf(r.name, newTranslator(klog.Background()))
	}
	c.LastApplied = r.cfg.Volumes.CreateMetadata.Annotations.Has(wellknown.AnnLastApplied)
	if r.cfg.Gates.CrossNamespaceVolumeDataSource {
		c.Gateway = r.api.clients.Gateway
	}
	return c
}

// capabilitiesOf returns what the plans depend on; no topology when the feature gate Topology is off.
func capabilitiesOf(identity driver.Identity, cfg Config) provision.Capabilities {
	return provision.Capabilities{
		ControllerService:     identity.Plugin.Has(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		Topology:              cfg.Gates.Topology && identity.Plugin.Has(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		CreateDeleteVolume:    identity.Controller.Has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME),
		Snapshot:              identity.Controller.Has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT),
		Clone:                 identity.Controller.Has(csi.ControllerServiceCapability_RPC_CLONE_VOLUME),
		Modify:                identity.Controller.Has(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME),
		PublishUnpublish:      identity.Controller.Has(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME),
		SingleNodeMultiWriter: identity.Controller.Has(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
	}
}

func (r *components) settings() provision.Settings {
	cfg := r.cfg
	identity := fmt.Sprintf("%d-%d-%s", time.Now().UnixMilli(), rand.IntN(10000), r.name) //nolint:gosec // tells processes apart, guards nothing
	if cfg.Node.Enabled {
		identity += "-" + cfg.Node.Name
	}
	return provision.Settings{
		Driver:                r.name,
		InTree:                r.inTree,
		Capabilities:          r.has,
		Identity:              identity,
		VolumeNamePrefix:      cfg.Volumes.NamePrefix,
		VolumeNameUUIDLength:  cfg.Volumes.NameUUIDLength,
		DefaultFSType:         cfg.Volumes.DefaultFSType,
		ExtraCreateMetadata:   cfg.Volumes.ExtraCreateMetadata,
		CreateMetadata:        cfg.Volumes.CreateMetadata,
		CopyToPV:              cfg.Volumes.CopyToPV,
		PublishReadonly:       cfg.Volumes.PublishReadonly,
		PreventModeConversion: cfg.Volumes.PreventModeConversion,
		GrowToSourceSize:      cfg.Volumes.GrowToSourceSize,
		CrossNamespace:        cfg.Gates.CrossNamespaceVolumeDataSource,
	}
}
