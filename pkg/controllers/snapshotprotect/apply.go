package snapshotprotect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// pageSize bounds how many objects are in memory at once.
const pageSize = 500

// candidate is a snapshot that carries our finalizer and is not known to be in use.
type candidate struct {
	name    types.NamespacedName
	uid     types.UID
	content string
}

// key is the key under which claims are found that are filled from the snapshot.
func (c candidate) key() string { return source.SnapshotKey(c.name.Namespace, c.name.Name) }

// sweep makes one round. Order matters: the candidates first, then who uses them, so that a claim which came before its
// snapshot was protected is always seen. A snapshot about which something cannot be read keeps the finalizer; the
// round goes on with the others. The error joins what went wrong.
func (c *Controller) sweep(stop, work context.Context) error {
	var failures loop.Failures
	candidates, err := c.candidates(stop)
	failures.Add(err)
	for _, group := range c.groups(candidates) {
		var used usage
		err := loop.Guard(stop, component, func() (err error) {
			used, err = c.usedIn(stop, group.namespace)
			return err
		})
		if err != nil {
			failures.Add(err)
			continue
		}
		for _, candidate := range group.candidates {
			if stop.Err() != nil {
				return context.Cause(stop)
			}
			if err := loop.Guard(work, component, func() error { return c.settle(work, candidate, used) }); err != nil {
				failures.Add(fmt.Errorf("snapshot %q: %w", candidate.name, err))
			}
		}
	}
	return failures.Err()
}

// settle removes our finalizer from a candidate that is not in use and belongs to our driver.
func (c *Controller) settle(ctx context.Context, candidate candidate, used usage) error {
	if unknown, inUse := used[candidate.key()]; inUse {
		return unknown
	}
	if inUse, err := c.knownInUse(ctx, candidate.key()); err != nil || inUse {
		return err
	}
	own, err := c.ownDriver(ctx, candidate)
	if err != nil || !own {
		return err
	}
	return c.strip(ctx, candidate)
}

// candidates lists the protected snapshots, without those that the cache knows to be in use. Together with an error it
// returns those that were found before it.
func (c *Controller) candidates(ctx context.Context) ([]candidate, error) {
	var found []candidate
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.cfg.Snapshots.SnapshotV1().VolumeSnapshots(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return found, fmt.Errorf("list snapshots: %w", err)
		}
		for i := range page.Items {
			snapshot := &page.Items[i]
			candidate := candidate{
				name: types.NamespacedName{Namespace: snapshot.Namespace, Name: snapshot.Name},
				uid:  snapshot.UID, content: contentName(snapshot),
			}
			if !protected(snapshot) {
				continue
			}
			if inUse, err := c.knownInUse(ctx, candidate.key()); err != nil || !inUse { // settle reports the error
				found = append(found, candidate)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// knownInUse asks what costs nothing: the creates of this process, and the cache of claims.
func (c *Controller) knownInUse(ctx context.Context, key string) (bool, error) {
	if c.cfg.Outstanding != nil && c.cfg.Outstanding.ForSource(key) {
		return true, nil
	}
	inUse := false
	err := loop.Guard(ctx, component, func() error {
		by, err := source.InUse(c.cfg.Claims.ClaimsBySource(key), c.cfg.Grants)
		inUse = by != nil
		return err
	})
	return inUse, err
}

// group is the candidates that claims of the namespace can use.
type group struct {
	namespace  string
	candidates []candidate
}

// groups sorts the candidates by namespace: claims of other namespaces cannot use them, unless there are grants. Then
// all candidates are in one group, for the claims of all namespaces.
func (c *Controller) groups(candidates []candidate) []group {
	if c.cfg.Grants != nil && len(candidates) > 0 {
		return []group{{metav1.NamespaceAll, candidates}}
	}
	byNamespace := map[string][]candidate{}
	for _, candidate := range candidates {
		byNamespace[candidate.name.Namespace] = append(byNamespace[candidate.name.Namespace], candidate)
	}
	groups := make([]group, 0, len(byNamespace))
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		groups = append(groups, group{namespace, byNamespace[namespace]})
	}
	return groups
}

// usedIn asks the API server which snapshots the claims of a namespace use, for the cache may lag behind it and another
// instance may have protected a snapshot for a claim that is not in it yet.
func (c *Controller) usedIn(ctx context.Context, namespace string) (usage, error) {
	used := usage{}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list claims of namespace %q: %w", namespace, err)
		}
		used.add(page.Items, c.cfg.Grants)
		if options.Continue = page.Continue; options.Continue == "" {
			return used, nil
		}
	}
}

// ownDriver reads the content of a candidate and says whether it is for us to strip. Without content nobody can tell
// whose it was, so it is for anybody.
func (c *Controller) ownDriver(ctx context.Context, candidate candidate) (bool, error) {
	if candidate.content == "" {
		return true, nil
	}
	content, err := c.cfg.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, candidate.content, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read content %q: %w", candidate.content, err)
	}
	return content.Spec.Driver == c.cfg.Driver, nil
}

// strip takes our finalizer off the snapshot as it is in the API server. What meets another writer, or a snapshot that
// is in use by now, waits for the next sweep.
func (c *Controller) strip(ctx context.Context, candidate candidate) error {
	stripped := false
	_, err := cluster.UpdateSnapshot(ctx, c.cfg.Snapshots, candidate.name, candidate.uid, func(live *snapv1.VolumeSnapshot) bool {
		inUse, err := c.knownInUse(ctx, candidate.key())
		stripped = protected(live) && contentName(live) == candidate.content && !inUse && err == nil
		if stripped {
			live.Finalizers, _ = cluster.RemoveFinalizer(live.Finalizers, wellknown.FinalizerSnapshotSource)
		}
		return stripped
	})
	logger := klog.FromContext(ctx)
	switch {
	case errors.Is(err, cluster.ErrGone):
		return nil
	case apierrors.IsConflict(err):
		logger.V(4).Info("Snapshot is being written by others", "VolumeSnapshot", klog.KRef(candidate.name.Namespace, candidate.name.Name))
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; grant the verb update on volumesnapshots.snapshot.storage.k8s.io", err)
	case err != nil:
		return err
	}
	if stripped {
		logger.V(2).Info("Protection of snapshot removed, no restore needs it",
			"VolumeSnapshot", klog.KRef(candidate.name.Namespace, candidate.name.Name))
	}
	return nil
}
