package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

func TestExplainHelp(t *testing.T) {
	t.Parallel()
	got := start(t, "fail", nil, "explain", "--csi-address=x", "--help").wait(t)
	if got.code != exitOK || got.stderr != "" {
		t.Errorf("exit %d, stderr %q", got.code, got.stderr)
	}
	golden(t, "testdata/explain-help.golden", got.stdout)
}

// A flag of explain with the name of one of the sidecar's would hide it, and no pasted argument would reach it.
func TestExplainHidesNoFlag(t *testing.T) {
	t.Parallel()
	o := newExplainOptions()
	for _, group := range o.groups() {
		group.flags.VisitAll(func(f *pflag.Flag) {
			if o.own.Lookup(f.Name) != nil || f.Shorthand != "" && o.own.ShorthandLookup(f.Shorthand) != nil {
				t.Errorf("--%s is hidden", f.Name)
			}
		})
	}
}

func TestExplainValidates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want []string // parts of the complaints; none: there is nothing to complain of
	}{
		"a claim":                       {args: []string{"c"}},
		"a PersistentVolume":            {args: []string{"--pv=p"}},
		"the sidecar's arguments":       {args: []string{"--enable-capacity", "--leader-election", "--http-endpoint=:1", "--volume-name-prefix=disk", "c", "-n", "ns"}},
		"a driver without a socket":     {args: []string{"--driver=d", "--capabilities=CREATE_DELETE_VOLUME, CLONE_VOLUME", "c"}},
		"a driver that can do nothing":  {args: []string{"--driver=d", "--capabilities=", "c"}},
		"nothing":                       {want: []string{"name a claim"}},
		"two claims":                    {args: []string{"c", "d"}, want: []string{"one claim at a time"}},
		"a value that is no value":      {args: []string{"--leader-election", "true", "c"}},
		"both":                          {args: []string{"--pv=p", "c"}, want: []string{"not both"}},
		"no namespace":                  {args: []string{"-n", "A", "c"}, want: []string{"--namespace"}},
		"a driver without capabilities": {args: []string{"--driver=d", "c"}, want: []string{"--capabilities go together"}},
		"capabilities without a driver": {args: []string{"--capabilities=CLONE_VOLUME", "c"}, want: []string{"--capabilities go together"}},
		"an unknown capability":         {args: []string{"--driver=d", "--capabilities=CLONE", "c"}, want: []string{"unknown CLONE; known are CLONE_VOLUME, "}},
		"a form that is none":           {args: []string{"-o", "xml", "c"}, want: []string{"table, json, yaml"}},
		"YAML":                          {args: []string{"-o", "yaml", "c"}},
		"no name after the kind":        {args: []string{"pvc/"}, want: []string{"names nothing"}},
		"no kind before the name":       {args: []string{"/c"}, want: []string{"names nothing"}},
		"too many parts":                {args: []string{"ns/pvc/c"}, want: []string{"names nothing"}},
		"two namespaces":                {args: []string{"ns/c", "-n", "other"}, want: []string{"two namespaces"}},
		"one namespace, twice":          {args: []string{"ns/c", "-n", "ns"}},
		"two PersistentVolumes":         {args: []string{"pv/p", "--pv=q"}, want: []string{"not both"}},
		"a namespace that cannot be":    {args: []string{"Ns/c"}, want: []string{"is not a namespace"}},
		"no time":                       {args: []string{"--wait=0", "c"}, want: []string{"--wait"}},
		"mistakes of both":              {args: []string{"--volume-name-uuid-length=0", "--node-deployment"}, want: []string{"name a claim", "uuid-length", "NODE_NAME"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newExplainOptions()
			if err := o.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := o.Validate(environment{})
			if (err != nil) != (len(tc.want) > 0) {
				t.Fatalf("complaints: %v, want %q", err, tc.want)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("complaints: %v, want %q among them", err, want)
				}
			}
		})
	}
}

func TestExplainTakesNamesAsKubectl(t *testing.T) {
	t.Parallel()
	type named struct{ namespace, claim, pv string }
	for name, tc := range map[string]struct {
		args []string
		want named
	}{
		"a name":                   {[]string{"c"}, named{claim: "c"}},
		"a name and a namespace":   {[]string{"c", "-n", "ns"}, named{namespace: "ns", claim: "c"}},
		"pvc/NAME":                 {[]string{"pvc/c", "-n", "ns"}, named{namespace: "ns", claim: "c"}},
		"the long kind":            {[]string{"persistentvolumeclaim/c"}, named{claim: "c"}},
		"NAMESPACE/NAME":           {[]string{"ns/c"}, named{namespace: "ns", claim: "c"}},
		"pv/NAME":                  {[]string{"pv/p"}, named{pv: "p"}},
		"the long kind of volumes": {[]string{"persistentvolumes/p"}, named{pv: "p"}},
		"--pv":                     {[]string{"--pv=p"}, named{pv: "p"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newExplainOptions()
			if err := errors.Join(o.Parse(tc.args), o.Validate(environment{})); err != nil {
				t.Fatal(err)
			}
			cfg, err := o.Complete(environment{}, "v")
			if got := (named{cfg.Namespace, cfg.Claim, cfg.PV}); err != nil || got != tc.want {
				t.Errorf("%+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestExplainFindsTheKubeconfig(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  environment
		args []string
		want []string
	}{
		"of the user":                   {env: environment{home: "/home/u"}, want: []string{"/home/u/.kube/config"}},
		"of the environment":            {env: environment{home: "/home/u", kubeconfig: "/a:/b"}, want: []string{"/a", "/b"}},
		"of the flag":                   {env: environment{home: "/home/u"}, args: []string{"--kubeconfig=/c"}, want: []string{"/c"}},
		"of the flag before KUBECONFIG": {env: environment{kubeconfig: "/a:/b"}, args: []string{"--kubeconfig=/c"}, want: []string{"/c"}},
		"none inside of a cluster":      {env: environment{home: "/home/u", inCluster: true}},
		"none beside a server's URL":    {env: environment{home: "/home/u"}, args: []string{"--master=http://h"}},
		"none of somebody without home": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newExplainOptions()
			if err := o.Parse(append(tc.args, "c")); err != nil {
				t.Fatal(err)
			}
			if warnings := o.Warnings(tc.env); len(warnings) > 0 {
				t.Errorf("warnings %q", warnings)
			}
			cfg, err := o.Complete(tc.env, "v")
			if err != nil || !slices.Equal(cfg.Kube.Kubeconfigs, tc.want) {
				t.Errorf("%q, %v, want %q", cfg.Kube.Kubeconfigs, err, tc.want)
			}
		})
	}
}

func TestExplainExitCodes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"a flag that is none":  {args: []string{"--nosuch"}, code: exitUsage, want: "--nosuch"},
		"nothing to explain":   {code: exitUsage, want: "explain --help"},
		"no kubeconfig":        {args: []string{"--kubeconfig=/nonexistent", "c"}, code: exitError, want: "/nonexistent"},
		"no driver":            {args: []string{"--master=http://127.0.0.1:1", "--csi-address=/nonexistent", "--wait=10ms", "c"}, code: exitError, want: "--driver and --capabilities"},
		"no API server":        {args: []string{"--master=http://127.0.0.1:1", "--driver=d", "--capabilities=", "c"}, code: exitError, want: "127.0.0.1:1"},
		"a warning beside":     {args: []string{"--master=http://127.0.0.1:1", "--driver=d", "--capabilities=", "--worker-threads=0", "c"}, code: exitError, want: "warning: --worker-threads=0"},
		"a log when asked for": {args: []string{"--master=http://127.0.0.1:1", "--csi-address=/nonexistent", "--wait=2s", "-v=2", "c"}, code: exitError, want: "Waiting for the CSI driver"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := start(t, "fail", []string{"HOME=/nonexistent"}, append([]string{"explain"}, tc.args...)...).wait(t)
			if got.code != tc.code || !strings.Contains(got.stderr, tc.want) || got.stdout != "" {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d and %q", got.code, got.stdout, got.stderr, tc.code, tc.want)
			}
			if got.lastWords != "" {
				t.Errorf("the sidecar's termination message became %q", got.lastWords)
			}
		})
	}
}

func TestExplainOnlyReads(t *testing.T) {
	t.Parallel()
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, r.Method) }))
	defer server.Close()
	client := &http.Client{Transport: readOnly{http.DefaultTransport}}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		if (err == nil) != (method == http.MethodGet) {
			t.Errorf("%s: %v", method, err)
		}
	}
	if !slices.Equal(seen, []string{http.MethodGet}) {
		t.Errorf("requests %q came through", seen)
	}
}

func TestTopologyOfANodeWhoseDriverIsNotAsked(t *testing.T) {
	t.Parallel()
	zone := topology.SegmentOf(map[string]string{"zone": "a"})
	for name, tc := range map[string]struct {
		member topology.Member
		want   map[string]string
		ok     bool
	}{
		"a node with a segment":       {topology.Member{NodeExists: true, CSINodeExists: true, Registered: true, Keys: []string{"zone"}, Labels: zone}, map[string]string{"zone": "a"}, true},
		"a driver without topology":   {topology.Member{NodeExists: true, CSINodeExists: true, Registered: true}, nil, true},
		"a node without the driver":   {topology.Member{NodeExists: true, CSINodeExists: true}, nil, false},
		"no node":                     {topology.Member{}, nil, false},
		"a label that is not there":   {topology.Member{NodeExists: true, CSINodeExists: true, Registered: true, Keys: []string{"rack"}, Labels: zone}, nil, false},
		"a CSINode that has no Node ": {topology.Member{CSINodeExists: true, Registered: true, Keys: []string{"zone"}}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info, err := infoOf("n", tc.member)
			if (err == nil) != tc.ok {
				t.Fatalf("error %v, want none: %v", err, tc.ok)
			}
			if diff := cmp.Diff(tc.want, info.GetAccessibleTopology().GetSegments()); diff != "" {
				t.Errorf("segments (-want +got):\n%s", diff)
			}
		})
	}
}

// cloneReport is an answer with everything that an answer about a claim can have.
func cloneReport() *explainReport {
	ref := &corev1.SecretReference{Namespace: "ns", Name: "creds"}
	return &explainReport{
		Driver: driver.Identity{Name: "csi.example.com", Controller: driver.ControllerSet{csi.ControllerServiceCapability_RPC_CLONE_VOLUME: {}}},
		Node:   "n1",
		Claim: &provision.ClaimExplanation{
			Claim: fixture.Claim("copy").Namespace("ns").UID("1234").Obj(),
			Explanation: provision.Explanation{
				Answer: provision.AnswerCreate,
				Checks: []provision.Check{{Stage: "turn", Name: "the claim is not bound", Result: provision.CheckPassed}},
				Notes:  []string{"A note that is long enough to be broken into two lines, because nobody reads lines that end far out on the right of the screen."},
			},
			Plan: &provision.Plan{
				Request: &csi.CreateVolumeRequest{
					Name: "pvc-1234", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30}, Parameters: map[string]string{"type": "ssd"},
				},
				Secrets: volume.SecretRefs{Provisioner: ref, NodeStage: ref},
				Source:  source.Reference{Kind: source.Claim, KindName: wellknown.KindClaim, Namespace: "ns", Name: "data"},
			},
			SourceFinalizer: wellknown.FinalizerCloneSource,
		},
	}
}

// heldReport is an answer about a PersistentVolume that nothing is done about.
func heldReport() *explainReport {
	return &explainReport{
		Driver: driver.Identity{Name: "csi.example.com"},
		Volume: &provision.VolumeExplanation{
			PV:        fixture.PV("pv-1").UID("5678").Obj(),
			Finalizer: volume.AddFinalizer,
			Explanation: provision.Explanation{Answer: provision.AnswerNothing, Checks: []provision.Check{
				{Stage: "volume", Name: "it belongs to this driver", Result: provision.CheckPassed},
				{Stage: "volume", Name: "its phase is Released", Result: provision.CheckFailed, Cause: `its phase is "Bound"`},
				{Stage: "call", Name: "the driver deletes volumes", Result: provision.CheckNotReached},
			}},
		},
	}
}

func TestExplainOutput(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	for _, report := range []*explainReport{cloneReport(), heldReport()} {
		for _, form := range []string{outputTable, outputJSON} {
			if err := printed(report, form, &all); err != nil {
				t.Fatal(err)
			}
		}
	}
	golden(t, "testdata/explain.golden", all.String())
}

// printed prints a in a form.
func printed(a answer, form string, w io.Writer) error {
	o := newQueryOptions("")
	o.output = form
	return o.print(w, a)
}

// The YAML form says what the JSON form says.
func TestExplainYAMLIsTheJSON(t *testing.T) {
	t.Parallel()
	var asJSON, asYAML bytes.Buffer
	if err := errors.Join(printed(cloneReport(), outputJSON, &asJSON), printed(cloneReport(), outputYAML, &asYAML)); err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal(asJSON.Bytes(), &want), yaml.Unmarshal(asYAML.Bytes(), &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || json.Valid(asYAML.Bytes()) {
		t.Errorf("YAML (-JSON +YAML):\n%s\n%s", diff, &asYAML)
	}
}

// The JSON form is the same each time, though protobuf's is not, and can be read back.
func TestExplainJSONIsStable(t *testing.T) {
	t.Parallel()
	var first, second bytes.Buffer
	if err := errors.Join(printed(cloneReport(), outputJSON, &first), printed(cloneReport(), outputJSON, &second)); err != nil {
		t.Fatal(err)
	}
	var back reportJSON
	if err := json.Unmarshal(first.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() || back.Version != reportVersion || back.Answer != provision.AnswerCreate {
		t.Errorf("first:\n%s\nsecond:\n%s", &first, &second)
	}
}

// Each answer has a sentence, and it names object and driver.
func TestEveryAnswerHasASummary(t *testing.T) {
	t.Parallel()
	for _, answer := range []provision.Answer{
		provision.AnswerCreate, provision.AnswerResume, provision.AnswerCompete, provision.AnswerRefuse, provision.AnswerNothing,
		provision.AnswerDelete, provision.AnswerWait,
	} {
		if strings.Count(summaries[answer], "%s") != 2 {
			t.Errorf("%s: %q", answer, summaries[answer])
		}
	}
}
