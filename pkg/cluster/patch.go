package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// FinalizerPatch is a change of one finalizer of one PersistentVolume.
type FinalizerPatch struct {
	// PV is the PersistentVolume's name and UID its UID: another one of the same name is left alone. Required.
	PV  string
	UID types.UID
	// Finalizer to add or remove; the others are not touched. Required.
	Finalizer string
	// Remove takes it off; false puts it on.
	Remove bool
	// ResourceVersion is the version that the change was decided for; any other is left alone, with a Conflict. "" means
	// any.
	ResourceVersion string
}

// PatchPVFinalizer applies p by one PATCH that carries nothing else, so it cannot undo another writer's change. A
// PersistentVolume that is gone, or whose name another one has, is success for a removal and ErrGone for an addition.
func PatchPVFinalizer(ctx context.Context, client kubernetes.Interface, p FinalizerPatch) error {
	body, err := p.body()
	if err != nil {
		return err
	}
	volumes := client.CoreV1().PersistentVolumes()
	repeat := func(err error) bool { return apierrors.IsConflict(err) && p.ResourceVersion == "" && ctx.Err() == nil }
	err = retry.OnError(conflictBackoff, repeat, func() error {
		_, err := volumes.Patch(ctx, p.PV, types.StrategicMergePatchType, body, metav1.PatchOptions{})
		// A UID that differs is "invalid" to the API server, because it is immutable, and a conflict to older ones. A
		// conflict also means that others wrote faster than the API server could repeat the patch.
		if !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
			return err
		}
		if apierrors.IsConflict(err) && p.ResourceVersion != "" {
			return err
		}
		pv, readErr := volumes.Get(ctx, p.PV, metav1.GetOptions{})
		switch {
		case readErr != nil:
			return readErr
		case pv.UID != p.UID:
			return fmt.Errorf("%w: the one of this name has the UID %s, not %s", ErrGone, pv.UID, p.UID)
		}
		return err
	})
	gone := apierrors.IsNotFound(err) || errors.Is(err, ErrGone)
	switch {
	case err == nil, gone && p.Remove:
		return nil
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	return fmt.Errorf("patch finalizer of PersistentVolume %q: %w", p.PV, err)
}

func (p FinalizerPatch) body() ([]byte, error) {
	key := "finalizers"
	if p.Remove {
		key = "$deleteFromPrimitiveList/finalizers"
	}
	metadata := map[string]any{"uid": p.UID, key: []string{p.Finalizer}}
	if p.ResourceVersion != "" {
		metadata["resourceVersion"] = p.ResourceVersion
	}
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("finalizer patch of PersistentVolume %q: %w", p.PV, err)
	}
	return body, nil
}
