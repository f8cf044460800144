package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/deploy"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

const explainRights = "explain-rights.yaml"

// What the table's claims are called.
const (
	asked  = "asked"  // the claim that is explained
	origin = "origin" // what it is copied from
)

// explainCase is a claim that is explained before the sidecar is started, and what comes of it afterwards.
type explainCase struct {
	driver memdriver.Config
	args   []string
	// node is NODE_NAME; empty for none. It gets the world's namespace in front.
	node string
	// origin: a claim of the driver is there, with a volume.
	origin bool
	// make makes the claim, and returns when Kubernetes has done its part.
	make func(s *stage)
	want string
	// cause is part of why not.
	cause string
	// socketOnly: the answer needs the driver itself, not only what it is.
	socketOnly bool
}

var explainCases = map[string]explainCase{
	"a plain claim": {want: "create", make: func(s *stage) {
		s.ask(fixture.Claim(asked).Size("3Gi").Modes(corev1.ReadWriteMany).Class(s.Class(s.t, fixture.Class("c").MountOptions("noatime").
			Parameters(map[string]string{"type": "ssd", "csi.storage.k8s.io/fstype": "xfs"}))))
	}},
	"a claim with names and metadata": {
		want: "create", args: []string{"--volume-name-prefix=disk", "--volume-name-uuid-length=10", "--extra-create-metadata", "--default-fstype=ext4"},
		make: func(s *stage) { s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c")))) },
	},
	"late binding without a node": {want: "nothing", cause: "first pod", make: func(s *stage) {
		s.Claim(s.t, fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())))
		s.Event(s.t, asked, "WaitForFirstConsumer")
	}},
	"a restore": {want: "create", origin: true, make: func(s *stage) {
		s.snapshotOf("snap", origin)
		s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))).FromSnapshot("snap"))
	}},
	"a clone": {want: "create", origin: true, make: func(s *stage) {
		s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))).FromClaim(origin))
	}},
	"a clone of nothing": {want: "refuse", cause: "not found", make: func(s *stage) {
		s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))).FromClaim("nothing"))
	}},
	"the class of another driver": {want: "nothing", cause: "other.example.com", make: func(s *stage) {
		s.ask(fixture.Claim(asked).Class(s.foreignClass("other.example.com")))
	}},
	"a selector": {want: "refuse", cause: "selector", make: func(s *stage) {
		s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))).Selector("a", "b"))
	}},
	"a VolumeAttributesClass": {want: "create", make: func(s *stage) {
		name := "gold-" + s.Namespace
		must[*storagev1.VolumeAttributesClass](s.t)(s.Client.StorageV1().VolumeAttributesClasses().Create(s.t.Context(), &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: s.Driver.Name(), Parameters: map[string]string{"iops": "100"},
		}, metav1.CreateOptions{}))
		s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))).AttributesClass(name))
	}},
	"secrets": {want: "create", make: func(s *stage) {
		must[*corev1.Secret](s.t)(s.Client.CoreV1().Secrets(s.Namespace).Create(s.t.Context(),
			fixture.Secret(s.Namespace, "of-"+asked, map[string]string{"password": hushed}), metav1.CreateOptions{}))
		s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c").
			Parameter(wellknown.ParamSecretName, "of-${pvc.name}").Parameter(wellknown.ParamSecretNamespace, "${pvc.namespace}"))))
	}},
	"an in-tree class": {want: "create", driver: memdriver.Config{Name: "ebs.csi.aws.com"}, make: func(s *stage) {
		s.ask(fixture.Claim(asked).Class(s.foreignClass("kubernetes.io/aws-ebs")))
	}},
	"topology with a selected node": {
		want: "create", driver: memdriver.Config{Topology: map[string]string{zoneKey: "a"}},
		make: func(s *stage) {
			s.zones("a", "b", "c")
			s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())).SelectedNode(s.Namespace + "-b"))
		},
	},
	"topology with immediate binding": {
		want: "create", driver: memdriver.Config{Topology: map[string]string{zoneKey: "a"}},
		make: func(s *stage) {
			s.zones("a", "b", "c")
			s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))))
		},
	},
	"a selected node that is gone": {
		want: "refuse", cause: "gone", driver: memdriver.Config{Topology: map[string]string{zoneKey: "a"}},
		make: func(s *stage) {
			s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())).SelectedNode(s.Namespace + "-gone"))
		},
	},
	"node deployment, any node's": {
		want: "compete", driver: memdriver.Config{Topology: map[string]string{zoneKey: "a"}}, node: "a",
		args: []string{"--node-deployment", "--node-deployment-base-delay=1ms"},
		make: func(s *stage) {
			s.zones("a")
			s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))))
		},
	},
	"node deployment, without room": {
		want: "nothing", cause: "less than", driver: memdriver.Config{Topology: map[string]string{zoneKey: "a"}, CapacityBytes: 1 << 20}, node: "a",
		args: []string{"--node-deployment", "--node-deployment-base-delay=1ms"}, socketOnly: true,
		make: func(s *stage) {
			s.zones("a")
			s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("c"))))
		},
	},
	"node deployment, another node's": {
		want: "nothing", cause: "selected node", driver: memdriver.Config{Topology: map[string]string{zoneKey: "a"}}, node: "a",
		args: []string{"--node-deployment"},
		make: func(s *stage) {
			s.zones("a", "b")
			s.ask(fixture.Claim(asked).Class(s.Class(s.t, fixture.Class("late").WaitForFirstConsumer())).SelectedNode(s.Namespace + "-b"))
		},
	},
}

const hushed = "hush-do-not-print"

// What is explained is what then happens: the driver gets the very request, or the claim the very complaint. To explain
// takes no right to write and none to read secrets, and no call of the driver but those that ask who it is and for room.
func TestWhatIsExplainedIsWhatTheDriverGets(t *testing.T) {
	t.Parallel()
	for name, tc := range explainCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, o := explainStage(t, tc)
			tc.make(s)
			before := len(s.Driver.Calls())
			e := s.explain(o, "--csi-address="+s.Driver.Socket(), asked)
			if e.Answer != tc.want || !strings.Contains(e.Cause, tc.cause) {
				t.Fatalf("answer %q because of %q, want %q because of %q", e.Answer, e.Cause, tc.want, tc.cause)
			}
			for _, call := range s.Driver.Calls()[before:] {
				if !slices.Contains([]string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "NodeGetInfo", "GetCapacity"}, call.Method) {
					t.Errorf("the driver was called: %s", call)
				}
			}
			without := s.explain(o, "--driver="+s.Driver.Name(), "--capabilities="+strings.Join(e.Driver.Capabilities, ","), s.Namespace+"/"+asked)
			if diff := cmp.Diff(e.text, without.text); (diff != "") != tc.socketOnly {
				t.Errorf("with and without a socket (-with +without):\n%s", diff)
			}
			if strings.Contains(e.text, hushed) {
				t.Error("a secret is shown")
			}
			sidecar.Start(t, o)
			s.happens(e)
		})
	}
}

// explainStage makes a world for the case, with its claim to copy from, and returns how the sidecar is started. It is
// not running.
func explainStage(t *testing.T, tc explainCase) (*stage, sidecar.Options) {
	t.Helper()
	s := &stage{t: t}
	s.World = sidecar.NewWorld(t, cluster.Shared(t), tc.driver)
	o := s.Options(tc.args...)
	if tc.node != "" {
		o.Env = append(o.Env, "NODE_NAME="+s.Namespace+"-"+tc.node)
	}
	if tc.origin {
		first := sidecar.Start(t, o)
		s.Claim(t, fixture.Claim(origin).Class(s.Class(t, fixture.Class("origin"))))
		s.Bound(t, origin)
		first.Terminate()
		first.Exits(t, soon)
	}
	return s, o
}

// happens waits until the sidecar has done what was explained.
func (s *stage) happens(e explained) {
	s.t.Helper()
	switch e.Answer {
	case "create", "compete":
		call := s.firstCreate(e.PersistentVolume.Name)
		want := call.Create()
		want.Secrets = nil
		got := &csi.CreateVolumeRequest{}
		if err := protojson.Unmarshal(e.Call.Request, got); err != nil {
			s.t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			s.t.Errorf("request (-called +explained):\n%s", diff)
		}
		if (len(call.SecretKeys) > 0) != (e.Call.Secret != nil) {
			s.t.Errorf("secrets in the call: %q, explained: %v", call.SecretKeys, e.Call.Secret)
		}
		return
	case "refuse":
		sidecar.Eventually(s.t, "the claim has an event with the cause", func(ctx context.Context) (bool, error) {
			list, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			return slices.ContainsFunc(list.Items, func(event corev1.Event) bool {
				return event.InvolvedObject.Name == asked && event.Reason == "ProvisioningFailed" && event.Message == e.Cause
			}), nil
		})
	case "nothing":
		// A claim that came later shows that the sidecar has had its chance.
		s.witness()
	}
	uid := must[*corev1.PersistentVolumeClaim](s.t)(s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.t.Context(), asked, metav1.GetOptions{})).UID
	for _, call := range s.Driver.Calls("CreateVolume") {
		if strings.Contains(call.Key, string(uid)) {
			s.t.Errorf("the driver was called: %s", call)
		}
	}
}

func TestADeletionIsExplained(t *testing.T) {
	t.Parallel()
	s, o := explainStage(t, explainCase{origin: true})
	_, pv := s.Bound(t, origin)
	socket := "--csi-address=" + s.Driver.Socket()
	if e := s.explain(o, socket, "--pv="+pv.Name); e.Answer != "nothing" || !strings.Contains(e.Cause, "Bound") {
		t.Errorf("answer %q because of %q for a bound volume", e.Answer, e.Cause)
	}
	s.DeleteClaim(t, origin)
	sidecar.Eventually(t, "the PersistentVolume is released", func(ctx context.Context) (bool, error) {
		live, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		return err == nil && live.Status.Phase == corev1.VolumeReleased, err
	})
	e := s.explain(o, socket, "pv/"+pv.Name)
	got := &csi.DeleteVolumeRequest{}
	if e.Answer != "delete" || protojson.Unmarshal(e.Call.Request, got) != nil {
		t.Fatalf("answer %s", e.text)
	}
	if calls := s.Driver.Calls("DeleteVolume"); len(calls) > 0 {
		t.Fatalf("calls %v", calls)
	}
	sidecar.Start(t, o)
	s.Empty(t)
	if diff := cmp.Diff(s.Driver.Calls("DeleteVolume")[0].Delete(), got, protocmp.Transform()); diff != "" {
		t.Errorf("request (-called +explained):\n%s", diff)
	}
}

// A right that is missing is named, and not taken for "there is none"; one that the claim does not need is not missed.
func TestExplainNamesTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		drop func(deploy.Right) bool
		want string // "" for an answer
	}{
		"list of classes":  {func(r deploy.Right) bool { return r.Resource == "storageclasses" }, "grant the service account the verbs list and watch on storageclasses.storage.k8s.io"},
		"list of volumes":  {func(r deploy.Right) bool { return r.Resource == "persistentvolumes" && r.Verb != "get" }, "persistentvolumes"},
		"get of snapshots": {func(r deploy.Right) bool { return r.Resource == "volumesnapshots" }, `cannot get resource "volumesnapshots"`},
		"list of nodes":    {func(r deploy.Right) bool { return r.Resource == "nodes" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, o := explainStage(t, explainCase{})
			s.ask(fixture.Claim(asked).Class(s.Class(t, fixture.Class("c"))).FromSnapshot("snap"))
			left, dropped := shippedRights(t, explainRights).without(tc.drop)
			if dropped == 0 {
				t.Fatal("there is no such right")
			}
			o.Kubeconfig = limitedAccount(t, s.World, left)
			code, stdout, stderr := runExplain(t, o, "--csi-address="+s.Driver.Socket(), asked)
			if tc.want == "" {
				if code != 0 {
					t.Errorf("exit code %d: %s", code, stderr)
				}
				return
			}
			if code != 1 || stdout != "" || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, stdout %q, stderr %q, want 1 and %q", code, stdout, stderr, tc.want)
			}
		})
	}
}

func TestExplainOfWhatIsNotThereIsAnError(t *testing.T) {
	t.Parallel()
	s, o := explainStage(t, explainCase{})
	for _, args := range [][]string{{"nosuch"}, {"--pv=nosuch"}} {
		code, stdout, stderr := runExplain(t, o, append(args, "--csi-address="+s.Driver.Socket())...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, "not found") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}
