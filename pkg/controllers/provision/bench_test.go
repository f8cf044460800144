package provision

import (
	"testing"
	"time"

	snapfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"k8s.io/client-go/tools/record"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// BenchmarkCreate is a claim's way from the queue to its PersistentVolume, that of the clients in memory included.
func BenchmarkCreate(b *testing.B) {
	api := newAPIServer()
	client := api.client(func() bool { return false })
	c, err := New(Config{
		Client: client, Snapshots: &snapfake.Clientset{}, Cache: api, Events: api, Driver: &scripted{begin: time.Now(), volumes: map[string]bool{}},
		Recorder: &record.FakeRecorder{}, OwnRecorder: &record.FakeRecorder{},
		Settings:      Settings{Driver: driverName, VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1, Capabilities: allCapabilities()},
		CreateWorkers: 1, DeleteWorkers: 1, RetryStart: time.Second, RetryMax: time.Minute, Timeout: 10 * time.Second,
	})
	if err != nil {
		b.Fatal(err)
	}
	claim := fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Obj()
	api.cached["class"], api.cached["claim"] = fixture.Class("fast").UID("class-1").Provisioner(driverName).Obj(), claim
	b.ReportAllocs()
	for b.Loop() {
		c.syncClaim(b.Context(), claim.UID)
		cr, _ := c.creates.get(claim.UID)
		if cr.saved == "" {
			b.Fatal("no PersistentVolume")
		}
		c.creates.drop(claim.UID)
		api.mu.Lock()
		delete(api.objects, "persistentvolumes//"+cr.saved)
		delete(api.cached, "persistentvolumes//"+cr.saved)
		api.mu.Unlock()
		client.ClearActions()
	}
}
