package secret

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

var testNames = Names{
	PVName:           "pvc-1",
	ClaimName:        "data",
	ClaimNamespace:   "team-a",
	ClaimAnnotations: map[string]string{"example.com/secret": "from-annotation", "empty": ""},
}

func TestResolve(t *testing.T) {
	t.Parallel()
	const prefix = "csi.storage.k8s.io/"
	for name, tc := range map[string]struct {
		consumer   Consumer
		parameters map[string]string
		want       *corev1.SecretReference
		wantErr    []string // what the text must mention; nil = no error
	}{
		"no key at all is no secret": {consumer: Provisioner, parameters: map[string]string{"type": "ssd"}},
		"nil parameters are no secret": {
			consumer: NodeStage,
		},
		"the prefixed pair": {
			consumer:   Provisioner,
			parameters: map[string]string{prefix + "provisioner-secret-name": "s", prefix + "provisioner-secret-namespace": "ns"},
			want:       &corev1.SecretReference{Name: "s", Namespace: "ns"},
		},
		"the deprecated pair": {
			consumer:   NodePublish,
			parameters: map[string]string{"csiNodePublishSecretName": "s", "csiNodePublishSecretNamespace": "ns"},
			want:       &corev1.SecretReference{Name: "s", Namespace: "ns"},
		},
		"a deprecated name with a prefixed namespace": {
			consumer:   Provisioner,
			parameters: map[string]string{"csiProvisionerSecretName": "s", prefix + "provisioner-secret-namespace": "ns"},
			want:       &corev1.SecretReference{Name: "s", Namespace: "ns"},
		},
		"a prefixed name with a deprecated namespace": {
			consumer:   ControllerPublish,
			parameters: map[string]string{prefix + "controller-publish-secret-name": "s", "csiControllerPublishSecretNamespace": "ns"},
			want:       &corev1.SecretReference{Name: "s", Namespace: "ns"},
		},
		"a name given twice is an error even when it is the same": {
			consumer: NodeStage,
			parameters: map[string]string{
				"csiNodeStageSecretName": "s", prefix + "node-stage-secret-name": "s", prefix + "node-stage-secret-namespace": "ns",
			},
			wantErr: []string{"node-stage", "twice", "csiNodeStageSecretName"},
		},
		"a namespace given twice is an error": {
			consumer: NodePublish,
			parameters: map[string]string{
				"csiNodePublishSecretNamespace": "ns", prefix + "node-publish-secret-name": "s", prefix + "node-publish-secret-namespace": "other",
			},
			wantErr: []string{"node-publish", "twice", "csiNodePublishSecretNamespace"},
		},
		"a name alone is an error": {
			consumer:   ControllerExpand,
			parameters: map[string]string{prefix + "controller-expand-secret-name": "s"},
			wantErr:    []string{"controller-expand", "both must be specified"},
		},
		"a namespace alone is an error": {
			consumer:   NodeExpand,
			parameters: map[string]string{prefix + "node-expand-secret-namespace": "ns"},
			wantErr:    []string{"node-expand", "both must be specified"},
		},
		"an empty name alone is an error and not unset": {
			consumer:   Provisioner,
			parameters: map[string]string{prefix + "provisioner-secret-name": ""},
			wantErr:    []string{"provisioner", "both must be specified"},
		},
		"an empty name is an error": {
			consumer:   ControllerModify,
			parameters: map[string]string{prefix + "controller-modify-secret-name": "", prefix + "controller-modify-secret-namespace": "ns"},
			wantErr:    []string{"controller-modify", "empty value"},
		},
		"an empty namespace is an error": {
			consumer:   Provisioner,
			parameters: map[string]string{"csiProvisionerSecretName": "s", "csiProvisionerSecretNamespace": ""},
			wantErr:    []string{"provisioner", "empty value"},
		},
		"the default pair stands in": {
			consumer:   NodeExpand,
			parameters: map[string]string{prefix + "secret-name": "${pvc.name}", prefix + "secret-namespace": "${pvc.namespace}"},
			want:       &corev1.SecretReference{Name: "data", Namespace: "team-a"},
		},
		"a pair of one's own hides the default pair, broken as it may be": {
			consumer: Provisioner,
			parameters: map[string]string{
				prefix + "secret-name":             "",
				prefix + "provisioner-secret-name": "s", prefix + "provisioner-secret-namespace": "ns",
			},
			want: &corev1.SecretReference{Name: "s", Namespace: "ns"},
		},
		"half a pair of one's own is not filled up from the default pair": {
			consumer: Provisioner,
			parameters: map[string]string{
				prefix + "secret-name": "d", prefix + "secret-namespace": "ns",
				prefix + "provisioner-secret-name": "s",
			},
			wantErr: []string{"provisioner secret", "both must be specified"},
		},
		"half a default pair is an error": {
			consumer:   NodeStage,
			parameters: map[string]string{prefix + "secret-name": "d"},
			wantErr:    []string{"default secret", "both must be specified"},
		},
		"an empty default namespace is an error": {
			consumer:   NodeStage,
			parameters: map[string]string{prefix + "secret-name": "d", prefix + "secret-namespace": ""},
			wantErr:    []string{"default secret", "empty value"},
		},
		"a bad template of the default pair is reported as such": {
			consumer:   NodeStage,
			parameters: map[string]string{prefix + "secret-name": "d", prefix + "secret-namespace": "${pvc.name}"},
			wantErr:    []string{"namespace of the default secret", "pvc.name"},
		},
		"the namespace is looked at before the name": {
			consumer:   NodeStage,
			parameters: map[string]string{prefix + "secret-name": "${bad}", prefix + "secret-namespace": "Bad"},
			wantErr:    []string{"namespace of the default secret", `"Bad"`},
		},
		"another consumer's pair is not taken": {
			consumer:   Provisioner,
			parameters: map[string]string{prefix + "node-stage-secret-name": "s", prefix + "node-stage-secret-namespace": "ns"},
		},
		"an empty key is not the deprecated key of consumers without one": {
			consumer:   NodeExpand,
			parameters: map[string]string{"": "stray"},
		},
		"the zero consumer has the default pair only": {
			parameters: map[string]string{"": "stray", prefix + "secret-name": "d", prefix + "secret-namespace": "ns"},
			want:       &corev1.SecretReference{Name: "d", Namespace: "ns"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := maps.Clone(tc.parameters)
			got, err := Resolve(tc.consumer, tc.parameters, testNames)
			checkError(t, err, tc.wantErr)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reference (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.parameters); diff != "" {
				t.Errorf("parameters were changed (-before +after):\n%s", diff)
			}
		})
	}
}

// Each consumer answers to its own keys.
func TestConsumersKnowTheirKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []Consumer{Provisioner, ControllerPublish, NodeStage, NodePublish, ControllerExpand, NodeExpand, ControllerModify} {
		key := "csi.storage.k8s.io/" + c.String() + "-secret-"
		got, err := Resolve(c, map[string]string{key + "name": "s", key + "namespace": "ns"}, testNames)
		if err != nil {
			t.Errorf("%s: %v", c, err)
		}
		if diff := cmp.Diff(&corev1.SecretReference{Name: "s", Namespace: "ns"}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c, diff)
		}
	}
	for key, c := range map[string]Consumer{
		"csiProvisionerSecret":       Provisioner,
		"csiControllerPublishSecret": ControllerPublish,
		"csiNodeStageSecret":         NodeStage,
		"csiNodePublishSecret":       NodePublish,
	} {
		got, err := Resolve(c, map[string]string{key + "Name": "s", key + "Namespace": "ns"}, testNames)
		if err != nil || got == nil {
			t.Errorf("%s with deprecated keys: %v, %v", c, got, err)
		}
	}
}

func checkError(t *testing.T, err error, wantErr []string) {
	t.Helper()
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("error %v, want one: %v", err, wantErr != nil)
	}
	for _, text := range wantErr {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not mention %q", err, text)
		}
	}
	if err != nil && outcome.Of(err) != outcome.Unchanged {
		t.Errorf("outcome %s, want Unchanged", outcome.Of(err))
	}
}
