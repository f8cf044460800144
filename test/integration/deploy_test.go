package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/deploy"
)

// shippedKinds are the kinds of the manifests and how the API server calls them.
var shippedKinds = map[string]schema.GroupVersionResource{
	"ServiceAccount":      {Version: "v1", Resource: "serviceaccounts"},
	"Role":                {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	"ClusterRole":         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":  {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"Deployment":          {Group: "apps", Version: "v1", Resource: "deployments"},
	"StatefulSet":         {Group: "apps", Version: "v1", Resource: "statefulsets"},
	"DaemonSet":           {Group: "apps", Version: "v1", Resource: "daemonsets"},
	"PodDisruptionBudget": {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
}

// The API server takes each shipped manifest as it is, with no field that it does not know.
func TestTheAPIServerTakesTheManifests(t *testing.T) {
	t.Parallel()
	client, err := dynamic.NewForConfig(cluster.Shared(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range deploy.Objects(t, "*.yaml") {
		t.Run(object.File+"/"+object.GetKind(), func(t *testing.T) {
			t.Parallel()
			kind, known := shippedKinds[object.GetKind()]
			if !known {
				t.Fatalf("this test does not know the kind %s", object.GetKind())
			}
			var api dynamic.ResourceInterface = client.Resource(kind)
			if object.GetNamespace() != "" {
				api = client.Resource(kind).Namespace(object.GetNamespace())
			}
			answer, err := api.Patch(t.Context(), object.GetName(), types.ApplyPatchType, object.Text, metav1.PatchOptions{
				FieldManager: "test", FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll},
			})
			if err != nil {
				t.Fatal(err)
			}
			if answer.GetUID() == "" {
				t.Error("the answer is no object")
			}
		})
	}
}
