package provision

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// explainer ends the instance and returns its controller, which has seen nothing and does nothing any more.
func (w *world) explainer() *Controller {
	w.Helper()
	w.end()
	return w.c
}

// stopped returns the name of the check that failed, and its cause; "" for none. Those before it must have passed, and
// none after it may be reached.
func stopped(t *testing.T, e Explanation) (name, cause string) {
	t.Helper()
	for i, check := range e.Checks {
		want := CheckPassed
		switch {
		case name != "":
			want = CheckNotReached
		case check.Result == CheckFailed:
			name, cause, want = check.Name, check.Cause, CheckFailed
		}
		if check.Result != want || (check.Cause != "") != (want == CheckFailed) {
			t.Errorf("check %d is %+v, want %s", i, check, want)
		}
	}
	return name, cause
}

// shortening is a cache that keeps of a claim which is nobody's yet as little as the real one.
type shortening struct{ Cache }

func (s shortening) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	claim := s.Cache.Claim(namespace, name).DeepCopy()
	delete(claim.Annotations, wellknown.AnnSelectedNode)
	return claim
}

// What is explained is what then happens: the same call, the same complaint, or nothing.
func TestWhatIsExplainedHappens(t *testing.T) {
	t.Parallel()
	claim := func() *fixture.ClaimBuilder { return fixture.Claim("c").UID("u").Class("fast").For(driverName) }
	class := func(name string) *fixture.ClassBuilder { return fixture.Class(name).Provisioner(driverName) }
	for name, tc := range map[string]struct {
		claim      *fixture.ClaimBuilder
		others     []metav1.Object
		edit       func(*Config)
		want       Answer
		wantFailed string
		wantCause  string
	}{
		"a plain claim": {claim: claim(), want: AnswerCreate},
		"a claim of a class with secrets": {
			claim: claim().Class("secret"), want: AnswerCreate,
			others: []metav1.Object{
				class("secret").Parameter(wellknown.ParamSecretName, "s").Parameter(wellknown.ParamSecretNamespace, "default").Obj(),
				secretObject("s"),
			},
		},
		"a clone": {
			claim: claim().FromClaim("source"), want: AnswerCreate,
			others: []metav1.Object{
				boundSource(), fixture.PV("pv-of-source").ProvisionedBy(driverName).Handle("handle").Phase(corev1.VolumeBound).BoundTo(boundSource()).Obj(),
			},
		},
		"a bound claim":                 {claim: claim().Volume("pv-of-c"), want: AnswerNothing, wantFailed: "the claim is not bound", wantCause: "pv-of-c"},
		"another driver's":              {claim: claim().For("other"), want: AnswerNothing, wantFailed: "the claim is for this driver", wantCause: `"other"`},
		"nobody's yet":                  {claim: fixture.Claim("c").UID("u").Class("fast"), want: AnswerNothing, wantFailed: "the claim is for this driver", wantCause: "has not named"},
		"nobody's, for want of a class": {claim: fixture.Claim("c").UID("u").Class("gone"), want: AnswerNothing, wantFailed: "the claim is for this driver", wantCause: `"gone" does not exist`},
		"late binding, nobody's yet":    {claim: fixture.Claim("c").UID("u").Class("late"), others: []metav1.Object{class("late").WaitForFirstConsumer().Obj()}, want: AnswerNothing, wantFailed: "the claim is for this driver", wantCause: "first pod"},
		"late binding with a node, nobody's yet": {
			claim: fixture.Claim("c").UID("u").Class("late").SelectedNode("n"), others: []metav1.Object{class("late").WaitForFirstConsumer().Obj()},
			edit: func(c *Config) { c.Cache = shortening{c.Cache} },
			want: AnswerNothing, wantFailed: "the claim is for this driver", wantCause: "has not named its provisioner",
		},
		"late binding without a node":  {claim: claim().Class("late"), others: []metav1.Object{class("late").WaitForFirstConsumer().Obj()}, want: AnswerNothing, wantFailed: "a node is selected where the class waits for one", wantCause: `"late"`},
		"late binding with a node":     {claim: claim().Class("late").SelectedNode("n"), others: []metav1.Object{class("late").WaitForFirstConsumer().Obj()}, want: AnswerCreate},
		"a claim of no class":          {claim: claim().Class("gone"), want: AnswerNothing, wantFailed: "the claim's class exists", wantCause: `"gone"`},
		"a class of another driver":    {claim: claim().Class("theirs"), others: []metav1.Object{fixture.Class("theirs").Provisioner("other").Obj()}, want: AnswerNothing, wantFailed: "the class names this driver", wantCause: `"other"`},
		"a volume that waits for it":   {claim: claim(), others: []metav1.Object{fixture.PV("pvc-u").ProvisionedBy(driverName).BoundTo(claim().Obj()).Obj()}, want: AnswerNothing, wantFailed: "the claim has no PersistentVolume yet", wantCause: "pvc-u"},
		"a name that is taken":         {claim: claim(), others: []metav1.Object{fixture.PV("pvc-u").ProvisionedBy(driverName).BoundTo(fixture.Claim("d").UID("other").Obj()).Obj()}, want: AnswerRefuse, wantFailed: "the volume has a name of its own"},
		"a selector":                   {claim: claim().Selector("a", "b"), want: AnswerRefuse, wantFailed: "the claim has no selector"},
		"a capability that is missing": {claim: claim(), edit: func(c *Config) { c.Settings.Capabilities.CreateDeleteVolume = false }, want: AnswerRefuse, wantFailed: "the driver has what the claim needs"},
		"a clone of nothing":           {claim: claim().FromClaim("gone"), want: AnswerRefuse, wantFailed: "the content of the data source can be used"},
		"a populator's":                {claim: claim().From("example.com", "Thing", "t"), want: AnswerNothing, wantFailed: "the data source may be used"},
		"another node's":               {claim: claim().SelectedNode("there"), edit: onNode, want: AnswerNothing, wantFailed: "the claim is for this node", wantCause: `"there"`},
		"this node's":                  {claim: claim().SelectedNode("here"), edit: onNode, want: AnswerCreate},
		"any node's":                   {claim: claim(), edit: onNode, want: AnswerCompete},
		"any node's, without room":     {claim: claim(), edit: func(c *Config) { onNode(c); c.Node.Room = full{} }, want: AnswerNothing, wantFailed: "the node has room, where nodes compete for the claim", wantCause: "less than"},
		"this node's, which is full":   {claim: claim().SelectedNode("here"), edit: func(c *Config) { onNode(c); c.Node.Room = full{} }, want: AnswerCreate},
		"no node competes for it":      {claim: claim(), edit: func(c *Config) { onNode(c); c.Node.ImmediateBinding = false }, want: AnswerNothing, wantFailed: "the claim is for this node", wantCause: "compete"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tc.edit, func(t *testing.T, w *world) {
				c := w.explainer()
				for _, object := range append(tc.others, tc.claim.Obj()) {
					w.put(object)
				}
				e, err := c.ExplainClaim(t.Context(), "default", "c")
				if err != nil {
					t.Fatal(err)
				}
				failed, cause := stopped(t, e.Explanation)
				if e.Answer != tc.want || failed != tc.wantFailed || !strings.Contains(cause, tc.wantCause) {
					t.Errorf("answer %q at %q because of %q, want %q at %q because of %q", e.Answer, failed, cause, tc.want, tc.wantFailed, tc.wantCause)
				}
				marks := slices.ContainsFunc(e.Notes, func(note string) bool { return strings.Contains(note, "the operation is recorded") })
				if marks != (e.Answer == AnswerCreate || e.Answer == AnswerCompete) {
					t.Errorf("notes %q of a claim whose operation is recorded by then, or never", e.Notes)
				}
				if writes := w.api.writes; len(writes) > 0 {
					t.Errorf("it wrote %q", writes)
				}
				w.start()
				w.pass(time.Second)
				w.happens(e, cause)
			})
		})
	}
}

// An operation that is recorded goes on whatever its claim says, unless its secrets have changed.
func TestARecordedOperationIsExplained(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile  func(w *world)
		want       Answer
		wantFailed string
	}{
		"an earlier process began it": {func(*world) {}, AnswerResume, ""},
		"the claim has changed since": {func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Selector = &metav1.LabelSelector{} })
		}, AnswerResume, ""},
		"the PersistentVolume is there": {func(w *world) {
			w.put(fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).BoundTo(w.live("c")).Obj())
		}, AnswerNothing, "no PersistentVolume stands for the volume yet"},
		"its class is gone": {func(w *world) { w.remove(w.api.Class("fast")) }, AnswerRefuse, "the secrets are those that the class gives"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.withSecret()
				w.driver.answers(madeInBad)
				w.claim("c")
				w.pass(100 * time.Millisecond)
				w.end()
				tc.meanwhile(w)
				w.driver.creates = nil
				e, err := w.c.ExplainClaim(t.Context(), "default", "c")
				if err != nil {
					t.Fatal(err)
				}
				if failed, cause := stopped(t, e.Explanation); e.Answer != tc.want || failed != tc.wantFailed {
					t.Errorf("answer %q at %q because of %q, want %q at %q", e.Answer, failed, cause, tc.want, tc.wantFailed)
				}
				w.start()
				w.pass(time.Second)
				if calls := len(w.driver.createCalls()); (calls > 0) != (tc.want == AnswerResume) {
					t.Errorf("%d calls", calls)
				}
			})
		})
	}
}

// happens compares what the running instance has done with what was explained.
func (w *world) happens(e *ClaimExplanation, cause string) {
	w.Helper()
	calls, complaints := w.driver.createCalls(), w.events.having("ProvisioningFailed", cause)
	switch e.Answer {
	case AnswerCreate, AnswerResume, AnswerCompete:
		if len(calls) == 0 {
			w.Fatal("the driver was not called")
		}
		got := calls[0].req
		if (len(got.GetSecrets()) > 0) != (e.Plan.Secrets.Provisioner != nil) {
			w.Errorf("secrets in the call: %v, explained: %v", calls[0].keys, e.Plan.Secrets.Provisioner)
		}
		got.Secrets = nil
		if diff := cmp.Diff(got, e.Plan.Request, protocmp.Transform()); diff != "" {
			w.Errorf("request (-called +explained):\n%s", diff)
		}
		if protected := w.api.wrote("update persistentvolumeclaims source") > 0; protected != (e.SourceFinalizer != "") {
			w.Errorf("the source was protected: %v, explained: %q", protected, e.SourceFinalizer)
		}
	case AnswerRefuse:
		if len(calls) > 0 || len(complaints) == 0 {
			w.Errorf("%d calls, and no complaint like %q among %q", len(calls), cause, w.events.lines)
		}
	case AnswerNothing, AnswerDelete, AnswerWait:
		if complaints := w.events.having("ProvisioningFailed"); len(calls) > 0 || len(complaints) > 0 {
			w.Errorf("%d calls and complaints %q", len(calls), complaints)
		}
	}
}

func secretObject(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"password": []byte("hush")}}
}

func boundSource() *corev1.PersistentVolumeClaim {
	source := fixture.Claim("source").UID("uid-of-source").Class("fast").For(driverName).Obj()
	source.Spec.VolumeName, source.Status.Phase = "pv-of-source", corev1.ClaimBound
	source.Status.Capacity = source.Spec.Resources.Requests
	return source
}

// A read that fails is no answer, and a claim that is not there is none either.
func TestWhatCannotBeReadIsNotExplained(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		c := w.explainer()
		w.put(fixture.Claim("c").UID("u").Class("fast").For(driverName).FromClaim("elsewhere").Obj())
		w.api.failing(func(verb, resource, name string) error {
			if name == "elsewhere" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, errors.New("no right to "+verb))
			}
			return nil
		})
		if _, err := c.ExplainClaim(t.Context(), "default", "c"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "elsewhere") {
			t.Errorf("error %v, want one that names what may not be read", err)
		}
		w.api.failing(func(string, string, string) error {
			return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError}}
		})
		if _, err := c.ExplainClaim(t.Context(), "default", "c"); err == nil {
			t.Error("an API server in trouble is taken for an answer")
		}
		w.api.failing(nil)
		if _, err := c.ExplainClaim(t.Context(), "default", "d"); !errors.Is(err, ErrNoObject) {
			t.Errorf("error %v for a claim that is not there", err)
		}
		if _, err := c.ExplainDeletion("pv"); !errors.Is(err, ErrNoObject) {
			t.Errorf("error %v for a PersistentVolume that is not there", err)
		}
	})
}

func TestExplainedDeletionsHappen(t *testing.T) {
	t.Parallel()
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}}
	attachment.Spec.NodeName, attachment.Spec.Source.PersistentVolumeName = "n", new("pv")
	for name, tc := range map[string]struct {
		pv         *fixture.PVBuilder
		others     []metav1.Object
		edit       func(*Config)
		want       Answer
		wantFailed string
		wantCause  string
	}{
		"released":                    {pv: released(), want: AnswerDelete},
		"released, with a secret":     {pv: released().DeletionSecret("default", "s"), others: []metav1.Object{secretObject("s")}, want: AnswerDelete},
		"bound":                       {pv: released().Phase(corev1.VolumeBound), want: AnswerNothing, wantFailed: "its phase is Released, or Failed while it is being deleted", wantCause: "Bound"},
		"kept":                        {pv: released().Policy(corev1.PersistentVolumeReclaimRetain), want: AnswerNothing, wantFailed: "its reclaim policy is Delete", wantCause: "Retain"},
		"another driver's":            {pv: fixture.PV("pv").ProvisionedBy("other").Phase(corev1.VolumeReleased), want: AnswerNothing, wantFailed: "it belongs to this driver", wantCause: `"other"`},
		"going without our finalizer": {pv: fixture.PV("pv").Driver(driverName).Phase(corev1.VolumeReleased).Terminating().Finalizer("other"), want: AnswerNothing, wantFailed: "it carries our finalizer if it is being deleted", wantCause: wellknown.FinalizerPV},
		"attached":                    {pv: released(), others: []metav1.Object{attachment}, want: AnswerWait, wantFailed: "the volume is attached to no node", wantCause: `node n`},
		"a driver that cannot":        {pv: released(), edit: func(c *Config) { c.Settings.Capabilities.CreateDeleteVolume = false }, want: AnswerRefuse, wantFailed: "the driver deletes volumes"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tc.edit, func(t *testing.T, w *world) {
				c := w.explainer()
				for _, object := range append(tc.others, tc.pv.Obj()) {
					w.put(object)
				}
				e, err := c.ExplainDeletion("pv")
				if err != nil {
					t.Fatal(err)
				}
				failed, cause := stopped(t, e.Explanation)
				if e.Answer != tc.want || failed != tc.wantFailed || !strings.Contains(cause, tc.wantCause) {
					t.Errorf("answer %q at %q because of %q, want %q at %q because of %q", e.Answer, failed, cause, tc.want, tc.wantFailed, tc.wantCause)
				}
				if writes := w.api.writes; len(writes) > 0 {
					t.Errorf("it wrote %q", writes)
				}
				w.start()
				w.pass(time.Second)
				calls := w.driver.deleteCalls()
				if (len(calls) > 0) != (e.Answer == AnswerDelete) {
					t.Fatalf("%d calls of DeleteVolume, explained as %q", len(calls), e.Answer)
				}
				if e.Answer == AnswerDelete && (calls[0].id != e.Request.GetVolumeId() || (len(calls[0].keys) > 0) != (e.Secret != nil)) {
					t.Errorf("call %+v, explained %v with secret %v", calls[0], e.Request, e.Secret)
				}
				if told := w.events.having(cause); cause != "" && e.Answer != AnswerNothing && len(told) == 0 {
					t.Errorf("no event like %q among %q", cause, w.events.lines)
				}
			})
		})
	}
}

// The names are what people read and programs look for: each says something, and none stands for two.
func TestChecksHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	all := names(selectionChecks, func(c selectionCheck) string { return c.name })
	all = append(all, names(steps, func(s step) string { return s.name })...)
	all = append(all, names(deletionSteps, func(s deletionStep) string { return s.name })...)
	slices.Sort(all)
	if all[0] == "" || len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("names %q", all)
	}
}
