package capacity

import (
	"context"
	"errors"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	storagev1beta1 "k8s.io/api/storage/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
)

// Version is a version of the CSIStorageCapacity API.
type Version string

const (
	// V1 is what every supported Kubernetes has.
	V1 Version = "v1"
	// V1beta1 is for clusters before 1.24.
	V1beta1 Version = "v1beta1"
)

const kind = "CSIStorageCapacity"

// How often a transient error is met, and how long the first wait is; each further one is twice as long.
const (
	findTries     = 6
	findFirstWait = time.Second
)

// FindVersion asks the API server's discovery which version it has; transient errors are retried for about
// half a minute. Only when discovery is forbidden it falls back to sending an object that cannot be valid to
// namespace. It blocks until there is an answer or ctx ends; an error means that capacity cannot be published.
func FindVersion(ctx context.Context, client kubernetes.Interface, namespace string) (Version, error) {
	wait := findFirstWait
	for try := 1; ; try++ {
		version, err := findOnce(ctx, client, namespace)
		if err == nil || permanent(err) || try == findTries {
			return version, err
		}
		klog.FromContext(ctx).Info("Could not find out the version of the CSIStorageCapacity API, trying again", "err", err, "after", wait)
		select {
		case <-ctx.Done():
			return "", errors.Join(err, context.Cause(ctx))
		case <-time.After(wait):
		}
		wait *= 2
	}
}

// errNoVersion is permanent: the API server has answered.
var errNoVersion = errors.New("the API server has no CSIStorageCapacity, neither storage.k8s.io/v1 nor v1beta1")

func permanent(err error) bool {
	return errors.Is(err, errNoVersion) || errors.Is(err, errProbe) || apierrors.IsForbidden(err)
}

func findOnce(ctx context.Context, client kubernetes.Interface, namespace string) (Version, error) {
	for _, candidate := range []struct {
		version Version
		group   schema.GroupVersion
	}{{V1, storagev1.SchemeGroupVersion}, {V1beta1, storagev1beta1.SchemeGroupVersion}} {
		has, err := cluster.HasKind(ctx, client.Discovery(), candidate.group.String(), kind)
		switch {
		case apierrors.IsForbidden(err):
			return probe(ctx, client, namespace)
		case err != nil:
			return "", err
		case has:
			return candidate.version, nil
		}
	}
	return "", errNoVersion
}

// errProbe is permanent: the probe has been answered in a way that tells nothing.
var errProbe = errors.New("probing for the CSIStorageCapacity API")

// probe sends an object that no server may accept: whoever finds it invalid knows the version.
func probe(ctx context.Context, client kubernetes.Interface, namespace string) (Version, error) {
	invalid := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: "#%123-invalid-name"}}
	_, err := client.StorageV1().CSIStorageCapacities(namespace).Create(ctx, invalid, metav1.CreateOptions{})
	switch {
	case err == nil:
		return "", fmt.Errorf("%w: the API server accepted an invalid object", errProbe)
	case apierrors.IsInvalid(err):
		return V1, nil
	case apierrors.IsNotFound(err):
		// A namespace that is not there is not found either, and tells nothing.
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok && status.Status().Details != nil && status.Status().Details.Kind == "namespaces" {
			return "", fmt.Errorf("%w: %w", errProbe, err)
		}
		return V1beta1, nil
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("discovery is forbidden, and so is creating %s in namespace %q; the service account needs the Role of the capacity feature: %w",
			ResourceName, namespace, err)
	default:
		return "", fmt.Errorf("probe for the CSIStorageCapacity API: %w", err)
	}
}
