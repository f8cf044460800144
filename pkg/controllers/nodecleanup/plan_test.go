package nodecleanup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

const (
	testDriver = "ex.io"
	testUID    = "uid-1"
)

var testNames = names{driver: testDriver, inTree: "kubernetes.io/ex"}

func claim() *fixture.ClaimBuilder { return fixture.Claim("c").UID(testUID).For(testDriver) }

func TestSelectedNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		claim *fixture.ClaimBuilder
		want  string
	}{
		"a claim that nobody has placed":               {claim(), ""},
		"a placed claim waits for its node":            {claim().SelectedNode("n"), "n"},
		"a bound claim does not any more":              {claim().SelectedNode("n").Bound("pv"), ""},
		"nor does one that goes away":                  {claim().SelectedNode("n").Terminating(), ""},
		"nor that of another driver":                   {fixture.Claim("c").For("other").SelectedNode("n"), ""},
		"nor one without a provisioner":                {fixture.Claim("c").SelectedNode("n"), ""},
		"a migrated claim is ours":                     {fixture.Claim("c").For("kubernetes.io/ex").Annotation(wellknown.AnnMigratedTo, testDriver).SelectedNode("n"), "n"},
		"an in-tree claim that is not migrated is not": {fixture.Claim("c").For("kubernetes.io/ex").SelectedNode("n"), ""},
		"the alpha annotation is not ours to take off": {claim().Annotation(wellknown.AnnAlphaSelectedNode, "n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := selectedNode(tc.claim.Obj(), testNames); got != tc.want {
				t.Errorf("node %q, want %q", got, tc.want)
			}
		})
	}
}

func affinity(terms ...corev1.NodeSelectorTerm) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}

func in(pairs ...string) corev1.NodeSelectorTerm {
	var term corev1.NodeSelectorTerm
	for i := 0; i < len(pairs); i += 2 {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: pairs[i], Operator: corev1.NodeSelectorOpIn, Values: []string{pairs[i+1]},
		})
	}
	return term
}

func released() *fixture.PVBuilder {
	return fixture.PV("pv").ProvisionedBy(testDriver).Phase(corev1.VolumeReleased)
}

func TestStranded(t *testing.T) {
	t.Parallel()
	here := affinity(in("host", "h"))
	for name, tc := range map[string]struct {
		pv       *fixture.PVBuilder
		affinity *corev1.VolumeNodeAffinity
		want     bool
	}{
		"a released volume of a node":           {released(), here, true},
		"one that is being deleted":             {released().Terminating(), here, true},
		"one that is accessible from anywhere":  {released(), nil, false},
		"one whose affinity requires nothing":   {released(), &corev1.VolumeNodeAffinity{}, false},
		"one whose affinity has no terms":       {released(), affinity(), false},
		"one that is bound":                     {released().Phase(corev1.VolumeBound), here, false},
		"one that is bound and being deleted":   {released().Phase(corev1.VolumeBound).Terminating(), here, false},
		"one that is to be kept":                {released().Policy(corev1.PersistentVolumeReclaimRetain), here, false},
		"one of another driver":                 {fixture.PV("pv").ProvisionedBy("other").Phase(corev1.VolumeReleased), here, false},
		"one that an administrator made":        {fixture.PV("pv").Driver(testDriver).Phase(corev1.VolumeReleased), here, true},
		"one that goes without our finalizer":   {fixture.PV("pv").Driver(testDriver).Phase(corev1.VolumeReleased).Terminating(), here, false},
		"one that is failed and being deleted":  {released().Phase(corev1.VolumeFailed).Terminating(), here, true},
		"one that is failed and nobody deletes": {released().Phase(corev1.VolumeFailed), here, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pv := tc.pv.Obj()
			pv.Spec.NodeAffinity = tc.affinity
			if got := stranded(pv, testNames); got != tc.want {
				t.Errorf("stranded %v, want %v", got, tc.want)
			}
		})
	}
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	operator := func(o corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: o, Values: values}}}
	}
	named := func(key string, o corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: key, Operator: o, Values: values}}}
	}
	for name, tc := range map[string]struct {
		terms    []corev1.NodeSelectorTerm
		identity string
		want     []question
		wantErr  string
	}{
		"one segment":               {terms: []corev1.NodeSelectorTerm{in("zone", "z", "host", "h")}, want: []question{{labels: "host in (h),zone in (z)"}}},
		"two, sorted":               {terms: []corev1.NodeSelectorTerm{in("host", "h2"), in("host", "h1")}, want: []question{{labels: "host in (h1)"}, {labels: "host in (h2)"}}},
		"the same twice":            {terms: []corev1.NodeSelectorTerm{in("host", "h"), in("host", "h")}, want: []question{{labels: "host in (h)"}}},
		"every operator":            {terms: []corev1.NodeSelectorTerm{operator("NotIn", "a", "b"), operator("Exists"), operator("DoesNotExist"), operator("Gt", "1"), operator("Lt", "2")}, want: []question{{labels: "!k"}, {labels: "k"}, {labels: "k notin (a,b)"}, {labels: "k<2"}, {labels: "k>1"}}},
		"a node by name":            {terms: []corev1.NodeSelectorTerm{named("metadata.name", "In", "n")}, want: []question{{fields: "metadata.name=n"}}},
		"and the node that made it": {terms: []corev1.NodeSelectorTerm{in("host", "h")}, identity: "17-42-ex.io-n-1", want: []question{{fields: "metadata.name=n-1"}, {labels: "host in (h)"}}},
		"made in central mode":      {terms: []corev1.NodeSelectorTerm{in("host", "h")}, identity: "17-42-ex.io", want: []question{{labels: "host in (h)"}}},
		"made by who knows":         {terms: []corev1.NodeSelectorTerm{in("host", "h")}, identity: "something", want: []question{{labels: "host in (h)"}}},
		"made by another driver":    {terms: []corev1.NodeSelectorTerm{in("host", "h")}, identity: "17-42-other-n", want: []question{{labels: "host in (h)"}}},
		"several names":             {terms: []corev1.NodeSelectorTerm{named("metadata.name", "In", "a", "b")}, wantErr: "2 values"},
		"not this name":             {terms: []corev1.NodeSelectorTerm{named("metadata.name", "NotIn", "a")}, wantErr: "NotIn"},
		"another field":             {terms: []corev1.NodeSelectorTerm{named("spec.x", "In", "a")}, wantErr: "spec.x"},
		"an empty term":             {terms: []corev1.NodeSelectorTerm{in("host", "h"), {}}, wantErr: "term 1 of the node affinity"},
		"an unknown operator":       {terms: []corev1.NodeSelectorTerm{operator("Like", "a")}, wantErr: "Like"},
		"a value that is no label":  {terms: []corev1.NodeSelectorTerm{in("host", "not a label")}, wantErr: "not a label"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pv := released().Obj()
			pv.Spec.NodeAffinity = affinity(tc.terms...)
			pv.Spec.CSI.VolumeAttributes = map[string]string{wellknown.AttributeIdentity: tc.identity}
			got, err := questionsFor(pv, testDriver)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one about %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(question{})); diff != "" {
				t.Errorf("questions (-want +got):\n%s", diff)
			}
		})
	}
}

// Who is left out in one round comes first in the next.
func TestTurns(t *testing.T) {
	t.Parallel()
	var order turn
	for i, tc := range []struct{ names, want string }{
		{"a b c d e", "a b"},
		{"a b c d e", "c d"},
		{"a b c d e", "e a"},
		{"a c d e", "c d"}, // b, whose turn it was, is gone
		{"a", "a"},
		{"a b", "a b"},
		{"", ""},
		{"x", "x"},
	} {
		var got []string
		for _, name := range order.order(strings.Fields(tc.names), 2) {
			if order.take(name) {
				got = append(got, name)
			}
		}
		if got := strings.Join(got, " "); got != tc.want {
			t.Errorf("round %d: %q, want %q", i, got, tc.want)
		}
	}
}
