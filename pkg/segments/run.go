package segments

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// liveTimeout bounds one look at the API server. It includes the wait for the client's rate limiter, which is long when
// a pool of nodes goes away at once.
const liveTimeout = 30 * time.Second

// lookup is a question about one node that only the API server can answer.
type lookup struct {
	node string
	// reply has room for the answer.
	reply chan<- answer
}

type answer struct {
	member topology.Member
	err    error
}

// Run watches until ctx ends, and returns soon after; see loop.RunUntil for what may outlive it. It is called once.
func (x *Index) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	defer close(x.ended)
	logger := klog.FromContext(ctx)
	csiNodes := cache.NewReflectorWithOptions(x.csiNodes(), &storagev1.CSINode{}, x.csiNodeStore(), //nolint:contextcheck // a store of a reflector has no context
		cache.ReflectorOptions{Logger: &logger, Name: "csinodes"})
	running.Go(func() { loop.RunUntil(ctx, csiNodes.RunWithContext) })
	running.Go(func() { loop.RunUntil(ctx, x.watchNodes) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
			guard(x.tellAll) //nolint:contextcheck // handlers that come later have no context either
		case question := <-x.lookups:
			running.Go(func() {
				// A node that goes away may leave many claims behind: one look answers all who ask meanwhile.
				got, err, _ := x.asking.Do(question.node, func() (any, error) {
					var m topology.Member
					err := loop.Guard(ctx, "segments", func() (err error) {
						m, err = x.Live(ctx, question.node)
						return err
					})
					return m, err
				})
				member, _ := got.(topology.Member)
				question.reply <- answer{member, err}
			})
		}
	}
}

// watchNodes watches Nodes for the labels that count, and begins anew when the driver registers another key: the
// values of labels that did not count are not kept. This happens when a driver is installed, and hardly ever after.
func (x *Index) watchNodes(ctx context.Context) {
	logger := klog.FromContext(ctx)
	select {
	case <-ctx.Done():
		return
	case <-x.csiNodesRead:
	}
	for ctx.Err() == nil {
		keys := x.widen()
		nodes := cache.NewReflectorWithOptions(x.nodes(), &metav1.PartialObjectMetadata{}, x.nodeStore(keys), //nolint:contextcheck // a store of a reflector has no context
			cache.ReflectorOptions{Logger: &logger, Name: "nodes"})
		watching, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { loop.Restart(watching, "segments", nodes.RunWithContext) })
		x.waitForGrowth(ctx)
		stop()
		running.Wait()
	}
}

// waitForGrowth returns when a key is registered that Nodes are not watched for, or when ctx has ended.
func (x *Index) waitForGrowth(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.grow:
		}
		grown := false
		x.locked(func() { grown = !x.knows(x.watched) })
		if grown {
			klog.FromContext(ctx).V(2).Info("Reading the labels of all nodes again, the driver registered another topology key")
			return
		}
	}
}

// Live asks the API server for the CSINode and, if there is one, the Node of a name: without a CSINode nothing is known
// of the Node. An error says that there was no answer, not that something is missing.
func (x *Index) Live(ctx context.Context, node string) (topology.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	var m topology.Member
	csiNode, err := x.cfg.Client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read CSINode %q: %w", node, err)
	}
	entry := x.entry(csiNode)
	m.CSINodeExists, m.Registered, m.Keys = true, entry != nil, topology.KeySet(keysOf(entry))
	object, err := x.cfg.Metadata.Resource(nodesResource).Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read node %q: %w", node, err)
	}
	x.mu.Lock()
	watched := x.watched
	x.mu.Unlock()
	m.NodeExists = true
	m.Labels = topology.Restrict(object.Labels, func(key string) bool { return watched[key] || slices.Contains(m.Keys, key) })
	return m, nil
}

var nodesResource = corev1.SchemeGroupVersion.WithResource("nodes")

func (x *Index) nodes() cache.ListerWatcher {
	client := x.cfg.Metadata.Resource(nodesResource)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, options)
			return list, x.note("nodes", err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, options)
			return w, x.note("nodes", err)
		},
	}, x.cfg.Metadata)
}

func (x *Index) csiNodes() cache.ListerWatcher {
	client := x.cfg.Client.StorageV1().CSINodes()
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, options)
			return list, x.note("csinodes", err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, options)
			return w, x.note("csinodes", err)
		},
	}, x.cfg.Client)
}

// note remembers how the last request for a resource ended, and returns its error as it is.
func (x *Index) note(resource string, err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil {
		delete(x.failed, resource)
	} else {
		x.failed[resource] = err
	}
	return err
}

// LastError returns why Nodes or CSINodes cannot be read at the moment, nil when they can or when nobody has
// asked yet. Safe for concurrent use.
func (x *Index) LastError() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.failed["csinodes"]; err != nil {
		return err
	}
	return x.failed["nodes"]
}
