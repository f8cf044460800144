package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// play is a feature with its manifests of rights, and all that it does.
type play struct {
	rights []string
	driver memdriver.Config
	args   []string
	// env is the environment, made before the sidecar starts.
	env func(*testing.T, *sidecar.World) []string
	act func(*stage)
}

const zoneKey = "topology.mem.csi/zone"

var (
	baseRights = "rbac-base.yaml"
	election   = []string{"--leader-election", "--leader-election-lease-duration=6s", "--leader-election-renew-deadline=4s", "--leader-election-retry-period=1s"}
	publishing = []string{"--enable-capacity", "--capacity-poll-interval=1s", "--kube-api-capacity-qps=1000", "--kube-api-capacity-burst=1000"}
)

func nodeName(_ *testing.T, w *sidecar.World) []string {
	return []string{"NODE_NAME=" + w.Namespace, "POD_NAME=a", "NAMESPACE=" + w.Namespace}
}

// plays are the features by name.
var plays = map[string]play{
	"base": {
		rights: []string{baseRights},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete, memdriver.Clone}},
		act: func(s *stage) {
			class := s.Class(s.t, fixture.Class("c"))
			s.Driver.Add(memdriver.Fail("CreateVolume", codes.Internal, 3)) // The same event again is a PATCH.
			s.Claim(s.t, fixture.Claim("data").Class(class))
			s.Bound(s.t, "data")
			s.Claim(s.t, fixture.Claim("clone").Class(class).FromClaim("data"))
			s.Bound(s.t, "clone")
			s.DeleteClaim(s.t, "data")
			s.DeleteClaim(s.t, "clone")
			s.Empty(s.t)
		},
	},
	"snapshots": {
		rights: []string{baseRights, "rbac-snapshots.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete, memdriver.Snapshot}},
		args:   []string{"--snapshot-orphan-sweep-interval=200ms"},
		act: func(s *stage) {
			class := s.Class(s.t, fixture.Class("c"))
			s.Claim(s.t, fixture.Claim("data").Class(class))
			s.snapshotOf("left-behind", "data", wellknown.FinalizerSnapshotSource)
			s.snapshotOf("snapshot", "data")
			s.Claim(s.t, fixture.Claim("restored").Class(class).FromSnapshot("snapshot"))
			s.Bound(s.t, "restored")
			for _, name := range []string{"snapshot", "left-behind"} {
				sidecar.Eventually(s.t, name+" is protected no more", func(ctx context.Context) (bool, error) {
					live, err := s.snapshots().SnapshotV1().VolumeSnapshots(s.Namespace).Get(ctx, name, metav1.GetOptions{})
					return err == nil && len(live.Finalizers) == 0, err
				})
			}
		},
	},
	"topology": {
		rights: []string{baseRights, "rbac-topology.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete}, Topology: map[string]string{zoneKey: "a"}},
		act: func(s *stage) {
			class := s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())
			s.node(s.Namespace, map[string]string{zoneKey: "a"})
			s.Claim(s.t, fixture.Claim("data").Class(class).SelectedNode(s.Namespace))
			s.Bound(s.t, "data")
			s.Claim(s.t, fixture.Claim("nowhere").Class(class).SelectedNode("gone-"+s.Namespace))
			s.annotated("nowhere", wellknown.AnnSelectedNode, false)
		},
	},
	"attachments": {
		rights: []string{baseRights, "rbac-attachments.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete, memdriver.Publish}},
		act: func(s *stage) {
			s.Claim(s.t, fixture.Claim("data").Class(s.Class(s.t, fixture.Class("c"))))
			detach := s.attach("data")
			s.DeleteClaim(s.t, "data")
			s.says("is still attached to node")
			detach()
			s.Empty(s.t)
		},
	},
	"secrets": {
		rights: []string{baseRights, "rbac-secrets.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete}},
		act: func(s *stage) {
			s.Claim(s.t, fixture.Claim("data").Class(s.secretClass()))
			s.Bound(s.t, "data")
			s.DeleteClaim(s.t, "data")
			s.Empty(s.t)
		},
	},
	"volumeattributesclasses": {
		rights: []string{baseRights, "rbac-volumeattributesclasses.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete, memdriver.Modify}},
		act: func(s *stage) {
			s.Claim(s.t, fixture.Claim("data").Class(s.Class(s.t, fixture.Class("c"))).AttributesClass(s.attributesClass()))
			s.Bound(s.t, "data")
		},
	},
	"cross-namespace": {
		rights: []string{baseRights, "rbac-snapshots.yaml", "rbac-cross-namespace.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete, memdriver.Snapshot}},
		args:   []string{"--feature-gates=CrossNamespaceVolumeDataSource=true"},
		act: func(s *stage) {
			claim := s.restoreAbroad()
			sidecar.Eventually(s.t, "the claim of the other namespace is bound", func(ctx context.Context) (bool, error) {
				live, err := s.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
				return err == nil && live.Status.Phase == corev1.ClaimBound, err
			})
		},
	},
	"leader election": {
		rights: []string{baseRights, "rbac-leader-election.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete}},
		args:   election,
		env:    func(*testing.T, *sidecar.World) []string { return []string{"POD_NAME=first"} },
		act: func(s *stage) {
			class := s.Class(s.t, fixture.Class("c"))
			waitForHolder(s.t, s.World, "first")
			s.start("POD_NAME=second").MustBeReady(s.t)
			s.sidecar.Terminate()
			if code := s.sidecar.Exits(s.t, soon); code != 0 {
				s.t.Errorf("exit code %d, want 0", code)
			}
			s.Claim(s.t, fixture.Claim("data").Class(class))
			s.Bound(s.t, "data")
			waitForHolder(s.t, s.World, "second")
		},
	},
	"capacity": {
		rights: []string{baseRights, "rbac-topology.yaml", "rbac-capacity.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete, memdriver.Capacity}, Topology: map[string]string{zoneKey: "a"}, CapacityBytes: 1 << 30},
		args:   append([]string{"--capacity-ownerref-level=2"}, publishing...),
		env:    podOfDeployment,
		act: func(s *stage) {
			s.node(s.Namespace, map[string]string{zoneKey: "a"})
			class := s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())
			objects := s.capacityObjects(1)
			if owner := objects[0].OwnerReferences; len(owner) != 1 || owner[0].Kind != "Deployment" {
				s.t.Errorf("owner %v, want the Deployment", owner)
			}
			s.Driver.Change(func(cfg *memdriver.Config) { cfg.CapacityBytes = 1 << 31 })
			sidecar.Eventually(s.t, "the new capacity is published", func(context.Context) (bool, error) {
				return s.capacityObjects(1)[0].Capacity.Value() == 1<<31, nil
			})
			if err := s.Client.StorageV1().StorageClasses().Delete(s.t.Context(), class, metav1.DeleteOptions{}); err != nil {
				s.t.Fatal(err)
			}
			s.capacityObjects(0)
		},
	},
	"node deployment": {
		rights: []string{baseRights, "rbac-capacity.yaml", "rbac-node-immediate.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete, memdriver.Capacity}, Topology: map[string]string{zoneKey: "a"}},
		args: append([]string{
			"--node-deployment", "--node-deployment-base-delay=100ms", "--node-deployment-max-delay=200ms", "--capacity-ownerref-level=0",
		}, publishing...),
		env: func(t *testing.T, w *sidecar.World) []string {
			return append(podOfDeployment(t, w), "NODE_NAME="+w.Namespace)
		},
		act: func(s *stage) {
			s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())
			s.Claim(s.t, fixture.Claim("data").Class(s.Class(s.t, fixture.Class("c"))))
			s.Bound(s.t, "data")
			s.capacityObjects(1)
			s.DeleteClaim(s.t, "data")
			s.Empty(s.t)
		},
	},
	"node cleanup": {
		rights: []string{baseRights, "rbac-leader-election.yaml", "rbac-node-cleanup.yaml"},
		driver: memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete}, Topology: map[string]string{zoneKey: "a"}},
		args:   []string{"--node-deployment", "--node-deployment-cleanup"},
		env:    nodeName,
		act: func(s *stage) {
			s.strand()
			// Something is looked at in the second round, which comes after a minute.
			s.sidecar.Says(s.t, "/storage.k8s.io/v1/csinodes/driverless-"+s.Namespace, 2*time.Minute)
			s.sidecar.Says(s.t, "/api/v1/nodes?", time.Minute)
		},
	},
}

// secretClass makes a class with a secret that is there.
func (s *stage) secretClass() string {
	s.t.Helper()
	must[*corev1.Secret](s.t)(s.Client.CoreV1().Secrets(s.Namespace).Create(s.t.Context(),
		fixture.Secret(s.Namespace, "secret", map[string]string{"password": "p"}), metav1.CreateOptions{}))
	return s.Class(s.t, fixture.Class("c").
		Parameter(wellknown.ParamSecretName, "secret").Parameter(wellknown.ParamSecretNamespace, s.Namespace))
}

// attributesClass makes a VolumeAttributesClass.
func (s *stage) attributesClass() string {
	s.t.Helper()
	classes := s.Client.StorageV1().VolumeAttributesClasses()
	must[*storagev1.VolumeAttributesClass](s.t)(classes.Create(s.t.Context(), &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}, DriverName: s.Driver.Name(), Parameters: map[string]string{"iops": "1"},
	}, metav1.CreateOptions{}))
	s.cleanUp(func(ctx context.Context) error { return classes.Delete(ctx, s.Namespace, metav1.DeleteOptions{}) })
	return s.Namespace
}

// restoreAbroad makes a claim in another namespace from a snapshot of the stage's, which a grant allows.
func (s *stage) restoreAbroad() *corev1.PersistentVolumeClaim {
	s.t.Helper()
	class := s.Class(s.t, fixture.Class("c"))
	s.Claim(s.t, fixture.Claim("data").Class(class))
	s.snapshotOf("snapshot", "data")
	abroad := s.otherNamespace()
	s.grantTo(abroad)
	claim := fixture.Claim("restored").Namespace(abroad).Class(class).FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, s.Namespace, "snapshot").Obj()
	return must[*corev1.PersistentVolumeClaim](s.t)(s.Client.CoreV1().PersistentVolumeClaims(abroad).Create(s.t.Context(), claim, metav1.CreateOptions{}))
}

// strand makes a claim that waits for a node without the driver, and a released volume of a zone without nodes.
func (s *stage) strand() {
	s.t.Helper()
	s.node("driverless-"+s.Namespace, nil)
	class := s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())
	s.Claim(s.t, fixture.Claim("waiting").Class(class).SelectedNode("driverless-"+s.Namespace))
	pv := fixture.PV(s.Namespace).ProvisionedBy(s.Driver.Name()).Class(class).
		BoundTo(fixture.Claim("gone").Namespace(s.Namespace).UID("gone").Obj()).Obj()
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zoneKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"gone"}}},
	}}}}
	pvs := s.Client.CoreV1().PersistentVolumes()
	must[*corev1.PersistentVolume](s.t)(pvs.Create(s.t.Context(), pv, metav1.CreateOptions{}))
	s.cleanUp(func(ctx context.Context) error {
		live, err := pvs.Get(ctx, pv.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		live.Finalizers = nil
		if _, err := pvs.Update(ctx, live, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return pvs.Delete(ctx, pv.Name, metav1.DeleteOptions{})
	})
}

// plain shows a log as a person reads it: quotes inside of quotes are quotes.
func plain(log string) string { return strings.ReplaceAll(log, `\"`, `"`) }
