package provision

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// The text is what later versions, and operators, read.
func TestMarkerText(t *testing.T) {
	t.Parallel()
	m := marker{UID: "u", Driver: driverName, Class: "k", Node: "n", Segment: map[string]string{"zone": "z", "region": "r"}}
	want := `{"v":1,"uid":"u","driver":"driver.example.com","class":"k","node":"n","segment":{"region":"r","zone":"z"}}`
	if diff := cmp.Diff(want, m.encode()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = `{"v":1,"uid":"u","driver":"driver.example.com","class":"k"}`
	if diff := cmp.Diff(want, marker{UID: "u", Driver: driverName, Class: "k"}.encode()); diff != "" {
		t.Errorf("without a node (-want +got):\n%s", diff)
	}
}

// A marker never has more than 16 KiB: the segment is the first to go, a hint and nothing else.
func TestMarkerIsBounded(t *testing.T) {
	t.Parallel()
	m := marker{UID: "u", Driver: driverName, Class: "k", Node: "n", Segment: map[string]string{"zone": strings.Repeat("z", maxMarkerBytes)}}
	got := m.encode()
	if len(got) > maxMarkerBytes {
		t.Errorf("%d bytes", len(got))
	}
	if want := `{"v":1,"uid":"u","driver":"driver.example.com","class":"k","node":"n"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestReadMarker(t *testing.T) {
	t.Parallel()
	const ann, fin = wellknown.AnnProvisioningInProgress, wellknown.FinalizerProvisioningInProgress
	claim := func() *fixture.ClaimBuilder { return fixture.Claim("c").UID("u") }
	both := func(text string) *fixture.ClaimBuilder { return claim().Annotation(ann, text).Finalizer(fin) }
	for name, tc := range map[string]struct {
		claim *fixture.ClaimBuilder
		want  markerState
	}{
		"nothing":                        {claim(), unmarked},
		"other finalizers":               {claim().Finalizer("kubernetes.io/pvc-protection"), unmarked},
		"both, of us":                    {both(`{"v":1,"uid":"u","driver":"driver.example.com"}`), marked},
		"both, of another driver":        {both(`{"v":1,"uid":"u","driver":"other"}`), foreign},
		"both, of another claim":         {both(`{"v":1,"uid":"x","driver":"driver.example.com"}`), mismarked},
		"another claim comes first":      {both(`{"v":1,"uid":"x","driver":"other"}`), mismarked},
		"the annotation alone, of us":    {claim().Annotation(ann, `{"v":1,"uid":"u","driver":"driver.example.com"}`), marked},
		"the finalizer alone":            {claim().Finalizer(fin), mismarked},
		"no JSON":                        {both(`yes`), mismarked},
		"too long":                       {both(`{"uid":"u","driver":"driver.example.com","node":"` + strings.Repeat("n", maxMarkerBytes) + `"}`), mismarked},
		"a later format":                 {both(`{"v":9,"uid":"u","driver":"driver.example.com","more":{"deep":[1]}}`), marked},
		"without a driver":               {both(`{"v":1,"uid":"u"}`), foreign},
		"a segment that is no map":       {both(`{"v":1,"uid":"u","driver":"driver.example.com","segment":[]}`), mismarked},
		"an annotation of another shape": {both(`[]`), mismarked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _, err := readMarker(tc.claim.Obj(), driverName)
			if got != tc.want {
				t.Errorf("state %d, want %d", got, tc.want)
			}
			if (err != nil) != (got == mismarked) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestMarkerComesAndGoesWhole(t *testing.T) {
	t.Parallel()
	before := fixture.Claim("c").UID("u").Annotation("a", "b").Finalizer("first", "second").Obj()
	claim := before.DeepCopy()
	m := marker{UID: "u", Driver: driverName, Class: "k", Node: "n", Segment: map[string]string{"zone": "z"}}
	if !setMarker(claim, m.encode()) {
		t.Error("setting it changed nothing")
	}
	if setMarker(claim, m.encode()) {
		t.Error("setting it again changed something")
	}
	state, got, err := readMarker(claim, driverName)
	m.Version = markerVersion
	if diff := cmp.Diff(m, got); diff != "" || state != marked || err != nil {
		t.Errorf("state %d, %v (-written +read):\n%s", state, err, diff)
	}
	if !clearMarker(claim) {
		t.Error("clearing it changed nothing")
	}
	if clearMarker(claim) {
		t.Error("clearing it again changed something")
	}
	if diff := cmp.Diff(before, claim); diff != "" {
		t.Errorf("what is not ours changed (-before +after):\n%s", diff)
	}
	bare := fixture.Claim("c").UID("u").Obj()
	if !setMarker(bare, m.encode()) || !clearMarker(bare) || len(bare.Finalizers) != 0 {
		t.Errorf("a claim without annotations: %v", bare.ObjectMeta)
	}
}

func TestOnlyMarkerDiffers(t *testing.T) {
	t.Parallel()
	claim := func() *fixture.ClaimBuilder {
		return fixture.Claim("c").UID("u").Class("fast").For(driverName).Label("l", "m")
	}
	withMarker := claim().Obj()
	setMarker(withMarker, "{}")
	for name, tc := range map[string]struct {
		b    *fixture.ClaimBuilder
		want bool
	}{
		"nothing else":      {claim(), true},
		"nothing at all":    {claim().Finalizer(wellknown.FinalizerProvisioningInProgress).Annotation(wellknown.AnnProvisioningInProgress, "{}"), false},
		"another finalizer": {claim().Finalizer("x"), false},
		"an annotation":     {claim().Annotation("a", "b"), false},
		"a label":           {claim().Label("l", "n"), false},
		"the spec":          {claim().Size("2Gi"), false},
		"the deletion":      {claim().Terminating(), false},
		"the phase":         {claim().Bound("pv"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := onlyMarkerDiffers(withMarker, tc.b.Obj()); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}
