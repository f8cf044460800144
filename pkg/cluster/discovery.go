package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
)

// HasKind asks the API server whether it serves kind in groupVersion. A group or version that is not there is no
// error; any other failure is one, and says nothing about the kind.
func HasKind(ctx context.Context, client discovery.ServerResourcesInterface, groupVersion, kind string) (bool, error) {
	resource, err := resourceOf(ctx, client, groupVersion, kind)
	return resource != "", err
}

// resourceOf returns the resource name of a kind; "" means that the server does not serve it.
func resourceOf(ctx context.Context, client discovery.ServerResourcesInterface, groupVersion, kind string) (string, error) {
	list, err := discovery.ToServerResourcesInterfaceWithContext(client).ServerResourcesForGroupVersionWithContext(ctx, groupVersion)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("ask the API server for the kinds of %s: %w", groupVersion, err)
	case list == nil:
		return "", nil
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool {
		// Subresources have the kind of what they return: persistentvolumeclaims/status.
		return r.Kind == kind && !strings.Contains(r.Name, "/")
	})
	if i < 0 {
		return "", nil
	}
	return list.APIResources[i].Name, nil
}
