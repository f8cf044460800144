package deploy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/deploy"
)

// mayGrant is all that installations of the original grant: resource → verbs. Whoever needs more than that is not
// a drop-in any more.
var mayGrant = map[string]string{
	"persistentvolumes":                              "get list watch create patch delete",
	"persistentvolumeclaims":                         "get list watch update",
	"storageclasses.storage.k8s.io":                  "get list watch",
	"events":                                         "list watch create update patch",
	"volumesnapshots.snapshot.storage.k8s.io":        "get list watch update",
	"volumesnapshotcontents.snapshot.storage.k8s.io": "get list",
	"csinodes.storage.k8s.io":                        "get list watch",
	"nodes":                                          "get list watch",
	"volumeattachments.storage.k8s.io":               "get list watch",
	"secrets":                                        "get list",
	"referencegrants.gateway.networking.k8s.io":      "get list watch",
	"volumeattributesclasses.storage.k8s.io":         "get",
	"leases.coordination.k8s.io":                     "get watch list delete update create",
	"csistoragecapacities.storage.k8s.io":            "get list watch create update patch delete",
	"pods":                                           "get",
	"replicasets.apps":                               "get",
}

func TestNoRightIsAskedForThatWasNeverGranted(t *testing.T) {
	t.Parallel()
	seen := map[deploy.Right]string{}
	for _, object := range deploy.Objects(t, "rbac-*.yaml") {
		for _, right := range deploy.Rights(t, object) {
			_, resource, _ := strings.Cut(right.String(), " ")
			if !slices.Contains(strings.Fields(mayGrant[resource]), right.Verb) {
				t.Errorf("%s asks for: %s", object.File, right)
			}
			// Of one file, once. Features may need the same right.
			if seen[right] == object.File && object.GetKind() == "ClusterRole" {
				t.Errorf("%s asks twice for: %s", object.File, right)
			}
			seen[right] = object.File
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d rights were found", len(seen))
	}
}
