package provision

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	snapclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
)

// An API server says "not found" for an object that is not there and for a kind that it does not serve.
func TestSnapshotsThatAreNotServedAreNotMissing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		contentType, body string
		want              error
	}{
		"the kind is not served":  {"text/plain; charset=utf-8", "404 page not found\n", source.ErrSnapshotsNotServed},
		"the object is not there": {"application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"volumesnapshots.snapshot.storage.k8s.io \"s\" not found","reason":"NotFound","details":{"name":"s","group":"snapshot.storage.k8s.io","kind":"volumesnapshots"},"code":404}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.contentType)
				w.WriteHeader(http.StatusNotFound)
				_, _ = w.Write([]byte(tc.body))
			}))
			defer server.Close()
			client, err := snapclient.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			snapshot, err := foundSnapshot(client.SnapshotV1().VolumeSnapshots("ns").Get(t.Context(), "s", metav1.GetOptions{}))
			if snapshot != nil || !errors.Is(err, tc.want) {
				t.Errorf("snapshot %v, error %v, want %v", snapshot, err, tc.want)
			}
			if (Facts{ContentErr: err}).unread() {
				t.Error("the answer counts as not read")
			}
		})
	}
}
