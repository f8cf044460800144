package secret_test

import (
	"fmt"

	"github.com/csi-sidecars/external-provisioner/pkg/secret"
)

func ExampleResolve() {
	parameters := map[string]string{
		"csi.storage.k8s.io/secret-name":                  "${pvc.name}-key",
		"csi.storage.k8s.io/secret-namespace":             "${pvc.namespace}",
		"csi.storage.k8s.io/provisioner-secret-name":      "admin",
		"csi.storage.k8s.io/provisioner-secret-namespace": "storage",
	}
	names := secret.Names{PVName: "pvc-1", ClaimName: "data", ClaimNamespace: "team-a"}

	for _, c := range []secret.Consumer{secret.Provisioner, secret.NodeStage} {
		ref, err := secret.Resolve(c, parameters, names)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %s/%s\n", c, ref.Namespace, ref.Name)
	}
	// Output:
	// provisioner: storage/admin
	// node-stage: team-a/data-key
}
