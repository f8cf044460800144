package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	verbPatch, verbUpdate, verbGet = "patch", "update", "get"
)

// PVFinalizers changes finalizers of PersistentVolumes by the means that this service account has: by PATCH, and where
// that is not granted by UPDATE. Releases of external-provisioner before v5.0 needed neither, so there are roles
// with one of them or none. Its methods may be called concurrently.
type PVFinalizers struct {
	access *Access // to persistentvolumes

	mu     sync.Mutex
	logged finalizerMeans
}

// finalizerMeans is how finalizers of PersistentVolumes can be changed.
type finalizerMeans int

const (
	byPatch finalizerMeans = iota // or nothing is known
	byUpdate
	byNothing
)

// PVResource is the resource whose Access NewPVFinalizers needs.
func PVResource() schema.GroupResource { return corev1.Resource("persistentvolumes") }

// NewPVFinalizers returns PVFinalizers for a service account with that access to persistentvolumes.
func NewPVFinalizers(access *Access) *PVFinalizers { return &PVFinalizers{access: access} }

// Run asks every AccessInterval for the rights that are missing, until ctx ends. asked is called each time, after that.
func (f *PVFinalizers) Run(ctx context.Context, asked func()) {
	ticker := time.NewTicker(AccessInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.access.AskAgain(ctx)
		f.report(ctx)
		asked()
	}
}

// Ask asks whether finalizers can be changed. It returns after some seconds if there is no answer.
func (f *PVFinalizers) Ask(ctx context.Context) {
	f.access.Ask(ctx, verbPatch)
	f.askForUpdate(ctx)
}

// askForUpdate asks for the other means if PATCH is none.
func (f *PVFinalizers) askForUpdate(ctx context.Context) {
	if f.access.Denied(verbPatch) {
		f.access.Ask(ctx, verbUpdate, verbGet)
	}
	f.report(ctx)
}

// Denied reports whether the API server has said that this service account cannot change finalizers.
func (f *PVFinalizers) Denied() bool { return f.means() == byNothing }

// Refusal returns the error of Write if that would send no request for lack of a right, nil otherwise.
func (f *PVFinalizers) Refusal() error {
	refused := f.access.Refusal(verbPatch)
	if refused == nil || (f.access.Refusal(verbUpdate) == nil && f.access.Refusal(verbGet) == nil) {
		return nil
	}
	return refused
}

// Write applies the change. The error is ErrNotGranted while the service account lacks the rights, and otherwise as that
// of PatchPVFinalizer.
func (f *PVFinalizers) Write(ctx context.Context, client kubernetes.Interface, p FinalizerPatch) error {
	if f.access.Refusal(verbPatch) == nil {
		err := PatchPVFinalizer(ctx, client, p)
		if !apierrors.IsForbidden(err) || f.access.Observe(ctx, verbPatch, err) == nil {
			return err
		}
		f.askForUpdate(ctx)
	}
	if refused := f.Refusal(); refused != nil {
		return fmt.Errorf("change finalizer of PersistentVolume %q: %w", p.PV, refused)
	}
	verb, err := updatePVFinalizer(ctx, client, p)
	if apierrors.IsForbidden(err) && f.access.Observe(ctx, verb, err) != nil {
		f.report(ctx)
		err = f.Refusal()
	}
	if err != nil {
		return fmt.Errorf("change finalizer of PersistentVolume %q: %w", p.PV, err)
	}
	return nil
}

// updatePVFinalizer applies p to what the API server has, and returns the verb of the request that failed.
func updatePVFinalizer(ctx context.Context, client kubernetes.Interface, p FinalizerPatch) (verb string, err error) {
	volumes := client.CoreV1().PersistentVolumes()
	verb = verbGet
	var outdated bool
	_, err = update(ctx, writer[*corev1.PersistentVolume]{
		get: func(ctx context.Context) (*corev1.PersistentVolume, error) {
			verb = verbGet
			return volumes.Get(ctx, p.PV, metav1.GetOptions{})
		},
		put: func(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
			verb = verbUpdate
			return volumes.Update(ctx, pv, metav1.UpdateOptions{})
		},
	}, p.UID, func(live *corev1.PersistentVolume) (changed bool) {
		if outdated = p.ResourceVersion != "" && live.ResourceVersion != p.ResourceVersion; outdated {
			return false
		}
		edit := AddFinalizer
		if p.Remove {
			edit = RemoveFinalizer
		}
		live.Finalizers, changed = edit(live.Finalizers, p.Finalizer)
		return changed
	})
	switch {
	case errors.Is(err, ErrGone) && p.Remove:
		return verb, nil
	case err == nil && outdated:
		return verb, apierrors.NewConflict(PVResource(), p.PV, errors.New("it has been changed"))
	}
	return verb, err
}

func (f *PVFinalizers) means() finalizerMeans {
	switch {
	case !f.access.Denied(verbPatch):
		return byPatch
	case f.access.Denied(verbUpdate), f.access.Denied(verbGet):
		return byNothing
	}
	return byUpdate
}

// report logs how finalizers are changed, when that is not as it was last logged.
func (f *PVFinalizers) report(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	means, before := f.means(), f.logged
	if means == before {
		return
	}
	f.logged = means
	logger, rule := klog.FromContext(ctx), f.access.rule(verbPatch)
	switch means {
	case byPatch:
		logger.Info("The right to patch persistentvolumes is granted now, and used for finalizers")
	case byUpdate:
		logger.Info("Finalizers of PersistentVolumes are changed with the verb update, because patch is not granted; add the rule", "rule", rule)
	case byNothing:
		logger.Error(f.access.Refusal(verbPatch), "Finalizers of PersistentVolumes cannot be changed: new ones are created without, and those that have one cannot be removed; add the rule", "rule", rule)
	}
}
