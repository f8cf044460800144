package provision

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// situation is facts and settings, which a fault spoils in one place.
type situation struct {
	Facts    Facts
	Settings Settings
}

// goodSituation is a claim with everything: restored from a snapshot abroad, with a VolumeAttributesClass, secrets, a node.
func goodSituation() *situation {
	claim := fixture.Claim("c").Namespace("ns").UID("0123-4567").Class("fast").For(driverName).SelectedNode("n").AttributesClass("gold").
		FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, "abroad", "snap").Obj()
	snapshot := fixture.Snapshot("snap").Namespace("abroad").UID("snap-uid").Ready("content", "1Gi").Obj()
	class := fixture.Class("fast").UID("class-uid").Provisioner(driverName).MountOptions("noatime").Parameters(map[string]string{
		"type": "ssd", wellknown.ReservedPrefix + "fstype": "xfs",
		wellknown.ReservedPrefix + "secret-name": "${pvc.name}", wellknown.ReservedPrefix + "secret-namespace": "${pvc.namespace}",
	}).Obj()
	ref, err := source.Of(claim, true)
	if err != nil {
		panic(err)
	}
	segment := &csi.Topology{Segments: map[string]string{"zone": "z"}}
	s := &situation{
		Facts: Facts{
			Claim: claim, Class: class, Translated: class, SelectedNode: "n", Source: ref, Granted: true,
			Snapshot: snapshot, Content: fixture.Content("content").Driver(driverName).For(snapshot).Handle("handle").Obj(),
			WantsVAC: true, VAC: vac("gold", map[string]string{"iops": "1"}),
			Requirement: &csi.TopologyRequirement{Requisite: []*csi.Topology{segment}, Preferred: []*csi.Topology{segment}},
		},
		Settings: Settings{
			Driver: driverName, Capabilities: allCapabilities(), VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1,
			CrossNamespace: true, ExtraCreateMetadata: true,
		},
	}
	s.Settings.Capabilities.Topology = true
	return s
}

func TestAWholePlan(t *testing.T) {
	t.Parallel()
	s := goodSituation()
	plan, err := MakePlan(s.Facts, s.Settings)
	if err != nil {
		t.Fatal(err)
	}
	segment := &csi.Topology{Segments: map[string]string{"zone": "z"}}
	want := &csi.CreateVolumeRequest{
		Name:          "pvc-0123-4567",
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}},
		}},
		Parameters: map[string]string{
			"type":                             "ssd",
			"csi.storage.k8s.io/pvc/name":      "c",
			"csi.storage.k8s.io/pv/name":       "pvc-0123-4567",
			"csi.storage.k8s.io/pvc/namespace": "ns",
		},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "handle"},
		}},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{segment}, Preferred: []*csi.Topology{segment}},
		MutableParameters:         map[string]string{"iops": "1"},
	}
	if diff := cmp.Diff(want, plan.Request, protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	secret := &corev1.SecretReference{Namespace: "ns", Name: "c"}
	if diff := cmp.Diff(secret, plan.Secrets.Provisioner); diff != "" {
		t.Errorf("secret (-want +got):\n%s", diff)
	}
	if plan.VACName != "gold" || plan.FSType != "xfs" || plan.SelectedNode != "n" || !plan.Reschedulable || plan.Translated {
		t.Errorf("plan %+v", plan)
	}
}

func TestAPlanTakesWhatTheClaimSays(t *testing.T) {
	t.Parallel()
	s := goodSituation()
	s.Facts.Claim.Annotations["example.com/team"] = "blue"
	s.Facts.Claim.Labels = map[string]string{"app": "db"}
	s.Settings.ExtraCreateMetadata = false
	s.Settings.CreateMetadata = volume.ClaimKeys{Annotations: volume.Keys{"example.com/*"}, Labels: volume.Keys{"app"}}
	s.Settings.CopyToPV = volume.ClaimKeys{Annotations: volume.Keys{"example.com/*", "volume.kubernetes.io/*"}, Labels: volume.Keys{"app"}}
	plan, err := MakePlan(s.Facts, s.Settings)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"type": "ssd", "csi.storage.k8s.io/pvc/annotations/example.com/team": "blue", "csi.storage.k8s.io/pvc/labels/app": "db",
	}
	if diff := cmp.Diff(want, plan.Request.GetParameters()); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]map[string]string{{"app": "db"}, {"example.com/team": "blue"}}, []map[string]string{plan.Labels, plan.Annotations}); diff != "" {
		t.Errorf("labels and annotations of the PersistentVolume (-want +got):\n%s", diff)
	}
}

// fault is one thing that is wrong, and how it is told.
type fault struct {
	name  string
	spoil func(s *situation)
	want  outcome.Outcome
	text  []string
}

// faults are in the order of the contract's table: of two, the first is told.
func faults() []fault {
	parameter := func(key, value string) func(s *situation) {
		return func(s *situation) {
			if s.Facts.Translated == nil {
				return
			}
			class := s.Facts.Translated.DeepCopy()
			class.Parameters[key] = value
			if s.Facts.Translated == s.Facts.Class {
				s.Facts.Class = class
			}
			s.Facts.Translated = class
		}
	}
	return []fault{
		{"the source cannot be told", func(s *situation) { s.Facts.SourceErr = errors.New("gate CrossNamespaceVolumeDataSource is off") }, outcome.Failed, []string{"CrossNamespaceVolumeDataSource"}},
		{"the grants cannot be read", func(s *situation) { s.Facts.GrantErr = errors.New("no cache") }, outcome.Failed, []string{"ReferenceGrants", `"abroad"`, "no cache"}},
		{"the source is not granted", func(s *situation) { s.Facts.Granted = false }, outcome.Failed, []string{"abroad/snap", "VolumeSnapshot", "ns/c"}},
		{"the class cannot be translated", func(s *situation) { s.Facts.Translated, s.Facts.TranslateErr = nil, errors.New("odd") }, outcome.Failed, []string{"storage class translation", "odd"}},
		{"the plugin has no controller", func(s *situation) { s.Settings.Capabilities.ControllerService = false }, outcome.Failed, []string{"CONTROLLER_SERVICE"}},
		{"the driver makes no volumes", func(s *situation) { s.Settings.Capabilities.CreateDeleteVolume = false }, outcome.Failed, []string{"CREATE_DELETE_VOLUME"}},
		{"the driver knows no snapshots", func(s *situation) { s.Settings.Capabilities.Snapshot = false }, outcome.Failed, []string{"CREATE_DELETE_SNAPSHOT"}},
		{"the driver modifies nothing", func(s *situation) { s.Settings.Capabilities.Modify = false }, outcome.Failed, []string{"MODIFY_VOLUME"}},
		{"the claim has a selector", func(s *situation) {
			s.Facts.Claim = s.Facts.Claim.DeepCopy()
			s.Facts.Claim.Spec.Selector = fixture.Claim("").Selector("a", "b").Obj().Spec.Selector
			s.Facts.Claim.Spec.Selector.MatchLabels = nil // an empty one counts
		}, outcome.Failed, []string{"selector"}},
		{"the name cannot be made", func(s *situation) { s.Settings.VolumeNamePrefix = "" }, outcome.Failed, []string{"prefix"}},
		{"the name is taken", func(s *situation) {
			s.Facts.ExistingPV = fixture.PV("pvc-0123-4567").BoundTo(fixture.Claim("x").UID("x").Obj()).Obj()
		}, outcome.Failed, []string{"pvc-0123-4567", "another claim"}},
		{"the name is that of a PersistentVolume without a claim", func(s *situation) {
			s.Facts.ExistingPV = fixture.PV("pvc-0123-4567").Obj()
		}, outcome.Failed, []string{"pvc-0123-4567"}},
		{"two file systems are named", parameter("fsType", "ext4"), outcome.Failed, []string{"fstype"}},
		{"the access mode is unknown", func(s *situation) {
			s.Facts.Claim = s.Facts.Claim.DeepCopy()
			s.Facts.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"Sometimes"}
		}, outcome.Failed, []string{"Sometimes"}},
		{"the snapshot is missing", func(s *situation) { s.Facts.Snapshot = nil }, outcome.Unchanged, []string{"snap"}},
		{"there is no place", func(s *situation) { s.Facts.RequirementErr = errors.New("no topology key") }, outcome.Unchanged, []string{"accessibility requirements", "no topology key"}},
		{"a secret template is broken", parameter(wellknown.ReservedPrefix+"provisioner-secret-name", "${nobody}"), outcome.Unchanged, []string{"secret"}},
		{"a later secret template is broken", parameter(wellknown.ReservedPrefix+"node-expand-secret-name", "${nobody"), outcome.Unchanged, []string{"secret"}},
		{"a reserved key is unknown", parameter(wellknown.ReservedPrefix+"fsType", "xfs"), outcome.Failed, []string{wellknown.ReservedPrefix + "fsType"}},
		{"the claim says too much to the driver", func(s *situation) {
			s.Facts.Claim = s.Facts.Claim.DeepCopy()
			s.Facts.Claim.Annotations["long"] = strings.Repeat("x", 4096)
			s.Settings.CreateMetadata.Annotations = volume.Keys{"long"}
		}, outcome.Failed, []string{"annotations and labels of the claim", "4096"}},
		{"the claim says too much to its PersistentVolume", func(s *situation) {
			s.Facts.Claim = s.Facts.Claim.DeepCopy()
			s.Facts.Claim.Annotations["endless"] = strings.Repeat("x", 200<<10)
			s.Settings.CopyToPV.Annotations = volume.Keys{"endless"}
		}, outcome.Failed, []string{"its PersistentVolume is to have", "196608"}},
		{"the VolumeAttributesClass cannot be read", func(s *situation) { s.Facts.VAC, s.Facts.VACErr = nil, errors.New("forbidden") }, outcome.Unchanged, []string{`"gold"`, "forbidden"}},
		{"the VolumeAttributesClass is another driver's", func(s *situation) { s.Facts.VAC = vac("gold", nil); s.Facts.VAC.DriverName = "other" }, outcome.Failed, []string{`"gold"`, `"other"`, driverName}},
	}
}

// Each fault alone is told with its words and its outcome; of several, the first of the contract's order.
func TestTheOrderOfTheChain(t *testing.T) {
	t.Parallel()
	told := func(t *testing.T, f fault, s *situation) {
		t.Helper()
		plan, err := MakePlan(s.Facts, s.Settings)
		if err == nil || plan != nil {
			t.Fatalf("%s: no error", f.name)
		}
		for _, word := range f.text {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %q does not mention %q", f.name, err, word)
			}
		}
		if got := outcome.Of(err); got != f.want {
			t.Errorf("%s: outcome %s, want %s", f.name, got, f.want)
		}
	}
	list := faults()
	for i, f := range list {
		alone := goodSituation()
		f.spoil(alone)
		told(t, f, alone)
		// Every later fault as well, those that take the ground from under others last.
		several := goodSituation()
		for _, later := range list[i+1:] {
			later.spoil(several)
		}
		f.spoil(several)
		told(t, f, several)
	}
}

func TestOutcomesThatDependOnMore(t *testing.T) {
	t.Parallel()
	gone := fmt.Errorf("node n: %w", topology.ErrNodeGone)
	for name, tc := range map[string]struct {
		spoil func(s *situation)
		want  outcome.Outcome
	}{
		"a node that is gone asks for another":                    {func(s *situation) { s.Facts.RequirementErr = gone }, outcome.Reschedule},
		"not while a create is outstanding":                       {func(s *situation) { s.Facts.RequirementErr, s.Facts.Outstanding = gone, true }, outcome.Unchanged},
		"without topology nobody asks where":                      {func(s *situation) { s.Facts.RequirementErr, s.Settings.Capabilities.Topology = gone, false }, outcome.Done},
		"a populator's claim is not ours":                         {func(s *situation) { s.Facts.Source = source.Reference{Kind: source.Populator, KindName: "Recipe"} }, outcome.NotOurs},
		"also when the driver can do nothing":                     {func(s *situation) { s.Facts.Source.Kind, s.Settings.Capabilities = source.Populator, Capabilities{} }, outcome.NotOurs},
		"a source in another namespace must be granted, even so":  {func(s *situation) { s.Facts.Source.Kind, s.Facts.Granted = source.Populator, false }, outcome.Failed},
		"a name that our own volume has is free for the resuming": {func(s *situation) { s.Facts.ExistingPV, s.Facts.Outstanding = fixture.PV("pvc-0123-4567").Obj(), true }, outcome.Done},
		"a class of the other gate is not read":                   {func(s *situation) { s.Facts.WantsVAC, s.Facts.VAC, s.Settings.Capabilities.Modify = false, nil, false }, outcome.Done},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := goodSituation()
			tc.spoil(s)
			_, err := MakePlan(s.Facts, s.Settings)
			if got := outcome.Of(err); got != tc.want {
				t.Errorf("%s (%v), want %s", got, err, tc.want)
			}
		})
	}
}

// Same facts, same plan, and the facts are as before, whatever is wrong with them.
func TestPlanningIsPure(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a seed that is always the same
	list := faults()
	options := cmp.Options{protocmp.Transform(), cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) })}
	for round := range 60 {
		picks := make([]int, random.IntN(4))
		for i := range picks {
			picks[i] = random.IntN(len(list))
		}
		build := func() *situation {
			s := goodSituation()
			for _, pick := range picks {
				list[pick].spoil(s)
			}
			return s
		}
		s := build()
		plan1, err1 := MakePlan(s.Facts, s.Settings)
		plan2, err2 := MakePlan(s.Facts, s.Settings)
		if diff := cmp.Diff(build(), s, options); diff != "" {
			t.Fatalf("round %d: planning changed its facts (-before +after):\n%s", round, diff)
		}
		if diff := cmp.Diff(plan1, plan2, options); diff != "" || fmt.Sprint(err1) != fmt.Sprint(err2) {
			t.Fatalf("round %d: two plans of the same facts, errors %v and %v (-first +second):\n%s", round, err1, err2, diff)
		}
	}
}

// A plan can be printed: no value of a secret is in it.
func TestAPlanHoldsNoSecretValue(t *testing.T) {
	t.Parallel()
	s := goodSituation()
	plan, err := MakePlan(s.Facts, s.Settings)
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Request.GetSecrets()) != 0 {
		t.Errorf("secrets in the plan: %v", plan.Request.GetSecrets())
	}
}
