package volume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func annotated(annotations map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
}

func TestClassName(t *testing.T) {
	t.Parallel()
	const beta = "volume.beta.kubernetes.io/storage-class"
	for name, tc := range map[string]struct {
		annotations map[string]string
		field       *string
		want        string
	}{
		"no class":                           {},
		"the field":                          {field: new("fast"), want: "fast"},
		"the annotation":                     {annotations: map[string]string{beta: "old"}, want: "old"},
		"the annotation wins":                {annotations: map[string]string{beta: "old"}, field: new("fast"), want: "old"},
		"the annotation wins when empty":     {annotations: map[string]string{beta: ""}, field: new("fast")},
		"an empty field":                     {field: new("")},
		"other annotations mean nothing":     {annotations: map[string]string{"a": "b"}, field: new("fast"), want: "fast"},
		"the field with an empty annotation": {annotations: map[string]string{}, field: new("fast"), want: "fast"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := annotated(tc.annotations)
			claim.Spec.StorageClassName = tc.field
			if got := ClassName(claim); got != tc.want {
				t.Errorf("claim: got %q, want %q", got, tc.want)
			}
			pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}
			if tc.field != nil {
				pv.Spec.StorageClassName = *tc.field
			}
			if got := PVClassName(pv); got != tc.want {
				t.Errorf("volume: got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSelectedNode(t *testing.T) {
	t.Parallel()
	const ga, alpha = "volume.kubernetes.io/selected-node", "volume.alpha.kubernetes.io/selected-node"
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"none":                           {},
		"the key":                        {annotations: map[string]string{ga: "n1"}, want: "n1"},
		"the old key":                    {annotations: map[string]string{alpha: "n0"}, want: "n0"},
		"the key wins":                   {annotations: map[string]string{ga: "n1", alpha: "n0"}, want: "n1"},
		"an empty key hides the old one": {annotations: map[string]string{ga: "", alpha: "n0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := SelectedNode(annotated(tc.annotations)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestProvisioner(t *testing.T) {
	t.Parallel()
	const ga, beta = "volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"none":                           {},
		"the key":                        {annotations: map[string]string{ga: "a"}, want: "a"},
		"the old key":                    {annotations: map[string]string{beta: "b"}, want: "b"},
		"the key wins":                   {annotations: map[string]string{ga: "a", beta: "b"}, want: "a"},
		"an empty key hides the old one": {annotations: map[string]string{ga: "", beta: "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Provisioner(annotated(tc.annotations)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestRequestBytes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		request string // "" = none
		want    int64
	}{
		"no request":                  {},
		"binary":                      {request: "1Gi", want: 1 << 30},
		"decimal":                     {request: "1G", want: 1_000_000_000},
		"a fraction is rounded up":    {request: "1500m", want: 2},
		"the smallest fraction":       {request: "1n", want: 1},
		"zero":                        {request: "0"},
		"more than fits is the most":  {request: "1e30", want: 1<<63 - 1},
		"a little more than fits":     {request: "9300P", want: 1<<63 - 1},
		"as much as fits is no fewer": {request: "9223372036854775807", want: 1<<63 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := annotated(nil)
			if tc.request != "" {
				claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(tc.request)}
				claim.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("7")}
			}
			if got := RequestBytes(claim); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
