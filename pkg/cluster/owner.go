package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"
)

// OwnerConfig describes a search for the owner of the capacity objects.
type OwnerConfig struct {
	// Metadata reads the pod and what is above it; of each only the metadata. Required.
	Metadata metadata.Interface
	// Discovery knows the resource of a kind. Required.
	Discovery discovery.ServerResourcesInterface
	// Namespace and Pod are where the search begins. Required when Level is not negative.
	Namespace, Pod string
	// Level is how many controlling references to follow: 0 is the pod itself, negative means no owner.
	Level int
	// Patience bounds how long failures that may pass are tried again. Default: one minute.
	Patience time.Duration
}

// Owner walks from the pod up through the controlling references and returns the reference at Level; nil when Level is
// negative. It blocks until it has the answer, an error that does not pass, or no more patience. The error shows the
// chain that was walked and, when Level is above its end, the level that would work; after the end of ctx it wraps its cause.
func Owner(ctx context.Context, cfg OwnerConfig) (*metav1.OwnerReference, error) {
	if cfg.Level < 0 {
		return nil, nil
	}
	if cfg.Patience == 0 {
		cfg.Patience = time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Patience, fmt.Errorf("given up after %s", cfg.Patience))
	defer cancel()
	walk := &ownerWalk{cfg: cfg}
	next := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: cfg.Pod}
	for level := 0; ; level++ {
		// The reference itself is the answer: what it points to need not be there.
		if level == cfg.Level && level > 0 {
			return ownerReference(next.APIVersion, next.Kind, next.Name, next.UID), nil
		}
		object, err := walk.read(ctx, next)
		if err != nil {
			return nil, fmt.Errorf("find the owner at level %d: %s: %w", cfg.Level, walk, err)
		}
		if level == cfg.Level {
			return ownerReference(next.APIVersion, next.Kind, object.Name, object.UID), nil
		}
		controller := metav1.GetControllerOfNoCopy(object)
		if controller == nil {
			return nil, fmt.Errorf("find the owner at level %d: %s: %s %s %q in namespace %q has no controlling owner; "+
				"the highest level that works is %d", cfg.Level, walk, next.APIVersion, next.Kind, next.Name, cfg.Namespace, level)
		}
		next = *controller
	}
}

func ownerReference(apiVersion, kind, name string, uid types.UID) *metav1.OwnerReference {
	isController := true
	return &metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &isController}
}

// ownerWalk reads objects and remembers which.
type ownerWalk struct {
	cfg   OwnerConfig
	chain []string
}

// String shows the chain of objects, from the pod upwards.
func (w *ownerWalk) String() string { return strings.Join(w.chain, " → ") }

// read fetches the object that ref points to, and tries again what may pass.
func (w *ownerWalk) read(ctx context.Context, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	w.chain = append(w.chain, fmt.Sprintf("%s %q", ref.Kind, ref.Name))
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("apiVersion of the reference: %w", err)
	}
	var object *metav1.PartialObjectMetadata
	var last error
	backoff := wait.Backoff{Steps: 10, Duration: 200 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Jitter: 0.1}
	err = backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		object, last = w.readOnce(ctx, gv, ref)
		if last == nil || permanent(last) {
			return true, last
		}
		klog.FromContext(ctx).Info("Owner cannot be read and is tried again", "kind", ref.Kind, "name", ref.Name, "reason", last.Error())
		return false, nil
	})
	switch {
	case err == nil:
		return object, nil
	case last == nil:
		err = context.Cause(ctx)
	case !permanent(last):
		err = fmt.Errorf("%w (%w)", last, context.Cause(ctx))
	}
	return nil, fmt.Errorf("fetch %s %s %q in namespace %q: %w", ref.APIVersion, ref.Kind, ref.Name, w.cfg.Namespace, err)
}

func (w *ownerWalk) readOnce(ctx context.Context, gv schema.GroupVersion, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	resource := "pods"
	if gv != (schema.GroupVersion{Version: "v1"}) || ref.Kind != "Pod" {
		var err error
		if resource, err = resourceOf(ctx, w.cfg.Discovery, ref.APIVersion, ref.Kind); err != nil {
			return nil, err
		}
		if resource == "" {
			return nil, unknownKindError{gv.WithKind(ref.Kind)}
		}
	}
	object, err := w.cfg.Metadata.Resource(gv.WithResource(resource)).Namespace(w.cfg.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w; grant the verb get on %s in namespace %q", err, gv.WithResource(resource).GroupResource(), w.cfg.Namespace)
	}
	return object, err
}

type unknownKindError struct{ kind schema.GroupVersionKind }

func (e unknownKindError) Error() string {
	return fmt.Sprintf("the API server does not serve the kind %s", e.kind)
}

// permanent says that asking again will not help.
func permanent(err error) bool {
	if _, unknown := errors.AsType[unknownKindError](err); unknown {
		return true
	}
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) || apierrors.IsMethodNotSupported(err)
}
