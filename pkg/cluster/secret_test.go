package cluster

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

func secretServer(t *testing.T) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			StringData: map[string]string{"plain": "hunter2"}, Data: map[string][]byte{"key": []byte("x")},
		})
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestSecretsAreNeverLogged(t *testing.T) {
	t.Parallel()
	client := secretServer(t)
	ctx, log := logged(t, 10)
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("a").WithValues("b", "c"))
	secret, err := GetSecret(ctx, client, "ns", "s")
	if err != nil || string(secret.Data["key"]) != "x" {
		t.Fatalf("got %v, %v", secret, err)
	}
	if strings.Contains(log(), "hunter2") {
		t.Errorf("the secret is in the log:\n%s", log())
	}
	// The same request without the cap shows that client-go would have logged it.
	if _, err := client.CoreV1().Secrets("ns").Get(ctx, "s", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log(), "hunter2") {
		t.Error("client-go does not log bodies any more; this test and the cap have lost their reason")
	}
}

func TestTheCapKeepsTheRestOfTheLog(t *testing.T) {
	t.Parallel()
	ctx, log := logged(t, 10)
	logger := klog.FromContext(withoutBodies(ctx)).WithName("n").WithValues("k", "v")
	logger.Info("zero")
	logger.V(7).Info("seven")
	logger.V(8).Info("eight")
	logger.V(5).V(3).Info("five and three")
	for text, want := range map[string]bool{"zero": true, "seven": true, "eight": false, "five and three": false, `"k"="v"`: true} {
		if got := strings.Contains(log(), text); got != want {
			t.Errorf("%q in the log is %v, want %v:\n%s", text, got, want, log())
		}
	}
}
