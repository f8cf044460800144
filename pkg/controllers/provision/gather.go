package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// placement is the node that a volume is for, and what else is known of it.
type placement struct {
	node string
	// hint is a segment that an earlier process has asked for first; nil if none did.
	hint map[string]string
	// outstanding says that an earlier call may be at work.
	outstanding bool
}

// gather reads all that the decision about the claim rests on, each thing once, and writes nothing.
func (c *Controller) gather(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) Facts {
	return c.gatherFor(ctx, claim, class, placement{node: volume.SelectedNode(claim)})
}

func (c *Controller) gatherFor(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, where placement) Facts {
	f := c.remembered(claim, class, where)
	if f.TranslateErr != nil || f.SourceErr != nil {
		return f
	}
	c.gatherSource(ctx, &f)
	if name := claim.Spec.VolumeAttributesClassName; f.WantsVAC && name != nil && *name != "" && f.Source.Kind != source.Populator {
		f.VAC, f.VACErr = c.cfg.Client.StorageV1().VolumeAttributesClasses().Get(ctx, *name, metav1.GetOptions{})
	}
	c.gatherPlace(ctx, &f, where)
	return f
}

// remembered returns the facts that need no request.
func (c *Controller) remembered(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, where placement) Facts {
	f := Facts{
		Claim:        claim,
		Class:        class,
		SelectedNode: where.node,
		WantsVAC:     c.cfg.WantsVAC(),
		Outstanding:  where.outstanding,
		ExistingPV:   c.existingPV(claim),
	}
	f.Translated, f.TranslateErr = c.translated(class)
	f.Source, f.SourceErr = source.Of(claim, c.cfg.Settings.CrossNamespace)
	return f
}

// translated returns the class in the terms of CSI: itself, unless it names the in-tree plugin; nil with an error.
func (c *Controller) translated(class *storagev1.StorageClass) (*storagev1.StorageClass, error) {
	if c.cfg.Translator == nil || class.Provisioner != c.cfg.Settings.InTree {
		return class, nil
	}
	return c.cfg.Translator.TranslateClass(class.Provisioner, class)
}

// gatherPlace asks where the volume may be, unless the class cannot be read.
func (c *Controller) gatherPlace(ctx context.Context, f *Facts, where placement) {
	if c.cfg.Topologies != nil && f.TranslateErr == nil {
		f.Requirement, f.RequirementErr = c.cfg.Topologies.Require(ctx, c.topologyRequest(f.Claim, f.Translated, where))
	}
}

// gatherSource reads the source, if the claim may use it.
func (c *Controller) gatherSource(ctx context.Context, f *Facts) {
	c.gatherGrant(f)
	if f.Granted {
		c.gatherContent(ctx, f)
	}
}

func (c *Controller) topologyRequest(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, where placement) topology.Request {
	return topology.Request{
		ClaimName:         claim.Name,
		ClaimUID:          claim.UID,
		AllowedTopologies: class.AllowedTopologies,
		SelectedNode:      where.node,
		Hint:              where.hint,
		Strict:            c.cfg.StrictTopology,
		Immediate:         c.cfg.ImmediateTopology,
		KeepNodeTopology:  c.cfg.KeepNodeTopology,
	}
}

func (c *Controller) gatherGrant(f *Facts) {
	if !f.Source.NeedsGrant(f.Claim.Namespace) {
		f.Granted = true
		return
	}
	grants, err := c.cfg.Cache.Grants(f.Source.Namespace)
	if err != nil {
		f.GrantErr = err
		return
	}
	f.Granted = source.Granted(f.Source, f.Claim.Namespace, grants)
}

// gatherContent reads the source's objects: claims from the cache, the rest live. Not found is nil.
func (c *Controller) gatherContent(ctx context.Context, f *Facts) {
	ref := f.Source
	switch ref.Kind {
	case source.None, source.Populator:
	case source.Snapshot:
		f.Snapshot, f.ContentErr = foundSnapshot(c.cfg.Snapshots.SnapshotV1().VolumeSnapshots(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}))
		if f.Snapshot == nil || f.Snapshot.Status == nil || f.Snapshot.Status.BoundVolumeSnapshotContentName == nil {
			return
		}
		name := *f.Snapshot.Status.BoundVolumeSnapshotContentName
		f.Content, f.ContentErr = foundSnapshot(c.cfg.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, name, metav1.GetOptions{}))
	case source.Claim:
		f.SourceClaim = c.cfg.Cache.Claim(ref.Namespace, ref.Name)
		if f.SourceClaim == nil {
			// The cache may lag behind: nobody is told that a source is missing before the API server says so.
			f.SourceClaim, f.ContentErr = found(c.cfg.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}))
		}
		if f.SourceClaim == nil || f.SourceClaim.Spec.VolumeName == "" {
			return
		}
		f.SourcePV, f.ContentErr = found(c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, f.SourceClaim.Spec.VolumeName, metav1.GetOptions{}))
	}
}

// found turns "not found" into nil, and keeps any other error.
func found[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nil is how Facts say that an object is missing
	}
	if err != nil {
		return nil, err
	}
	return object, nil
}

// foundSnapshot is found for the kinds of snapshots. The API server also answers "not found" when it does not serve a kind.
func foundSnapshot[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, source.ErrSnapshotsNotServed
	}
	return found(object, err)
}
