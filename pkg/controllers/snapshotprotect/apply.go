package snapshotprotect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
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
// snapshot was protected is always seen. A failed read ends the round, since it says nothing.
func (c *Controller) sweep(stop, work context.Context) error {
	candidates, err := c.candidates(stop)
	if err != nil || len(candidates) == 0 {
		return err
	}
	used, err := c.usedOf(stop, candidates)
	if err != nil {
		return err
	}
	for _, candidate := range candidates {
		if stop.Err() != nil {
			return context.Cause(stop)
		}
		if used[candidate.key()] || c.knownInUse(candidate.key()) {
			continue
		}
		own, err := c.ownDriver(work, candidate)
		if err != nil {
			return err
		}
		if !own {
			continue
		}
		if err := c.strip(work, candidate); err != nil {
			return err
		}
	}
	return nil
}

// candidates lists the protected snapshots, without those that the cache knows to be in use.
func (c *Controller) candidates(ctx context.Context) ([]candidate, error) {
	var found []candidate
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.cfg.Snapshots.SnapshotV1().VolumeSnapshots(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		for i := range page.Items {
			snapshot := &page.Items[i]
			candidate := candidate{
				name: types.NamespacedName{Namespace: snapshot.Namespace, Name: snapshot.Name},
				uid:  snapshot.UID, content: contentName(snapshot),
			}
			if protected(snapshot) && !c.knownInUse(candidate.key()) {
				found = append(found, candidate)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// knownInUse asks what costs nothing: the creates of this process, and the cache of claims.
func (c *Controller) knownInUse(key string) bool {
	return (c.cfg.Outstanding != nil && c.cfg.Outstanding.ForSource(key)) ||
		slices.ContainsFunc(c.cfg.Claims.ClaimsBySource(key), needsSource)
}

// usedOf asks the API server which snapshots are in use, for the cache may lag behind it and another instance may have
// protected a snapshot for a claim that is not in it yet. It lists the claims of the candidates' namespaces, or all
// if claims may name a snapshot across namespaces.
func (c *Controller) usedOf(ctx context.Context, candidates []candidate) (map[string]bool, error) {
	var namespaces []string
	for _, candidate := range candidates {
		namespaces = append(namespaces, candidate.name.Namespace)
	}
	slices.Sort(namespaces)
	namespaces = slices.Compact(namespaces)
	if c.cfg.CrossNamespace {
		namespaces = []string{metav1.NamespaceAll}
	}
	used := map[string]bool{}
	for _, namespace := range namespaces {
		options := metav1.ListOptions{Limit: pageSize}
		for {
			page, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, options)
			if err != nil {
				return nil, fmt.Errorf("list claims of namespace %q: %w", namespace, err)
			}
			inUse(used, page.Items)
			if options.Continue = page.Continue; options.Continue == "" {
				break
			}
		}
	}
	return used, nil
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
		return false, fmt.Errorf("read content %q of snapshot %q: %w", candidate.content, candidate.name, err)
	}
	return content.Spec.Driver == c.cfg.Driver, nil
}

// strip takes our finalizer off the snapshot as it is in the API server. What meets another writer, or a snapshot that
// is in use by now, waits for the next sweep.
func (c *Controller) strip(ctx context.Context, candidate candidate) error {
	stripped := false
	_, err := cluster.UpdateSnapshot(ctx, c.cfg.Snapshots, candidate.name, candidate.uid, func(live *snapv1.VolumeSnapshot) bool {
		stripped = protected(live) && contentName(live) == candidate.content && !c.knownInUse(candidate.key())
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
