package e2e

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// removals are the rights, taken away one after the other, by what an operator would notice.
var removals = map[string]removal{
	"without persistentvolumes nothing works": {
		play: "base", resource: "persistentvolumes", stops: notReady,
		says: "grant the service account the verbs list and watch on persistentvolumes",
	},
	"without persistentvolumeclaims nothing works": {
		play: "base", resource: "persistentvolumeclaims", stops: notReady,
		says: "grant the service account the verbs list and watch on persistentvolumeclaims",
	},
	"without storageclasses nothing works": {
		play: "base", resource: "storageclasses", stops: notReady,
		says: "grant the service account the verbs list and watch on storageclasses.storage.k8s.io",
	},
	"without create on persistentvolumes volumes are not saved": {
		play: "base", resource: "persistentvolumes", verbs: "create",
		stops: func(s *stage) { s.fails("data", fixture.Claim("data").Class(s.class()), "cannot be saved") },
		says:  `cannot create resource "persistentvolumes"`,
	},
	"without get on persistentvolumes nothing is cloned": {
		play: "base", resource: "persistentvolumes", verbs: "get",
		stops: func(s *stage) {
			s.works("data")
			s.fails("clone", fixture.Claim("clone").Class(s.class()).FromClaim("data"), "persistentvolumes")
		},
		says: `cannot get resource "persistentvolumes"`,
	},
	"without delete on persistentvolumes they stay": {
		play: "base", resource: "persistentvolumes", verbs: "delete", stops: pvStays,
		says: `cannot delete resource "persistentvolumes"`,
	},
	"without patch on persistentvolumes they have no finalizer": {
		play: "base", resource: "persistentvolumes", verbs: "patch", stops: noFinalizer,
		says: `add the rule {apiGroups: [""], resources: [persistentvolumes], verbs: [patch]}`,
	},
	"without update on claims nothing is cloned": {
		play: "base", resource: "persistentvolumeclaims", verbs: "update",
		stops: func(s *stage) {
			s.works("data")
			s.fails("clone", fixture.Claim("clone").Class(s.class()).FromClaim("data"), "cannot update")
		},
		says: `cannot update resource "persistentvolumeclaims"`,
	},
	"without get on claims nothing is cloned": {
		play: "base", resource: "persistentvolumeclaims", verbs: "get",
		stops: func(s *stage) {
			s.works("data")
			s.fails("clone", fixture.Claim("clone").Class(s.class()).FromClaim("data"), "cannot get")
		},
		says: `cannot get resource "persistentvolumeclaims"`,
	},
	"without create on events nobody is told": {
		play: "base", resource: "events", verbs: "create",
		stops: func(s *stage) { s.works("data") },
		says:  `cannot create resource "events"`,
	},
	"without patch on events repetitions are not told": {
		play: "base", resource: "events", verbs: "patch",
		stops: func(s *stage) {
			s.Driver.Add(memdriver.Fail("CreateVolume", codes.Internal, 3))
			s.works("data")
		},
		says: `cannot patch resource "events"`,
	},
	"without get on volumesnapshots nothing is restored": {
		play: "snapshots", resource: "volumesnapshots", verbs: "get", stops: notRestored,
		says: `cannot get resource "volumesnapshots"`,
	},
	"without volumesnapshotcontents nothing is restored": {
		play: "snapshots", resource: "volumesnapshotcontents", stops: notRestored,
		says: `cannot get resource "volumesnapshotcontents"`,
	},
	"without update on volumesnapshots restores are not protected": {
		play: "snapshots", resource: "volumesnapshots", verbs: "update", stops: restored,
		says: "grant update on volumesnapshots.snapshot.storage.k8s.io",
	},
	"without list on volumesnapshots nothing is swept": {
		play: "snapshots", resource: "volumesnapshots", verbs: "list", stops: restored,
		says: "grant the verbs list and update on volumesnapshots.snapshot.storage.k8s.io",
	},
	"without nodes nothing works with topology": {
		play: "topology", resource: "nodes", stops: notReady, says: `resource "nodes"`,
	},
	"without csinodes nothing works with topology": {
		play: "topology", resource: "csinodes", stops: notReady, says: `resource "csinodes"`,
	},
	"without get on csinodes a lost node is not told from a new one": {
		play: "topology", resource: "csinodes", verbs: "get", stops: nodeUnknown, says: `cannot get resource "csinodes"`,
	},
	"without get on nodes a lost node is not told from a new one": {
		play: "topology", resource: "nodes", verbs: "get",
		stops: func(s *stage) {
			// Only of a node with a CSINode is the Node read.
			csiNode := fixture.CSINode("gone-"+s.Namespace, s.Driver.Name(), map[string]string{zoneKey: "a"})
			must[*storagev1.CSINode](s.t)(s.Client.StorageV1().CSINodes().Create(s.t.Context(), csiNode, metav1.CreateOptions{}))
			s.cleanUp(func(ctx context.Context) error {
				return s.Client.StorageV1().CSINodes().Delete(ctx, csiNode.Name, metav1.DeleteOptions{})
			})
			nodeUnknown(s)
		},
		says: `cannot get resource "nodes"`,
	},
	"without volumeattachments nothing works with drivers that attach": {
		play: "attachments", resource: "volumeattachments", stops: notReady,
		says: "grant the service account the verbs list and watch on volumeattachments.storage.k8s.io",
	},
	"without secrets classes with secrets do not work": {
		play: "secrets", resource: "secrets",
		stops: func(s *stage) {
			s.fails("data", fixture.Claim("data").Class(s.secretClass()), "secret")
			s.works("other")
		},
		says: `cannot get resource "secrets"`,
	},
	"without volumeattributesclasses claims that name one do not work": {
		play: "volumeattributesclasses", resource: "volumeattributesclasses",
		stops: func(s *stage) {
			s.fails("data", fixture.Claim("data").Class(s.class()).AttributesClass(s.attributesClass()), "volumeattributesclasses")
			s.works("other")
		},
		says: `cannot get resource "volumeattributesclasses"`,
	},
	"without referencegrants sources abroad do not work": {
		play: "cross-namespace", resource: "referencegrants",
		stops: func(s *stage) {
			claim := s.restoreAbroad()
			sidecar.Eventually(s.t, "the claim has an event about the grants", func(ctx context.Context) (bool, error) {
				list, err := s.Client.CoreV1().Events(claim.Namespace).List(ctx, metav1.ListOptions{})
				if err != nil {
					return false, err
				}
				for _, event := range list.Items {
					if event.Reason == "ProvisioningFailed" && strings.Contains(event.Message, "ReferenceGrants") {
						return true, nil
					}
				}
				return false, nil
			})
		},
		says: "grant the service account the verbs list and watch on referencegrants.gateway.networking.k8s.io",
	},
	"without leases operations are not recorded": {
		play: "base", resource: "leases", stops: func(s *stage) { s.works("data") }, says: "Operations cannot be recorded",
	},
	"without update on leases operations are not recorded": {
		play: "base", resource: "leases", verbs: "update", stops: func(s *stage) { s.works("data") }, says: `resources: [leases], verbs: [update]`,
	},
	"without list on leases operations are found one by one": {
		play: "base", resource: "leases", verbs: "list", args: []string{"-v=2"}, stops: func(s *stage) { s.works("data") },
		says: "The Leases of operations cannot be listed",
	},
	"without leases nobody leads": {
		play: "leader election", resource: "leases", stops: notLeading, says: "The leader lease may not be used, add the rule",
	},
	"without create on leases nobody leads": {
		play: "leader election", resource: "leases", verbs: "create", stops: notLeading, says: `cannot create resource "leases"`,
	},
	"without watch on leases leaders change slower": {
		play: "leader election", resource: "leases", verbs: "watch",
		stops: func(s *stage) { s.works("data") }, says: "The leader lease may not be watched",
	},
	"without csistoragecapacities nothing works with capacity": {
		play: "capacity", resource: "csistoragecapacities", stops: notReady,
		says: "grant the service account the verbs list and watch on csistoragecapacities.storage.k8s.io",
	},
	"without create on csistoragecapacities none are made": {
		play: "capacity", resource: "csistoragecapacities", verbs: "create", stops: publish,
		says: `cannot create resource "csistoragecapacities"`,
	},
	"without update on csistoragecapacities they get old": {
		play: "capacity", resource: "csistoragecapacities", verbs: "update",
		stops: func(s *stage) {
			publish(s)
			s.capacityObjects(1)
			s.Driver.Change(func(cfg *memdriver.Config) { cfg.CapacityBytes = 1 << 31 })
		},
		says: `cannot update resource "csistoragecapacities"`,
	},
	"without delete on csistoragecapacities they stay": {
		play: "capacity", resource: "csistoragecapacities", verbs: "delete",
		stops: func(s *stage) {
			publish(s)
			s.capacityObjects(1)
			if err := s.Client.StorageV1().StorageClasses().Delete(s.t.Context(), "c-"+s.Namespace, metav1.DeleteOptions{}); err != nil {
				s.t.Fatal(err)
			}
		},
		says: `cannot delete resource "csistoragecapacities"`,
	},
	"without pods capacity has no owner": {
		play: "capacity", resource: "pods", stops: ends, says: "grant the verb get on pods in namespace",
	},
	"without replicasets capacity has no owner at level 2": {
		play: "capacity", resource: "replicasets", stops: ends, says: "grant the verb get on replicasets.apps in namespace",
	},
	"without csinodes nodes take claims after random waits": {
		play: "node deployment", resource: "csinodes", stops: func(s *stage) { s.works("data") },
		says: "grant the service account the verbs list and watch on csinodes.storage.k8s.io",
	},
	"without list on leases those of nodes that are gone stay": {
		play: "node cleanup", resource: "leases", verbs: "list delete", stops: func(*stage) {},
		says: "Cannot look for operation Leases of nodes that are gone",
	},
	// One test for both, since it waits for a minute.
	"without nodes and csinodes nothing is cleaned up after them": {
		play: "node cleanup", resource: "nodes csinodes", stops: lookAtNodes,
		says: "grant the service account the verbs get and list on nodes, and get on csinodes.storage.k8s.io",
	},
}

// class makes the class "c", or finds it made.
func (s *stage) class() string {
	s.t.Helper()
	if s.made == "" {
		s.made = s.Class(s.t, fixture.Class("c"))
	}
	return s.made
}

// works shows that a plain claim gets its volume.
func (s *stage) works(claim string) {
	s.t.Helper()
	if claim == "other" {
		s.made = s.Class(s.t, fixture.Class("other"))
	}
	s.Claim(s.t, fixture.Claim(claim).Class(s.class()))
	s.Bound(s.t, claim)
}

// fails shows that a claim gets no volume, and why.
func (s *stage) fails(name string, claim *fixture.ClaimBuilder, why string) {
	s.t.Helper()
	s.Claim(s.t, claim)
	sidecar.Eventually(s.t, name+" has an event about "+why, func(ctx context.Context) (bool, error) {
		list, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, event := range list.Items {
			if event.InvolvedObject.Name == name && event.Reason == "ProvisioningFailed" && strings.Contains(event.Message, why) {
				return true, nil
			}
		}
		return false, nil
	})
	live, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil || live.Spec.VolumeName != "" {
		s.t.Errorf("the claim is bound to %q, %v", live.Spec.VolumeName, err)
	}
}

// pvStays shows that a volume is deleted, once, and its PersistentVolume is not.
func pvStays(s *stage) {
	s.t.Helper()
	s.works("data")
	_, pv := s.Bound(s.t, "data")
	s.DeleteClaim(s.t, "data")
	if err := s.Driver.WaitVolumes(s.t.Context(), 0); err != nil {
		s.t.Fatal(err)
	}
	s.says("its PersistentVolume cannot be removed")
	if _, err := s.Client.CoreV1().PersistentVolumes().Get(s.t.Context(), pv.Name, metav1.GetOptions{}); err != nil {
		s.t.Error(err)
	}
	if calls := s.Driver.Calls("DeleteVolume"); len(calls) != 1 {
		s.t.Errorf("%d calls of DeleteVolume, want one", len(calls))
	}
}

// noFinalizer shows that a PersistentVolume is created without our finalizer, and that it and its volume go.
func noFinalizer(s *stage) {
	s.t.Helper()
	s.works("data")
	if _, pv := s.Bound(s.t, "data"); slices.Contains(pv.Finalizers, wellknown.FinalizerPV) {
		s.t.Errorf("the PersistentVolume has the finalizers %v", pv.Finalizers)
	}
	s.DeleteClaim(s.t, "data")
	s.Empty(s.t)
}

func notRestored(s *stage) {
	s.t.Helper()
	s.works("data")
	s.snapshotOf("snapshot", "data")
	s.fails("restored", fixture.Claim("restored").Class(s.class()).FromSnapshot("snapshot"), "cannot get")
}

func restored(s *stage) {
	s.t.Helper()
	s.works("data")
	s.snapshotOf("snapshot", "data")
	s.Claim(s.t, fixture.Claim("restored").Class(s.class()).FromSnapshot("snapshot"))
	s.Bound(s.t, "restored")
}

// nodeUnknown selects a node that is not there.
func nodeUnknown(s *stage) {
	s.t.Helper()
	late := s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())
	s.fails("data", fixture.Claim("data").Class(late).SelectedNode("gone-"+s.Namespace), "cannot get")
}

func notLeading(s *stage) {
	s.t.Helper()
	s.says("Contending for the leader lease")
	s.Claim(s.t, fixture.Claim("data").Class(s.class()))
	s.says("The leader lease may not be used, add the rule")
	if calls := s.Driver.Calls("CreateVolume"); len(calls) > 0 {
		s.t.Errorf("calls %v", calls)
	}
}

// publish lets capacity be published for one class and one segment.
func publish(s *stage) {
	s.t.Helper()
	s.node(s.Namespace, map[string]string{zoneKey: "a"})
	s.Class(s.t, fixture.Class("c").WaitForFirstConsumer())
}

// ends shows that the process ends and its last words tell why.
func ends(s *stage) {
	s.t.Helper()
	if code := s.sidecar.Exits(s.t, soon); code != 1 {
		s.t.Errorf("exit code %d, want 1", code)
	}
}

// lookAtNodes waits until the clean-up has looked at nodes.
func lookAtNodes(s *stage) {
	s.t.Helper()
	s.strand()
	s.sidecar.Says(s.t, "Cannot judge some claims or volumes", 2*time.Minute)
}
