package volume

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/secret"
)

func TestParameters(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		parameters map[string]string
		want       map[string]string
		wantErr    string
	}{
		"nil is empty":    {want: map[string]string{}},
		"others stay":     {parameters: map[string]string{"type": "ssd", "": "odd"}, want: map[string]string{"type": "ssd", "": "odd"}},
		"deprecated stay": {parameters: map[string]string{"fsType": "xfs", "csiProvisionerSecretName": "s"}, want: map[string]string{"fsType": "xfs", "csiProvisionerSecretName": "s"}},
		"the prefix counts at the start of keys only": {
			parameters: map[string]string{"a": "csi.storage.k8s.io/x", "x-csi.storage.k8s.io/x": "b", "csi.storage.k8s.io": "c"},
			want:       map[string]string{"a": "csi.storage.k8s.io/x", "x-csi.storage.k8s.io/x": "b", "csi.storage.k8s.io": "c"},
		},
		"the prefix counts as written":        {parameters: map[string]string{"CSI.storage.k8s.io/x": "y"}, want: map[string]string{"CSI.storage.k8s.io/x": "y"}},
		"an unknown reserved key":             {parameters: map[string]string{"csi.storage.k8s.io/x": "y"}, wantErr: `"csi.storage.k8s.io/x"`},
		"the prefix alone":                    {parameters: map[string]string{"csi.storage.k8s.io/": "y"}, wantErr: `"csi.storage.k8s.io/"`},
		"another spelling of a known key":     {parameters: map[string]string{"csi.storage.k8s.io/fsType": "xfs"}, wantErr: `"csi.storage.k8s.io/fsType"`},
		"the keys that we add for the driver": {parameters: map[string]string{"csi.storage.k8s.io/pvc/name": "c"}, wantErr: `the reserved prefix "csi.storage.k8s.io/"`},
		"all unknown keys in order": {
			parameters: map[string]string{"csi.storage.k8s.io/b": "", "csi.storage.k8s.io/c": "", "csi.storage.k8s.io/a": ""},
			wantErr:    `["csi.storage.k8s.io/a" "csi.storage.k8s.io/b" "csi.storage.k8s.io/c"]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := maps.Clone(tc.parameters)
			got, err := Parameters(tc.parameters)
			checkFailed(t, err, tc.wantErr)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.parameters); diff != "" {
				t.Errorf("input was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// The 17 keys, written out once more as the drivers' documentation has them.
func TestParametersStripsEachReservedKey(t *testing.T) {
	t.Parallel()
	parameters := map[string]string{"csi.storage.k8s.io/fstype": "ext4", "type": "ssd"}
	for _, consumer := range []string{
		"", "provisioner-", "controller-publish-", "node-stage-", "node-publish-", "controller-expand-", "node-expand-", "controller-modify-",
	} {
		parameters["csi.storage.k8s.io/"+consumer+"secret-name"] = "s"
		parameters["csi.storage.k8s.io/"+consumer+"secret-namespace"] = "ns"
	}
	if len(parameters) != 18 || len(reserved) != 17 {
		t.Fatalf("%d parameters and %d reserved keys, want 18 and 17", len(parameters), len(reserved))
	}
	got, err := Parameters(parameters)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"type": "ssd"}, got); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
}

func TestAddMetadata(t *testing.T) {
	t.Parallel()
	got := map[string]string{"type": "ssd"}
	AddMetadata(got, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "team-a"}}, "pvc-1")
	want := map[string]string{
		"type":                             "ssd",
		"csi.storage.k8s.io/pvc/name":      "data",
		"csi.storage.k8s.io/pvc/namespace": "team-a",
		"csi.storage.k8s.io/pv/name":       "pvc-1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
}

func TestFSType(t *testing.T) {
	t.Parallel()
	const prefixed = "csi.storage.k8s.io/fstype"
	for name, tc := range map[string]struct {
		parameters     map[string]string
		def            string
		want           string
		wantDeprecated bool
		wantErr        string
	}{
		"nothing":                                {},
		"the default":                            {def: "ext4", want: "ext4"},
		"the key":                                {parameters: map[string]string{prefixed: "xfs"}, def: "ext4", want: "xfs"},
		"the bare key":                           {parameters: map[string]string{"fstype": "xfs"}, def: "ext4", want: "xfs", wantDeprecated: true},
		"the bare key in any case":               {parameters: map[string]string{"FsTyPe": "xfs"}, want: "xfs", wantDeprecated: true},
		"an empty value is the default":          {parameters: map[string]string{prefixed: ""}, def: "ext4", want: "ext4"},
		"an empty bare value is the default":     {parameters: map[string]string{"fsType": ""}, def: "ext4", want: "ext4", wantDeprecated: true},
		"both keys":                              {parameters: map[string]string{prefixed: "xfs", "fsType": "xfs"}, wantErr: `["csi.storage.k8s.io/fstype" "fsType"]`},
		"both keys, empty":                       {parameters: map[string]string{prefixed: "", "fstype": ""}, def: "ext4", wantErr: "csi.storage.k8s.io/fstype"},
		"two spellings of the bare key":          {parameters: map[string]string{"FSTYPE": "xfs", "fstype": "xfs"}, wantErr: `["FSTYPE" "fstype"]`},
		"another spelling of the key is no key":  {parameters: map[string]string{"csi.storage.k8s.io/fsType": "xfs"}, def: "ext4", want: "ext4"},
		"a letter that only folds to s is not s": {parameters: map[string]string{"fſtype": "xfs"}, def: "ext4", want: "ext4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, deprecated, err := FSType(tc.parameters, tc.def)
			checkFailed(t, err, tc.wantErr)
			if got != tc.want || deprecated != tc.wantDeprecated {
				t.Errorf("got %q, deprecated %v; want %q, %v", got, deprecated, tc.want, tc.wantDeprecated)
			}
		})
	}
}

func TestResolveSecrets(t *testing.T) {
	t.Parallel()
	names := secret.Names{PVName: "pvc-1", ClaimName: "data", ClaimNamespace: "team-a"}
	// Each broken pair in turn, with all later ones broken too: the first in the order is reported.
	order := []string{"provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand", "controller-modify"}
	parameters := map[string]string{}
	for _, consumer := range order {
		parameters["csi.storage.k8s.io/"+consumer+"-secret-name"] = ""
	}
	for _, consumer := range order {
		_, err := ResolveSecrets(parameters, names)
		if err == nil || !strings.HasPrefix(err.Error(), consumer+" secret") {
			t.Fatalf("error %v, want the one of %s", err, consumer)
		}
		parameters["csi.storage.k8s.io/"+consumer+"-secret-name"] = consumer
		parameters["csi.storage.k8s.io/"+consumer+"-secret-namespace"] = "ns"
	}
	got, err := ResolveSecrets(parameters, names)
	if err != nil {
		t.Fatal(err)
	}
	ref := func(name string) *corev1.SecretReference { return &corev1.SecretReference{Name: name, Namespace: "ns"} }
	want := SecretRefs{
		Provisioner: ref("provisioner"), ControllerPublish: ref("controller-publish"), NodeStage: ref("node-stage"), NodePublish: ref("node-publish"),
		ControllerExpand: ref("controller-expand"), NodeExpand: ref("node-expand"), ControllerModify: ref("controller-modify"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
	if got, err := ResolveSecrets(nil, names); err != nil || got != (SecretRefs{}) {
		t.Errorf("without parameters: %+v, %v", got, err)
	}
}

// FuzzParameters: nothing reserved reaches the driver, nothing else is lost, and FSType takes any keys.
func FuzzParameters(f *testing.F) {
	f.Add("type", "fsType", "csi.storage.k8s.io/fstype")
	f.Add("csi.storage.k8s.io/secret-name", "csi.storage.k8s.io/x", "")
	f.Add("fſtype", "FSTYPE", "csi.storage.k8s.io/")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		in := map[string]string{a: "1", b: "2", c: "3"}
		got, err := Parameters(in)
		_, _, fsErr := FSType(in, "")
		for _, err := range []error{err, fsErr} {
			if err != nil {
				checkFailed(t, err, " ")
			}
		}
		if err != nil {
			return
		}
		for key, value := range in {
			if kept, ok := got[key]; ok == strings.HasPrefix(key, "csi.storage.k8s.io/") || ok && kept != value {
				t.Errorf("key %q: kept %v as %q", key, ok, kept)
			}
		}
		if len(got) > len(in) {
			t.Errorf("%v has more than %v", got, in)
		}
	})
}
