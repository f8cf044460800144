package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/audit"
	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// auditOptions are the flags of the command audit.
type auditOptions struct{ queryOptions }

func newAuditOptions() *auditOptions {
	o := &auditOptions{newQueryOptions(auditCommand)}
	o.addShared()
	o.own.DurationVar(&o.wait, "wait", 10*time.Minute, "How long the audit may take, and for up to 5s of that wait for the driver.")
	return o
}

// Validate returns every complaint about flags and environment in one joined error, or nil.
func (o *auditOptions) Validate(env environment) error {
	var c complaints
	if len(o.words) > 0 {
		c.addf("audit takes no arguments, delete %q", o.words)
	}
	return errors.Join(errors.Join(c...), o.queryOptions.Validate(env))
}

// answer prints what the driver and the API server tell.
func (o *auditOptions) answer(ctx context.Context, env environment, w io.Writer) error {
	cfg, err := o.Complete(env, version)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.wait, fmt.Errorf("no answer within %s (--wait)", o.wait))
	defer cancel()
	report, err := auditNow(ctx, cfg)
	if err != nil {
		return err
	}
	return o.print(w, auditAnswer{report})
}

// auditNow asks the driver and the API server.
func auditNow(ctx context.Context, cfg Config) (*audit.Report, error) {
	config, err := cluster.RESTConfig(ctx, cfg.Kube.address())
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnly{next} })
	cfg.Kube.QPS = -1 // one page after the other
	api, err := newAPI(config, cfg)
	if err != nil {
		return nil, err
	}
	connecting, cancel := context.WithTimeout(ctx, driverWait)
	defer cancel()
	d, err := driver.Connect(connecting, driverConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("%w; audit needs the driver's socket: run it in the sidecar's pod", err)
	}
	defer d.Close()
	identity := d.Identity()
	if !identity.Controller.Has(csi.ControllerServiceCapability_RPC_LIST_VOLUMES) {
		return nil, fmt.Errorf("driver %s lacks the capability LIST_VOLUMES: its volumes cannot be listed", identity.Name)
	}
	a := audit.Config{
		Driver: identity.Name, InTree: inTreeName(identity.Name), Volumes: d, Client: api.clients.Core,
		VolumeNamePrefix: cfg.Volumes.NamePrefix, VolumeNameUUIDLength: cfg.Volumes.NameUUIDLength,
	}
	if a.InTree != "" {
		a.ToCSI = newTranslator(klog.FromContext(ctx)).TranslateToCSI
	}
	if cfg.Node.Enabled {
		a.Reachable = func(pv *corev1.PersistentVolume) (bool, error) {
			return topology.Accessible(pv.Spec.NodeAffinity, identity.Node.GetAccessibleTopology())
		}
	}
	return audit.Run(ctx, a)
}
