package cluster

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
)

const (
	// grantsPatience is how long ReferenceGrants may take to sync before it is said.
	grantsPatience = 30 * time.Second
	// grantsReport is how often it is said again.
	grantsReport = 5 * time.Minute
)

func (i *Informers) buildGrants(cfg InformersConfig, _ *trimmer) (err error) {
	if cfg.Gateway == nil {
		return nil
	}
	grants := cfg.Gateway.ReferenceGrants(metav1.NamespaceAll)
	i.grants, err = NewCache(CacheConfig{
		Name: "referencegrants.gateway.networking.k8s.io", Example: &gatewayv1beta1.ReferenceGrant{}, Client: cfg.Gateway,
		List:     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return grants.List(ctx, o) },
		Watch:    func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return grants.Watch(ctx, o) },
		Indexers: cache.Indexers{indexNS: cache.MetaNamespaceIndexFunc},
	})
	return err
}

// grantsTried reports whether Grants has its answer: they are in sync, or they could not be read. The second is
// enough to begin work: without them all but sources in other namespaces works.
func (i *Informers) grantsTried() bool { return i.grants.HasSynced() || i.grants.LastError() != nil }

// Grants returns the ReferenceGrants of a namespace. It is an error when they are not watched or not in sync: nobody
// may take that for "no grant" or for "granted".
func (i *Informers) Grants(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error) {
	switch {
	case i.grants == nil:
		return nil, fmt.Errorf("ReferenceGrants of namespace %q are not watched: the feature gate CrossNamespaceVolumeDataSource is off", namespace)
	case !i.grants.HasSynced():
		err := i.grants.LastError()
		if err == nil {
			return nil, fmt.Errorf("ReferenceGrants of namespace %q are not known yet", namespace)
		}
		return nil, fmt.Errorf("ReferenceGrants of namespace %q cannot be read: %w", namespace, err)
	}
	var grants []*gatewayv1beta1.ReferenceGrant
	for _, obj := range byIndex(i.grants, indexNS, namespace) {
		if grant, ok := obj.(*gatewayv1beta1.ReferenceGrant); ok {
			grants = append(grants, grant)
		}
	}
	return grants, nil
}

// reportGrants says that cross-namespace sources do not work, after a while and then again and again, until they do. The
// watch goes on trying, so it sees a CRD or a right that comes later.
func (i *Informers) reportGrants(ctx context.Context) {
	logger := klog.FromContext(ctx)
	wait := grantsPatience
	for said := false; ; {
		if cache.WaitForCacheSync(after(ctx, wait), i.grants.HasSynced) {
			if said {
				logger.Info("ReferenceGrants are in sync; sources in other namespaces work now")
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		err := i.grants.LastError()
		logger.Error(err, "ReferenceGrants cannot be read: claims with a source in another namespace fail, all others work",
			"advice", advice(i.grants.name, err), "turnOff", "--feature-gates=CrossNamespaceVolumeDataSource=false")
		said, wait = true, grantsReport
	}
}

// after returns a channel that closes when d has passed or ctx has ended.
func after(ctx context.Context, d time.Duration) <-chan struct{} {
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, cancel)
	return ctx.Done()
}
