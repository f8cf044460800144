package integration

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// behaviour is one thing that a driver, or a user, may do.
type behaviour struct {
	class    func(*fixture.ClassBuilder)
	claim    func(*fixture.ClaimBuilder)
	rules    []memdriver.Rule
	topology bool
	// before, if not nil, is called before the claim is there.
	before func(s *stage)
	// act plays the user until the story is told.
	act func(s *stage)
	// loose names the fields that depend on how fast things happen.
	loose []string
	// differ names the fields of the story in which we differ, on purpose, and why.
	differ map[string]string
}

func bindIt(s *stage) { s.bound("c") }

func comeAndGo(s *stage) {
	s.bound("c")
	s.remove("c")
	s.clean()
}

// goUnanswered deletes the claim while no call is answered, and waits until it is gone.
func goUnanswered(s *stage) {
	s.ended("CreateVolume", 1)
	s.remove("c")
	eventually(s.T, "claim gone", func() bool { return s.live("c") == nil })
	s.started("CreateVolume", s.creates()+2)
}

// toldOfFailure waits for the event, and a few tries if there are any.
func toldOfFailure(s *stage) { s.saying(s.ns, s.claim.UID, "ProvisioningFailed") }

func behaviours() map[string]behaviour {
	late := func(class *fixture.ClassBuilder) { class.WaitForFirstConsumer() }
	onNode := func(claim *fixture.ClaimBuilder) { claim.SelectedNode("node-1") }
	return map[string]behaviour{
		"a volume at once":                     {act: bindIt},
		"a volume comes and goes":              {act: comeAndGo},
		"real errors, then a volume":           {rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.Internal, 3)}, act: bindIt},
		"NotFound, then a volume":              {rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.NotFound, 2)}, act: bindIt},
		"busy, then a volume":                  {rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.Aborted, 3)}, act: bindIt},
		"no answer, then a volume":             {rules: []memdriver.Rule{memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 2)}, act: bindIt},
		"no answer, an error, then a volume":   {rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.DeadlineExceeded, 1), memdriver.Fail("CreateVolume", codes.Internal, 1)}, act: bindIt},
		"the driver is full, no topology":      {rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.ResourceExhausted, 2)}, class: late, claim: onNode, act: bindIt},
		"a class that cannot be satisfied":     {class: func(class *fixture.ClassBuilder) { class.Parameter("csi.storage.k8s.io/unknown", "x") }, act: toldOfFailure},
		"a claim with a selector":              {claim: func(claim *fixture.ClaimBuilder) { claim.Selector("a", "b") }, act: toldOfFailure},
		"an infeasible request":                {rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.InvalidArgument, 0)}, act: toldOfFailure},
		"a volume that is deleted with errors": {rules: []memdriver.Rule{memdriver.Fail("DeleteVolume", codes.Internal, 2)}, act: comeAndGo},
		"a volume that is kept": {
			class: func(class *fixture.ClassBuilder) { class.Policy(corev1.PersistentVolumeReclaimRetain) },
			act: func(s *stage) {
				pv := s.bound("c")
				s.remove("c")
				eventually(s.T, "released", func() bool { return s.pv(pv.Name).Status.Phase == corev1.VolumeReleased })
				eventually(s.T, "let go", func() bool {
					return !slices.Contains(s.pv(pv.Name).Finalizers, "external-provisioner.volume.kubernetes.io/finalizer")
				})
			},
		},
		"the node is full": {
			rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.ResourceExhausted, 1)}, class: late, claim: onNode, topology: true,
			act: func(s *stage) {
				toldOfFailure(s)
				eventually(s.T, "node given back", func() bool { return s.live("c").Annotations["volume.kubernetes.io/selected-node"] == "" })
			},
		},
		"no answer, and the claim goes": {
			rules: []memdriver.Rule{memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0)}, loose: []string{"Creates"},
			act: func(s *stage) {
				goUnanswered(s)
				s.driver.ClearRules()
				s.clean()
			},
		},
		"no node is selected": {class: late, act: func(s *stage) {
			s.create(s.ours("later").SelectedNode("n")) // a claim that is served shows that this one had its turn
			s.bound("later")
			s.remove("later")
			s.ended("DeleteVolume", 1)
			eventually(s.T, "gone", func() bool { return len(s.pvs()) == 0 })
		}},
		"an attached volume": {act: func(s *stage) {
			pv := s.bound("c")
			attachments := s.clients.Core.StorageV1().VolumeAttachments()
			if _, err := attachments.Create(s.Context(), fixture.Attachment(s.ns, s.ns, pv.Name, "n"), metav1.CreateOptions{}); err != nil {
				s.Fatal(err)
			}
			s.remove("c")
			s.saying("default", pv.UID, "VolumeDelete", "is still attached to node n")
			if err := attachments.Delete(s.Context(), s.ns, metav1.DeleteOptions{}); err != nil {
				s.Fatal(err)
			}
			s.clean()
		}},
		"a populator fills the claim": {
			claim: func(claim *fixture.ClaimBuilder) { claim.From("example.com", "Recipe", "r") },
			act:   func(s *stage) { s.saying(s.ns, s.claim.UID, "Provisioning", "Assuming an external populator") },
		},
		"an infeasible request is edited": {
			rules: []memdriver.Rule{memdriver.Fail("CreateVolume", codes.InvalidArgument, 1)},
			act: func(s *stage) {
				toldOfFailure(s)
				s.update("c", func(claim *corev1.PersistentVolumeClaim) bool {
					claim.Labels = map[string]string{"a": "b"}
					return true
				})
				s.create(s.ours("later"))
				s.bound("later")
				if s.isOurs() {
					s.saying(s.ns, s.claim.UID, "ProvisioningSucceeded")
					s.bound("c")
				}
				s.remove("later")
				s.ended("DeleteVolume", 1)
				eventually(s.T, "gone", func() bool { return s.live("later") == nil })
			},
			differ: map[string]string{
				"ClaimEvents": "an edit ends the slow window", "Creates": "an edit ends the slow window", "Claim": "an edit ends the slow window",
				"PV": "an edit ends the slow window", "Volumes": "an edit ends the slow window",
			},
		},
		"the name of the PersistentVolume is taken": {
			before: func(s *stage) { s.release = s.blocked(1) },
			act: func(s *stage) {
				s.started("CreateVolume", 1)
				s.createPV(fixture.PV("pvc-" + string(s.claim.UID)).Driver("other").Class("nobody").Policy(corev1.PersistentVolumeReclaimRetain).Obj())
				s.release()
				if s.isOurs() {
					s.saying(s.ns, s.claim.UID, "ProvisioningFailed", "not for this volume")
				} else {
					s.saying(s.ns, s.claim.UID, "ProvisioningSucceeded")
				}
			},
			differ: map[string]string{"ClaimEvents": "a PersistentVolume of somebody else is no success"},
		},
		"an error after no answer, and the claim goes": {
			rules: []memdriver.Rule{memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0)}, loose: []string{"Creates"},
			act: func(s *stage) {
				goUnanswered(s)
				s.driver.Add(memdriver.Fail("CreateVolume", codes.Internal, 1))
				eventually(s.T, "the error was answered", func() bool {
					return slices.ContainsFunc(s.driver.Calls("CreateVolume"), func(call memdriver.Call) bool { return call.Code == codes.Internal })
				})
				s.driver.ClearRules()
				if s.isOurs() {
					s.clean()
				}
			},
			differ: map[string]string{"Deletes": "one final error does not end an unanswered create", "Volumes": "the library leaks the volume"},
		},
	}
}

// The library's loop and ours, with the same Provision function and a driver that does the same: what is seen from
// outside is alike, but for what is decided.
func TestOurLoopAndTheLibrarys(t *testing.T) { //nolint:tparallel // the library's constructor bears no client beside it
	libraries := map[string]*stage{}
	for name, b := range behaviours() {
		s := b.stage(t)
		s.runLibrary = s.newLibrary(b.topology)
		libraries[name] = s
	}
	for name, b := range behaviours() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := b.stage(t), libraries[name]
			theirs.T = t
			theirs.runLibrary()
			ours.begin(func(cfg *provision.Config) {
				cfg.Settings.Capabilities.Topology = b.topology
			})
			b.play(theirs)
			b.play(ours)
			var want, got story
			compare := func() bool {
				want, got = theirs.story(), ours.story()
				// What differs is not compared here; that it does is checked below.
				for _, field := range slices.AppendSeq(slices.Clone(b.loose), maps.Keys(b.differ)) {
					reflect.ValueOf(&want).Elem().FieldByName(field).SetZero()
					reflect.ValueOf(&got).Elem().FieldByName(field).SetZero()
				}
				return cmp.Equal(want, got, protocmp.Transform())
			}
			defer func() {
				if t.Failed() {
					t.Logf("(-library +ours):\n%s", cmp.Diff(want, got, protocmp.Transform()))
				}
			}()
			eventually(t, "the same story", compare)
			library, our := reflect.ValueOf(theirs.story()), reflect.ValueOf(ours.story())
			for field, why := range b.differ {
				if reflect.DeepEqual(library.FieldByName(field).Interface(), our.FieldByName(field).Interface()) {
					t.Errorf("%s does not differ, although %s: %v", field, why, our.FieldByName(field).Interface())
				}
			}
		})
	}
}

// stage sets up a driver that behaves like that.
func (b behaviour) stage(t *testing.T) *stage {
	t.Helper()
	edit := []func(*fixture.ClassBuilder){}
	if b.class != nil {
		edit = append(edit, b.class)
	}
	s := &stage{ground: newGround(t, memdriver.Config{}, edit...)}
	// Of two rules the newer one is followed first.
	for _, rule := range slices.Backward(b.rules) {
		s.driver.Add(rule)
	}
	return s
}

// play is what the user does.
func (b behaviour) play(s *stage) {
	s.Helper()
	if b.before != nil {
		b.before(s)
	}
	claim := s.ours("c")
	if b.claim != nil {
		b.claim(claim)
	}
	s.claim = s.create(claim)
	b.act(s)
}
