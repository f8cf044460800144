package process

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
)

func TestLeaseName(t *testing.T) {
	t.Parallel()
	for lock, want := range map[string]string{
		"mock.csi.test":       "mock-csi-test",
		"ebs.csi.aws.com":     "ebs-csi-aws-com",
		"example.com/driver":  "example-com-driver",
		"under_score.example": "under-score-example",
		"ends.with.":          "ends-with-X",
		"already-":            "already-X",
		"Upper-Case9":         "Upper-Case9",
		"ü.example":           "--example",
	} {
		if got := LeaseName(lock); got != want {
			t.Errorf("LeaseName(%q) = %q, want %q", lock, got, want)
		}
	}
}

func TestPodName(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ podName, tokenPod, hostname, want string }{
		"the pod's name from the environment comes first": {"p-0.x", "t", "h", "p-0-x"},
		"then the pod of the token":                       {"", "t-1", "h", "t-1"},
		"then the hostname":                               {"", "", "node1.example.com", "node1-example-com"},
		"nothing is nothing":                              {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := PodName(tc.podName, tc.tokenPod, tc.hostname); got != tc.want {
				t.Errorf("PodName = %q, want %q", got, tc.want)
			}
		})
	}
	if got, want := EventComponent("mock.csi.test", "h"), "mock.csi.test/h"; got != want {
		t.Errorf("EventComponent = %q, want %q", got, want)
	}
}

func TestLeaseNamespace(t *testing.T) {
	t.Parallel()
	for want, in := range map[string][3]string{
		"flag": {"flag", "env", "account"}, "env": {"", "env", "account"}, "account": {"", "", "account"}, "default": {},
	} {
		if got := LeaseNamespace(in[0], in[1], in[2]); got != want {
			t.Errorf("LeaseNamespace(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestReadServiceAccount(t *testing.T) {
	t.Parallel()
	encode := base64.RawURLEncoding.EncodeToString
	bound := encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(`{"sub":"system:serviceaccount:ns:csi","kubernetes.io":{"namespace":"ns","pod":{"name":"csi-7d9f-abcde","uid":"1"},"serviceaccount":{"name":"csi"}}}`)) + ".sig"
	tests := map[string]struct {
		files         map[string]string
		wantNamespace string
		want          Pod
	}{
		"a bound token names its pod":      {map[string]string{"namespace": "ns\n", "token": bound + "\n"}, "ns", Pod{"csi-7d9f-abcde", "1"}},
		"an old token names none":          {map[string]string{"token": "e30." + encode([]byte(`{"sub":"x"}`)) + ".s"}, "", Pod{}},
		"a payload that is no base64":      {map[string]string{"token": "a.!!.b"}, "", Pod{}},
		"a payload that is no JSON":        {map[string]string{"token": "a." + encode([]byte("x")) + ".b"}, "", Pod{}},
		"something that is no token":       {map[string]string{"token": "secret"}, "", Pod{}},
		"a namespace without a token":      {map[string]string{"namespace": "ns"}, "ns", Pod{}},
		"no service account, as at a desk": {nil, "", Pod{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range tc.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			namespace, pod := ReadServiceAccount(dir)
			if namespace != tc.wantNamespace || pod != tc.want {
				t.Errorf("ReadServiceAccount = %q, %v, want %q, %v", namespace, pod, tc.wantNamespace, tc.want)
			}
		})
	}
}
