package integration

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// Caches catch up with what an API server has, by the next change of their resource.
func TestCachesCatchUp(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	i := informers(t, c, "d")
	resources := []cluster.Resource{cluster.Claims, cluster.PVs}
	for _, resource := range resources {
		if i.CaughtUp(resource) {
			t.Errorf("cache %d has caught up with what nobody has read", resource)
		}
	}
	i.CatchUp(t.Context())
	claim := fixture.Claim("c").Namespace(ns).Obj()
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if _, err := c.Core.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pv := fixture.PV("catch-up-" + ns).Driver("d").Handle("h").Obj()
	pv.Spec.AccessModes, pv.Spec.Capacity = claim.Spec.AccessModes, corev1.ResourceList{corev1.ResourceStorage: *claim.Spec.Resources.Requests.Storage()}
	if _, err := c.Core.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Core.CoreV1().PersistentVolumes().Delete(context.WithoutCancel(t.Context()), pv.Name, metav1.DeleteOptions{}); err != nil {
			t.Log(err)
		}
	})
	for _, resource := range resources {
		eventually(t, "the cache has caught up", func() bool { return i.CaughtUp(resource) })
	}
}
