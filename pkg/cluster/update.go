package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapclientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// ErrGone means that the object is not there any more, or that another one has taken its name.
var ErrGone = errors.New("it is gone")

// conflictBackoff is how often, and after what, a write that met another one is tried again.
var conflictBackoff = wait.Backoff{Steps: 5, Duration: 10 * time.Millisecond, Factor: 3, Jitter: 0.2}

// UpdateClaim changes a claim and returns it as it is afterwards. It reads the claim from the API server, checks its
// UID ("" means any), lets change edit it, and writes it whole; when somebody else wrote in between, it starts again, a
// few times. change must be repeatable, and returns false when there is nothing to do: then nothing is written.
// The error is ErrGone, or what the API server said; conflicts that do not end are one too.
func UpdateClaim(ctx context.Context, client kubernetes.Interface, ref types.NamespacedName, uid types.UID,
	change func(*corev1.PersistentVolumeClaim) bool,
) (*corev1.PersistentVolumeClaim, error) {
	claims := client.CoreV1().PersistentVolumeClaims(ref.Namespace)
	claim, err := update(ctx, writer[*corev1.PersistentVolumeClaim]{
		get: func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
			return claims.Get(ctx, ref.Name, metav1.GetOptions{})
		},
		put: func(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
			return claims.Update(ctx, claim, metav1.UpdateOptions{})
		},
	}, uid, change)
	if err != nil {
		return nil, fmt.Errorf("update claim %q: %w", ref, err)
	}
	return claim, nil
}

// UpdateSnapshot is UpdateClaim for VolumeSnapshots.
func UpdateSnapshot(ctx context.Context, client snapclientset.Interface, ref types.NamespacedName, uid types.UID,
	change func(*snapv1.VolumeSnapshot) bool,
) (*snapv1.VolumeSnapshot, error) {
	snapshots := client.SnapshotV1().VolumeSnapshots(ref.Namespace)
	snapshot, err := update(ctx, writer[*snapv1.VolumeSnapshot]{
		get: func(ctx context.Context) (*snapv1.VolumeSnapshot, error) {
			return snapshots.Get(ctx, ref.Name, metav1.GetOptions{})
		},
		put: func(ctx context.Context, snapshot *snapv1.VolumeSnapshot) (*snapv1.VolumeSnapshot, error) {
			return snapshots.Update(ctx, snapshot, metav1.UpdateOptions{})
		},
	}, uid, change)
	if err != nil {
		return nil, fmt.Errorf("update snapshot %q: %w", ref, err)
	}
	return snapshot, nil
}

// writer reads and writes one object.
type writer[T metav1.Object] struct {
	get func(context.Context) (T, error)
	put func(context.Context, T) (T, error)
}

func update[T metav1.Object](ctx context.Context, w writer[T], uid types.UID, change func(T) bool) (T, error) {
	var result T
	err := retry.OnError(conflictBackoff, func(err error) bool { return apierrors.IsConflict(err) && ctx.Err() == nil }, func() error {
		live, err := w.get(ctx)
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("%w: %w", ErrGone, err)
		case err != nil:
			return err
		case uid != "" && live.GetUID() != uid:
			return fmt.Errorf("%w: the object of this name has the UID %s, not %s", ErrGone, live.GetUID(), uid)
		}
		result = live
		if !change(live) {
			return nil
		}
		written, err := w.put(ctx, live)
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("%w: %w", ErrGone, err)
		case err != nil:
			return err
		}
		result = written
		return nil
	})
	return result, err
}

// AddFinalizer returns finalizers with this one at the end, and whether that is a change. The slice that comes in is not touched.
func AddFinalizer(finalizers []string, finalizer string) ([]string, bool) {
	if slices.Contains(finalizers, finalizer) {
		return finalizers, false
	}
	return append(slices.Clone(finalizers), finalizer), true
}

// RemoveFinalizer returns finalizers without this one, the others in their order, and whether that is a change.
// The slice that comes in is not touched.
func RemoveFinalizer(finalizers []string, finalizer string) ([]string, bool) {
	if !slices.Contains(finalizers, finalizer) {
		return finalizers, false
	}
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == finalizer }), true
}
